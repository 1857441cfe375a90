"""On-demand creation of a topic when a client first uses its name: a non-partitioned topic or a missing partition."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pybroker.broker.lifecycle.topic_creation import PARTITIONED
from pybroker.errors import AdminError, TopicChanging, TopicNotFound
from pybroker.model.system_topics import is_system_topic

if TYPE_CHECKING:
    from pybroker.broker.lifecycle.change_locks import ChangeLocks
    from pybroker.broker.lifecycle.partitioned_topic_operations import PartitionedTopicOperations
    from pybroker.broker.lifecycle.topic_creation import TopicCreation
    from pybroker.broker.lifecycle.topic_directory import TopicDirectory
    from pybroker.broker.lifecycle.topic_manager import Topics
    from pybroker.metadata.partitioned_topics import PartitionedTopics
    from pybroker.model.names import TopicName
    from pybroker.runtime.runtime import Runtime


class OnDemandCreation:
    """Creation of topics for requests of clients and of the REST API."""

    def __init__(
        self,
        runtime: Runtime,
        changing: ChangeLocks,
        directory: TopicDirectory,
        creation: TopicCreation,
        topics: Topics,
        partitioned: PartitionedTopics,
        partitioned_operations: PartitionedTopicOperations,
    ) -> None:
        self._runtime = runtime
        self._changing = changing
        self._directory = directory
        self._creation = creation
        self._topics = topics
        self._partitioned = partitioned
        self._partitioned_operations = partitioned_operations

    async def create(self, name: TopicName, properties: Mapping[str, str]) -> None:
        """Create a non-partitioned topic or a missing partition.

        Raises AdminError 400 for a reserved name, 409 if the topic exists, 412 for a partition beyond the partition
        count; NotAllowedError; TopicNotFound if the namespace is missing; TooManyRequests.
        """
        self._creation.require_own_name(name)

        async def attempt() -> None:
            async with self._changing.partitioned.held(name.partitioned_name):
                await self._create(name, properties)

        await self._creation.once_settled(name, attempt)
        await self._topics.any(name, may_create=False)

    async def _create(self, name: TopicName, properties: Mapping[str, str]) -> None:
        parent = name.partitioned_name
        self._creation.require_open_namespace(name)
        if self._partitioned.get(name) is not None or await self._directory.exists(name):
            raise AdminError(409, "This topic already exists")
        if name.partition_index >= 0:
            metadata = self._partitioned.get(parent)
            problem = f'Can\'t create topic {name.local_name} with "-partition-" followed by '
            if metadata is None:
                raise AdminError(
                    412,
                    f"{problem}numeric value if there isn't a partitioned topic {parent.local_name} created.",
                )
            if name.partition_index >= metadata.partitions:
                raise AdminError(
                    412,
                    f"{problem}a number that is not smaller than the {metadata.partitions} partitions of "
                    f"partitioned topic {parent.local_name}",
                )
        else:
            self._creation.require_strict_name(name)
        async with self._creation.room(name, 1):
            if not await self._topics.make(name, properties):
                raise AdminError(409, "This topic already exists")

    # --- partition counts ----------------------------------------------------------------------------------------

    async def partition_count(self, name: TopicName, may_create: bool) -> int:
        """Return the partition count; 0 for a topic without partitions. Wait while the topic is being created or
        deleted.

        With `may_create`, create a missing topic if automatic creation makes it partitioned; otherwise its first
        producer or consumer creates it, and the count is 0. Raises TopicNotFound, NotAllowedError, TooManyRequests.
        """
        metadata = self._partitioned.get(name)
        if metadata is not None and not metadata.deleted:
            return metadata.partitions

        async def attempt() -> int:
            return await self._partition_count(name, may_create)

        return await self._creation.once_settled(name, attempt)

    async def _partition_count(self, name: TopicName, may_create: bool) -> int:
        self._creation.require_open_namespace(name)
        metadata = self._partitioned.get(name)
        if metadata is not None:
            return metadata.partitions
        index = name.partition_index
        parent = self._partitioned.get(name.partitioned_name) if index >= 0 else None
        if parent is not None:
            if index >= parent.partitions:
                raise TopicNotFound(f"Topic {name} not found")
            return 0
        if await self._directory.exists(name):
            return 0
        automatic = self._creation.automatic(name.namespace)
        if not may_create or not (automatic.allowAutoTopicCreation or is_system_topic(name)):
            raise TopicNotFound(f"Topic {name} not found")
        if automatic.topicType != PARTITIONED or index >= 0 or is_system_topic(name):
            return 0
        self._creation.require_strict_name(name)
        if self._changing.partitioned.is_held(name):
            raise TopicChanging(f"topic {name} is being created by another request, try again")
        partitions = automatic.defaultNumPartitions or self._runtime.config.default_num_partitions
        try:
            await self._partitioned_operations.create_automatically(name, partitions)
        except AdminError:  # Another task has created it.
            return await self._partition_count(name, may_create)
        return partitions
