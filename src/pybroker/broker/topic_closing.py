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

if TYPE_CHECKING:
    from pybroker.broker.service import BrokerService
    from pybroker.broker.topic_base import TopicBase

TELLING_SLICE_MS = 5.0
"""Between two times that the loop may turn to others while clients are told."""


async def close_topics(broker: BrokerService) -> None:
    """Tell the clients of all loaded topics and close these, at most `maxConcurrentTopicCloses` at once."""
    clock = broker.clock
    started_ms = clock.monotonic_ms()
    topics = broker.loaded_topics()
    await _tell_clients(broker, topics)
    told_ms = clock.monotonic_ms()
    waiting = iter(topics)
    async with asyncio.TaskGroup() as group:
        for _ in range(min(len(topics), broker.config.max_concurrent_topic_closes)):
            group.create_task(_close_one_by_one(broker, waiting))
    logs.info(
        "topics.closed",
        topics=len(topics),
        told_ms=round(told_ms - started_ms),
        took_ms=round(clock.monotonic_ms() - started_ms),
    )


async def _tell_clients(broker: BrokerService, topics: list[TopicBase]) -> None:
    slice_ends_ms = broker.clock.monotonic_ms() + TELLING_SLICE_MS
    for topic in topics:
        topic.fence()
        if broker.clock.monotonic_ms() >= slice_ends_ms:
            await asyncio.sleep(0)
            slice_ends_ms = broker.clock.monotonic_ms() + TELLING_SLICE_MS


async def _close_one_by_one(broker: BrokerService, waiting: Iterator[TopicBase]) -> None:
    """One of those that share the list; what fails is its topic's matter, or it would end the others."""
    for topic in waiting:
        try:
            await broker.unload(topic)
        except Exception as bug:  # noqa: BLE001  (a fault boundary: the others are closed all the same)
            broker.stats.bugs += 1
            logs.error("topic.close_failed", topic=topic.name, exc_info=bug)
