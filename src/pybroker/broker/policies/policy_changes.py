"""Application of changed policies (of a namespace, topic, resource group, or the defaults) to loaded topics."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from pybroker.metadata.resource_groups import ResourceGroupListener
from pybroker.metadata.resources import PolicyListener
from pybroker.model.policies import TopicPolicies

if TYPE_CHECKING:
    from pybroker.broker.context.broker_context import BrokerContext
    from pybroker.broker.lifecycle.loaded_topics import LoadedTopics
    from pybroker.broker.policies.change_events import ChangeEvents
    from pybroker.broker.policies.permission_rechecks import PermissionRechecks
    from pybroker.broker.policies.system_topic_policies import SystemTopicPolicies
    from pybroker.metadata.partitioned_topics import PartitionedTopics
    from pybroker.model.names import NamespaceName, TopicName

# Topics between two yields to the event loop: about a millisecond of work.
TOPICS_PER_TURN = 64


class PolicyChanges(PolicyListener, ResourceGroupListener):
    """Listener for policy changes, which are already stored."""

    def __init__(
        self,
        broker_context: BrokerContext,
        loaded: LoadedTopics,
        permissions: PermissionRechecks,
        change_events: ChangeEvents,
        partitioned: PartitionedTopics,
    ) -> None:
        self._broker_context = broker_context
        self._loaded = loaded
        self._permissions = permissions
        self._change_events = change_events
        self._partitioned = partitioned
        self.system_topic_policies: SystemTopicPolicies | None = None
        """Set by the broker service if topic policies are in system topics."""
        broker_context.resources.listen(self)
        broker_context.resource_groups.listen(self)

    async def namespace_changed(self, namespace: NamespaceName) -> None:
        if self.system_topic_policies is not None:
            self.system_topic_policies.namespace_changed(namespace)
        await self._apply(namespace)

    async def tenant_changed(self, tenant: str) -> None:
        await self._permissions.run(tenant)

    def defaults_changed(self) -> None:
        self._broker_context.defaults_changed()
        self._broker_context.tasks.start(self._apply(None), "apply default policies")

    async def _apply(self, namespace: NamespaceName | None) -> None:
        for index, topic in enumerate(self._loaded.all()):
            if index % TOPICS_PER_TURN == TOPICS_PER_TURN - 1:
                await asyncio.sleep(0)
            if namespace in {None, topic.name.namespace} and not topic.is_fenced:
                topic.policies_changed()
        await self._permissions.run(namespace)

    def resource_group_changed(self, name: str) -> None:
        broker_context = self._broker_context
        broker_context.resource_group_rates.changed(name)
        for tenant in broker_context.resources.tenants():
            for namespace in broker_context.resources.namespaces(tenant):
                policies = broker_context.resources.namespace(namespace)
                if policies is not None and policies.resource_group_name == name:
                    broker_context.tasks.start(self._apply(namespace), f"apply policies of {namespace}")

    async def topics_missed(self) -> None:
        topics = dict.fromkeys(topic.name.partitioned_name for topic in self._loaded.all())
        for topic in topics:
            self.topic_read_again(topic, await self._broker_context.resources.topic_policies_in_force(topic))

    def topic_changed(self, topic: TopicName, policies: TopicPolicies | None) -> None:
        """Apply the changed policies of a topic, and publish a change event. `policies` is None if they were deleted.
        The policies of a partitioned topic apply to all its partitions.
        """
        self._change_events.changed(topic, policies)
        self.topic_read_again(topic, policies)

    def topic_read_again(self, topic: TopicName, policies: TopicPolicies | None) -> None:
        """Apply the policies of a topic after a possible change by another broker. Like `topic_changed`, but publishes
        no change event.
        """
        partitioned = self._partitioned.get(topic)
        names = [topic] if partitioned is None else map(topic.partition, range(partitioned.partitions))
        for loaded in map(self._loaded.get, names):
            if loaded is not None and not loaded.is_fenced:
                loaded.own_policies_changed(policies or TopicPolicies())
