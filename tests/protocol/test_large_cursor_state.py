"""A subscription on the model of bookies whose acknowledgements are too large for an entry of a bookie."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.support.memory_broker import MemoryBroker, acknowledge, memory_broker
from tests.support.pulsar_layout import Layout
from tests.support.recording_peer import RecordingPeer
from tests.support.rest import call

from pybroker.broker.delivery.consumer import Consumer
from pybroker.broker_assembly import Stores
from pybroker.errors import PersistenceError
from pybroker.model.events import Ack
from pybroker.model.position import Position

TOPIC = "persistent://public/default/t"
AT = "/persistent/public/default/t"
METRIC = "pybroker_subscription_blocked_on_cursor_state"
MAX_STATE_BYTES = 400
"""Instead of 5 MB: about 28 ranges."""


@asynccontextmanager
async def broker_on(layout: Layout) -> AsyncIterator[MemoryBroker]:
    bookies = layout.broker(max_state_bytes=MAX_STATE_BYTES)
    stores = Stores(layout.metadata, bookies.store, bookies.cursors, bookies.records)
    async with memory_broker(stores=stores, system_topic_enabled=False, cursor_flush_interval_ms=10) as broker:
        yield broker
    await bookies.crash()


def acknowledge_with_receipt(consumer: Consumer, position: Position, request_id: int) -> None:
    ack = Ack(consumer.consumer_id)
    ack.request_id = request_id
    ack.groups.append((position.ledger_id, [position.entry_id]))
    consumer.subscription.acknowledge(consumer, ack)


async def codes(broker: MemoryBroker) -> list[str]:
    return [each["code"] for each in (await broker.rest("GET", f"{AT}/subscription/s/explain")).json["findings"]]


@pytest.mark.parametrize("kind", ["Shared", "Key_Shared", "Exclusive"])
async def test_delivery_pauses_while_the_cursor_state_is_too_large_and_resumes(kind: str) -> None:
    layout = Layout()
    async with broker_on(layout) as broker:
        topic = await broker.topic(TOPIC)
        peer = RecordingPeer()
        consumer = await broker.consumer(topic, "s", peer, kind)
        await broker.publish(topic, 100)
        await broker.until(lambda: len(peer.delivered) == 100)
        sent = list(peer.delivered)
        # Every second one: each is a range.
        acknowledge(consumer, sent[1:80:2])
        acknowledge_with_receipt(consumer, sent[81], 7)
        await broker.until(lambda: len(peer.ack_responses) == 1)
        (request_id, error) = peer.ack_responses[0]
        assert request_id == 7
        assert isinstance(error, PersistenceError), "the acknowledgement has no receipt"
        cursor = topic.subscriptions["s"].cursor
        assert cursor.size_limit.excess is not None
        assert cursor.state.deleted_range_count == 41, "no range is dropped"

        await broker.publish(topic, 10)
        await broker.quiet(topic)
        assert len(peer.delivered) == 100, "new messages wait"
        (finding,) = (await broker.rest("GET", f"{AT}/subscription/s/explain")).json["findings"]
        assert finding["code"] == "cursor-state-too-large"
        assert finding["waits"]
        evidence = finding["evidence"]
        assert evidence["stateBytes"] > evidence["limit"] == MAX_STATE_BYTES
        assert evidence["ranges"] == 41
        assert evidence["messageId"] == str(sent[0])
        assert evidence["lastAcknowledged"] == str(sent[81])
        assert await metric(broker) == 1

        # A new consumer gets the oldest messages again, so that they can be acknowledged.
        other = RecordingPeer()
        consumer.detach()
        consumer = broker.consumer_on(topic.subscriptions["s"], other, kind, "other")
        await broker.until(lambda: len(other.delivered) >= 41)
        await broker.quiet(topic)
        assert set(sent[0:82:2]) <= set(other.delivered) <= set(sent)

        acknowledge(consumer, sent[0:60:2])
        await broker.until(lambda: cursor.size_limit.excess is None)
        await broker.until(lambda: len(set(other.delivered)) == 41 + 18 + 10)
        acknowledge_with_receipt(consumer, sent[60], 8)
        await broker.until(lambda: other.ack_responses == [(8, None)])
        assert await metric(broker) == 0
        assert "cursor-state-too-large" not in await codes(broker)
        deleted = cursor.state.individually_deleted_text()
    async with broker_on(layout) as broker:
        again = (await broker.topic(TOPIC)).subscriptions["s"].cursor
        assert again.state.individually_deleted_text() == deleted


async def metric(broker: MemoryBroker) -> float:
    page = (await asyncio.to_thread(call, f"http://127.0.0.1:{broker.port}/metrics/")).text
    (line,) = (each for each in page.splitlines() if each.startswith(f"{METRIC}{{"))
    return float(line.rpartition(" ")[2])
