"""The partitioned topics with their partition counts and properties, in a write-through cache of the metadata store.

Invariants: a change is durable when its method returns, and only then visible to reads; the cache never contains values
that the store does not. A partitioned topic exists as long as its stored metadata, whether its partitions exist or not.

Callers must not change the results of reads. Refusals are AdminErrors with the codes of Pulsar's REST API.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import msgspec

from pybroker.errors import AdminError, BadVersionError
from pybroker.metadata import metadata_paths
from pybroker.metadata.metadata_store import NOT_EXISTING, MetadataStore, values_at
from pybroker.metadata.stored_document import decoded_or_logged, rewrite
from pybroker.model import policies as documents
from pybroker.model.names import NamespaceName, TopicName


class PartitionedTopicMetadata(msgspec.Struct):
    """The stored metadata of a partitioned topic. `properties` is None if there are none."""

    partitions: int
    deleted: bool = False
    properties: dict[str, str] | None = None


class PartitionedTopics:
    """The cache of the partitioned topics, owned by one broker. Call `load` first."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._by_namespace: dict[tuple[NamespaceName, str], dict[TopicName, PartitionedTopicMetadata]] = {}
        # Writes check, store and then change the cache: one at a time, or two could pass the same check.
        self._writing = asyncio.Lock()

    async def load(self) -> None:
        async with self._writing:
            async for (tenant, local_name, domain, segment), found in values_at(
                self._store, metadata_paths.PARTITIONED_TOPICS, 4
            ):
                topic = metadata_paths.partitioned_topic_of_segment(NamespaceName(tenant, local_name), domain, segment)
                self._apply(topic, found.value)

    async def read_again(self) -> None:
        """Read all partitioned topics again, because other brokers may have changed them. Raises StoreError."""
        read = PartitionedTopics(self._store)
        async with self._writing:
            await read.load()
            self._by_namespace = read._by_namespace

    async def refresh(self, path: str) -> None:
        """Read the topic whose metadata is at `path` again, because another broker may have changed it. Raises
        StoreError.
        """
        match path.removeprefix(metadata_paths.PARTITIONED_TOPICS).split("/")[1:]:
            case [tenant, local_name, domain, segment]:
                topic = metadata_paths.partitioned_topic_of_segment(NamespaceName(tenant, local_name), domain, segment)
                async with self._writing:
                    await self._read_again(topic)

    async def _read_again(self, topic: TopicName) -> None:
        found = await self._store.get(metadata_paths.partitioned_topic(topic))
        if found is None:
            self._forget(topic)
        else:
            self._apply(topic, found.value)

    def _apply(self, topic: TopicName, value: bytes) -> None:
        path = metadata_paths.partitioned_topic(topic)
        metadata = decoded_or_logged(self._store, path, value, PartitionedTopicMetadata)
        if metadata is not None:
            self._remember(topic, metadata)

    def get(self, topic: TopicName) -> PartitionedTopicMetadata | None:
        topics = self._by_namespace.get((topic.namespace, topic.domain))
        return topics.get(topic) if topics is not None else None

    def names(self, namespace: NamespaceName, domain: str) -> list[TopicName]:
        return sorted(self._by_namespace.get((namespace, domain), ()), key=str)

    def being_deleted(self) -> list[TopicName]:
        return [name for topics in self._by_namespace.values() for name, each in topics.items() if each.deleted]

    async def create(self, topic: TopicName, partitions: int, properties: Mapping[str, str] | None = None) -> None:
        """Store the metadata of a new partitioned topic.

        Raises AdminError 409 if `topic` is partitioned already. The cache then contains the metadata that the store
        has, for example from another broker, or from an earlier call that was cancelled.
        """
        metadata = PartitionedTopicMetadata(partitions, properties=dict(properties) if properties else None)
        async with self._writing:
            try:
                await self._store.put(metadata_paths.partitioned_topic(topic), documents.encode(metadata), NOT_EXISTING)
            except BadVersionError as error:
                await self._read_again(topic)
                raise AdminError(409, "This topic already exists") from error
            self._remember(topic, metadata)

    async def update(self, topic: TopicName, change: Callable[[PartitionedTopicMetadata], None]) -> None:
        """Apply `change` to the metadata of a partitioned topic. If another broker changes the metadata at the same
        time, apply `change` again to the new metadata.

        Raises AdminError: 404 if the topic is not partitioned, 409 after repeated concurrent changes; and the errors of
        `change`.
        """
        path, subject = metadata_paths.partitioned_topic(topic), f"The partitioned topic {topic}"

        def changed(metadata: PartitionedTopicMetadata) -> PartitionedTopicMetadata:
            change(metadata)
            return metadata

        async with self._writing:
            metadata = await rewrite(self._store, path, PartitionedTopicMetadata, changed, subject)
            if metadata is None:
                self._forget(topic)
                raise AdminError(404, f"Partitioned Topic not found: {topic} has zero partitions")
            self._remember(topic, metadata)

    async def delete(self, topic: TopicName) -> None:
        """Delete the metadata of a partitioned topic. Does nothing if the topic is not partitioned."""
        async with self._writing:
            await self._store.delete(metadata_paths.partitioned_topic(topic))
            self._forget(topic)

    def _remember(self, topic: TopicName, metadata: PartitionedTopicMetadata) -> None:
        self._by_namespace.setdefault((topic.namespace, topic.domain), {})[topic] = metadata

    def _forget(self, topic: TopicName) -> None:
        key = (topic.namespace, topic.domain)
        topics = self._by_namespace.get(key, {})
        topics.pop(topic, None)
        if not topics:
            self._by_namespace.pop(key, None)
