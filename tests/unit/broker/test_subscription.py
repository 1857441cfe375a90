"""A subscription of one topic without a broker: what it delivers, what is settled, and why nothing moves."""

from __future__ import annotations

import pytest
from tests.support.recording_peer import RecordingPeer
from tests.unit.broker.one_topic import ack_of, marker, one_topic, run_of

from pybroker.broker.context.peer import NO_MEMORY_WAITS, MemoryWaits
from pybroker.broker.delivery.acknowledgement import Acknowledged, PartOfBatch
from pybroker.broker.delivery.subscription import Subscription
from pybroker.dispatch.blocked_reasons import BlockedReason
from pybroker.dispatch.key_shared_dispatcher import KeySharedDispatcher
from pybroker.errors import NotAllowedError
from pybroker.ledgers.memory_store import MemoryLedgerStore
from pybroker.managed_ledger.managed_ledger import ManagedLedger
from pybroker.memory.broker_memory import LEAST_DELAYED_BYTES, LEAST_LOOK_AHEAD_BYTES
from pybroker.model.policies import DispatchRate, TopicPolicies


def gate_of(subscription: Subscription) -> BlockedReason | None:
    return None if subscription.stall is None else subscription.stall.blocked_reason


async def test_what_is_published_goes_to_who_has_permits_and_the_rest_waits_for_more() -> None:
    async with one_topic() as one:
        subscription, peer = await one.subscription(), RecordingPeer()
        consumer = one.consumer(subscription, peer, permits=3)
        positions = await one.publish(5)
        await one.pumped()
        assert peer.delivered == positions[:3]
        assert gate_of(subscription) is BlockedReason.NO_PERMITS
        consumer.flow(10)
        await one.pumped()
        assert peer.delivered == positions
        assert gate_of(subscription) is BlockedReason.AT_END


async def test_a_standstill_says_since_when_and_begins_anew_when_something_moved() -> None:
    async with one_topic() as one:
        subscription, peer = await one.subscription(), RecordingPeer()
        began_ms = one.runtime.moved.now_ms
        one.runtime.move(500)
        assert subscription.stall is not None
        assert (subscription.stall.blocked_reason, subscription.stall.since_ms) == (BlockedReason.NO_CONSUMER, began_ms)
        consumer = one.consumer(subscription, peer, permits=1)
        await one.publish(3)
        await one.pumped()
        first_stop_ms = one.runtime.moved.now_ms
        one.runtime.move(700)
        subscription.wake()  # nothing comes of it
        await one.pumped()
        assert subscription.stall.since_ms == first_stop_ms
        consumer.flow(1)
        assert gate_of(subscription) is None, "it is about to move"
        await one.pumped()
        assert subscription.stall.since_ms == first_stop_ms + 700
        consumer.detach()
        assert gate_of(subscription) is BlockedReason.NO_CONSUMER


async def test_a_full_connection_and_limits_of_unacknowledged_messages_are_told_apart() -> None:
    async with one_topic() as one:
        subscription, peer = await one.subscription(), RecordingPeer()
        consumer = one.consumer(subscription, peer, max_unacked=2)
        consumer.set_writable(False)
        positions = await one.publish(4)
        await one.pumped()
        assert gate_of(subscription) is BlockedReason.CONNECTION_FULL
        consumer.set_writable(True)
        await one.pumped()
        assert gate_of(subscription) is BlockedReason.UNACKED_CONSUMER
        subscription.acknowledge(consumer, ack_of(*peer.delivered))
        await one.pumped()
        assert peer.delivered == positions


async def test_who_gets_nothing_because_others_have_the_memory_stands_still_for_memory() -> None:
    async with one_topic() as one:
        subscription, peer = await one.subscription(), RecordingPeer()
        consumer = one.consumer(subscription, peer)
        consumer.set_writable(False)
        positions = await one.publish(1)
        since_ms = one.runtime.moved.now_ms - 300
        peer.memory_waits = MemoryWaits()
        peer.memory_waits.outboxes_since_ms = since_ms
        await one.pumped()
        stall = subscription.stall
        assert stall is not None
        assert (stall.blocked_reason, stall.since_ms) == (BlockedReason.MEMORY, since_ms)
        peer.memory_waits = NO_MEMORY_WAITS
        assert gate_of(subscription) is BlockedReason.CONNECTION_FULL
        consumer.set_writable(True)
        await one.pumped()
        assert peer.delivered == positions


