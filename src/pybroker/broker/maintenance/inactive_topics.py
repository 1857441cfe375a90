"""Deletion of topics that nobody uses: which are idle, since when, and the deletion itself.

A topic is in use while producers or consumers are connected, and, as its policies say, while it has subscriptions or
while one of them has a backlog. What must hold: whether a topic is idle is looked at in the turn of the loop in which it
is closed to everybody, so that who comes in time keeps it, and who comes later gets a fresh topic; a topic whose messages
are to be retained stays as long as these. How long a topic has been idle is counted from when the last one who used it left,
which the topic knows, or from its load: nobody knows what was before. Topics of the broker itself stay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pybroker.errors import AdminError, BrokerError
from pybroker.model.system_topics import is_system_topic
from pybroker.runtime import logs

if TYPE_CHECKING:
    from pybroker.broker.lifecycle.partitioned_topic_operations import PartitionedTopicOperations
    from pybroker.broker.lifecycle.topic_manager import Topics
    from pybroker.broker.topic.topic_base import TopicBase
    from pybroker.runtime.runtime import Runtime

CAUGHT_UP = "delete_when_subscriptions_caught_up"
_MS_PER_SECOND = 1000
_MS_PER_MINUTE = 60_000


class InactiveTopics:
    """Owned by maintenance, which calls `check` for every loaded topic again and again."""

    def __init__(self, runtime: Runtime, topics: Topics, partitioned_operations: PartitionedTopicOperations) -> None:
        self._runtime = runtime
        self._topics = topics
        self._partitioned_operations = partitioned_operations

    async def check(self, topic: TopicBase) -> None:
        """Delete `topic` when it has been idle for as long as its policies say. Raises StoreError."""
        policies = topic.policies.inactive_topics
        if not policies.deleteWhileInactive or is_system_topic(topic.name):
            return
        if is_active(topic):
            topic.in_use()
            return
        idle_ms = self._runtime.clock.monotonic_ms() - topic.last_used_ms
        retention_minutes = topic.policies.retention.retentionTimeInMinutes if topic.name.is_persistent else 0
        if (
            idle_ms < policies.maxInactiveDurationSeconds * _MS_PER_SECOND
            or retention_minutes < 0
            or idle_ms < retention_minutes * _MS_PER_MINUTE
        ):
            return
        logs.info("topic.inactive", topic=topic.name, idle_s=round(idle_ms / _MS_PER_SECOND))
        try:
            await self._topics.delete(topic.name, force=False)
        except (AdminError, BrokerError) as error:
            logs.info("topic.not_inactive", topic=topic.name, reason=str(error))
            return
        if (
            topic.name.partition_index >= 0
            and self._runtime.config.broker_delete_inactive_partitioned_topic_metadata_enabled
        ):
            await self._partitioned_operations.forget_if_empty(topic.name.partitioned_name)


def is_active(topic: TopicBase) -> bool:
    """Whether somebody uses `topic`, or will want what is in it."""
    if topic.producers or topic.broker_context.read_leases.on(str(topic.name), topic.runtime.clock.monotonic_ms()):
        return True
    if topic.policies.inactive_topics.inactiveTopicDeleteMode == CAUGHT_UP:
        return any(each.consumers or each.backlog_entries for each in topic.subscriptions.values())
    return bool(topic.subscriptions)
