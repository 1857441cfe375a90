"""Which topics may be made, and as what: automatic creation, the limit of a namespace, names that partitions have.

Every way to a new topic passes `room`, which keeps the limit of a namespace also when several are made at once; topics of
the broker itself neither need room nor take it. A name that ends like a partition never becomes anything but a partition
of a partitioned topic that exists, and such a one is made whenever it is missing, whatever automatic creation says: its
partitioned topic has been allowed already.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakValueDictionary

from pybroker.errors import AdminError, NotAllowedError, TopicChanging, TopicNotFound
from pybroker.model.names import NamespaceName, TopicName
from pybroker.model.policies import AutoTopicCreationOverride
from pybroker.model.system_topics import is_system_topic, is_transaction_internal

if TYPE_CHECKING:
    from pybroker.broker.context.presence import Presence
    from pybroker.broker.context.waiting_requests import WaitingRequests
    from pybroker.broker.lifecycle.change_locks import ChangeLocks
    from pybroker.broker.lifecycle.topic_directory import TopicDirectory
    from pybroker.metadata.partitioned_topics import PartitionedTopics
    from pybroker.metadata.resources import Resources
    from pybroker.runtime.runtime import Runtime

T = TypeVar("T")

PARTITIONED = "partitioned"
_PARTITION_KEYWORD = "-partition-"


class TopicCreation:
    """Owned by the broker service."""

    def __init__(
        self,
        runtime: Runtime,
        resources: Resources,
        waiting: WaitingRequests,
        presence: Presence,
        changing: ChangeLocks,
        partitioned: PartitionedTopics,
        directory: TopicDirectory,
    ) -> None:
        self._runtime = runtime
        self._resources = resources
        self._waiting = waiting
        self._presence = presence
        self._changing = changing
        self._partitioned = partitioned
        self._directory = directory
        # Of namespaces with a limit, while somebody makes topics there: who counts and who makes are one.
        self._locks: WeakValueDictionary[NamespaceName, asyncio.Lock] = WeakValueDictionary()
        self._makers: dict[NamespaceName, int] = {}  # how many are in `room`
        self._left: asyncio.Event | None = None  # for who waits until they have left

    # --- what may be made --------------------------------------------------------------------------------------------

    def automatic(self, namespace: NamespaceName) -> AutoTopicCreationOverride:
        """Whether and as what a missing topic of `namespace` is made: what the namespace says, else the broker."""
        policies = self._resources.namespace(namespace)
        if policies is not None and policies.autoTopicCreationOverride is not None:
            return policies.autoTopicCreationOverride
        config = self._runtime.config
        return AutoTopicCreationOverride(
            config.allow_auto_topic_creation, config.allow_auto_topic_creation_type, config.default_num_partitions
        )

    def require_loadable(self, name: TopicName) -> None:
        """Refuse what no topic can have as its name: NotAllowedError for the name of a partitioned topic and for what only
        transactions use, TopicNotFound for a partition that it does not have, TopicChanging while that may change."""
        if is_transaction_internal(name):
            raise NotAllowedError(f"Can not create transaction system topic {name}")
        if not self.is_settled(name):
            raise TopicChanging(f"topic {name}, or its namespace, is being made, grown or deleted, try again")
        if self._partitioned.get(name) is not None:
            raise NotAllowedError(f"Found partitioned metadata for non-partitioned topic: {name}")
        if name.partition_index < 0:
            return
        metadata = self._partitioned.get(name.partitioned_name)
        if metadata is None:
            return
        if metadata.deleted:  # A deletion has failed, or was cut off: waiting for the next one could take for ever.
            raise TopicNotFound(f"Topic not found {name}: {name.partitioned_name} is to be deleted")
        if name.partition_index >= metadata.partitions:
            raise TopicNotFound(f"Topic not found {name}: there are {metadata.partitions} partitions")

    def require_open_namespace(self, name: TopicName) -> None:
        """Raises TopicNotFound when the namespace of `name` does not exist, or is left marked by a deletion that was cut off;
        TopicChanging while it is being deleted."""
        namespace = name.namespace
        policies = self._resources.namespace(namespace)
        if (policies is not None and not policies.deleted) or self._presence.is_own(namespace):
            return
        if policies is None:
            raise TopicNotFound("Namespace not found")
        if self._changing.namespaces.is_taken(namespace):
            raise TopicChanging(f"Namespace {namespace} is being deleted, try again")
        raise TopicNotFound(f"Namespace {namespace} is to be deleted")

    def is_settled(self, name: TopicName) -> bool:
        """Whether nobody changes what `name` belongs to now: its namespace, or its partitioned topic. While that grows, the
        partitions that it has go on."""
        parent = name.partitioned_name
        if self._changing.namespaces.is_taken(name.namespace):
            return False
        if not self._changing.partitioned.is_taken(parent):
            return True
        metadata = self._partitioned.get(parent) if name.partition_index >= 0 else None
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
        async with self._waiting.wait(f"topic {name}, or its namespace, is being changed"):
            await self._changing.passed(name)

    def require_automatic(self, name: TopicName) -> None:
        """Refuse to make a missing topic because a client names it. Raises TopicNotFound, NotAllowedError, TopicChanging."""
        # Whoever makes or deletes the partitions now must not meet, in `room`, somebody who makes a single one.
        if self._changing.partitioned.is_taken(name.partitioned_name):
            raise TopicChanging(f"topic {name.partitioned_name} is being made, grown or deleted, try again")
        if name.partition_index >= 0:
            if self._partitioned.get(name.partitioned_name) is None:
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
        if self._runtime.config.strict_topic_name_enabled and _PARTITION_KEYWORD in name.local_name:
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
                if len(await self._directory.list(namespace, None)) + topics > limit:
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
        policies = self._resources.namespace(namespace)
        own = policies.max_topics_per_namespace if policies is not None else None
        return self._runtime.config.max_topics_per_namespace if own is None else own
