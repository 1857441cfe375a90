"""Delayed delivery on a real broker in memory, whose clock the test moves: REST, dispatch, and what is kept."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.support.memory_broker import PAYLOAD, START_MS, MemoryBroker, acknowledge, memory_broker, stored_subscription
from tests.support.recording_peer import RecordingPeer

from pybroker.broker.delivery import cursor_moves
from pybroker.broker.delivery.consumer import Consumer
from pybroker.broker.topic.topic import Topic
from pybroker.dispatch.delayed import delayed_entries
from pybroker.errors import NotAllowedError
from pybroker.managed_ledger.rollover import LedgerLimits
from pybroker.model.events import SendRun
from pybroker.model.position import Position
from pybroker.wire import pulsar_api_pb2 as pb

NAMESPACE = "/namespaces/public/default/delayedDelivery"
NAME = "persistent://public/default/t"
TOPIC = "/persistent/public/default/t/delayedDelivery"
TICK_MS = 1000
TYPES = ("Shared", "Key_Shared")


@pytest.fixture
async def strict_broker() -> AsyncIterator[MemoryBroker]:
    async with memory_broker(is_delayed_delivery_deliver_at_time_strict=True) as running:
        yield running


async def publish(
    broker: MemoryBroker, topic: Topic, delays_ms: list[int], peer: RecordingPeer | None = None
) -> list[Position]:
    """One message of key `k` for each delay, 0 for none."""
    peer = RecordingPeer() if peer is None else peer
    producer = broker.producer(topic, peer)
    run = SendRun(1)
    for index, delay_ms in enumerate(delays_ms):
        meta = pb.MessageMetadata(producer_name="p", sequence_id=index, publish_time=broker.clock.now_ms)
        meta.partition_key = "k"
        if delay_ms:
            meta.deliver_at_time = broker.clock.now_ms + delay_ms
        header = meta.SerializeToString()
        run.sequence_ids.append(index)
        run.highest_sequence_ids.append(0)
        run.message_counts.append(1)
        run.payloads.append(len(header).to_bytes(4, "big") + header + PAYLOAD)
    run.size_bytes = sum(map(len, run.payloads))
    topic.publish(producer, run)
    await producer.drained()
    producer.detach()
    return peer.receipts


async def settle() -> None:
    """Let everything happen that does not need time."""
    for _ in range(30):
        await asyncio.sleep(0)


async def advance(broker: MemoryBroker, consumer: Consumer, ms: int) -> None:
    """The clock moves, and something makes the subscription look."""
    broker.clock.now_ms += ms
    consumer.subscription.wake()
    await settle()


@pytest.mark.parametrize("kind", TYPES)
async def test_what_is_not_due_waits_and_holds_up_nothing_of_its_key(broker: MemoryBroker, kind: str) -> None:
    topic, peer = await broker.topic(NAME), RecordingPeer()
    consumer = await broker.consumer(topic, "s", peer, kind)
    sent = await publish(broker, topic, [5000, 0, 3000, -10, TICK_MS])
    await settle()
    assert peer.delivered == [sent[1], sent[3], sent[4]], "past ones, and those within a tick, go at once"
    assert stored_subscription(consumer.subscription).delayed.entry_count == 2
    acknowledge(consumer, peer.delivered)
    await advance(broker, consumer, 1999)
    assert peer.delivered[3:] == []
    await advance(broker, consumer, 1)
    assert peer.delivered[3:] == [sent[2]], "a tick early, as the pump runs anyway"
    await advance(broker, consumer, 2000)
    assert peer.delivered[4:] == [sent[0]]
    assert stored_subscription(consumer.subscription).delayed.entry_count == 0
    assert stored_subscription(consumer.subscription).cursor.mark_delete_position == Position(sent[0].ledger_id, -1)
    acknowledge(consumer, peer.delivered)
    assert stored_subscription(consumer.subscription).cursor.backlog_entries == 0


@pytest.mark.parametrize("kind", ["Exclusive", "Failover"])
async def test_one_active_consumer_gets_everything_at_once(broker: MemoryBroker, kind: str) -> None:
    topic, peer = await broker.topic(NAME), RecordingPeer()
    await broker.consumer(topic, "s", peer, kind)
    sent = await publish(broker, topic, [5000, 0])
    await broker.until(lambda: peer.delivered == sent)


async def test_strict_times_are_never_early_and_the_alarm_rings_once_a_tick(strict_broker: MemoryBroker) -> None:
    broker = strict_broker
    topic, peer = await broker.topic(NAME), RecordingPeer()
    consumer = await broker.consumer(topic, "s", peer)
    sent = await publish(broker, topic, [500, 400])
    await settle()
    assert peer.delivered == []
    await advance(broker, consumer, 399)
    assert peer.delivered == []
    await advance(broker, consumer, 1)
    assert peer.delivered == [sent[1]]
    await advance(broker, consumer, 100)
    assert peer.delivered == [sent[1], sent[0]]


async def test_the_alarm_delivers_without_anything_else_happening(broker: MemoryBroker) -> None:
    topic, peer = await broker.topic(NAME), RecordingPeer()
    await broker.consumer(topic, "s", peer)
    sent = await publish(broker, topic, [TICK_MS + 30])
    broker.clock.now_ms += TICK_MS + 30  # The alarm was set for real time: it is a second and a bit away.
    async with asyncio.timeout(10):
        while not peer.delivered:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert peer.delivered == sent


async def test_due_messages_wait_for_permits(broker: MemoryBroker) -> None:
    topic, peer = await broker.topic(NAME), RecordingPeer()
    consumer = await broker.consumer(topic, "s", peer)
    sent = await publish(broker, topic, [5000] * 3)
    await settle()
    consumer.state.permits = 1
    await advance(broker, consumer, 5000)
    assert peer.delivered == sent[:1]
    consumer.flow(5)
    await settle()
    assert peer.delivered == sent


async def test_messages_due_together_are_delivered_in_publish_order(broker: MemoryBroker) -> None:
    topic, peer = await broker.topic(NAME), RecordingPeer()
    consumer = await broker.consumer(topic, "s", peer)
    sent = await publish(broker, topic, [5000] * 500)
    await settle()
    await advance(broker, consumer, 5000)
    await broker.quiet(topic)
    assert peer.delivered == sent


@pytest.mark.parametrize("kind", TYPES)
async def test_due_message_is_redelivered_at_once_when_refused(broker: MemoryBroker, kind: str) -> None:
    topic, peer = await broker.topic(NAME), RecordingPeer()
    consumer = await broker.consumer(topic, "s", peer, kind)
    (sent,) = await publish(broker, topic, [5000])
    await settle()
    await advance(broker, consumer, 5000)
    assert peer.delivered == [sent]
    consumer.subscription.redeliver(consumer, [sent], -1)
    await broker.quiet(topic)
    assert peer.delivered == [sent, sent]
    assert stored_subscription(consumer.subscription).delayed.entry_count == 0


async def test_delayed_message_keeps_its_own_ledger_and_no_other() -> None:
    limits = LedgerLimits(max_entries_per_ledger=5, min_rollover_ms=0)
    async with memory_broker(limits) as broker:
        topic, peer = await broker.topic(NAME), RecordingPeer()
        consumer = await broker.consumer(topic, "s", peer)
        (late,) = await publish(broker, topic, [5000])
        for _ in range(30):
            await publish(broker, topic, [0])
        await broker.until(lambda: len(peer.delivered) == 30)
        acknowledge(consumer, peer.delivered)
        await broker.service.maintenance.check_retention()
        await broker.until(lambda: len(topic.ledger.ledgers.ledger_ids()) <= 2)
        assert topic.ledger.ledgers.ledger_ids()[0] == late.ledger_id
        await broker.service.topics.unload(topic)
        again = RecordingPeer()
        topic = await broker.topic(NAME)
        consumer = await broker.consumer(topic, "s", again)
        await broker.quiet(topic)
        assert again.delivered == []
        await advance(broker, consumer, 5000)
        assert again.delivered == [late]


@pytest.mark.parametrize("kind", TYPES)
async def test_when_all_consumers_leave_nothing_is_lost_and_nothing_delivered_early(
    broker: MemoryBroker, kind: str
) -> None:
    topic, peer, next_peer = await broker.topic(NAME), RecordingPeer(), RecordingPeer()
    consumer = await broker.consumer(topic, "s", peer, kind)
    sent = await publish(broker, topic, [5000, 3000, 0])
    await settle()
    await advance(broker, consumer, 3000)
    assert peer.delivered == [sent[2], sent[1]]
    consumer.detach()
    consumer = await broker.consumer(topic, "s", next_peer, kind)
    await settle()
    assert sorted(next_peer.delivered) == sent[1:]
    await advance(broker, consumer, 2000)
    assert sorted(next_peer.delivered) == sent


async def test_the_cursor_passes_over_what_waits_and_what_is_acknowledged(broker: MemoryBroker) -> None:
    topic, peer = await broker.topic(NAME), RecordingPeer()
    consumer = await broker.consumer(topic, "s", peer)
    sent = await publish(broker, topic, [50_000, 0, 50_000, 0, 0])
    await settle()
    acknowledge(consumer, [sent[1], sent[3]])
    cursor = stored_subscription(consumer.subscription).cursor
    cursor.rewind()
    cursor.pass_over(stored_subscription(consumer.subscription).delayed.held_back)
    assert cursor.read_position == sent[4]


async def test_skip_expiry_and_acknowledgement_take_messages_out_of_the_index(broker: MemoryBroker) -> None:
    topic, peer = await broker.topic(NAME), RecordingPeer()
    consumer = await broker.consumer(topic, "s", peer)
    subscription = consumer.subscription
    sent = await publish(broker, topic, [5000] * 4)
    await settle()
    acknowledge(consumer, sent[3:])
    assert subscription.delayed.entry_count == 3  # type: ignore[attr-defined]
    await cursor_moves.skip(subscription, 1)  # type: ignore[arg-type]
    assert subscription.delayed.entry_count == 2  # type: ignore[attr-defined]
    await cursor_moves.expire(subscription, START_MS + 1)  # type: ignore[arg-type]
    assert subscription.delayed.entry_count == 0  # type: ignore[attr-defined]
    await advance(broker, consumer, 5000)
    assert peer.delivered == []


async def test_after_a_reset_messages_that_are_not_due_wait_again(broker: MemoryBroker) -> None:
    topic, peer, next_peer = await broker.topic(NAME), RecordingPeer(), RecordingPeer()
    consumer = await broker.consumer(topic, "s", peer)
    sent = await publish(broker, topic, [5000, 0])
    await settle()
    acknowledge(consumer, sent)
    await cursor_moves.reset(consumer.subscription, sent[0])  # type: ignore[arg-type]
    consumer = await broker.consumer(topic, "s", next_peer)
    await settle()
    assert next_peer.delivered == [sent[1]]
    await advance(broker, consumer, 5000)
    assert next_peer.delivered == [sent[1], sent[0]]


async def test_a_large_index_is_stored_and_read_back(broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delayed_entries, "RUN_ENTRIES", 16)
    topic, peer = await broker.topic(NAME), RecordingPeer()
    await broker.consumer(topic, "s", peer)
    sent = []
    for _ in range(10):
        sent += await publish(broker, topic, [5000 + index for index in range(10)])
        await settle()
    await broker.service.topics.unload(topic)
    topic = await broker.topic(NAME)
    subscription = topic.subscriptions["s"]
    assert subscription.cursor.ledger.document.cursors["s"].delayed
    consumer = await broker.consumer(topic, "s", peer)
    subscription.pump(0, 0)
    assert 0 < subscription.delayed.entry_count <= 20, "read back in slices of the pump's time"
    await settle()
    assert subscription.delayed.entry_count == 100
    assert subscription.cursor.read_position > sent[-1], "nothing of them was read"
    assert 0 < subscription.delayed.index_size_bytes < 10_000
    await advance(broker, consumer, 6000)
    assert sorted(peer.delivered) == sent
    acknowledge(consumer, sent)
    await broker.service.topics.unload(topic)
    cursor = (await broker.topic(NAME)).subscriptions["s"].cursor
    assert cursor.backlog_entries == 0


async def test_a_damaged_index_costs_reading_only(broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delayed_entries, "RUN_ENTRIES", 16)
    topic, peer = await broker.topic(NAME), RecordingPeer()
    consumer = await broker.consumer(topic, "s", peer)
    sent = await publish(broker, topic, [5000] * 40)
    await settle()
    record_id = await stored_subscription(consumer.subscription).cursor.announce_delayed()
    await broker.service.topics.unload(topic)
    broker.service.ledgers.cursor_store.append_delta(record_id, b"\x01\x01damage", None)
    consumer = await broker.consumer(await broker.topic(NAME), "s", peer)
    await settle()
    assert stored_subscription(consumer.subscription).delayed.entry_count == 40
    await advance(broker, consumer, 5000)
    assert peer.delivered == sent


async def test_a_deleted_subscription_leaves_no_record(broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delayed_entries, "RUN_ENTRIES", 16)
    topic, peer = await broker.topic(NAME), RecordingPeer()
    consumer = await broker.consumer(topic, "s", peer)
    await publish(broker, topic, [5000] * 40)
    await settle()
    store = broker.service.ledgers.cursor_store
    record_id = await stored_subscription(consumer.subscription).cursor.announce_delayed()
    while await store.load(record_id) == (None, []):  # noqa: ASYNC110  (written in the background)
        await asyncio.sleep(0)
    await broker.topic_of(consumer.subscription).delete_subscription(consumer.subscription)
    assert await store.load(record_id) == (None, [])


async def test_a_delay_over_the_limit_is_refused_and_the_rest_of_the_run_stored(broker: MemoryBroker) -> None:
    topic, peer = await broker.topic(NAME), RecordingPeer()
    limits = {"active": True, "tickTime": 100, "maxDeliveryDelayInMillis": 1000}
    assert (await broker.rest("POST", TOPIC, limits)).status == 204
    receipts = await publish(broker, topic, [0, 1001, 1000], peer)
    assert len(receipts) == 2
    assert [type(error) for error in peer.errors] == [NotAllowedError]
    limits["active"] = False
    await broker.rest("POST", TOPIC, limits)
    await publish(broker, topic, [1001], peer)
    assert len(peer.errors) == 1


@pytest.mark.parametrize("path", [NAMESPACE, TOPIC])
async def test_policies_are_set_shown_unset_and_applied_at_once(broker: MemoryBroker, path: str) -> None:
    topic, peer = await broker.topic(NAME), RecordingPeer()
    consumer = await broker.consumer(topic, "s", peer)
    await publish(broker, topic, [5000])
    await settle()
    assert (await broker.rest("GET", path)).text == ""
    policies = {"active": False, "tickTime": 7, "maxDeliveryDelayInMillis": 9}
    assert (await broker.rest("POST", path, policies)).status == 204
    assert (await broker.rest("GET", path)).json == policies
    assert (await broker.rest("GET", f"{TOPIC}?applied=true")).json == policies
    await broker.until(lambda: len(peer.delivered) == 1)
    assert stored_subscription(consumer.subscription).delayed.entry_count == 0
    assert (await broker.rest("DELETE", path)).status == 204
    assert (await broker.rest("GET", path)).text == ""
    default = {"active": True, "tickTime": 1000, "maxDeliveryDelayInMillis": 0}
    assert (await broker.rest("GET", f"{TOPIC}?applied=true")).json == default


async def test_the_broker_can_switch_delayed_delivery_off() -> None:
    async with memory_broker(delayed_delivery_enabled=False) as broker:
        topic, peer = await broker.topic(NAME), RecordingPeer()
        consumer = await broker.consumer(topic, "s", peer)
        sent = await publish(broker, topic, [5000])
        await broker.until(lambda: peer.delivered == sent)
        assert stored_subscription(consumer.subscription).delayed.entry_count == 0
