"""Which topics may be made, and as what: automatic creation, the limit of a namespace, names that partitions have.

Every way to a new topic passes `room`, which keeps the limit of a namespace also when several are made at once; topics of
the broker itself neither need room nor take it. A topic that a client names is made as one without partitions, unless
the client asks for its partitions first: that is when a partitioned one is made automatically. A name that ends like a
partition never becomes anything but a partition of a partitioned topic that exists, and such a one is made whenever it
is missing, whatever automatic creation says: its partitioned topic has been allowed already.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from pybroker.errors import AdminError, NotAllowedError, ServiceNotReady, TopicNotFound
from pybroker.model.names import NamespaceName, TopicName
from pybroker.model.policies import AutoTopicCreationOverride
from pybroker.model.system_topics import is_system_topic, is_transaction_internal

if TYPE_CHECKING:
    from pybroker.broker.service import BrokerService

PARTITIONED = "partitioned"
_PARTITION_KEYWORD = "-partition-"


class TopicCreation:
    """Owned by the broker service."""

    def __init__(self, service: BrokerService) -> None:
        self._service = service
        # Of namespaces with a limit, while somebody makes topics there: who counts and who makes are one.
        self._locks: WeakValueDictionary[NamespaceName, asyncio.Lock] = WeakValueDictionary()

    # --- what may be made --------------------------------------------------------------------------------------------

    def automatic(self, namespace: NamespaceName) -> AutoTopicCreationOverride:
        """Whether and as what a missing topic of `namespace` is made: what the namespace says, else the broker."""
        policies = self._service.resources.namespace(namespace)
        if policies is not None and policies.autoTopicCreationOverride is not None:
            return policies.autoTopicCreationOverride
        config = self._service.config
        return AutoTopicCreationOverride(
            config.allow_auto_topic_creation, config.allow_auto_topic_creation_type, config.default_num_partitions
        )

    def require_loadable(self, name: TopicName) -> None:
        """Refuse what no topic can have as its name: NotAllowedError for the name of a partitioned topic and for what only
        transactions use, TopicNotFound for a partition that it does not have, ServiceNotReady while it is made or deleted."""
        service = self._service
        if is_transaction_internal(name):
            raise NotAllowedError(f"Can not create transaction system topic {name}")
        if service.partitioned.get(name) is not None:
            raise NotAllowedError(f"Found partitioned metadata for non-partitioned topic: {name}")
        if service.partitioned_operations.is_changing(name):
            raise ServiceNotReady(f"topic {name} is being made in partitions, try again")
        if name.partition_index < 0:
            return
        metadata = service.partitioned.get(name.partitioned_name)
        if metadata is None:
            return
        if metadata.deleted:
            raise ServiceNotReady(f"topic {name.partitioned_name} is being deleted, try again")
        if name.partition_index >= metadata.partitions:
            raise TopicNotFound(f"Topic not found {name}: there are {metadata.partitions} partitions")

    def require_automatic(self, name: TopicName) -> None:
        """Refuse to make a missing topic because a client names it. Raises TopicNotFound, NotAllowedError."""
        if name.partition_index >= 0:
            if self._service.partitioned.get(name.partitioned_name) is None:
                raise NotAllowedError(f"Partition metadata not found for the partitioned topic: {name}")
            # Whoever makes or deletes the partitions now must not meet, in `room`, somebody who makes a single one.
            if self._service.partitioned_operations.is_changing(name.partitioned_name):
                raise ServiceNotReady(f"the partitions of {name.partitioned_name} are being made or deleted, try again")
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
        if self._service.config.strict_topic_name_enabled and _PARTITION_KEYWORD in name.local_name:
            raise NotAllowedError(f"A topic name may not contain {_PARTITION_KEYWORD} (strictTopicNameEnabled): {name}")

    @asynccontextmanager
    async def room(self, name: TopicName, topics: int) -> AsyncIterator[None]:
        """Within this, `topics` more topics may be made in the namespace of `name`. Raises NotAllowedError."""
        limit = self._limit(name.namespace)
        if limit <= 0 or is_system_topic(name):
            yield
            return
        async with self._locks.setdefault(name.namespace, asyncio.Lock()):
            if len(await self._service.directory.list(name.namespace, None)) + topics > limit:
                raise NotAllowedError("Exceed maximum number of topics in namespace.")
            yield

    def _limit(self, namespace: NamespaceName) -> int:
        policies = self._service.resources.namespace(namespace)
        own = policies.max_topics_per_namespace if policies is not None else None
        return self._service.config.max_topics_per_namespace if own is None else own

    async def create(self, name: TopicName, properties: Mapping[str, str]) -> None:
        """Make a topic without partitions, or a missing partition, because somebody asks for just that.

        Raises AdminError 400 for a name of the broker's own, 409 when it exists, 412 for a partition that nobody has,
        NotAllowedError, ServiceNotReady.
        """
        self.require_own_name(name)
        service, parent = self._service, name.partitioned_name
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
        if service.partitioned_operations.is_changing(parent):
            raise ServiceNotReady(f"topic {parent} is being changed, try again")
        async with self.room(name, 1):
            if not await service.make_topic(name, properties):
                raise AdminError(409, "This topic already exists")
        await service.any_topic(name, may_create=False)

    # --- what clients ask first --------------------------------------------------------------------------------------

    async def partition_count(self, name: TopicName, may_create: bool) -> int:
        """How many partitions `name` has, 0 for a topic without; with `may_create` a missing topic counts as one that the
        client is about to make, and is made now if it becomes a partitioned one. Raises TopicNotFound, NotAllowedError."""
        service = self._service
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
        try:
            partitions = automatic.defaultNumPartitions or service.config.default_num_partitions
            await service.partitioned_operations.create_automatically(name, partitions)
        except AdminError:  # Somebody else makes one of that name, or has made it meanwhile.
            await service.partitioned_operations.settled(name)
            return await self.partition_count(name, may_create)
        return partitions
