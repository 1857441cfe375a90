"""Creation, extension and deletion of partitioned topics: the partition metadata, and the partitions, which are topics.

Operations on one partitioned topic run one at a time; meanwhile, requests for the topic or for a missing partition
wait. A confirmed creation is durable; partitions that are missing after a crash are created later. New partitions get
the subscriptions of the first partition before the partition count is raised. A deletion first marks the metadata, so
that no partition is loaded or created; `finish_deletions` completes it after a restart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pybroker.broker.lifecycle.topic_manager import Topics, require_no_clients
from pybroker.errors import AdminError, BrokerError, StoreError, TopicNotFound
from pybroker.metadata.partitioned_topics import PartitionedTopicMetadata
from pybroker.model.names import TopicName
from pybroker.model.position import EARLIEST
from pybroker.runtime import logs
from pybroker.runtime.tasks import all_results

if TYPE_CHECKING:
    from pybroker.broker.context.broker_context import BrokerContext
    from pybroker.broker.lifecycle.change_locks import ChangeLocks
    from pybroker.broker.lifecycle.topic_creation import TopicCreation
    from pybroker.broker.lifecycle.topic_directory import TopicDirectory
    from pybroker.metadata.partitioned_topics import PartitionedTopics

MADE_AT_ONCE = 64
"""Number of partitions that are created concurrently, so that the metadata store writes them in one batch."""


class PartitionedTopicOperations:
    """Operations on partitioned topics."""

    def __init__(
        self,
        broker_context: BrokerContext,
        changing: ChangeLocks,
        directory: TopicDirectory,
        creation: TopicCreation,
        topics: Topics,
        partitioned: PartitionedTopics,
    ) -> None:
        self._broker_context = broker_context
        self._locks = changing.partitioned
        self._directory = directory
        self._creation = creation
        self._topics = topics
        self._partitioned = partitioned

    # --- creation ----------------------------------------------------------------------------------------------------

    async def create(self, name: TopicName, partitions: int, properties: Mapping[str, str]) -> None:
        """Create a partitioned topic with its partitions. Wait while another call creates the same topic.

        Raises AdminError 400 for a reserved name and 409 if the topic exists, NotAllowedError above the namespace's
        topic limit, TopicNotFound if the namespace is missing, TooManyRequests.
        """
        self._creation.require_own_name(name)

        async def attempt() -> None:
            async with self._locks.held(name):
                await self._topics.settled(name)
                async with self._creation.room(name, partitions):
                    await self._create_document(name, partitions, properties)
                    await self._make(name, range(partitions))

        await self._creation.once_settled(name, attempt)
        logs.info("partitioned_topic.created", topic=name, partitions=partitions)

    async def create_automatically(self, name: TopicName, partitions: int) -> None:
        """Create a partitioned topic without its partitions, which are created when clients use them. Raises the errors
        of `create`.
        """
        async with self._locks.held(name):
            await self._topics.settled(name)
            async with self._creation.room(name, partitions):
                await self._create_document(name, partitions, {})
        logs.info("partitioned_topic.created", topic=name, partitions=partitions, automatically=True)

    async def _create_document(self, name: TopicName, partitions: int, properties: Mapping[str, str]) -> None:
        # An earlier creation has finished. A later one waits for this lock.
        if await self._directory.exists(name):
            raise AdminError(409, "This topic already exists")
        await self._partitioned.create(name, partitions, properties)

    async def create_missing(self, name: TopicName) -> None:
        """Create missing partitions. Raises AdminError 404 if the partitioned topic does not exist, NotAllowedError at
        the namespace's topic limit, TopicNotFound if the namespace is missing, TooManyRequests.
        """

        async def attempt() -> None:
            async with self._locks.held(name):
                count = self._existing(name).partitions if name.is_persistent else 0
                missing = [i for i in range(count) if not await self._directory.exists(name.partition(i))]
                async with self._creation.room(name, len(missing)):
                    await self._make(name, missing)

        await self._creation.once_settled(name, attempt)

    async def _make(self, name: TopicName, indexes: Sequence[int]) -> None:
        if not name.is_persistent:
            return
        for first in range(0, len(indexes), MADE_AT_ONCE):
            await all_results(
                self._topics.make(name.partition(index), {}) for index in indexes[first : first + MADE_AT_ONCE]
            )

    # --- extension ---------------------------------------------------------------------------------------------------

    async def update(self, name: TopicName, partitions: int) -> None:
        """Raise the partition count to `partitions`. Two concurrent calls with the same count both succeed.

        Raises AdminError 409 if the partitioned topic does not exist and 422 if it already has more partitions,
        NotAllowedError above the namespace's topic limit, TopicNotFound if the namespace is missing, TooManyRequests.
        """

        async def attempt() -> None:
            async with self._locks.held(name):
                with self._directory.growing(name):
                    await self._grow(name, partitions)

        await self._creation.once_settled(name, attempt)
        logs.info("partitioned_topic.updated", topic=name, partitions=partitions)

    async def _grow(self, name: TopicName, partitions: int) -> None:
        metadata = self._partitioned.get(name)
        if metadata is None:
            raise AdminError(409, f"Topic {name} is not the partitioned topic.")
        present = metadata.partitions
        if partitions < present:
            raise AdminError(
                422, f"Desired partitions {partitions} can't be less than the current partitions {present}."
            )
        async with self._creation.room(name, partitions - present):
            added = range(present, partitions)
            await self._make(name, added)
            subscriptions = await self._subscriptions_of(name) if name.is_persistent else {}
            remote = [
                index for index in added if not await self._create_subscriptions(name.partition(index), subscriptions)
            ]

            def change(document: PartitionedTopicMetadata) -> None:
                document.partitions = partitions

            await self._partitioned.update(name, change)
            # The owners load these partitions only now, but the subscriptions still begin at the first message.
            for index in remote:
                await self._create_subscriptions_elsewhere(name.partition(index), subscriptions)

    async def _subscriptions_of(self, name: TopicName) -> Mapping[str, Mapping[str, str]]:
        first, elsewhere = name.partition(0), self._broker_context.elsewhere
        try:
            found = None if elsewhere is None else await elsewhere.subscriptions(first)
            if found is not None:
                return found
            topic = await self._topics.load(first, may_create=False)
        except TopicNotFound:
            return {}
        return {each.name: dict(each.cursor.properties) for each in topic.subscriptions.values() if each.is_durable}

    async def _create_subscriptions(self, partition: TopicName, wanted: Mapping[str, Mapping[str, str]]) -> bool:
        """Create the subscriptions at the partition's first message. Return False if another broker must do it."""
        elsewhere = self._broker_context.elsewhere
        if wanted and elsewhere is not None and await elsewhere.serves(partition):
            return False
        for name, properties in wanted.items():
            topic = await self._topics.load(partition, may_create=False)
            await topic.create_subscription(name, EARLIEST, dict(properties))
        return True

    async def _create_subscriptions_elsewhere(
        self, partition: TopicName, wanted: Mapping[str, Mapping[str, str]]
    ) -> None:
        elsewhere = self._broker_context.elsewhere
        assert elsewhere is not None, "another broker serves the partition"
        for name, properties in wanted.items():
            await elsewhere.create_subscription(partition, name, properties)

    # --- deletion ----------------------------------------------------------------------------------------------------

    async def delete(self, name: TopicName, force: bool) -> None:
        """Delete a partitioned topic with all stored data. If clients are connected, `force` is required.

        Raises AdminError 404 if the partitioned topic does not exist and 412 if clients are connected, StoreError,
        TooManyRequests. After an error, the remaining partitions are usable.
        """
        async with self._locks.held(name):
            self._existing(name)
            await self._mark(name, deleted=True)
            try:
                await self._delete_partitions(name, force)
            except (AdminError, BrokerError, StoreError):
                await self._mark(name, deleted=False)
                raise
            await self._forget(name)
        logs.info("partitioned_topic.deleted", topic=name)

    async def _delete_partitions(self, name: TopicName, force: bool) -> None:
        count = self._existing(name).partitions
        indexes = [*range(count), *(await self._left_over(name, count) if name.is_persistent else ())]
        names = [name.partition(index) for index in indexes]
        for partition in () if force else names:
            topic = self._topics.loaded.get(partition)
            if topic is not None:
                require_no_clients(topic)  # Checked before any partition is deleted.
        for partition in names:
            # Requests for the partition that began before the mark have finished.
            await self._topics.settled(partition)
            try:
                await self._topics.delete(partition, force=force)
            except TopicNotFound:
                continue

    async def _left_over(self, name: TopicName, count: int) -> list[int]:
        found: list[int] = []
        index = count
        while index < (found[-1] + 1 if found else count) + MADE_AT_ONCE:
            if await self._directory.exists(name.partition(index)):
                found.append(index)
            index += 1
        return found

    async def _mark(self, name: TopicName, *, deleted: bool) -> None:
        def change(document: PartitionedTopicMetadata) -> None:
            document.deleted = deleted

        await self._partitioned.update(name, change)

    async def _forget(self, name: TopicName) -> None:
        # First, so that a later topic of that name does not inherit these policies.
        await self._broker_context.resources.forget_topic(name)
        await self._broker_context.schemas.drop(name)
        await self._partitioned.delete(name)

    async def forget_if_empty(self, name: TopicName) -> None:
        """Delete the metadata of a partitioned topic whose partitions are all missing. Raises StoreError."""
        async with self._locks.held(name):
            metadata = self._partitioned.get(name)
            if metadata is None:
                return
            for index in range(metadata.partitions):
                if await self._directory.exists(name.partition(index)):
                    return
            await self._forget(name)
        logs.info("partitioned_topic.deleted", topic=name, reason="no partition exists")

    async def finish_deletions(self) -> None:
        """Complete interrupted deletions of partitioned topics. Failures are logged."""
        for name in self._partitioned.being_deleted():
            try:
                await self.delete(name, force=True)
            except (AdminError, BrokerError, StoreError) as error:
                logs.error("partitioned_topic.delete_failed", topic=name, error=str(error))

    def _existing(self, name: TopicName) -> PartitionedTopicMetadata:
        metadata = self._partitioned.get(name)
        if metadata is None:
            raise AdminError(404, f"Topic {name} not found.")
        return metadata
