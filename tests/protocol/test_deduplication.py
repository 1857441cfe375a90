"""Deduplication of live topics: switched on and off, recovered, stored, and what it answers, in one process on memory stores."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from tests.support.memory_broker import MemoryBroker, memory_broker
from tests.support.recording_peer import RecordingPeer

from pybroker.broker.publishing.producer import Producer
from pybroker.broker.publishing.topic_deduplication import DEDUPLICATION_CURSOR, DeduplicationStatus
from pybroker.broker.topic.topic import Topic
from pybroker.errors import DamagedEntries, PersistenceError, ProducerBusy, ServiceNotReady, StorageFull, StoreError
from pybroker.managed_ledger.rollover import LedgerLimits
from pybroker.model.events import SendRun
from pybroker.model.names import TopicName
from pybroker.model.position import Position
from pybroker.wire import pulsar_api_pb2 as pb

TOPIC = "persistent://public/default/t"
TOPIC_PATH = "/persistent/public/default/t"
NAMESPACE_PATH = "/namespaces/public/default"
DUPLICATE = Position(-1, -1)
ENABLED, DISABLED, FAILED = DeduplicationStatus.ENABLED, DeduplicationStatus.DISABLED, DeduplicationStatus.FAILED
FIVE_ENTRIES = LedgerLimits(max_entries_per_ledger=5, min_rollover_ms=0)


@pytest.fixture
async def broker() -> AsyncIterator[MemoryBroker]:
    async with memory_broker(broker_deduplication_enabled=True) as found:
        # With ledgers on BookKeeper, this loads `__change_events`, which has a cursor: tests replace the creation of cursors.
        await found.service.resources.topic_policies(TopicName.parse(TOPIC))
        yield found


async def enabled(broker: MemoryBroker) -> Topic:
    """The topic, recovered."""
    topic = await broker.topic(TOPIC)
    await broker.until(lambda: topic.deduplication.status is ENABLED)
    return topic


async def loaded_again(broker: MemoryBroker, topic: Topic) -> Topic:
    await broker.service.topics.unload(topic)
    return await enabled(broker)


def run_of(sequence_ids: Sequence[int]) -> SendRun:
    run = SendRun(1)
    for sequence_id in sequence_ids:
        header = pb.MessageMetadata(producer_name="p", sequence_id=sequence_id, publish_time=1).SerializeToString()
        run.sequence_ids.append(sequence_id)
        run.highest_sequence_ids.append(0)
        run.message_counts.append(1)
        run.payloads.append(len(header).to_bytes(4, "big") + header)
    run.size_bytes = sum(map(len, run.payloads))
    return run


class Client:
    """A producer named `p` that sends what it is told."""

    def __init__(self, broker: MemoryBroker, topic: Topic) -> None:
        self.topic = topic
        self.peer = RecordingPeer()
        self.producer: Producer = broker.producer(topic, self.peer)

    def send(self, *sequence_ids: int) -> None:
        self.topic.publish(self.producer, run_of(sequence_ids))

    async def stored(self, *sequence_ids: int) -> list[bool]:
        """Send, and for each receipt whether it was stored now."""
        before = len(self.peer.receipts)
        self.send(*sequence_ids)
        await self.producer.drained()
        return [position != DUPLICATE for position in self.peer.receipts[before:]]

    def leave(self) -> None:
        self.producer.detach()


async def stored_again(broker: MemoryBroker, topic: Topic, *sequence_ids: int) -> list[bool]:
    client = Client(broker, topic)
    result = await client.stored(*sequence_ids)
    client.leave()
    return result


# --- on and off ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path", [f"{NAMESPACE_PATH}/deduplication", f"{TOPIC_PATH}/deduplicationEnabled"], ids=["namespace", "topic"]
)
async def test_a_policy_acts_on_a_loaded_topic_while_its_producer_stays(path: str) -> None:
    async with memory_broker() as broker:
        topic = await broker.topic(TOPIC)
        client = Client(broker, topic)
        assert await client.stored(1, 1) == [True, True]
        assert (await broker.rest("POST", path, True)).status == 204
        await broker.until(lambda: topic.deduplication.status is ENABLED)
        assert await client.stored(1, 2) == [True, True]
        assert await client.stored(2, 1, 3) == [False, False, True]
        assert (await broker.rest("POST", path, False)).status == 204
        await broker.until(lambda: topic.deduplication.status is DISABLED)
        assert await client.stored(2, 1) == [True, True]
        assert DEDUPLICATION_CURSOR not in topic.ledger.cursors
        assert client.peer.closed_producers == []


async def test_stats_show_the_status_and_no_subscription_and_internal_stats_the_cursor(broker: MemoryBroker) -> None:
    topic = await enabled(broker)
    await stored_again(broker, topic, 1, 5)
    await topic.deduplication.snapshot()
    stats = (await broker.rest("GET", f"{TOPIC_PATH}/stats")).json
    assert stats["deduplicationStatus"] == "Enabled"
    assert stats["subscriptions"] == {}
    assert stats["backlogSize"] == 0
    cursor = (await broker.rest("GET", f"{TOPIC_PATH}/internalStats")).json["cursors"][DEDUPLICATION_CURSOR]
    assert cursor["properties"] == {"p": 5}
    assert cursor["markDeletePosition"] == str(topic.ledger.last_confirmed)
    topic = await loaded_again(broker, topic)
    assert topic.subscriptions == {}


@pytest.mark.parametrize("name", [DEDUPLICATION_CURSOR, "pulsar.repl.elsewhere"])
async def test_no_subscription_gets_the_name_of_a_cursor_of_the_broker(broker: MemoryBroker, name: str) -> None:
    topic = await enabled(broker)
    with pytest.raises(ProducerBusy, match="reserved"):
        await topic.subscription(name, True, True, {})
    with pytest.raises(ProducerBusy, match="reserved"):
        topic.registry.non_durable(name, Position(0, 0))


async def test_topics_of_the_broker_itself_are_left_alone(broker: MemoryBroker) -> None:
    topic = await broker.topic("persistent://public/default/__change_events")
    assert topic.deduplication.status is DISABLED


def with_cursors_behind_a_gate(broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """From now on no cursor is created before the gate is open."""
    blocked_reason = asyncio.Event()
    create = broker.service.ledgers.create_cursor

    async def later(*arguments: Any) -> Any:
        await blocked_reason.wait()
        return await create(*arguments)

    monkeypatch.setattr(broker.service.ledgers, "create_cursor", later)
    return blocked_reason


async def test_while_it_is_recovering_publishers_wait_and_nobody_gets_ready(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked_reason = with_cursors_behind_a_gate(broker, monkeypatch)
    topic = await broker.topic(TOPIC)
    throttle = topic.publish_throttle
    assert throttle is not None
    assert throttle.admit(run_of([1])) == 0
    settled = asyncio.ensure_future(topic.settled("p"))
    await asyncio.sleep(0)
    assert not settled.done()
    blocked_reason.set()
    await settled
    assert topic.deduplication.status is ENABLED
    assert topic.publish_throttle is None


async def test_switching_it_off_while_it_is_recovering_lets_publishers_go_at_once(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked_reason = with_cursors_behind_a_gate(broker, monkeypatch)
    topic = await broker.topic(TOPIC)
    await broker.rest("POST", f"{TOPIC_PATH}/deduplicationEnabled", False)
    assert topic.publish_throttle is None
    assert await stored_again(broker, topic, 1, 1) == [True, True]
    blocked_reason.set()
    await broker.until(lambda: topic.deduplication.status is DISABLED)
    assert DEDUPLICATION_CURSOR not in topic.ledger.cursors
    await broker.rest("POST", f"{TOPIC_PATH}/deduplicationEnabled", True)
    await broker.until(lambda: topic.deduplication.status is ENABLED)


async def test_an_error_of_the_store_is_shown_and_tried_again(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = broker.service.ledgers.create_cursor

    async def fails(*arguments: Any) -> Any:
        raise StoreError("no")

    monkeypatch.setattr(broker.service.ledgers, "create_cursor", fails)
    topic = await broker.topic(TOPIC)
    await broker.until(lambda: topic.deduplication.status is FAILED)
    assert topic.held_publishers is not None
    monkeypatch.setattr(broker.service.ledgers, "create_cursor", create)
    await enabled(broker)


async def test_who_waits_for_a_topic_that_closes_is_told_to_try_again(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(*arguments: Any) -> Any:
        await asyncio.Event().wait()

    monkeypatch.setattr(broker.service.ledgers, "create_cursor", never)
    topic = await broker.topic(TOPIC)
    settled = asyncio.ensure_future(topic.settled("p"))
    await asyncio.sleep(0)
    await broker.service.topics.unload(topic)
    with pytest.raises(ServiceNotReady):
        await settled


# --- what is answered ----------------------------------------------------------------------------------------------------


async def test_receipts_of_duplicates_come_behind_those_of_what_is_in_flight(broker: MemoryBroker) -> None:
    topic = await enabled(broker)
    client = Client(broker, topic)
    assert await client.stored(1) == [True]
    assert await client.stored(5, 1, 6) == [True, False, True]


async def test_what_is_being_stored_is_answered_with_an_error_and_stored_once(broker: MemoryBroker) -> None:
    topic = await enabled(broker)
    client = Client(broker, topic)
    client.send(1)
    client.send(1)
    assert isinstance(client.peer.errors[0], PersistenceError)
    assert await client.stored(1) == [True]  # the receipt of the first
    assert topic.ledger.ledgers.entry_count == 1


async def test_a_producer_is_told_its_last_sequence_id_once_nothing_of_it_is_in_flight(broker: MemoryBroker) -> None:
    topic = await enabled(broker)
    client = Client(broker, topic)
    client.send(1, 7)
    client.leave()
    assert topic.last_sequence_id("p") == -1
    await topic.settled("p")
    assert topic.last_sequence_id("p") == 7
    assert topic.last_sequence_id("other") == -1


async def test_what_a_full_disk_refused_is_no_duplicate_and_nothing_overtakes_it(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = await enabled(broker)
    client = Client(broker, topic)
    await client.stored(1)

    def full(*arguments: Any) -> None:
        raise StorageFull("full")

    with monkeypatch.context() as patch:
        patch.setattr(topic.ledger, "append", full)
        client.send(2, 1, 3)
        assert client.peer.receipts[-1] == DUPLICATE
        assert len(client.peer.errors) == 2
    client.send(4)  # It was on its way when the client was told.
    assert len(client.peer.errors) == 3
    client.leave()
    assert await stored_again(broker, topic, 1, 2, 3, 4) == [False, True, True, True]


async def test_what_a_failed_write_lost_is_stored_when_it_is_sent_again(broker: MemoryBroker) -> None:
    topic = await enabled(broker)
    client = Client(broker, topic)
    client.send(1, 2)
    waiting = broker.service.ledgers.store._waiting  # type: ignore[attr-defined]
    waiting[:] = [(run, StoreError("lost")) for run, _ in waiting]
    client.send(2)
    await client.producer.drained()
    assert len(client.peer.errors) == 3
    client.leave()
    await broker.until(lambda: not topic.ledger.is_write_failed)
    assert await stored_again(broker, topic, 1, 2, 3) == [True, True, True]


async def test_what_is_refused_for_its_size_does_not_count(broker: MemoryBroker) -> None:
    topic = await enabled(broker)
    await broker.rest("POST", f"{TOPIC_PATH}/maxMessageSize", 40)
    large = run_of([1])
    large.payloads[0] += bytes(50)
    client = Client(broker, topic)
    topic.publish(client.producer, large)
    assert len(client.peer.errors) == 1
    assert await client.stored(1) == [True]


# --- what is stored ------------------------------------------------------------------------------------------------------


async def test_a_topic_that_is_loaded_again_knows_what_it_knew(broker: MemoryBroker) -> None:
    topic = await enabled(broker)
    await stored_again(broker, topic, 1, 2, 3)
    topic = await loaded_again(broker, topic)
    assert await stored_again(broker, topic, 3, 4) == [False, True]


async def test_what_came_behind_the_snapshot_is_read_again(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = await enabled(broker)
    await stored_again(broker, topic, *range(3))
    await topic.deduplication.snapshot()
    await stored_again(broker, topic, *range(3, 300))

    async def crashed() -> None:
        """No snapshot."""

    monkeypatch.setattr(topic.deduplication, "close", crashed)
    topic = await loaded_again(broker, topic)
    assert topic.deduplication.cursor is not None
    assert topic.deduplication.cursor.properties == {"p": "2"}
    assert await stored_again(broker, topic, 2, 299, 300) == [False, False, True]


async def test_entries_that_cannot_be_read_do_not_hold_up_recovery(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = await enabled(broker)
    await stored_again(broker, topic, 1, 2, 3)

    async def crashed() -> None:
        """No snapshot."""

    monkeypatch.setattr(topic.deduplication, "close", crashed)
    store = broker.service.ledgers.store
    read = store.read

    async def damaged(ledger_id: int, first_entry_id: int, max_entries: int, max_bytes: int) -> Any:
        if first_entry_id <= 1:
            raise DamagedEntries(ledger_id, 0, 1, "damaged")
        return await read(ledger_id, first_entry_id, max_entries, max_bytes)

    monkeypatch.setattr(store, "read", damaged)
    topic = await loaded_again(broker, topic)
    assert topic.last_sequence_id("p") == 3


async def test_a_snapshot_is_made_after_so_many_entries() -> None:
    async with memory_broker(broker_deduplication_enabled=True, broker_deduplication_entries_interval=5) as broker:
        topic = await enabled(broker)
        topic.deduplication._snapshot_at_ms -= 1000  # the pause after recovery is over
        cursor = topic.deduplication.cursor
        assert cursor is not None
        await stored_again(broker, topic, *range(4))
        assert cursor.properties == {}
        await stored_again(broker, topic, 4)
        await broker.until(lambda: cursor.properties == {"p": "4"})
        await broker.until(lambda: cursor.mark_delete_position == topic.ledger.last_confirmed)


async def test_a_snapshot_is_made_after_so_much_time_and_not_without_need(broker: MemoryBroker) -> None:
    topic = await enabled(broker)
    cursor = topic.deduplication.cursor
    assert cursor is not None
    await stored_again(broker, topic, 1)
    await broker.service.maintenance.check_deduplication()
    assert cursor.properties == {}
    topic.deduplication._snapshot_at_ms -= 120_000
    await broker.service.maintenance.check_deduplication()
    assert cursor.properties == {"p": "1"}
    writes = cursor.writes
    topic.deduplication._snapshot_at_ms -= 120_000
    await broker.service.maintenance.check_deduplication()
    assert cursor.writes == writes


async def test_a_failed_snapshot_is_made_up_for(broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = await enabled(broker)
    await stored_again(broker, topic, 1)

    async def fails(*arguments: Any) -> None:
        raise StoreError("no")

    with monkeypatch.context() as patch:
        patch.setattr(topic.ledger.document, "save", fails)
        with pytest.raises(StoreError):
            await topic.deduplication.snapshot()
    await topic.deduplication.snapshot()
    assert topic.deduplication.cursor is not None
    assert topic.deduplication.cursor.properties == {"p": "1"}


async def test_a_snapshot_lets_ledgers_be_trimmed_that_nobody_needs() -> None:
    async with memory_broker(FIVE_ENTRIES, broker_deduplication_enabled=True) as broker:
        topic = await enabled(broker)
        for sequence_id in range(12):
            await stored_again(broker, topic, sequence_id)
        await broker.until(lambda: len(topic.ledger.ledgers.open_ledger_ids()) <= 2)
        await topic.ledger.trim()
        assert topic.ledger.ledgers.entry_count == 12
        await topic.deduplication.snapshot()
        await topic.ledger.trim()
        assert topic.ledger.ledgers.entry_count < 12
        assert await stored_again(broker, topic, 11, 12) == [False, True]


async def test_a_truncated_topic_knows_what_it_knew() -> None:
    async with memory_broker(FIVE_ENTRIES, broker_deduplication_enabled=True) as broker:
        topic = await enabled(broker)
        for sequence_id in range(12):
            await stored_again(broker, topic, sequence_id)
        await topic.truncate()
        topic = await loaded_again(broker, topic)
        assert await stored_again(broker, topic, 11, 12) == [False, True]


async def test_a_backlog_that_only_deduplication_has_is_no_backlog(broker: MemoryBroker) -> None:
    await broker.rest(
        "POST",
        f"{TOPIC_PATH}/backlogQuota?backlogQuotaType=destination_storage",
        {"policy": "producer_exception", "limitSize": 1},
    )
    topic = await enabled(broker)
    client = Client(broker, topic)
    await client.stored(1, 2)
    await broker.service.maintenance.check_backlog_quotas()
    assert client.peer.closed_producers == []


async def test_producers_that_are_gone_for_long_are_forgotten() -> None:
    async with memory_broker(
        broker_deduplication_enabled=True, broker_deduplication_producer_inactivity_timeout_minutes=0
    ) as broker:
        topic = await enabled(broker)
        client = Client(broker, topic)
        await client.stored(1)
        await broker.service.maintenance.check_deduplication()
        assert topic.last_sequence_id("p") == 1
        client.leave()
        await broker.service.maintenance.check_deduplication()
        assert topic.last_sequence_id("p") == -1


async def test_only_so_many_producers_are_remembered() -> None:
    async with memory_broker(
        broker_deduplication_enabled=True, broker_deduplication_max_number_of_producers=1
    ) as broker:
        topic = await enabled(broker)
        await stored_again(broker, topic, 1)
        peer = RecordingPeer()
        producer = broker.producer(topic, peer, "other")
        topic.publish(producer, run_of([3]))
        await producer.drained()
        await topic.deduplication.snapshot()
        assert topic.deduplication.cursor is not None
        assert topic.deduplication.cursor.properties == {"other": "3"}


async def test_a_deleted_topic_leaves_nothing_behind(broker: MemoryBroker) -> None:
    topic = await enabled(broker)
    await stored_again(broker, topic, 1)
    await broker.service.topics.delete(topic.name)
    topic = await enabled(broker)
    assert await stored_again(broker, topic, 1) == [True]
