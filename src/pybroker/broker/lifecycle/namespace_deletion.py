"""Deletion of a namespace: first its topics and partitioned topics, then the namespace itself.

After the namespace is marked as deleted, no topic is created or opened in it. Earlier creations finish before the
topics are listed, so no topic remains. A client that needs a topic of the namespace waits for the end of the deletion.
After a crash, the namespace exists, is marked, and can be deleted again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pybroker.errors import AdminError, TopicNotFound
from pybroker.model.names import DOMAINS, NamespaceName, TopicName
from pybroker.model.policies import NamespacePolicies
from pybroker.runtime import logs

if TYPE_CHECKING:
    from pybroker.broker.context.broker_context import BrokerContext
    from pybroker.broker.lifecycle.change_locks import ChangeLocks
    from pybroker.broker.lifecycle.partitioned_topic_operations import PartitionedTopicOperations
    from pybroker.broker.lifecycle.topic_creation import TopicCreation
    from pybroker.broker.lifecycle.topic_directory import TopicDirectory
    from pybroker.broker.lifecycle.topic_manager import Topics
    from pybroker.metadata.partitioned_topics import PartitionedTopics

_NOT_FOUND = 404


class NamespaceDeletion:
    """Deletion of namespaces, one operation per namespace at a time."""

    def __init__(
        self,
        broker_context: BrokerContext,
        changing: ChangeLocks,
        directory: TopicDirectory,
        creation: TopicCreation,
        topics: Topics,
        partitioned: PartitionedTopics,
        partitioned_operations: PartitionedTopicOperations,
    ) -> None:
        self._broker_context = broker_context
        self._resources = broker_context.resources
        self._locks = changing.namespaces
        self._directory = directory
        self._creation = creation
        self._topics = topics
        self._partitioned = partitioned
        self._partitioned_operations = partitioned_operations

    async def settled(self, namespace: NamespaceName) -> None:
        """Wait until `namespace` is not being deleted. Raises TooManyRequests at the limit of waiting requests, and
        after `topicLoadTimeoutSeconds`.
        """
        if self._locks.is_held(namespace):
            async with self._broker_context.waiting.wait(f"namespace {namespace} is being deleted"):
                await self._locks.passed(namespace)

    async def delete(self, namespace: NamespaceName, force: bool) -> None:
        """Delete `namespace`. If it contains user topics, `force` is required. Raises AdminError, StoreError,
        TooManyRequests.
        """
        async with self._locks.held(namespace):
            await self._delete(namespace, force)

    async def _delete(self, namespace: NamespaceName, force: bool) -> None:
        if self._resources.namespace(namespace) is None:
            raise AdminError(_NOT_FOUND, f"Namespace {namespace} does not exist.")
        if force and not self._broker_context.runtime.config.force_delete_namespace_allowed:
            raise AdminError(405, "Broker doesn't allow forced deletion of namespaces (forceDeleteNamespaceAllowed)")
        try:
            if not force:
                await self._require_empty(namespace)  # checked before the namespace is marked
            await self._mark(namespace, deleted=True)
            await self._creation.quiet(namespace)
            if not force:
                await self._require_empty(namespace)
        except AdminError:
            policies = self._resources.namespace(namespace)
            if policies is not None and policies.deleted:
                await self._mark(namespace, deleted=False)
            raise
        for topic in self._partitioned_topics(namespace):
            try:
                await self._partitioned_operations.delete(topic, force=True)
            except AdminError as error:
                if error.status != _NOT_FOUND:
                    raise
                logs.info("partitioned_topic.deleted_meanwhile", topic=topic)
        for text in await self._directory.list(namespace, None, include_system=True):
            try:
                await self._topics.delete(TopicName.parse(text), force=True)
            except TopicNotFound:
                logs.info("topic.deleted_meanwhile", topic=text)
        await self._broker_context.schemas.drop_namespace(namespace)  # also schemas of topics that do not exist
        await self._resources.delete_namespace(namespace)

    async def _require_empty(self, namespace: NamespaceName) -> None:
        topics = await self._directory.list(namespace, None)
        if topics or self._partitioned_topics(namespace):
            raise AdminError(409, "Cannot delete non empty namespace")

    def _partitioned_topics(self, namespace: NamespaceName) -> list[TopicName]:
        return [topic for domain in DOMAINS for topic in self._partitioned.names(namespace, domain)]

    async def _mark(self, namespace: NamespaceName, *, deleted: bool) -> None:
        def change(policies: NamespacePolicies) -> None:
            policies.deleted = deleted

        await self._resources.update_namespace(namespace, change)
