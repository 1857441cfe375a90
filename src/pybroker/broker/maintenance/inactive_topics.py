"""Deletion of inactive topics.

A topic is active while producers or consumers are connected, and, depending on its policies, while it has subscriptions
or while a subscription has a backlog. Inactivity begins when the last client disconnects, or when the topic is loaded.
System topics and topics with retained messages are not deleted.
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
    """Check for inactive topics, which periodic maintenance runs for each loaded topic."""

    def __init__(self, runtime: Runtime, topics: Topics, partitioned_operations: PartitionedTopicOperations) -> None:
        self._runtime = runtime
        self._topics = topics
        self._partitioned_operations = partitioned_operations

    async def check(self, topic: TopicBase) -> None:
        """Delete `topic` if it has been inactive for the time in its policies. Raises StoreError."""
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
    if topic.producers or topic.broker_context.read_leases.on(str(topic.name), topic.runtime.clock.monotonic_ms()):
        return True
    if topic.policies.inactive_topics.inactiveTopicDeleteMode == CAUGHT_UP:
        return any(each.consumers or each.backlog_entries for each in topic.subscriptions.values())
    return bool(topic.subscriptions)
