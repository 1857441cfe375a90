"""Mutants of topic policies in the system topics of a cluster."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from pybroker.broker.lifecycle.topic_loading import TopicLoading
from pybroker.broker.policies.policy_changes import PolicyChanges
from pybroker.broker.policies.system_topic_policies import SystemTopicPolicies, _Namespace
from pybroker.broker.policies.topic_policy_table import TopicPolicyTable
from pybroker.managed_ledger.managed_ledger import ManagedLedger
from pybroker.model.names import TopicName
from pybroker.model.policies import TopicPolicies
from pybroker.model.position import EARLIEST, Position


def changes_of_policies_are_answered_before_they_are_stored(patch: pytest.MonkeyPatch) -> None:
    published = _Namespace.publish

    async def later(self: _Namespace, key: str, value: bytes | None, facts: dict[str, Any]) -> None:
        with suppress(Exception):
            await published(self, key, value, **facts)

    async def publish(self: _Namespace, key: str, value: bytes | None, **facts: Any) -> Position:
        self._tasks.start(later(self, key, value, facts), "publish")
        for applied in self._applied.values():
            applied.add(EARLIEST)
        return EARLIEST

    patch.setattr(_Namespace, "publish", publish)


def loaded_topics_keep_their_former_policies(patch: pytest.MonkeyPatch) -> None:
    def nothing(self: SystemTopicPolicies, namespace: _Namespace, topic: TopicName) -> None:
        """The topic has the policies with which it was loaded."""

    patch.setattr(SystemTopicPolicies, "changed", nothing)


def partitions_keep_their_former_policies(patch: pytest.MonkeyPatch) -> None:
    def apply(self: PolicyChanges, topic: TopicName, policies: TopicPolicies | None) -> None:
        loaded = self._loaded.get(topic)
        if loaded is not None and not loaded.is_fenced:
            loaded.own_policies_changed(policies or TopicPolicies())

    patch.setattr(PolicyChanges, "topic_read_again", apply)


def changes_of_policies_overwrite_those_of_other_brokers(patch: pytest.MonkeyPatch) -> None:
    """A change begins with the policies that this broker knows."""

    async def nothing(self: _Namespace) -> None:
        """The policies of other brokers may be unknown yet."""

    patch.setattr(_Namespace, "catch_up", nothing)
    patch.setattr(TopicPolicyTable, "_is_outdated", lambda *_: False)


def events_are_deleted_before_they_are_compacted(patch: pytest.MonkeyPatch) -> None:
    """The next owner of the system topic deletes the ledgers of the former one."""

    async def nothing(self: TopicLoading, name: TopicName, ledger: ManagedLedger) -> None:
        """Readers alone keep no ledger."""

    patch.setattr(TopicLoading, "_keep_for_compaction", nothing)


POLICY_BUGS = (
    changes_of_policies_are_answered_before_they_are_stored,
    loaded_topics_keep_their_former_policies,
    partitions_keep_their_former_policies,
    changes_of_policies_overwrite_those_of_other_brokers,
    events_are_deleted_before_they_are_compacted,
)
