"""Promises of the documents that no other test shows: see docs/contributing/conformance.md."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.support.memory_broker import MemoryBroker, acknowledge, memory_broker, stored_subscription
from tests.support.recording_peer import RecordingPeer

from pybroker.broker.topic.topic import Topic
from pybroker.model.position import Position

NAME = "persistent://public/default/t"
KEYS = [f"k{index}" for index in range(40)]


async def delivered(broker: MemoryBroker, topic: Topic, kind: str, count: int) -> tuple[RecordingPeer, list[Position]]:
    """A consumer that was sent `count` messages, and where they are."""
    peer = RecordingPeer()
    await broker.consumer(topic, "s", peer, kind)
    positions = await broker.publish(topic, count, KEYS)
    await broker.until(lambda: len(peer.delivered) == count)
    return peer, positions


@pytest.mark.parametrize("kind", ["Exclusive", "Failover", "Shared", "Key_Shared"])
async def test_a_delivered_message_is_not_sent_again_by_itself(kind: str) -> None:
    async with memory_broker(active_consumer_failover_delay_time_millis=0) as broker:
        topic = await broker.topic(NAME)
        peer, positions = await delivered(broker, topic, kind, 3)
        broker.clock.now_ms += 7 * 86_400_000
        await broker.service.maintenance.check_backlog_quotas()
        topic.subscriptions["s"].wake()
        more = await broker.publish(topic, 1)
        await broker.until(lambda: len(peer.delivered) > 3)
        assert peer.delivered == positions + more


@pytest.mark.parametrize("kind", ["Exclusive", "Failover"])
async def test_an_ordered_consumer_gets_all_that_it_did_not_acknowledge_again_and_in_order(kind: str) -> None:
    async with memory_broker(active_consumer_failover_delay_time_millis=0) as broker:
        topic = await broker.topic(NAME)
        peer, positions = await delivered(broker, topic, kind, 6)
        (consumer,) = topic.subscriptions["s"].consumers
        acknowledge(consumer, positions[:2] + positions[4:5])
        consumer.subscription.redeliver(consumer, positions[5:], -1)
        await broker.until(lambda: len(peer.delivered) == 9)
        assert peer.delivered[6:] == [positions[2], positions[3], positions[5]]


@pytest.mark.parametrize("messages_each", [1, 5])
@pytest.mark.parametrize("kind", ["Exclusive", "Failover", "Shared", "Key_Shared"])
async def test_after_unload_exactly_unacknowledged_entries_are_redelivered(kind: str, messages_each: int) -> None:
    async with memory_broker(active_consumer_failover_delay_time_millis=0) as broker:
        topic, peer = await broker.topic(NAME), RecordingPeer()
        await broker.consumer(topic, "s", peer, kind)
        positions = await broker.publish(topic, 40, KEYS[:7], messages_each)
        await broker.until(lambda: len(peer.delivered) == 40)
        # A single hole, every second entry for a while, and a run.
        left = [positions[index] for index in (3, 11, 13, 15, 17, 19, *range(23, 31))]
        acknowledge(topic.subscriptions["s"].consumers[0], [each for each in positions if each not in left])
        for round_number in range(2):
            await broker.service.topics.unload(topic)
            assert peer.closed_consumers == [1]
            topic, peer = await broker.topic(NAME), RecordingPeer()
            consumer = await broker.consumer(topic, "s", peer, kind)
            await broker.quiet(topic)
            assert peer.delivered == left
            acknowledge(consumer, left)
            left = [] if round_number else await broker.publish(topic, 1)
        await broker.until(lambda: topic.subscriptions["s"].cursor.backlog_entries == 0)


async def test_hashes_that_are_released_one_by_one_are_served_together_after_the_interval() -> None:
    async with memory_broker(key_shared_unblocking_interval_ms=500) as broker:
        topic = await broker.topic(NAME)
        _, positions = await delivered(broker, topic, "Key_Shared", 40)
        (first,) = topic.subscriptions["s"].consumers
        second = RecordingPeer()
        newcomer = broker.consumer_on(first.subscription, second, "Key_Shared", name="c2")  # type: ignore[arg-type]
        later = await broker.publish(topic, 40, KEYS)
        await broker.until(lambda: stored_subscription(first.subscription).replay_entry_count > 5)
        waiting = stored_subscription(first.subscription).replay_entry_count
        before = len(second.delivered)
        calls: list[tuple[float, Callable[[], None]]] = []
        broker.service.runtime.call_later = lambda delay_s, callback: calls.append((delay_s, callback))  # type: ignore[assignment, method-assign, return-value]
        for position in positions:
            acknowledge(first, [position])
        assert [delay_s for delay_s, _ in calls] == [0.5]
        assert len(second.delivered) == before
        calls[0][1]()
        await broker.until(lambda: len(second.delivered) == before + waiting)
        assert set(second.delivered) <= set(later)
        assert newcomer.state.unacked_messages == len(second.delivered)


async def test_every_subscription_gets_every_message() -> None:
    async with memory_broker() as broker:
        topic = await broker.topic(NAME)
        peers = [RecordingPeer(), RecordingPeer()]
        for index, peer in enumerate(peers):
            await broker.consumer(topic, f"s{index}", peer, "Exclusive")
        positions = await broker.publish(topic, 5)
        await broker.until(lambda: all(len(peer.delivered) == 5 for peer in peers))
        assert [peer.delivered for peer in peers] == [positions, positions]


async def test_subscriptions_of_every_type_on_one_topic_each_get_every_message() -> None:
    async with memory_broker(active_consumer_failover_delay_time_millis=0) as broker:
        topic = await broker.topic(NAME)
        peers = {kind: RecordingPeer() for kind in ("Exclusive", "Failover", "Shared", "Key_Shared")}
        for kind, peer in peers.items():
            await broker.consumer(topic, kind, peer, kind)
        positions = await broker.publish(topic, 40, KEYS)
        await broker.until(lambda: all(len(peer.delivered) == 40 for peer in peers.values()))
        assert all(peer.delivered == positions for peer in peers.values())
