"""The end of all topics when the broker stops: first every client is told, then the topics are closed, many at once.

Telling comes first and takes no storage: clients look for another broker, or wait for this one, from then on, whatever the closing
of topics takes. It gives way to the loop between slices, so that what is told also goes out. Topics are closed many at once because
each waits for the disk: what they write then shares the metadata store's transactions and the journal's batches, and what they
store goes into one checkpoint, the store's last.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pybroker import logs
from pybroker.errors import StoreError

if TYPE_CHECKING:
    from pybroker.broker.service import BrokerService
    from pybroker.broker.topic_base import TopicBase

TELLING_SLICE_MS = 5.0
"""Between two times that the loop may turn to others while clients are told."""
ANSWERING_S = 2.0
"""How long a slow disk may keep clients, who were told, from being let go. What is not answered then they send again elsewhere."""


async def tell_clients(broker: BrokerService) -> None:
    """Fence all loaded topics, which tells their clients, and wait until what these have sent is answered."""
    clock = broker.surroundings.clock
    started_ms = clock.monotonic_ms()
    topics = broker.loaded_topics()
    await _fence(broker, topics)
    logs.info("clients.told", topics=len(topics), took_ms=round(clock.monotonic_ms() - started_ms))
    try:
        async with asyncio.timeout(ANSWERING_S):
            # Twice: what is acknowledged while a cursor is being written is written after that.
            await broker.ledgers.store.flush()
            await broker.ledgers.store.flush()
    except (StoreError, TimeoutError) as error:
        logs.warning("clients.not_answered", error=str(error) or f"storage took longer than {ANSWERING_S:g} s")


async def close_topics(broker: BrokerService) -> None:
    """Close all loaded topics, at most `maxConcurrentTopicCloses` at once; their clients are told if they were not yet."""
    started_ms = broker.surroundings.clock.monotonic_ms()
    topics = broker.loaded_topics()
    await _fence(broker, topics)
    waiting = iter(topics)
    async with asyncio.TaskGroup() as group:
        for _ in range(min(len(topics), broker.surroundings.config.max_concurrent_topic_closes)):
            group.create_task(_close_one_by_one(broker, waiting))
    if topics:
        logs.info(
            "topics.closed", topics=len(topics), took_ms=round(broker.surroundings.clock.monotonic_ms() - started_ms)
        )


async def _fence(broker: BrokerService, topics: list[TopicBase]) -> None:
    slice_ends_ms = broker.surroundings.clock.monotonic_ms() + TELLING_SLICE_MS
    for topic in topics:
        topic.fence()
        if broker.surroundings.clock.monotonic_ms() >= slice_ends_ms:
            await asyncio.sleep(0)
            slice_ends_ms = broker.surroundings.clock.monotonic_ms() + TELLING_SLICE_MS


async def _close_one_by_one(broker: BrokerService, waiting: Iterator[TopicBase]) -> None:
    """One of those that share the list; what fails is its topic's matter, or it would end the others."""
    for topic in waiting:
        try:
            await broker.unload(topic)
        except Exception as bug:  # noqa: BLE001  (a fault boundary: the others are closed all the same)
            broker.surroundings.stats.bugs += 1
            logs.error("topic.close_failed", topic=topic.name, exc_info=bug)
