"""Names of existing topics, and listeners for created and deleted topics.

A persistent topic exists as long as its managed ledger; a non-persistent topic exists as long as it is loaded.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeAlias

from pybroker.managed_ledger.factory import ManagedLedgerFactory
from pybroker.metadata import metadata_paths
from pybroker.metadata.metadata_store import MetadataStore
from pybroker.model.names import DOMAINS, PERSISTENT, NamespaceName, TopicName
from pybroker.model.system_topics import is_system_topic

if TYPE_CHECKING:
    from pybroker.broker.lifecycle.loaded_topics import LoadedTopics

TopicTexts: TypeAlias = list[str]
"""An alias, because `TopicDirectory.list` hides the built-in type."""

NAMES_PER_TURN = 256
"""Number of names that are processed between two yields to the event loop: about a millisecond of work."""
NAME_BYTES = 120
"""Estimated memory per name, in addition to its characters, as an object and in the response."""
UNKNOWN_LIST_BYTES = 16 * 1024
"""Estimated size of a list for a namespace that was not listed before."""
MAX_KNOWN_SIZES = 10_000
"""Maximum number of namespaces whose last list size is remembered."""


class TopicListener(ABC):
    """Receiver of durable topic creations and deletions, in order for each name. Each partition is reported as a topic.

    Methods run on the event loop and must not raise.
    """

    @abstractmethod
    def topic_created(self, name: TopicName) -> None: ...

    @abstractmethod
    def topic_deleted(self, name: TopicName) -> None: ...


class TopicDirectory:
    """List of topics, and source of notifications about created and deleted topics."""

    def __init__(
        self,
        store: MetadataStore,
        ledgers: ManagedLedgerFactory,
        loaded: LoadedTopics,
    ) -> None:
        self._store = store
        self._ledgers = ledgers
        self._loaded = loaded
        self._listeners: list[TopicListener] = []
        self._unusable: dict[TopicName, set[TopicName]] = {}
        self._last_sizes_bytes: OrderedDict[NamespaceName, int] = OrderedDict()  # most recently listed last

    def listen(self, listener: TopicListener) -> None:
        self._listeners.append(listener)

    @contextmanager
    def growing(self, topic: TopicName) -> Iterator[None]:
        """Delay notifications about new partitions of `topic` within this context, because clients would be rejected
        until the partition count is raised.
        """
        unusable = self._unusable[topic] = set()
        try:
            yield
        finally:
            del self._unusable[topic]
            for name in sorted(unusable, key=str):
                self.created(name)

    def created(self, name: TopicName) -> None:
        unusable = self._unusable.get(name.partitioned_name)
        if unusable is not None:
            unusable.add(name)
            return
        for listener in self._listeners:
            listener.topic_created(name)

    def deleted(self, name: TopicName) -> None:
        unusable = self._unusable.get(name.partitioned_name)
        if unusable is not None and name in unusable:
            unusable.discard(name)
            return
        for listener in self._listeners:
            listener.topic_deleted(name)

    async def exists(self, name: TopicName) -> bool:
        if not name.is_persistent:
            return str(name) in self._loaded.non_persistent
        return str(name) in self._loaded.persistent or await self._ledgers.exists(metadata_paths.managed_ledger(name))

    async def list(self, namespace: NamespaceName, domain: str | None, *, include_system: bool = False) -> TopicTexts:
        """Return the sorted full names of the namespace's topics in one domain (None: both), including each partition."""
        names = []
        for each in DOMAINS if domain is None else (domain,):
            if each == PERSISTENT:
                segments = await self._store.children(metadata_paths.managed_ledgers(namespace, each))
                topics = (metadata_paths.topic_of_segment(namespace, each, segment) for segment in segments)
            else:
                loaded = [topic.name for topic in self._loaded.non_persistent.values()]
                topics = (name for name in loaded if name.namespace == namespace)
            for index, topic in enumerate(topics):
                if index % NAMES_PER_TURN == NAMES_PER_TURN - 1:
                    await asyncio.sleep(0)
                if include_system or not is_system_topic(topic):
                    names.append(str(topic))
        self._last_sizes_bytes[namespace] = listed_bytes(names)
        self._last_sizes_bytes.move_to_end(namespace)
        if len(self._last_sizes_bytes) > MAX_KNOWN_SIZES:
            self._last_sizes_bytes.popitem(last=False)
        return sorted(names)

    def expected_bytes(self, namespace: NamespaceName) -> int:
        """Return the approximate memory in bytes of the next `list`, estimated from the previous one."""
        return max(UNKNOWN_LIST_BYTES, self._last_sizes_bytes.get(namespace, 0))


def listed_bytes(names: Sequence[str]) -> int:
    """Return the approximate memory in bytes that a response with `names` needs until it is sent."""
    return NAME_BYTES * len(names) + 3 * sum(map(len, names))
