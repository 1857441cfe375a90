"""Effective policies of any topic, for the REST API. For unloaded topics, they are computed from the stored policies."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pybroker.broker.context.broker_context import BrokerContext
    from pybroker.broker.lifecycle.loaded_topics import LoadedTopics
    from pybroker.metadata.partitioned_topics import PartitionedTopics
    from pybroker.model.effective_policies import EffectivePolicies
    from pybroker.model.names import TopicName


class PoliciesInForce:
    """Queries of effective policies."""

    def __init__(self, broker_context: BrokerContext, loaded: LoadedTopics, partitioned: PartitionedTopics) -> None:
        self._broker_context = broker_context
        self._loaded = loaded
        self._partitioned = partitioned

    async def of_topic(self, topic: TopicName) -> EffectivePolicies:
        """Return the effective policies of a topic, or of all partitions of a partitioned topic. Raises StoreError."""
        found = self._of_loaded(topic)
        if found is None:
            own = await self._broker_context.resources.topic_policies_in_force(topic)
            found = self._broker_context.effective_policies(topic.namespace, own)
        return found

    def _of_loaded(self, topic: TopicName) -> EffectivePolicies | None:
        partitioned = self._partitioned.get(topic)
        names = [topic] if partitioned is None else map(topic.partition, range(partitioned.partitions))
        loaded = (found for found in map(self._loaded.get, names) if found is not None and not found.is_fenced)
        first = next(loaded, None)
        return None if first is None else first.policies
