"""Which topics may be made, and as what: automatic creation, the limit of a namespace, names that partitions have.

Every way to a new topic passes `room`, which keeps the limit of a namespace also when several are made at once; topics of
the broker itself neither need room nor take it. A topic that a client names is made as one without partitions, unless
the client asks for its partitions first: that is when a partitioned one is made automatically. A name that ends like a
partition never becomes anything but a partition of a partitioned topic that exists, and such a one is made whenever it
is missing, whatever automatic creation says: its partitioned topic has been allowed already.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakValueDictionary

from pybroker.errors import AdminError, NotAllowedError, TopicChanging, TopicNotFound
from pybroker.model.names import NamespaceName, TopicName
from pybroker.model.policies import AutoTopicCreationOverride
from pybroker.model.system_topics import is_system_topic, is_transaction_internal

if TYPE_CHECKING:
    from pybroker.broker.service import BrokerService

T = TypeVar("T")

PARTITIONED = "partitioned"
_PARTITION_KEYWORD = "-partition-"


class TopicCreation:
    """Owned by the broker service."""

    def __init__(self, service: BrokerService) -> None:
        self._service = service
        self._surroundings = service.surroundings
        # Of namespaces with a limit, while somebody makes topics there: who counts and who makes are one.
        self._locks: WeakValueDictionary[NamespaceName, asyncio.Lock] = WeakValueDictionary()
        self._makers: dict[NamespaceName, int] = {}  # how many are in `room`
        self._left: asyncio.Event | None = None  # for who waits until they have left

    # --- what may be made --------------------------------------------------------------------------------------------

    def automatic(self, namespace: NamespaceName) -> AutoTopicCreationOverride:
        """Whether and as what a missing topic of `namespace` is made: what the namespace says, else the broker."""
        policies = self._service.resources.namespace(namespace)
        if policies is not None and policies.autoTopicCreationOverride is not None:
            return policies.autoTopicCreationOverride
        config = self._surroundings.config
        return AutoTopicCreationOverride(
            config.allow_auto_topic_creation, config.allow_auto_topic_creation_type, config.default_num_partitions
        )

    def require_loadable(self, name: TopicName) -> None:
        """Refuse what no topic can have as its name: NotAllowedError for the name of a partitioned topic and for what only
        transactions use, TopicNotFound for a partition that it does not have, TopicChanging while that may change."""
        service = self._service
        if is_transaction_internal(name):
            raise NotAllowedError(f"Can not create transaction system topic {name}")
        if not self.is_settled(name):
            raise TopicChanging(f"topic {name}, or its namespace, is being made, grown or deleted, try again")
        if service.partitioned.get(name) is not None:
            raise NotAllowedError(f"Found partitioned metadata for non-partitioned topic: {name}")
        if name.partition_index < 0:
            return
        metadata = service.partitioned.get(name.partitioned_name)
        if metadata is None:
            return
        if metadata.deleted:  # A deletion has failed, or was cut off: waiting for the next one could take for ever.
            raise TopicNotFound(f"Topic not found {name}: {name.partitioned_name} is to be deleted")
        if name.partition_index >= metadata.partitions:
            raise TopicNotFound(f"Topic not found {name}: there are {metadata.partitions} partitions")

    def require_open_namespace(self, name: TopicName) -> None:
        """Raises TopicNotFound when the namespace of `name` does not exist, or is left marked by a deletion that was cut off;
        TopicChanging while it is being deleted."""
        service, namespace = self._service, name.namespace
        policies = service.resources.namespace(namespace)
        if (policies is not None and not policies.deleted) or service.health.is_own(namespace):
            return
        if policies is None:
            raise TopicNotFound("Namespace not found")
        if service.namespace_deletion.is_under_way(namespace):
            raise TopicChanging(f"Namespace {namespace} is being deleted, try again")
        raise TopicNotFound(f"Namespace {namespace} is to be deleted")

    def is_settled(self, name: TopicName) -> bool:
        """Whether nobody changes what `name` belongs to now: its namespace, or its partitioned topic. While that grows, the
        partitions that it has go on."""
        service, parent = self._service, name.partitioned_name
        if service.namespace_deletion.is_under_way(name.namespace):
            return False
        if not service.partitioned_operations.is_changing(parent):
            return True
        metadata = service.partitioned.get(parent) if name.partition_index >= 0 else None
        return metadata is not None and not metadata.deleted and name.partition_index < metadata.partitions

    async def once_settled(self, name: TopicName, attempt: Callable[[], Awaitable[T]]) -> T:
        """What `attempt` returns when nobody changes what `name` belongs to; it is made again when somebody has begun to.

        Raises TooManyRequests, and what `attempt` does."""
        while True:
            if not self.is_settled(name):
                await self._passed(name)
            try:
                return await attempt()
            except TopicChanging:
                await self._passed(name)

    async def _passed(self, name: TopicName) -> None:
        async with self._service.waiting.wait(f"topic {name}, or its namespace, is being changed"):
            await self._service.namespace_deletion.passed(name.namespace)
            await self._service.partitioned_operations.passed(name.partitioned_name)

    def require_automatic(self, name: TopicName) -> None:
        """Refuse to make a missing topic because a client names it. Raises TopicNotFound, NotAllowedError, TopicChanging."""
        # Whoever makes or deletes the partitions now must not meet, in `room`, somebody who makes a single one.
        if self._service.partitioned_operations.is_changing(name.partitioned_name):
            raise TopicChanging(f"topic {name.partitioned_name} is being made, grown or deleted, try again")
        if name.partition_index >= 0:
            if self._service.partitioned.get(name.partitioned_name) is None:
                raise NotAllowedError(f"Partition metadata not found for the partitioned topic: {name}")
            return
        if is_system_topic(name):
            return
        if not self.automatic(name.namespace).allowAutoTopicCreation:
            raise TopicNotFound(f"Topic not found {name}, and topics are not made automatically here")
        self.require_strict_name(name)

    def require_own_name(self, name: TopicName) -> None:
        """Raises AdminError 400 for a topic that only the broker itself may make."""
        if is_transaction_internal(name):
            raise AdminError(400, "Cannot create topic in system topic format!")

    def require_strict_name(self, name: TopicName) -> None:
        """Raises NotAllowedError for a topic that only looks like a partition, where such names are not wanted."""
        if self._surroundings.config.strict_topic_name_enabled and _PARTITION_KEYWORD in name.local_name:
            raise NotAllowedError(f"A topic name may not contain {_PARTITION_KEYWORD} (strictTopicNameEnabled): {name}")

    @asynccontextmanager
    async def room(self, name: TopicName, topics: int) -> AsyncIterator[None]:
        """Within this, `topics` more topics may be made in the namespace of `name`, which does not go meanwhile.

        Raises NotAllowedError, and what `require_open_namespace` does.
        """
        namespace = name.namespace
        self.require_open_namespace(name)
        self._makers[namespace] = self._makers.get(namespace, 0) + 1
        try:
            limit = self._limit(namespace)
            if limit <= 0 or is_system_topic(name):
                yield
                return
            async with self._locks.setdefault(namespace, asyncio.Lock()):
                if len(await self._service.directory.list(namespace, None)) + topics > limit:
                    raise NotAllowedError("Exceed maximum number of topics in namespace.")
                yield
        finally:
            self._makers[namespace] -= 1
            if not self._makers[namespace]:
                del self._makers[namespace]
                if self._left is not None:
                    self._left.set()
                    self._left = None

    async def quiet(self, namespace: NamespaceName) -> None:
        """Wait until nobody makes a topic in `namespace`, which is marked: nobody begins to any more."""
        while namespace in self._makers:
            self._left = self._left or asyncio.Event()
            await self._left.wait()

    def _limit(self, namespace: NamespaceName) -> int:
        policies = self._service.resources.namespace(namespace)
        own = policies.max_topics_per_namespace if policies is not None else None
        return self._surroundings.config.max_topics_per_namespace if own is None else own

    async def create(self, name: TopicName, properties: Mapping[str, str]) -> None:
        """Make a topic without partitions, or a missing partition, because somebody asks for just that.

        It exists and can be used when this returns, and when it is refused because it exists: who makes it at the same time is
        waited for. Raises AdminError 400 for a name of the broker's own, 409 when it exists, 412 for a partition that nobody has,
        NotAllowedError, TopicNotFound without its namespace, TooManyRequests.
        """
        self.require_own_name(name)

        async def attempt() -> None:
            async with self._service.partitioned_operations.turn(name.partitioned_name):
                await self._create(name, properties)

        await self.once_settled(name, attempt)
        await self._service.any_topic(name, may_create=False)

    async def _create(self, name: TopicName, properties: Mapping[str, str]) -> None:
        service, parent = self._service, name.partitioned_name
        self.require_open_namespace(name)
        if service.partitioned.get(name) is not None or await service.directory.exists(name):
            raise AdminError(409, "This topic already exists")
        if name.partition_index >= 0:
            metadata = service.partitioned.get(parent)
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
            self.require_strict_name(name)
        async with self.room(name, 1):
            if not await service.loading.make(name, properties):
                raise AdminError(409, "This topic already exists")

    # --- what clients ask first --------------------------------------------------------------------------------------

    async def partition_count(self, name: TopicName, may_create: bool) -> int:
        """How many partitions `name` has, 0 for a topic without; with `may_create` a missing topic counts as one that the
        client is about to make, and is made now if it becomes a partitioned one.

        Waits while somebody makes or deletes it. Raises TopicNotFound, NotAllowedError, TooManyRequests.
        """
        metadata = self._service.partitioned.get(name)
        if metadata is not None and not metadata.deleted:
            return metadata.partitions

        async def attempt() -> int:
            return await self._partition_count(name, may_create)

        return await self.once_settled(name, attempt)

    async def _partition_count(self, name: TopicName, may_create: bool) -> int:
        service = self._service
        self.require_open_namespace(name)
        metadata = service.partitioned.get(name)
        if metadata is not None:
            return metadata.partitions
        index = name.partition_index
        parent = service.partitioned.get(name.partitioned_name) if index >= 0 else None
        if parent is not None:
            if index >= parent.partitions:
                raise TopicNotFound(f"Topic {name} not found")
            return 0
        if await service.directory.exists(name):
            return 0
        automatic = self.automatic(name.namespace)
        if not may_create or not (automatic.allowAutoTopicCreation or is_system_topic(name)):
            raise TopicNotFound(f"Topic {name} not found")
        if automatic.topicType != PARTITIONED or index >= 0 or is_system_topic(name):
            return 0
        self.require_strict_name(name)
        if service.partitioned_operations.is_changing(name):
            raise TopicChanging(f"topic {name} is being made by others")
        partitions = automatic.defaultNumPartitions or service.surroundings.config.default_num_partitions
        try:
            await service.partitioned_operations.create_automatically(name, partitions)
        except AdminError:  # Somebody else has made one of that name meanwhile.
            return await self._partition_count(name, may_create)
        return partitions
