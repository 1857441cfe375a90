"""Rules for creating topics: automatic creation, the topic limit of a namespace, and partition names.

A partition requires an existing partitioned topic. A missing partition is created even if automatic creation is
disabled. System topics do not count for the topic limit.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeVar

from pybroker.errors import AdminError, NotAllowedError, TopicChanging, TopicNotFound
from pybroker.model.names import NamespaceName, TopicName
from pybroker.model.policies import AutoTopicCreationOverride
from pybroker.model.system_topics import is_system_topic, is_transaction_internal
from pybroker.waiting.keyed_lock import KeyedLock

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
    """Checks for each creation of a topic."""

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
        # For namespaces with a limit: counting and creating must not be interleaved.
        self._locks: KeyedLock[NamespaceName] = KeyedLock()
        self._makers: dict[NamespaceName, int] = {}  # the number of tasks in `room`
        self._left: asyncio.Event | None = None  # set when these tasks have left

    # --- permissions ------------------------------------------------------------------------------------------------

    def automatic(self, namespace: NamespaceName) -> AutoTopicCreationOverride:
        """Return the automatic creation policy of the namespace, or the configured default."""
        policies = self._resources.namespace(namespace)
        if policies is not None and policies.autoTopicCreationOverride is not None:
            return policies.autoTopicCreationOverride
        config = self._runtime.config
        return AutoTopicCreationOverride(
            config.allow_auto_topic_creation, config.allow_auto_topic_creation_type, config.default_num_partitions
        )

    def require_loadable(self, name: TopicName) -> None:
        """Check that `name` can be loaded as a topic.

        Raises NotAllowedError for a partitioned topic and for reserved transaction topics, TopicNotFound for a
        partition beyond the partition count, TopicChanging while the partition count may change.
        """
        if is_transaction_internal(name):
            raise NotAllowedError(f"Can not create transaction system topic {name}")
        if not self.is_settled(name):
            raise TopicChanging(f"topic {name}, or its namespace, is being created, extended or deleted, try again")
        if self._partitioned.get(name) is not None:
            raise NotAllowedError(f"Found partitioned metadata for non-partitioned topic: {name}")
        if name.partition_index < 0:
            return
        metadata = self._partitioned.get(name.partitioned_name)
        if metadata is None:
            return
        if metadata.deleted:  # A deletion has failed or was interrupted, and may never be repeated.
            raise TopicNotFound(f"Topic not found {name}: {name.partitioned_name} is marked for deletion")
        if name.partition_index >= metadata.partitions:
            raise TopicNotFound(f"Topic not found {name}: there are {metadata.partitions} partitions")

    def require_open_namespace(self, name: TopicName) -> None:
        """Check that the namespace of `name` accepts topics.

        Raises TopicNotFound if the namespace is missing or an interrupted deletion has marked it, TopicChanging while
        it is being deleted.
        """
        namespace = name.namespace
        policies = self._resources.namespace(namespace)
        if (policies is not None and not policies.deleted) or self._presence.is_own(namespace):
            return
        if policies is None:
            raise TopicNotFound("Namespace not found")
        if self._changing.namespaces.is_held(namespace):
            raise TopicChanging(f"Namespace {namespace} is being deleted, try again")
        raise TopicNotFound(f"Namespace {namespace} is marked for deletion")

    def is_settled(self, name: TopicName) -> bool:
        parent = name.partitioned_name
        if self._changing.namespaces.is_held(name.namespace):
            return False
        if not self._changing.partitioned.is_held(parent):
            return True
        metadata = self._partitioned.get(parent) if name.partition_index >= 0 else None
        return metadata is not None and not metadata.deleted and name.partition_index < metadata.partitions

    async def once_settled(self, name: TopicName, attempt: Callable[[], Awaitable[T]]) -> T:
        """Wait until no task changes the namespace or partitioned topic of `name`, then call `attempt`. Repeat if a
        change began during the call.

        Raises TooManyRequests, and the errors of `attempt`.
        """
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
        """Check that the missing topic `name` may be created automatically. Raises TopicNotFound, NotAllowedError,
        TopicChanging.
        """
        # A task that creates or deletes all partitions must not run beside a task in `room` that creates one.
        if self._changing.partitioned.is_held(name.partitioned_name):
            raise TopicChanging(f"topic {name.partitioned_name} is being created, extended or deleted, try again")
        if name.partition_index >= 0:
            if self._partitioned.get(name.partitioned_name) is None:
                raise NotAllowedError(f"Partition metadata not found for the partitioned topic: {name}")
            return
        if is_system_topic(name):
            return
        if not self.automatic(name.namespace).allowAutoTopicCreation:
            raise TopicNotFound(f"Topic not found {name}, and automatic topic creation is disabled: create it first")
        self.require_strict_name(name)

    def require_own_name(self, name: TopicName) -> None:
        if is_transaction_internal(name):
            raise AdminError(400, "Cannot create topic in system topic format!")

    def require_strict_name(self, name: TopicName) -> None:
        """Check that the name does not look like a partition name, if `strictTopicNameEnabled` is set. Raises
        NotAllowedError.
        """
        if self._runtime.config.strict_topic_name_enabled and _PARTITION_KEYWORD in name.local_name:
            raise NotAllowedError(f"A topic name may not contain {_PARTITION_KEYWORD} (strictTopicNameEnabled): {name}")

    @asynccontextmanager
    async def room(self, name: TopicName, topics: int) -> AsyncIterator[None]:
        """Reserve capacity for `topics` new topics in the namespace of `name`, and prevent deletion of the namespace,
        within this context.

        Raises NotAllowedError at the topic limit, and the errors of `require_open_namespace`.
        """
        namespace = name.namespace
        self.require_open_namespace(name)
        self._makers[namespace] = self._makers.get(namespace, 0) + 1
        try:
            limit = self._limit(namespace)
            if limit <= 0 or is_system_topic(name):
                yield
                return
            async with self._locks.held(namespace):
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
        while namespace in self._makers:
            self._left = self._left or asyncio.Event()
            await self._left.wait()

    def _limit(self, namespace: NamespaceName) -> int:
        policies = self._resources.namespace(namespace)
        own = policies.max_topics_per_namespace if policies is not None else None
        return self._runtime.config.max_topics_per_namespace if own is None else own
