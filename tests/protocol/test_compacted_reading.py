"""Reading compacted without a socket: who is active decides, policies leave the view alone, replaced views are gone on with."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.support.memory_broker import MemoryBroker, acknowledge, memory_broker
from tests.support.recording_peer import RecordingPeer

from pybroker.broker.delivery.consumer import Consumer
from pybroker.broker.delivery.subscription import Subscription
from pybroker.broker.topic.topic import Topic
from pybroker.compaction.view import COMPACTION_SUBSCRIPTION
from pybroker.ledgers.ledger_store import EntryRun
from pybroker.managed_ledger.rollover import LedgerLimits
from pybroker.model.events import Ack
from pybroker.model.position import EARLIEST, Position

NAME = "persistent://public/default/t"
PATH = "/persistent/public/default/t"


@pytest.fixture
async def broker() -> AsyncIterator[MemoryBroker]:
    """One with tiny ledgers."""
    limits = LedgerLimits(max_entries_per_ledger=4, min_rollover_ms=0)
    async with memory_broker(limits, active_consumer_failover_delay_time_millis=0) as running:
        yield running


async def compact(broker: MemoryBroker, topic: Topic) -> None:
    assert topic.compaction.start()
    await broker.until(lambda: topic.compaction.status != "RUNNING")
    assert topic.compaction.last_error == ""


def reader(
    broker: MemoryBroker,
    subscription: Subscription,
    peer: RecordingPeer,
    *,
    is_compacted: bool,
    name: str = "c",
    kind: str = "Failover",
) -> Consumer:
    """A consumer without permits yet."""
    consumer = Consumer(subscription, 1, name, 0, 0, peer, {}, 0)
    consumer.reads_compacted = is_compacted
    broker.topic_of(subscription).attach(subscription, consumer, kind)
    return consumer


async def delivered(broker: MemoryBroker, peer: RecordingPeer, count: int) -> list[Position]:
    await broker.until(lambda: len(peer.delivered) >= count)
    return peer.delivered


async def test_the_active_consumer_says_whether_the_view_is_read(broker: MemoryBroker) -> None:
    topic = await broker.topic(NAME)
    subscription = await topic.subscription("s", True, True, {})
    positions = await broker.publish(topic, 9, keys=["a", "b", "c"])
    await compact(broker, topic)
    compacted, plain = RecordingPeer(), RecordingPeer()
    first = reader(broker, subscription, compacted, is_compacted=True, name="0")
    first.flow(100)
    assert await delivered(broker, compacted, 3) == positions[6:]
    first.detach()
    # What was passed over is acknowledged; what was delivered is not.
    second = reader(broker, subscription, plain, is_compacted=False, name="1")
    second.flow(100)
    assert await delivered(broker, plain, 3) == positions[6:]
    assert subscription.cursor.backlog_entries == 3


async def test_a_reader_goes_on_in_a_view_that_replaced_the_one_it_was_in(broker: MemoryBroker) -> None:
    topic = await broker.topic(NAME)
    first = await broker.publish(topic, 8, keys=[f"k{index}" for index in range(8)])
    await compact(broker, topic)
    peer = RecordingPeer()
    consumer = reader(broker, topic.registry.non_durable("r", EARLIEST), peer, is_compacted=True)
    consumer.flow(3)
    assert await delivered(broker, peer, 3) == first[:3]
    second = await broker.publish(topic, 3, keys=["k1", "k4", "new"])
    await compact(broker, topic)
    await broker.until(lambda: topic.ledger.document.trimmed_ledger_ids == [])
    consumer.flow(100)
    # k4 comes once, from where it is now; k1 comes again because it was published again.
    assert await delivered(broker, peer, 10) == [*first[:4], *first[5:], *second]
    third = await broker.publish(topic, 1, keys=["tail"])
    assert (await delivered(broker, peer, 11))[10:] == third


async def test_acknowledgements_move_over_entries_whose_ledgers_are_gone(broker: MemoryBroker) -> None:
    topic = await broker.topic(NAME)
    await compact(broker, topic)
    positions = await broker.publish(topic, 12, keys=[f"k{index}" for index in range(12)])
    await compact(broker, topic)
    await topic.ledger.trim()
    await broker.until(lambda: topic.ledger.ledgers.entry_count < 12 and not topic.ledger.document.trimmed_ledger_ids)
    subscription = await topic.subscription("s", True, True, {})
    peer = RecordingPeer()
    consumer = reader(broker, subscription, peer, is_compacted=True)
    consumer.flow(100)
    assert await delivered(broker, peer, 12) == positions
    acknowledge(consumer, [positions[1]])
    assert subscription.cursor.mark_delete_position < positions[0]
    acknowledge(consumer, [positions[0]])
    assert subscription.cursor.mark_delete_position >= positions[1]
    assert subscription.cursor.mark_delete_position < positions[2]
    acknowledge(consumer, positions[2:])
    assert subscription.cursor.backlog_entries == 0
    consumer.detach()
    again = RecordingPeer()
    reader(broker, subscription, again, is_compacted=True).flow(100)
    tail = await broker.publish(topic, 1, keys=["tail"])
    assert await delivered(broker, again, 1) == tail


async def test_what_was_delivered_and_not_acknowledged_comes_again_from_the_view(broker: MemoryBroker) -> None:
    topic = await broker.topic(NAME)
    await compact(broker, topic)
    positions = await broker.publish(topic, 12, keys=[f"k{index}" for index in range(12)])
    await compact(broker, topic)
    await broker.until(lambda: topic.ledger.ledgers.entry_count < 12)
    peer = RecordingPeer()
    subscription = await topic.subscription("s", True, True, {})
    consumer = reader(broker, subscription, peer, is_compacted=True)
    consumer.flow(100)
    await delivered(broker, peer, 12)
    acknowledge(consumer, [positions[0], positions[5]])
    subscription.redeliver(consumer, None, 0)
    assert (await delivered(broker, peer, 22))[12:] == [*positions[1:5], *positions[6:]]


@pytest.mark.parametrize("is_cumulative", [True, False])
@pytest.mark.parametrize("kind", ["Exclusive", "Failover"])
async def test_durable_subscription_resumes_in_compacted_view(
    broker: MemoryBroker, kind: str, is_cumulative: bool
) -> None:
    topic = await broker.topic(NAME)
    await compact(broker, topic)
    positions = await broker.publish(topic, 25, keys=[f"k{index}" for index in range(25)])
    await compact(broker, topic)
    await broker.until(lambda: topic.ledger.ledgers.entry_count < 25)
    subscription = await topic.subscription("s", True, True, {})
    first, second, third = RecordingPeer(), RecordingPeer(), RecordingPeer()
    consumer = reader(broker, subscription, first, is_compacted=True, kind=kind)
    consumer.flow(100)
    assert await delivered(broker, first, 25) == positions
    if is_cumulative:
        ack = Ack(1)
        ack.is_cumulative = True
        ack.groups = [(positions[6].ledger_id, [positions[6].entry_id])]
        subscription.acknowledge(consumer, ack)
    else:
        acknowledge(consumer, positions[:7])
    consumer.detach()
    consumer = reader(broker, subscription, second, is_compacted=True, kind=kind)
    consumer.flow(100)
    assert await delivered(broker, second, 18) == positions[7:]
    acknowledge(consumer, positions[7:])
    await broker.quiet(topic)
    assert len(second.delivered) == 18
    consumer.detach()
    tail = await broker.publish(topic, 1, keys=["k0"])
    reader(broker, subscription, third, is_compacted=True, kind=kind).flow(100)
    assert await delivered(broker, third, 1) == tail


async def test_policies_leave_the_subscription_of_compaction_alone(broker: MemoryBroker) -> None:
    topic = await broker.topic(NAME)
    await compact(broker, topic)
    await broker.publish(topic, 5, keys=["a"])
    await broker.rest("POST", f"{PATH}/messageTTL?messageTTL=1")
    await broker.rest("POST", f"{PATH}/subscriptionExpirationTime", 1)
    await broker.rest("POST", f"{PATH}/backlogQuota", {"limitSize": 1, "policy": "consumer_backlog_eviction"})
    broker.clock.now_ms += 10_000_000
    maintenance = broker.service.maintenance
    for check in (maintenance.check_expiry, maintenance.check_unused_subscriptions, maintenance.check_backlog_quotas):
        await check()
    assert topic.subscriptions[COMPACTION_SUBSCRIPTION].cursor.backlog_entries == 5


async def test_what_has_grown_by_the_threshold_is_compacted(broker: MemoryBroker) -> None:
    topic = await broker.topic(NAME)
    await broker.publish(topic, 2, keys=["a"])
    maintenance = broker.service.maintenance
    await maintenance.check_compaction()
    assert topic.compaction.status == "NOT_RUN"
    await broker.rest("POST", f"{PATH}/compactionThreshold", topic.ledger.size_bytes)
    await maintenance.check_compaction()
    assert topic.compaction.status == "NOT_RUN"
    await broker.publish(topic, 1, keys=["a"])
    await maintenance.check_compaction()
    await broker.until(lambda: topic.compaction.status == "SUCCESS")
    await maintenance.check_compaction()
    assert topic.compaction.counters.succeeded == 1


async def test_the_events_of_topic_policies_are_always_compacted(broker: MemoryBroker) -> None:
    topic = await broker.topic("persistent://public/default/__change_events")
    await broker.publish(topic, 2, keys=["a"])
    await broker.service.maintenance.check_compaction()
    await broker.until(lambda: topic.compaction.status == "SUCCESS")


async def test_without_a_view_reading_compacted_is_plain_reading(broker: MemoryBroker) -> None:
    topic = await broker.topic(NAME)
    positions = await broker.publish(topic, 3, keys=["a"])
    peer = RecordingPeer()
    reader(broker, topic.registry.non_durable("r", EARLIEST), peer, is_compacted=True).flow(100)
    assert await delivered(broker, peer, 3) == positions


# --- the view is given up while it is made ---------------------------------------------------------------------------------


async def three_ledgers(broker: MemoryBroker, topic: Topic) -> None:
    """Each full of messages of one key."""
    for key in ("a", "b", "c"):
        await broker.publish(topic, 4, keys=[key])
    assert len(topic.ledger.ledgers.ledger_ids()) >= 3


class HeldReads:
    """Holds what a compaction reads until it is told to go on."""

    def __init__(self, topic: Topic, monkeypatch: pytest.MonkeyPatch, passing: int) -> None:
        """The first `passing` reads go through."""
        self.go_on = asyncio.Event()
        self.held = 0
        read = topic.ledger.read

        async def held_read(position: Position, max_entries: int, max_bytes: int) -> EntryRun:
            nonlocal passing
            passing -= 1
            if passing < 0:
                self.held += 1
                await self.go_on.wait()
            return await read(position, max_entries, max_bytes)

        monkeypatch.setattr(topic.ledger, "read", held_read)


@pytest.mark.parametrize("passing", range(4))
async def test_a_truncation_ends_a_compaction_and_nothing_of_before_comes_back(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, passing: int
) -> None:
    topic = await broker.topic(NAME)
    await topic.subscription("s", True, True, {})
    await three_ledgers(broker, topic)
    reads = HeldReads(topic, monkeypatch, passing)
    topic.compaction.start()
    await broker.until(lambda: bool(reads.held))
    truncating = asyncio.ensure_future(broker.rest("DELETE", f"{PATH}/truncate"))
    await broker.until(lambda: topic.ledger.compacted_drops > 0)
    reads.go_on.set()
    assert (await truncating).status == 204
    await broker.until(lambda: topic.compaction.status != "RUNNING")
    assert topic.ledger.compacted is None
    assert topic.compaction.status == "NOT_RUN"
    assert topic.compaction.counters.failed == 0
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
    positions = await broker.publish(topic, 3, keys=["a"])
    await compact(broker, topic)
    peer = RecordingPeer()
    reader(broker, topic.registry.non_durable("r", EARLIEST), peer, is_compacted=True).flow(100)
    assert await delivered(broker, peer, 1) == positions[2:]


async def test_a_compaction_that_begins_while_a_topic_is_truncated_waits_for_its_end(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = await broker.topic(NAME)
    await topic.subscription("s", True, True, {})
    await three_ledgers(broker, topic)
    truncate, go_on = topic.ledger.truncate, asyncio.Event()

    async def held_truncate(kept_cursors: tuple[str, ...]) -> None:
        await go_on.wait()
        await truncate(kept_cursors)

    monkeypatch.setattr(topic.ledger, "truncate", held_truncate)
    truncating = asyncio.ensure_future(topic.truncate())
    await broker.until(lambda: topic.ledger.compacted_drops >= 1)
    topic.compaction.start()
    for _ in range(20):
        await asyncio.sleep(0)
    assert topic.ledger.compacted is None
    go_on.set()
    await truncating
    await broker.until(lambda: topic.compaction.status != "RUNNING")
    # All that is left is what was in the ledger that is written to.
    assert topic.compaction.status == "SUCCESS"
    assert topic.ledger.compacted is None or topic.ledger.compacted.entries <= 1


async def test_an_unload_during_a_compaction_is_no_fault(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    topic = await broker.topic(NAME)
    await broker.publish(topic, 12, keys=["a"])
    reads = HeldReads(topic, monkeypatch, 1)
    topic.compaction.start()
    await broker.until(lambda: bool(reads.held))
    await broker.service.topics.unload(topic)
    assert topic.compaction.counters.failed == 0
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_the_end_of_the_compactors_subscription_ends_a_compaction(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = await broker.topic(NAME)
    await broker.publish(topic, 12, keys=["a"])
    reads = HeldReads(topic, monkeypatch, 1)
    topic.compaction.start()
    await broker.until(lambda: bool(reads.held))
    assert (await broker.rest("DELETE", f"{PATH}/subscription/{COMPACTION_SUBSCRIPTION}")).status == 204
    reads.go_on.set()
    await broker.until(lambda: topic.compaction.status != "RUNNING")
    assert topic.compaction.status == "NOT_RUN"
    assert topic.ledger.compacted is None
    assert not topic.subscriptions
