"""Policies of all topics of a namespace, computed from the events of its system topic. No IO."""

from __future__ import annotations

from collections.abc import Iterable

from pybroker.broker.policies.policy_events import PolicyEvent, StoredPolicies
from pybroker.model.names import TopicName
from pybroker.model.policies import TopicPolicies, with_global_policies
from pybroker.model.position import EARLIEST

NO_POLICIES = StoredPolicies(TopicPolicies(), {})


class TopicPolicyTable:
    """Applies the policy events of one namespace in order. Repeated events change nothing."""

    def __init__(self) -> None:
        self._local: dict[TopicName, StoredPolicies] = {}
        self._global: dict[TopicName, StoredPolicies] = {}
        self.read_up_to = EARLIEST
        """All events up to here have been applied."""

    def __len__(self) -> int:
        return len(self._local) + len(self._global)

    def apply(self, event: PolicyEvent) -> None:
        table = self._global if event.is_global else self._local
        if event.stored is None:
            table.pop(event.topic, None)
        else:
            table[event.topic] = event.stored

    def local(self, topic: TopicName) -> StoredPolicies | None:
        return self._local.get(topic)

    def of_all_clusters(self, topic: TopicName) -> StoredPolicies | None:
        return self._global.get(topic)

    def in_force(self, topic: TopicName) -> TopicPolicies:
        """Return the policies of `topic`. Policies of this cluster override policies that all clusters share."""
        local = (self._local.get(topic) or NO_POLICIES).policies
        shared = self._global.get(topic)
        return local if shared is None else with_global_policies(local, shared.policies)

    def topics(self) -> Iterable[TopicName]:
        return dict.fromkeys((*self._local, *self._global))
