"""What ends the life of a subscription or moves it, on live topics in a process with a wall clock that the tests move."""

from __future__ import annotations

import pytest
from tests.support.memory_broker import MemoryBroker, acknowledge, memory_broker
from tests.support.recording_peer import RecordingPeer

from pybroker.broker.delivery import cursor_moves
from pybroker.broker.topic.topic import Topic
from pybroker.model.position import EARLIEST, LATEST, Position

TOPIC = "persistent://public/default/t"
TOPIC_PATH = "/persistent/public/default/t"
NAMESPACE_PATH = "/namespaces/public/default"
MINUTE_MS = 60_000


# --- expiry of subscriptions -----------------------------------------------------------------------------------------------


async def test_a_subscription_that_nobody_used_for_so_long_goes(broker: MemoryBroker, topic: Topic) -> None:
    await broker.rest("POST", f"{NAMESPACE_PATH}/subscriptionExpirationTime", 10)
    await topic.subscription("idle", True, True, {})
    used = await broker.consumer(topic, "used", RecordingPeer())
    await broker.consumer(topic, "connected", RecordingPeer())
    broker.clock.now_ms += 8 * MINUTE_MS
    used.detach()
    broker.clock.now_ms += 3 * MINUTE_MS
    await broker.service.maintenance.check_unused_subscriptions()
    assert set(topic.subscriptions) == {"used", "connected"}
    assert "idle" not in topic.ledger.cursors
    broker.clock.now_ms += 8 * MINUTE_MS
    await broker.service.maintenance.check_unused_subscriptions()
    assert set(topic.subscriptions) == {"connected"}


async def test_without_such_a_policy_subscriptions_stay_for_ever(broker: MemoryBroker, topic: Topic) -> None:
    await topic.subscription("idle", True, True, {})
    broker.clock.now_ms += 1_000_000 * MINUTE_MS
    await broker.service.maintenance.check_unused_subscriptions()
    assert set(topic.subscriptions) == {"idle"}


async def test_a_topic_may_keep_what_its_namespace_or_the_configuration_drops() -> None:
    async with memory_broker(subscription_expiration_time_minutes=1) as broker:
        topic = await broker.topic(TOPIC)
        await topic.subscription("idle", True, True, {})
        await broker.rest("POST", f"{TOPIC_PATH}/subscriptionExpirationTime?subscriptionExpirationTime=0")
        broker.clock.now_ms += 5 * MINUTE_MS
        await broker.service.maintenance.check_unused_subscriptions()
        assert set(topic.subscriptions) == {"idle"}
        await broker.rest("DELETE", f"{TOPIC_PATH}/subscriptionExpirationTime")
        await broker.service.maintenance.check_unused_subscriptions()
        assert not topic.subscriptions


async def test_a_topic_that_was_just_loaded_keeps_its_subscriptions(broker: MemoryBroker, topic: Topic) -> None:
    await broker.rest("POST", f"{NAMESPACE_PATH}/subscriptionExpirationTime", 10)
    await topic.subscription("idle", True, True, {})
    await broker.service.topics.unload(topic)
    broker.clock.now_ms += 60 * MINUTE_MS
    topic = await broker.topic(TOPIC)
    await broker.service.maintenance.check_unused_subscriptions()
    assert set(topic.subscriptions) == {"idle"}


# --- moves -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["Exclusive", "Shared", "Key_Shared", "Failover"])
async def test_a_move_disconnects_everybody_and_is_where_the_next_one_begins(
    broker: MemoryBroker, topic: Topic, kind: str
) -> None:
    peer, after = RecordingPeer(), RecordingPeer()
    consumer = await broker.consumer(topic, "s", peer, kind)
    positions = await broker.publish(topic, 10)
    await broker.until(lambda: len(peer.delivered) == 10)
    acknowledge(consumer, positions[:8:2])
    subscription = topic.subscriptions["s"]
    await cursor_moves.reset(subscription, positions[3])
    assert peer.closed_consumers == [1]
    assert not subscription.consumers
    broker.consumer_on(subscription, after, kind)
    await broker.until(lambda: len(after.delivered) == 7)
    assert after.delivered == positions[3:]


async def test_a_move_into_a_batch_leaves_its_rest(broker: MemoryBroker, topic: Topic) -> None:
    await topic.subscription("s", True, True, {})
    positions = await broker.publish(topic, 3, messages_each=10)
    subscription = topic.subscriptions["s"]
    await cursor_moves.reset(subscription, positions[1], [0b1111111000])
    assert subscription.cursor.backlog_entries == 2
    assert subscription.cursor.state.ack_set_of(*positions[1]) == [0b1111111000]
    for words in ([0], []):
        await cursor_moves.reset(subscription, positions[1], words)
        assert subscription.cursor.state.ack_set_of(*positions[1]) is None
        assert subscription.cursor.backlog_entries == 2


async def test_a_part_of_a_batch_counts_only_with_batch_index_acknowledgement() -> None:
    async with memory_broker(acknowledgment_at_batch_index_level_enabled=False) as broker:
        topic = await broker.topic(TOPIC)
        subscription = await topic.subscription("s", True, True, {})
        positions = await broker.publish(topic, 2, messages_each=10)
        await cursor_moves.reset(subscription, positions[1], [0b1111111000])
        assert subscription.cursor.state.ack_set_of(*positions[1]) is None


async def test_positions_that_do_not_exist_mean_the_nearest_behind_them(broker: MemoryBroker, topic: Topic) -> None:
    subscription = await topic.subscription("s", True, True, {})
    positions = await broker.publish(topic, 3)
    ledger_id = positions[0].ledger_id
    for position, entries in (
        (EARLIEST, 3),
        (LATEST, 0),
        (Position(ledger_id, 99), 0),
        (Position(ledger_id + 5, 0), 0),
        (Position(ledger_id - 1, 7), 3),
    ):
        await cursor_moves.reset(subscription, position)
        assert subscription.cursor.backlog_entries == entries, position


async def test_a_reader_that_does_not_come_back_after_a_move_leaves_nothing_behind(
    broker: MemoryBroker, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cursor_moves, "READER_RETURN_S", 0)
    for name in ("gone", "back"):
        broker.consumer_on(topic.registry.non_durable(name, EARLIEST), RecordingPeer(), "Exclusive")
    for name in ("gone", "back"):
        await cursor_moves.reset(topic.subscriptions[name], EARLIEST)
        if name == "back":
            broker.consumer_on(topic.subscriptions[name], RecordingPeer(), "Exclusive")
    await broker.until(lambda: "gone" not in topic.subscriptions)
    assert set(topic.ledger.cursors) == set(topic.subscriptions) == {"back"}
