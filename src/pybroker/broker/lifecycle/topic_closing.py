"""Closing of topics: of single topics on unload, and of all topics when the broker stops.

Requests for a persistent topic that is being closed or deleted wait. When the broker stops, it first notifies all
clients, so that they can look for another broker. Many topics are closed concurrently, because their writes share
batches.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pybroker.broker.topic.non_persistent_topic import NonPersistentTopic
from pybroker.broker.topic.topic import Topic
from pybroker.errors import StoreError
from pybroker.runtime import logs

if TYPE_CHECKING:
    from pybroker.broker.context.broker_context import BrokerContext
    from pybroker.broker.lifecycle.loaded_topics import LoadedTopics
    from pybroker.broker.lifecycle.topic_directory import TopicDirectory
    from pybroker.broker.topic.topic_base import TopicBase

TELLING_SLICE_MS = 5.0
"""Time between yields to the event loop while clients are notified."""
ANSWERING_S = 2.0
"""Longest wait for pending receipts on a slow disk. Clients resend messages without a receipt to another broker."""


class Ending:
    """A topic that is being closed or deleted."""

    __slots__ = ("ended", "is_deletion", "reason", "since_ms")

    def __init__(self, since_ms: int, reason: str, *, is_deletion: bool) -> None:
        """`since_ms`: start, in milliseconds since 1970. `reason`: why the broker itself closes the topic; empty for a
        request.
        """
        self.ended = asyncio.Event()
        self.since_ms = since_ms
        self.reason = reason
        self.is_deletion = is_deletion


class TopicClosing:
    """Closing of loaded topics, and registry of topics that are being closed or deleted."""

    def __init__(self, broker_context: BrokerContext, loaded: LoadedTopics, directory: TopicDirectory) -> None:
        self._broker_context = broker_context
        self._runtime = broker_context.runtime
        self._loaded = loaded
        self._directory = directory
        self._ending: dict[str, Ending] = {}
        self._reasons: dict[str, str] = {}  # why the broker itself closes a topic, until the closing begins

    # --- one topic ---------------------------------------------------------------------------------------------------

    def start_unload(self, topic: TopicBase, reason: str) -> None:
        """Close `topic` in the background, and log the `reason`. The next client request loads it again."""
        logs.warning("topic.unloading", topic=topic.name, reason=reason)
        self._reasons[str(topic.name)] = reason
        self._broker_context.tasks.start(self.unload(topic), f"unload {topic.name}")

    async def unload(self, topic: TopicBase) -> None:
        """Close `topic`, or wait until another task has closed it."""
        if isinstance(topic, NonPersistentTopic):
            self.forget(topic)
            return
        assert isinstance(topic, Topic)
        ending = self._ending.get(str(topic.name))
        if ending is not None:
            self._reasons.pop(str(topic.name), None)
            await ending.ended.wait()
        elif self._loaded.persistent.get(str(topic.name)) is topic:
            try:
                await self.end(topic, topic.close(), is_deletion=False)
            except StoreError as error:
                logs.error("topic.close_failed", topic=topic.name, error=str(error))

    def forget(self, topic: NonPersistentTopic) -> None:
        topic.fence()
        self._reasons.pop(str(topic.name), None)
        if self._loaded.non_persistent.get(str(topic.name)) is topic:
            del self._loaded.non_persistent[str(topic.name)]
            self._directory.deleted(topic.name)

    async def end(self, topic: Topic, ending: Coroutine[Any, Any, None], *, is_deletion: bool) -> None:
        """Run `ending`, which closes or deletes `topic`, while requests for the topic wait. Raises the errors of
        `ending`.
        """
        with self.ending(str(topic.name), is_deletion=is_deletion):
            try:
                await ending
            finally:
                if self._loaded.persistent.get(str(topic.name)) is topic:
                    del self._loaded.persistent[str(topic.name)]

    @contextmanager
    def ending(self, key: str, *, is_deletion: bool) -> Iterator[None]:
        """Prevent loading and creation of the persistent topic `key` within this context. `is_deletion`: the topic is
        being deleted, not only closed.
        """
        since_ms, reason = self._runtime.clock.wall_ms(), self._reasons.pop(key, "")
        ending = self._ending[key] = Ending(since_ms, reason, is_deletion=is_deletion)
        try:
            yield
        finally:
            del self._ending[key]
            ending.ended.set()

    def ending_of(self, key: str) -> Ending | None:
        return self._ending.get(key)

    def is_being_closed(self, key: str) -> bool:
        return key in self._ending

    async def closed(self, key: str) -> None:
        while (ending := self._ending.get(key)) is not None:
            await ending.ended.wait()

    # --- all topics --------------------------------------------------------------------------------------------------

    async def tell_clients(self) -> None:
        """Fence all loaded topics, so that their clients look them up again. Then wait until received messages are
        stored and confirmed, for at most `ANSWERING_S` seconds.
        """
        clock, store = self._runtime.clock, self._broker_context.ledgers.store
        started_ms = clock.monotonic_ms()
        topics = self._loaded.all()
        await self.fence(topics)
        logs.info("clients.notified", topics=len(topics), took_ms=round(clock.monotonic_ms() - started_ms))
        try:
            async with asyncio.timeout(ANSWERING_S):
                # Twice: the second call writes acknowledgements that arrive during the first.
                await store.flush()
                await store.flush()
        except (StoreError, TimeoutError) as error:
            logs.warning("clients.unanswered", error=str(error) or f"storage took longer than {ANSWERING_S:g} s")

    async def close_all(self) -> None:
        """Close all loaded topics, as `close_topics` does."""
        clock = self._runtime.clock
        started_ms = clock.monotonic_ms()
        topics = self._loaded.all()
        await self.close_topics(topics)
        if topics:
            logs.info("topics.closed", topics=len(topics), took_ms=round(clock.monotonic_ms() - started_ms))

    async def close_topics(self, topics: list[TopicBase]) -> None:
        """Fence all the topics, then close them, at most `maxConcurrentTopicCloses` concurrently. Failures are logged."""
        await self.fence(topics)
        waiting = iter(topics)
        async with asyncio.TaskGroup() as group:
            for _ in range(min(len(topics), self._runtime.config.max_concurrent_topic_closes)):
                group.create_task(self._close_one_by_one(waiting))

    async def fence(self, topics: list[TopicBase]) -> None:
        """Close all producers and consumers of the topics, and reject new ones. Clients then look up the topics again."""
        clock = self._runtime.clock
        slice_ends_ms = clock.monotonic_ms() + TELLING_SLICE_MS
        for topic in topics:
            topic.fence()
            if clock.monotonic_ms() >= slice_ends_ms:
                await asyncio.sleep(0)
                slice_ends_ms = clock.monotonic_ms() + TELLING_SLICE_MS

    async def _close_one_by_one(self, waiting: Iterator[TopicBase]) -> None:
        for topic in waiting:
            try:
                await self.unload(topic)
            except Exception as bug:  # noqa: BLE001  (a fault boundary: other topics are still closed)
                self._runtime.stats.bugs += 1
                logs.error("topic.close_failed", topic=topic.name, exc_info=bug)
