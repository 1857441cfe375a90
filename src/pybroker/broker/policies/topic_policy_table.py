"""Policies of all topics of a namespace, computed from the events of its system topic. No IO."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from pybroker.broker.policies.policy_events import PolicyEvent, StoredPolicies
from pybroker.model.names import TopicName
from pybroker.model.policies import TopicPolicies, with_global_policies
from pybroker.model.position import EARLIEST, Position

MAX_DELETIONS = 1_000
"""Number of remembered deletions in a namespace; above it the oldest is forgotten."""
NO_POLICIES = StoredPolicies(TopicPolicies(), {})


class _Applied(NamedTuple):
    position: Position
    base: Position | None


class TopicPolicyTable:
    """Applies the policy events of one namespace in order. Repeated events change nothing.

    An event with a base contains the policies of that base with one change. If another event of the topic has been
    applied since the base, the event would undo that event's change. So it is not applied, and its broker repeats the
    change. All brokers decide equally, because they read the same events in the same order. Events of Java brokers,
    deletions, and policies of all clusters have no base.
    """

    def __init__(self) -> None:
        self._local: dict[TopicName, StoredPolicies] = {}
        self._global: dict[TopicName, StoredPolicies] = {}
        self._applied: dict[TopicName, _Applied] = {}  # the last local event of each topic, also a deletion
        self.read_up_to = EARLIEST
        """All events up to here have been read."""

    def __len__(self) -> int:
        return len(self._local) + len(self._global)

    def apply(self, event: PolicyEvent, position: Position = EARLIEST) -> bool:
        """Apply the event at `position`, and return True. If the event is outdated, return False instead and change
        nothing.

        An event is outdated if it has a base (`PolicyEvent.base`), and another event of the topic was applied after
        that base.
        """
        table = self._global if event.is_global else self._local
        if not event.is_global:
            if event.base is not None and self._is_outdated(event.topic, event.base):
                return False
            self._applied.pop(event.topic, None)
            self._applied[event.topic] = _Applied(position, event.base)
        if event.stored is None:
            table.pop(event.topic, None)
            self._forget_deletions()
        else:
            table[event.topic] = event.stored
        return True

    def _is_outdated(self, topic: TopicName, base: Position) -> bool:
        last = self._applied.get(topic)
        if last is None or last.position <= base:
            return False
        # After a compaction, the last event can itself be one that was not applied: another one followed its base.
        return last.base is None or last.base >= base

    def _forget_deletions(self) -> None:
        if len(self._applied) - len(self._local) > MAX_DELETIONS:
            del self._applied[next(topic for topic in self._applied if topic not in self._local)]

    def base_of(self, topic: TopicName) -> Position:
        """Return the position of the last applied event of `topic`; EARLIEST if there is none. Events that concern all
        clusters are ignored.
        """
        last = self._applied.get(topic)
        return EARLIEST if last is None else last.position

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
