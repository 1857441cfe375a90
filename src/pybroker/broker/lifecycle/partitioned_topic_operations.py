"""Making, growing and deleting partitioned topics: their document and their partitions, which are topics.

What must hold:
- One change of a partitioned topic at a time, in order of arrival; meanwhile no topic without partitions comes into being under its
  name, and clients that want it, or a partition that it has not got yet, wait.
- A partitioned topic that was answered as made is durable; partitions that a crash kept from being made are made when
  somebody names them, or by `create_missing`.
- New partitions have the subscriptions of the first one before any client can know of them, so that none of them misses
  a message. A crash before that leaves partitions that nobody sees, which the next attempt takes over.
- A deletion marks the document first: from then on no partition is loaded or made for a client. `finish_deletions` ends
  after a restart what a crash has cut off.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pybroker.broker.lifecycle.topic_manager import Topics, require_no_clients
from pybroker.errors import AdminError, BrokerError, StoreError, TopicNotFound
from pybroker.metadata.partitioned_topics import PartitionedTopicMetadata
from pybroker.model.names import TopicName
from pybroker.model.position import EARLIEST
from pybroker.runtime import logs

if TYPE_CHECKING:
    from pybroker.broker.context.broker_context import BrokerContext
    from pybroker.broker.lifecycle.change_locks import ChangeLocks
    from pybroker.broker.lifecycle.topic_creation import TopicCreation
    from pybroker.broker.lifecycle.topic_directory import TopicDirectory
    from pybroker.metadata.partitioned_topics import PartitionedTopics

MADE_AT_ONCE = 64
"""Partitions that are made together: the metadata store writes them in one batch."""


class PartitionedTopicOperations:
    """Owned by the broker service."""

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
        self._turns = changing.partitioned
        self._directory = directory
        self._creation = creation
        self._topics = topics
        self._partitioned = partitioned

    # --- make --------------------------------------------------------------------------------------------------------

    async def create(self, name: TopicName, partitions: int, properties: Mapping[str, str]) -> None:
        """A partitioned topic with its partitions. It exists with all of them when this returns, and when this is refused because
        it exists: who makes it at the same time is waited for.

        Raises AdminError 400 and 409, NotAllowedError above the namespace's limit, TopicNotFound without the namespace,
        TooManyRequests.
        """
        self._creation.require_own_name(name)

        async def attempt() -> None:
            async with self._turns.turn(name):
                await self._topics.settled(name)
                async with self._creation.room(name, partitions):
                    await self._create_document(name, partitions, properties)
                    await self._make(name, range(partitions))

        await self._creation.once_settled(name, attempt)
        logs.info("partitioned_topic.created", topic=name, partitions=partitions)

    async def create_automatically(self, name: TopicName, partitions: int) -> None:
        """A partitioned topic whose partitions are made by the clients that want them. Raises as `create` does."""
        async with self._turns.turn(name):
            await self._topics.settled(name)
            async with self._creation.room(name, partitions):
                await self._create_document(name, partitions, {})
        logs.info("partitioned_topic.created", topic=name, partitions=partitions, automatically=True)

    async def _create_document(self, name: TopicName, partitions: int, properties: Mapping[str, str]) -> None:
        # Who began to make a topic of that name earlier has gone first; who comes later waits for as long as this takes.
        if await self._directory.exists(name):
            raise AdminError(409, "This topic already exists")
        await self._partitioned.create(name, partitions, properties)

    async def create_missing(self, name: TopicName) -> None:
        """Make the partitions that do not exist. Raises AdminError 404, NotAllowedError, TopicNotFound, TooManyRequests."""

        async def attempt() -> None:
            async with self._turns.turn(name):
                count = self._existing(name).partitions if name.is_persistent else 0
                missing = [i for i in range(count) if not await self._directory.exists(name.partition(i))]
                async with self._creation.room(name, len(missing)):
                    await self._make(name, missing)

        await self._creation.once_settled(name, attempt)

    async def _make(self, name: TopicName, indexes: Sequence[int]) -> None:
        """Make partitions; nothing is stored of those of a non-persistent topic. Raises StoreError."""
        if not name.is_persistent:
            return
        for first in range(0, len(indexes), MADE_AT_ONCE):
            try:
                async with asyncio.TaskGroup() as group:
                    for index in indexes[first : first + MADE_AT_ONCE]:
                        group.create_task(self._topics.make(name.partition(index), {}))
            except ExceptionGroup as failures:
                raise failures.exceptions[0] from failures

    # --- grow --------------------------------------------------------------------------------------------------------

    async def update(self, name: TopicName, partitions: int) -> None:
        """More partitions. Who makes it, or changes it, at the same time is waited for: of two that want as many, both succeed.

        Raises AdminError 409 and 422, NotAllowedError above the namespace's limit, TopicNotFound, TooManyRequests.
        """

        async def attempt() -> None:
            async with self._turns.turn(name):
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
            if name.is_persistent:
                await self._copy_subscriptions(name, added)

            def change(document: PartitionedTopicMetadata) -> None:
                document.partitions = partitions

            await self._partitioned.update(name, change)

    async def _copy_subscriptions(self, name: TopicName, added: Sequence[int]) -> None:
        try:
            first = await self._topics.load(name.partition(0), may_create=False)
        except TopicNotFound:
            return
        wanted = [each for each in first.subscriptions.values() if each.is_durable]
        for index in added if wanted else ():
            topic = await self._topics.load(name.partition(index), may_create=False)
            for subscription in wanted:
                await topic.create_subscription(subscription.name, EARLIEST, dict(subscription.cursor.properties))

    # --- delete ------------------------------------------------------------------------------------------------------

    async def delete(self, name: TopicName, force: bool) -> None:
        """Drop a partitioned topic with its partitions and all that is stored; with clients on it only when forced.

        Raises AdminError 404 and 412, StoreError, TooManyRequests. What went before a failure is gone; the rest can be used again.
        """
        async with self._turns.turn(name):
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
                require_no_clients(topic)  # Before any of them goes.
        for partition in names:
            # Who was on the way to it when it was marked is there now.
            await self._topics.settled(partition)
            try:
                await self._topics.delete(partition, force=force)
            except TopicNotFound:
                continue

    async def _left_over(self, name: TopicName, count: int) -> list[int]:
        """Partitions behind the last one, of a growth that was cut off: those that it made at once may have gaps between them."""
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
        # First: a topic of that name that is made later must not inherit them.
        await self._broker_context.resources.forget_topic(name)
        await self._broker_context.schemas.drop(name)
        await self._partitioned.delete(name)

    async def forget_if_empty(self, name: TopicName) -> None:
        """Forget a partitioned topic of which no partition exists. Raises StoreError."""
        async with self._turns.turn(name):
            metadata = self._partitioned.get(name)
            if metadata is None:
                return
            for index in range(metadata.partitions):
                if await self._directory.exists(name.partition(index)):
                    return
            await self._forget(name)
        logs.info("partitioned_topic.deleted", topic=name, reason="no partition exists")

    async def finish_deletions(self) -> None:
        """Delete what was being deleted when the broker stopped; what fails is logged, and can be deleted again."""
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