async def test_a_read_that_waits_for_memory_is_told_from_one_that_is_under_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(MemoryLedgerStore, "read_buffered", lambda *_: None)  # as if it were on disk
    async with one_topic() as one:
        memory, peer = one.runtime.memory, RecordingPeer()
        one.broker_context.ledgers.resources.resize_cache(0)
        others_bytes = await memory.take(memory.reads, "others", memory.reads.most_bytes)
        positions = await one.publish(2)
        subscription = await one.subscription()
        one.consumer(subscription, peer)
        await one.until(lambda: memory.reads.waiting == 1)
        one.runtime.move(700)
        stall = subscription.stall
        assert stall is not None
        assert (stall.blocked_reason, stall.since_ms) == (BlockedReason.MEMORY, one.runtime.moved.now_ms - 700)
        memory.give_back(memory.reads, others_bytes)
        await one.pumped()
        assert peer.delivered == positions
        assert gate_of(subscription) is BlockedReason.AT_END


@pytest.mark.parametrize(
    ("setting", "blocked_reason"),
    [
        ("max_unacked_messages_per_subscription", BlockedReason.UNACKED_SUBSCRIPTION),
        ("max_unacked_messages_per_broker", BlockedReason.UNACKED_BROKER),
    ],
)
async def test_the_limits_of_subscription_and_broker_have_their_own_gates(
    setting: str, blocked_reason: BlockedReason
) -> None:
    async with one_topic(**{setting: 2}) as one:  # type: ignore[arg-type]
        subscription = await one.subscription()
        one.consumer(subscription, RecordingPeer())
        for _ in range(2):
            await one.publish(2)
            await one.pumped()
        assert gate_of(subscription) is blocked_reason


async def test_a_dispatch_rate_stops_it_until_its_timer_rings() -> None:
    async with one_topic(TopicPolicies(dispatchRate=DispatchRate(2, -1, False, 1))) as one:
        subscription, peer = await one.subscription(), RecordingPeer()
        one.consumer(subscription, peer)
        positions = await one.publish(4)
        await one.pumped()
        assert gate_of(subscription) is BlockedReason.RATE
        assert peer.delivered == positions[:2]
        one.runtime.move(1000)
        await one.pumped()
        assert peer.delivered == positions


async def test_a_new_active_consumer_waits_until_it_may_start() -> None:
    async with one_topic(active_consumer_failover_delay_time_millis=1000) as one:
        subscription, peer = await one.subscription(), RecordingPeer()
        await one.publish(1)
        one.consumer(subscription, peer, "Failover")
        await one.pumped()
        assert gate_of(subscription) is BlockedReason.STARTING
        one.runtime.move(1000)
        await one.pumped()
        assert len(peer.delivered) == 1


async def test_what_is_settled_without_a_consumer_never_comes_and_is_stored() -> None:
    """As a transaction does that is committed when its consumer is gone."""
    async with one_topic() as one:
        subscription, peer = await one.subscription(), RecordingPeer()
        positions = await one.publish(4, messages_each=2)
        assert subscription.dispatcher is None
        part = PartOfBatch(positions[3], [0b01], 2)
        assert subscription.settle(Acknowledged(positions[0], [(positions[2][0], [positions[2][1]])], [part])) == 2
        assert subscription.backlog_entries == 2
        one.consumer(subscription, peer)
        await one.pumped()
        assert peer.delivered == [positions[1], positions[3]]
        subscription.cursor.flush()
        await one.until(lambda: subscription.cursor.writes > 0)


async def test_a_receipt_of_an_acknowledgement_comes_once_it_is_durable_and_a_refusal_at_once() -> None:
    async with one_topic() as one:
        subscription, peer = await one.subscription(), RecordingPeer()
        consumer = one.consumer(subscription, peer)
        [position] = await one.publish(1)
        await one.pumped()
        subscription.acknowledge(consumer, ack_of(position, is_cumulative=True, request_id=1))
        assert [(answered, type(error)) for answered, error in peer.ack_responses] == [(1, NotAllowedError)]
        assert subscription.backlog_entries == 1
        subscription.acknowledge(consumer, ack_of(position, request_id=2))
        await one.until(lambda: len(peer.ack_responses) == 2)
        assert peer.ack_responses[1] == (2, None)
        assert consumer.counters.acked_messages == subscription.counters.acked_messages == 1


