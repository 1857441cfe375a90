"""Notification of topic list watchers (PIP-145). Several changes are combined into one update."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from pybroker.broker.lifecycle.topic_directory import NAME_BYTES, TopicDirectory, TopicListener
from pybroker.broker.lifecycle.watched_topics import TopicWatcher, WatchedTopics
from pybroker.errors import BrokerError, NotAllowedError
from pybroker.memory.broker_memory import Holding
from pybroker.model.names import PERSISTENT, NamespaceName, TopicName
from pybroker.model.system_topics import is_system_topic
from pybroker.model.topic_patterns import TopicsPattern
from pybroker.runtime import logs

if TYPE_CHECKING:
    from pybroker.auth.authorization import AuthorizationService
    from pybroker.broker.context.broker_context import BrokerContext

MAX_WATCHED_NAMES = 1_000_000  # in all lists; a client beyond the limit polls the list instead
MATCHED_PER_TURN = 256  # about a millisecond
HASHED_PER_TURN = 10_000  # about a millisecond
PAUSE_MS = 20.0
HASHED_PER_PAUSE_MS = 1_000  # limits hashing to about a tenth of the event loop's time


class TopicWatchers(TopicListener):
    """Watched topic lists by namespace and pattern. A list exists while it has a watcher."""

    def __init__(self, broker_context: BrokerContext, directory: TopicDirectory) -> None:
        self._broker_context = broker_context
        self._runtime = broker_context.runtime
        self._directory = directory
        self._lists: dict[NamespaceName, dict[TopicsPattern, WatchedTopics]] = {}
        self._loading: dict[WatchedTopics, asyncio.Future[None]] = {}
        self._changed: dict[WatchedTopics, None] = {}
        self._is_scheduled = False
        self._next_ms = 0.0
        self._memory = broker_context.runtime.memory
        self._held: dict[WatchedTopics, Holding] = {}

    # --- watchers ---------------------------------------------------------------------------------------------------

    def watched(self, namespace: NamespaceName, pattern: TopicsPattern) -> WatchedTopics:
        """Return the watched list. The caller must add a watcher with `open` in the same event loop iteration."""
        found = self._lists.get(namespace, {}).get(pattern)
        return WatchedTopics(namespace, pattern) if found is None else found

    def open(self, watcher: TopicWatcher) -> None:
        """Add `watcher` to the watched list that it belongs to. The list is empty until `load` is called."""
        watched = watcher.watched
        self._lists.setdefault(watched.namespace, {})[watched.pattern] = watched
        watched.watchers.append(watcher)

    def close(self, watcher: TopicWatcher) -> None:
        watched = watcher.watched
        if watcher in watched.watchers:
            watched.watchers.remove(watcher)
        if not watched.watchers:
            of_namespace = self._lists.get(watched.namespace, {})
            of_namespace.pop(watched.pattern, None)
            if not of_namespace:
                self._lists.pop(watched.namespace, None)
            self._changed.pop(watched, None)
        self._count(watched)

    async def close_revoked(self, scope: NamespaceName | str | None) -> None:
        """Close the watchers whose role has lost its permission. `scope`: a namespace or a tenant; None for all
        namespaces.
        """
        for each in list(self._lists):
            if scope not in (None, each, each.tenant):
                continue
            for watched in list(self._lists.get(each, {}).values()):
                for watcher in list(watched.watchers):
                    await _close_if_right_revoked(watcher, self._broker_context.authorization)

    async def load(self, watched: WatchedTopics) -> None:
        """Read the topic names of the watched list, unless they have been read before. Raises NotAllowedError above
        `MAX_WATCHED_NAMES`, or without enough memory.
        """
        while not watched.is_loaded:
            loading = self._loading.get(watched)
            if loading is not None:
                await asyncio.wait([loading])  # If that fails, this task tries.
                continue
            loading = self._loading[watched] = asyncio.get_running_loop().create_future()
            try:
                names = await self._directory.list(watched.namespace, PERSISTENT)
                selected = await select_topics(watched.pattern, names)
                if self._watched_names() + len(selected) > MAX_WATCHED_NAMES:
                    raise NotAllowedError(
                        f"The watcher would watch more than {MAX_WATCHED_NAMES} topics, which is the maximum: "
                        "request the list of topics instead"
                    )
                needed_bytes = NAME_BYTES * len(selected) + sum(map(len, selected))
                if needed_bytes > self._memory.lists.room():
                    raise NotAllowedError(
                        "The broker has not enough memory to watch this many topics (brokerMemoryLimitMB): "
                        "request the list of topics instead"
                    )
                watched.load(selected)
                self._count(watched)
            finally:
                del self._loading[watched]
                loading.set_result(None)

    def _count(self, watched: WatchedTopics) -> None:
        holding = self._held.setdefault(watched, Holding(self._memory, self._memory.lists))
        holding.count(watched.size_bytes if watched.watchers else 0)
        if not watched.watchers:
            del self._held[watched]

    def _watched_names(self) -> int:
        return sum(len(watched) for of_namespace in self._lists.values() for watched in of_namespace.values())

    # --- changes -----------------------------------------------------------------------------------------------------

    def topic_created(self, name: TopicName) -> None:
        self._note(name, True)

    def topic_deleted(self, name: TopicName) -> None:
        self._note(name, False)

    def _note(self, topic: TopicName, is_created: bool) -> None:
        of_namespace = self._lists.get(topic.namespace)
        if of_namespace is None or not topic.is_persistent or is_system_topic(topic):
            return
        name = str(topic)
        for watched in of_namespace.values():
            if watched.changed(name, is_created):
                self._changed[watched] = None
                self._count(watched)
        if self._changed:
            self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            wait_ms = max(0.0, self._next_ms - self._runtime.clock.monotonic_ms())
            self._runtime.call_later(wait_ms / 1000, self._tell)

    def _tell(self) -> None:
        self._is_scheduled = False
        hashed = 0
        for watched in list(self._changed):
            if hashed >= HASHED_PER_TURN:
                break
            del self._changed[watched]
            hashed += len(watched)
            for watcher in watched.watchers:
                if watcher.is_behind and watcher.is_ready:
                    watcher.tell(watcher.take())
            if any(watcher.is_behind for watcher in watched.watchers):
                self._changed[watched] = None
            self._count(watched)
        self._next_ms = self._runtime.clock.monotonic_ms() + PAUSE_MS + hashed / HASHED_PER_PAUSE_MS
        if self._changed:
            self._schedule()


async def select_topics(pattern: TopicsPattern, topics: list[str]) -> list[str]:
    """Return the topics that match the pattern. Yields to the event loop every millisecond."""
    selected: list[str] = []
    for start in range(0, len(topics), MATCHED_PER_TURN):
        if start:
            await asyncio.sleep(0)
        selected += [topic for topic in topics[start : start + MATCHED_PER_TURN] if pattern.matches(topic)]
    return selected


async def _close_if_right_revoked(watcher: TopicWatcher, authorization: AuthorizationService) -> None:
    namespace = watcher.watched.namespace
    try:
        await authorization.require_list_topics(namespace, watcher.principal)
    except BrokerError as error:
        logs.info("topic_watcher.right_revoked", namespace=namespace, reason=str(error))
        watcher.close_from_broker()
