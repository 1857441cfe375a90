"""Delayed messages listed, put off and brought forward over REST, also over restarts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.protocol.test_unacked_routes import all_pages, asked
from tests.support.memory_broker import START_MS, MemoryBroker, acknowledge, memory_broker, stored_subscription
from tests.support.recording_peer import RecordingPeer
from tests.support.transactions import txn

from pybroker.broker.delivery.acknowledgement import Acknowledged
from pybroker.broker.delivery.consumer import Consumer
from pybroker.broker.topic.topic import Topic
from pybroker.dispatch.delayed.delayed_entries import MAX_DUE_MS
from pybroker.model.events import SendRun
from pybroker.model.position import Position
from pybroker.wire.entry_builder import build_entry

TOPIC = "/persistent/public/default/t"
AT = f"{TOPIC}/subscription/s"
HOUR_MS = 3_600_000
SHARED = ["Shared", "Key_Shared"]


@pytest.fixture
async def broker() -> AsyncIterator[MemoryBroker]:
    async with memory_broker(
        is_delayed_delivery_deliver_at_time_strict=True, delayed_delivery_tick_time_millis=1
    ) as found:
        yield found


async def publish_later(broker: MemoryBroker, topic: Topic, count: int, delay_ms: int = HOUR_MS) -> list[Position]:
    """Messages with keys `k0`, `k1`, ... that are due that much later."""
    peer = RecordingPeer()
    producer = broker.producer(topic, peer, f"d{id(peer)}")
    run = SendRun(1)
    for index in range(count):
        due_ms = broker.clock.now_ms + delay_ms if delay_ms else 0
        run.sequence_ids.append(index)
        run.highest_sequence_ids.append(0)
        run.message_counts.append(1)
        run.payloads.append(build_entry("p", index, broker.clock.now_ms, b"x", key=f"k{index}", deliver_at_ms=due_ms))
    run.size_bytes = sum(map(len, run.payloads))
    topic.publish(producer, run)
    await producer.drained()
    producer.detach()
    return peer.receipts


async def delay(broker: MemoryBroker, position: Position, at_ms: int | None) -> tuple[int, str]:
    """Change when it is due; None: now."""
    path = f"{AT}/message/{position.ledger_id}/{position.entry_id}/delay"
    body = None if at_ms is None else {"deliverAt": at_ms}
    answer = await broker.rest("DELETE" if at_ms is None else "PUT", path, body)
    return answer.status, answer.json["reason"] if answer.text else ""


async def pass_time(broker: MemoryBroker, topic: Topic, milliseconds: int) -> None:
    """The broker's alarms go by the machine's clock: the pump is woken in their place."""
    broker.clock.now_ms += milliseconds
    for subscription in topic.subscriptions.values():
        subscription.wake()
    await broker.quiet(topic)


@pytest.mark.parametrize("kind", SHARED)
async def test_delayed_messages_are_listed_by_position_with_their_keys_and_times(
    broker: MemoryBroker, topic: Topic, kind: str
) -> None:
    await broker.consumer(topic, "s", RecordingPeer(), kind)
    positions = await publish_later(broker, topic, 7)
    await broker.quiet(topic)
    rows = await all_pages(broker, "delayed", "messages", limit=3)
    assert rows == [
        {"messageId": str(position), "deliverAt": START_MS + HOUR_MS, "key": f"k{index}"}
        for index, position in enumerate(positions)
    ]
    page = await asked(broker, "delayed", limit=7)
    assert (page["total"], page["next"]) == (7, None)


@pytest.mark.parametrize("kind", SHARED)
async def test_a_delayed_message_is_delivered_at_once_and_once_when_its_delay_is_taken_away(
    broker: MemoryBroker, topic: Topic, kind: str
) -> None:
    peer = RecordingPeer()
    consumer = await broker.consumer(topic, "s", peer, kind)
    positions = await publish_later(broker, topic, 3)
    await broker.quiet(topic)
    assert peer.delivered == []
    assert await delay(broker, positions[1], None) == (204, "")
    await broker.quiet(topic)
    assert peer.delivered == [positions[1]]
    assert (await delay(broker, positions[1], None))[0] == 409
    # Sent again, it waits for no time either.
    consumer.subscription.redeliver(consumer, [positions[1]], -1)
    await broker.quiet(topic)
    assert peer.delivered == [positions[1]] * 2
    await pass_time(broker, topic, HOUR_MS + 1)
    assert sorted(peer.delivered[2:]) == [positions[0], positions[2]]


@pytest.mark.parametrize("kind", SHARED)
async def test_a_message_is_put_off_brought_forward_and_comes_once_at_its_last_time(
    broker: MemoryBroker, topic: Topic, kind: str
) -> None:
    peer = RecordingPeer()
    await broker.consumer(topic, "s", peer, kind)
    later, earlier, untouched = await publish_later(broker, topic, 3)
    await broker.quiet(topic)
    assert (await delay(broker, later, START_MS + 3 * HOUR_MS))[0] == 204
    assert (await delay(broker, later, START_MS + 2 * HOUR_MS))[0] == 204
    assert (await delay(broker, earlier, START_MS + 1000))[0] == 204
    rows = (await asked(broker, "delayed"))["messages"]
    assert [(row["deliverAt"] - START_MS, row.get("changed", False)) for row in rows] == [
        (2 * HOUR_MS, True),
        (1000, True),
        (HOUR_MS, False),
    ]
    await pass_time(broker, topic, 1001)
    assert peer.delivered == [earlier]
    await pass_time(broker, topic, HOUR_MS)
    assert peer.delivered == [earlier, untouched]
    await pass_time(broker, topic, HOUR_MS)
    assert peer.delivered == [earlier, untouched, later]
    await pass_time(broker, topic, 2 * HOUR_MS)
    assert len(peer.delivered) == 3


@pytest.mark.parametrize("kind", SHARED)
async def test_a_message_that_waits_for_a_consumer_is_put_off_too(
    broker: MemoryBroker, topic: Topic, kind: str
) -> None:
    peer = RecordingPeer()
    consumer = await broker.consumer(topic, "s", peer, kind)
    consumer.state.permits = 0
    positions = await publish_later(broker, topic, 3, delay_ms=0)
    assert (await delay(broker, positions[0], START_MS + 1000))[0] == 204
    consumer.flow(10)
    await broker.quiet(topic)
    assert peer.delivered == positions[1:]
    await pass_time(broker, topic, 1001)
    assert peer.delivered == [*positions[1:], positions[0]]


async def test_changed_times_are_kept_over_an_unload_until_the_message_is_acknowledged(
    broker: MemoryBroker, topic: Topic
) -> None:
    await broker.consumer(topic, "s", RecordingPeer())
    positions = await publish_later(broker, topic, 4)
    await broker.quiet(topic)
    assert (await delay(broker, positions[0], START_MS + 3 * HOUR_MS))[0] == 204
    assert (await delay(broker, positions[1], START_MS + 1000))[0] == 204
    assert (await delay(broker, positions[2], START_MS + 1000))[0] == 204
    for _ in range(2):
        assert (await broker.rest("PUT", f"{TOPIC}/unload")).status == 204
        topic = await broker.topic("persistent://public/default/t")
        assert (await broker.rest("GET", f"{AT}/delayed")).status == 412
        peer = RecordingPeer()
        consumer = await broker.consumer(topic, "s", peer)
        await broker.quiet(topic)
        rows = (await asked(broker, "delayed"))["messages"]
        assert [row["deliverAt"] - START_MS for row in rows] == [3 * HOUR_MS, 1000, 1000, HOUR_MS]
        assert peer.delivered == []
    acknowledge(consumer, [positions[2]])
    assert len(topic.subscriptions["s"].delayed._changed) == 2
    await pass_time(broker, topic, HOUR_MS + 1)
    assert sorted(peer.delivered) == [positions[1], positions[3]]
    await pass_time(broker, topic, 2 * HOUR_MS)
    assert peer.delivered[-1] == positions[0]
    acknowledge(consumer, positions)
    assert not topic.subscriptions["s"].delayed._changed


async def test_what_cannot_be_delayed_is_refused_with_the_reason(broker: MemoryBroker, topic: Topic) -> None:
    peer = RecordingPeer()
    consumer = await broker.consumer(topic, "s", peer)
    held, other = await broker.publish(topic, 2)
    (delayed,) = await publish_later(broker, topic, 1)
    await broker.quiet(topic)
    status, reason = await delay(broker, held, START_MS)
    assert (status, "already delivered to consumer c" in reason) == (409, True)
    acknowledge(consumer, [other])
    assert (await delay(broker, other, START_MS))[0] == 409
    assert (await delay(broker, Position(delayed.ledger_id, 99), START_MS))[0] == 404
    assert (await delay(broker, delayed, -1))[0] == 412
    assert (await delay(broker, delayed, MAX_DUE_MS + 1))[0] == 412
    groups = ((delayed.ledger_id, [delayed.entry_id]),)
    assert topic.subscriptions["s"].transactions.hold(txn(1), Acknowledged(None, groups)) is None
    assert (await delay(broker, delayed, START_MS))[0] == 409
    path = f"{AT}/message/{delayed.ledger_id}/{delayed.entry_id}/delay"
    assert (await broker.rest("PUT", path)).status == 400
    assert (await broker.rest("PUT", path, {"deliverAt": "soon"})).status == 400
    consumer.detach()
    await broker.consumer(topic, "s", RecordingPeer(), "Exclusive")
    status, reason = await delay(broker, delayed, START_MS)
    assert (status, "Exclusive" in reason) == (412, True)
    assert (await broker.rest("GET", f"{AT}/delayed")).status == 412


async def test_only_so_many_times_of_a_subscription_are_changed(
    broker: MemoryBroker, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pybroker.dispatch.delayed.changed_delays.MAX_CHANGED_DELAYS", 2)
    consumer = await broker.consumer(topic, "s", RecordingPeer())
    positions = await publish_later(broker, topic, 3)
    await broker.quiet(topic)
    assert [(await delay(broker, each, START_MS + 5))[0] for each in positions] == [204, 204, 429]
    assert (await delay(broker, positions[1], START_MS + 6))[0] == 204
    acknowledge(consumer, positions[:1])
    assert (await delay(broker, positions[2], START_MS + 5))[0] == 204


async def test_many_at_once_in_the_middle_of_acknowledgements_and_unloads_leave_nothing_behind(
    broker: MemoryBroker, topic: Topic
) -> None:
    consumer = await broker.consumer(topic, "s", RecordingPeer(), "Key_Shared")
    positions = await publish_later(broker, topic, 30)
    await broker.quiet(topic)

    async def clients() -> None:
        for position in positions[::4]:
            acknowledge(consumer, [position])
            await asyncio.sleep(0)

    outcomes = await asyncio.gather(
        *(delay(broker, each, None if index % 3 == 0 else START_MS + index) for index, each in enumerate(positions)),
        clients(),
        broker.rest("PUT", f"{TOPIC}/unload"),
    )
    # Without a consumer since the topic was loaded nobody knows what is delayed.
    assert {each[0] for each in outcomes if each is not None} <= {204, 409, 412}
    topic = await broker.topic("persistent://public/default/t")
    peer = RecordingPeer()
    again = await broker.consumer(topic, "s", peer, "Key_Shared")
    await broker.quiet(topic)
    await pass_time(broker, topic, 2 * HOUR_MS)
    left = [each for each in positions if not topic.subscriptions["s"].cursor.state.is_deleted(*each)]
    assert sorted(peer.delivered) == left
    acknowledge(again, left)
    assert topic.subscriptions["s"].backlog_entries == 0
    assert not topic.subscriptions["s"].delayed._changed


@pytest.mark.parametrize("kind", SHARED)
async def test_what_is_due_and_not_taken_waits_and_explain_says_for_whom(broker: MemoryBroker, kind: str) -> None:
    topic = await broker.topic(f"persistent:/{TOPIC.removeprefix('/persistent')}")
    peer = RecordingPeer()
    consumer = await broker.consumer(topic, "s", peer, kind)
    await publish_later(broker, topic, 3)
    await broker.until(lambda: stored_subscription(consumer.subscription).delayed.entry_count == 3)
    assert [each["code"] for each in (await asked(broker, "explain"))["findings"]] == ["delayed"]
    consumer.detach()
    assert not (await asked(broker, "explain"))["waiting"]
    broker.clock.now_ms += HOUR_MS + 10
    found = await asked(broker, "explain")
    assert [each["code"] for each in found["findings"]] == ["no-consumers", "delayed"]
    assert found["findings"][0]["evidence"]["waitingEntries"] == 3
    full = Consumer(consumer.subscription, 1, "full", 0, 0, RecordingPeer(), {}, broker.clock.now_ms)
    topic.attach(consumer.subscription, full, kind)
    await broker.quiet(topic)
    found = await asked(broker, "explain")
    assert [each["code"] for each in found["findings"]] == ["no-permits", "delayed"]
    full.flow(10)
    await broker.until(lambda: full.state.unacked_messages == 3)
    assert (await asked(broker, "explain"))["findings"] == []