async def test_markers_are_acknowledged_as_a_subscription_comes_to_them() -> None:
    async with one_topic() as one:
        subscription, peer = await one.subscription(), RecordingPeer()
        one.consumer(subscription, peer)
        run = run_of(3)
        run.payloads[1] = marker()
        run.size_bytes, run.has_markers = sum(map(len, run.payloads)), True
        sender = RecordingPeer()
        one.topic.publish(one.producer(sender), run)
        await one.until(lambda: len(sender.receipts) == 3)
        await one.pumped()
        assert peer.delivered == [sender.receipts[0], sender.receipts[2]]
        assert subscription.backlog_entries == 2


async def test_a_bug_in_the_pump_closes_its_topic_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async with one_topic() as one:
        subscription = await one.subscription()
        one.consumer(subscription, RecordingPeer())
        monkeypatch.setattr(ManagedLedger, "read_cached", lambda *_: 1 / 0)
        await one.publish(1)
        await one.pumped()
        assert [reason.split(":")[0] for reason in one.unloads] == ["ZeroDivisionError"]
        assert one.topic.is_fenced
        assert one.runtime.stats.bugs == 1


async def test_a_subscription_of_a_reader_ends_with_its_reader() -> None:
    async with one_topic() as one:
        reader = one.topic.registry.non_durable("r", one.topic.ledger.ledgers.last_position)
        consumer = one.consumer(reader, RecordingPeer(), "Exclusive")
        assert one.topic.subscriptions["r"] is reader
        consumer.detach()
        assert "r" not in one.topic.subscriptions
        assert reader.is_closed


async def test_a_subscription_that_remembers_its_share_of_delayed_messages_reads_on_once_others_have_less() -> None:
    async with one_topic() as one:
        memory, peer = one.runtime.memory, RecordingPeer()
        memory.delayed.limit_to(LEAST_DELAYED_BYTES)
        memory.follow(memory.delays.report("another subscription", LEAST_DELAYED_BYTES))
        subscription = await one.subscription()
        one.consumer(subscription, peer)
        later_ms = one.runtime.moved.now_ms + 60_000
        await one.publish(600, deliver_at_ms=later_ms)  # they take more than one may always have
        (behind,) = await one.publish(1)
        await one.pumped()
        stall = subscription.stall
        assert stall is not None
        assert stall.blocked_reason is BlockedReason.MEMORY
        assert peer.delivered == []
        memory.follow(memory.delays.report("another subscription", 0))
        memory.delayed.limit_to(0)
        subscription.wake()
        await one.pumped()
        assert peer.delivered == [behind]
        one.runtime.move(70_000)
        subscription.wake()
        await one.pumped()
        assert len(peer.delivered) == 601
        assert memory.delayed.used_bytes == 0


async def test_look_ahead_counts_and_shrinks_where_there_is_little_memory_and_nothing_stays_of_who_is_gone() -> None:
    async with one_topic() as one:
        memory, stuck = one.runtime.memory, RecordingPeer()
        memory.look_ahead.limit_to(40_000)
        memory.follow(memory.look_aheads.report("another subscription", 30_000))
        subscription = await one.subscription()
        consumer = one.consumer(subscription, stuck, "Key_Shared", permits=1)
        taking, peer = one.consumer(subscription, RecordingPeer(), "Key_Shared", permits=100_000), RecordingPeer()
        assert taking is not peer  # type: ignore[comparison-overlap]
        await one.publish(500, [f"k{number}" for number in range(100)])
        await one.pumped()
        dispatcher = subscription.dispatcher
        assert isinstance(dispatcher, KeySharedDispatcher)
        assert dispatcher.look_ahead_size_bytes > 0
        assert abs(memory.look_ahead.used_bytes - 30_000 - dispatcher.look_ahead_size_bytes) < 1024
        assert dispatcher.look_ahead(1).max_size_bytes == LEAST_LOOK_AHEAD_BYTES
        consumer.detach()
        taking.detach()
        assert memory.look_ahead.used_bytes == 30_000
