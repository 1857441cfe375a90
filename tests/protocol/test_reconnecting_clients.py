"""A client that reconnects again and again, for example because the disk is full, does not fill the log."""

from __future__ import annotations

import logging
from collections import Counter

import pytest
from tests.support.async_client import Type, binary_port
from tests.support.memory_broker import MemoryBroker

from pybroker.broker.topic.topic import Topic

RECONNECTIONS = 40
LOGGED = 10  # maxClientEventsLoggedPerMinute


def events_of(caplog: pytest.LogCaptureFixture) -> Counter[str]:
    return Counter(record.getMessage() for record in caplog.records)


async def reconnect(broker: MemoryBroker, topic: Topic) -> None:
    """Attach a consumer and a producer, again and again, each time on a new connection. The disk is full meanwhile."""
    async with binary_port(broker) as port:
        for _ in range(RECONNECTIONS):
            broker.fullness.is_full = False
            client = await port.connect()
            assert (await client.answer(client.subscribe(str(topic.name))))["type"] == "SUCCESS"
            answer = await client.request(Type.PRODUCER, topic=str(topic.name), producer_id=1)
            assert answer["type"] == "PRODUCER_SUCCESS"
            broker.fullness.is_full = True
            answer = await client.request(Type.PRODUCER, topic=str(topic.name), producer_id=2)
            assert answer["type"] == "ERROR"
            await client.close()
            await broker.until(lambda: not list(port.connections))


async def test_reconnections_on_full_disk_log_each_event_a_bounded_number_of_times(
    broker: MemoryBroker, topic: Topic, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "pybroker"):
        await reconnect(broker, topic)
    events = events_of(caplog)
    for event in ("connection.opened", "connection.closed", "producer.created", "consumer.created"):
        assert events[event] == LOGGED, event
    assert events["client.refused"] == 1
    assert events["storage.failed"] == 0
    (summary,) = [vars(record) for record in caplog.records if record.getMessage() == "client.reconnects_often"]
    assert summary["fields"] == {
        "client": "127.0.0.1",
        "role": "none",
        "connections_opened": RECONNECTIONS - LOGGED,
        "connections_closed": RECONNECTIONS - LOGGED,
        "producers_created": RECONNECTIONS - LOGGED,
        "consumers_created": RECONNECTIONS - LOGGED,
    }


async def test_debug_level_logs_each_reconnection(
    broker: MemoryBroker, topic: Topic, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, "pybroker"):
        await reconnect(broker, topic)
    assert events_of(caplog)["connection.opened"] == RECONNECTIONS
