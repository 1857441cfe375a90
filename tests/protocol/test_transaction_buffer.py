"""Messages of transactions at a live topic: who sees them and when, what survives, what is refused."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest
from tests.support.memory_broker import MemoryBroker, acknowledge, memory_broker, stored_subscription
from tests.support.recording_peer import RecordingPeer
from tests.support.transactions import ABORT, COMMIT, entry_of, run_in, send, txn

from pybroker.broker.topic.topic import Topic
from pybroker.broker.transactions.transaction_buffer import TransactionBuffer
from pybroker.dispatch.blocked_reasons import BlockedReason
from pybroker.errors import (
    BrokerError,
    NotAllowedError,
    PersistenceError,
    ProducerBusy,
    ServiceNotReady,
    StoreError,
    TooManyRequests,
    TopicFenced,
)
from pybroker.managed_ledger.info.managed_ledger_info import TRANSACTIONS_CURSOR
from pybroker.managed_ledger.rollover import LedgerLimits
from pybroker.model.names import TopicName
from pybroker.model.position import EARLIEST, Position
from pybroker.model.txn_id import TxnAction
from pybroker.wire.transaction_metadata import of_transaction

TOPIC = "persistent://public/default/t"
TOPIC_PATH = "/persistent/public/default/t"


@pytest.fixture
async def broker() -> AsyncIterator[MemoryBroker]:
    async with memory_broker() as found:
        yield found


async def loaded_again(broker: MemoryBroker, topic: Topic) -> Topic:
    await broker.service.topics.unload(topic)
    return await broker.topic(TOPIC)


async def test_messages_are_delivered_in_their_order_once_their_transaction_is_committed(broker: MemoryBroker) -> None:
    topic = await broker.topic(TOPIC)
    peer = RecordingPeer()
    consumer = await broker.consumer(topic, "s", peer)
    before = await send(broker, topic, None, 2)
    inside = await send(broker, topic, txn(1), 3)
    behind = await send(broker, topic, None, 2)
    await broker.quiet(topic)
    assert peer.delivered == before
    stall = stored_subscription(consumer.subscription).stall
    assert stall is not None
    assert stall.blocked_reason is BlockedReason.TRANSACTION
    await topic.end_transaction(txn(1), COMMIT, 0)
    await broker.quiet(topic)
    assert peer.delivered == before + inside + behind
    acknowledge(consumer, peer.delivered)
    await broker.quiet(topic)
    assert stored_subscription(consumer.subscription).cursor.backlog_entries == 0, (
        "the marker is acknowledged by itself"
    )


async def test_messages_of_an_aborted_transaction_are_never_delivered_and_count_in_no_backlog(
    broker: MemoryBroker,
) -> None:
    topic = await broker.topic(TOPIC)
    await send(broker, topic, txn(1), 3)
    behind = await send(broker, topic, None, 1)
    await topic.end_transaction(txn(1), ABORT, 0)
    peer = RecordingPeer()
    consumer = await broker.consumer(topic, "s", peer)
    await broker.quiet(topic)
    assert peer.delivered == behind
    assert stored_subscription(consumer.subscription).cursor.backlog_entries == 1


@pytest.mark.parametrize("action", TxnAction)
async def test_the_oldest_open_transaction_holds_back_what_younger_ones_have_committed(
    broker: MemoryBroker, action: TxnAction
) -> None:
    topic = await broker.topic(TOPIC)
    peer = RecordingPeer()
    await broker.consumer(topic, "s", peer, "Exclusive")
    first = await send(broker, topic, txn(1))
    second = await send(broker, topic, txn(2))
    first += await send(broker, topic, txn(1))
    await topic.end_transaction(txn(2), COMMIT, 0)
    await broker.quiet(topic)
    assert peer.delivered == []
    await topic.end_transaction(txn(1), action, 0)
    await broker.quiet(topic)
    assert peer.delivered == (sorted(first + second) if action is COMMIT else second)


async def test_what_says_that_a_transaction_has_ended_counts_as_no_message_that_came_in(broker: MemoryBroker) -> None:
    topic = await broker.topic(TOPIC)
    for least, action in ((1, COMMIT), (2, ABORT)):
        await send(broker, topic, txn(least), 2)
        await topic.end_transaction(txn(least), action, 0)
    assert topic.counters.messages_in == 4
    assert topic.ledger.last_confirmed.entry_id == 5


async def test_the_last_message_id_is_that_of_the_last_message_that_a_reader_gets(broker: MemoryBroker) -> None:
    topic = await broker.topic(TOPIC)
    assert await topic.last_message() == (EARLIEST, -1)
    plain = await send(broker, topic, None)
    await send(broker, topic, txn(1), 70)
    assert (await topic.last_message())[0] == plain[0]
    await topic.end_transaction(txn(1), ABORT, 0)
    assert (await topic.last_message())[0] == plain[0]
    committed = await send(broker, topic, txn(2), 2)
    await topic.end_transaction(txn(2), COMMIT, 0)
    assert (await topic.last_message())[0] == committed[-1]


async def test_what_was_open_aborted_and_committed_is_the_same_after_the_topic_is_loaded_again(
    broker: MemoryBroker,
) -> None:
    topic = await broker.topic(TOPIC)
    await send(broker, topic, txn(1), 2)
    committed = await send(broker, topic, txn(2), 2)
    still_open = await send(broker, topic, txn(3), 2)
    await topic.end_transaction(txn(1), ABORT, 0)
    await topic.end_transaction(txn(2), COMMIT, 0)
    topic = await loaded_again(broker, topic)
    peer = RecordingPeer()
    await broker.consumer(topic, "s", peer)
    await broker.quiet(topic)
    assert peer.delivered == committed
    with pytest.raises(NotAllowedError, match="has been ended"):
        await send(broker, topic, txn(1))
    await topic.end_transaction(txn(3), COMMIT, 2)
    await broker.quiet(topic)
    assert peer.delivered == committed + still_open


async def test_thousands_of_open_transactions_are_restored_while_others_have_a_turn(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, peer, restored_by = await broker.topic(TOPIC), RecordingPeer(), []
    await send(broker, topic, None)
    producer = broker.producer(topic, peer)
    for least in range(1, 401):
        topic.publish(producer, run_in(txn(least), 1, least))
    await broker.until(lambda: len(peer.receipts) == 400)
    restore = TransactionBuffer.restore

    def noted(record: bytes, max_open: int) -> TransactionBuffer:
        restored_by.append(threading.current_thread())
        return restore(record, max_open)

    monkeypatch.setattr(TransactionBuffer, "restore", noted)
    again = await loaded_again(broker, topic)
    assert restored_by != [threading.main_thread()]
    assert again.transactions.buffer is not None
    again.transactions.buffer.check_invariants()
    assert list(again.transactions.buffer.open) == [txn(least) for least in range(1, 401)]
    assert [each.first for each in again.transactions.buffer.open.values()] == peer.receipts


async def test_a_message_for_a_transaction_that_has_ended_is_refused(broker: MemoryBroker) -> None:
    topic = await broker.topic(TOPIC)
    await send(broker, topic, txn(1))
    await topic.end_transaction(txn(1), COMMIT, 0)
    await topic.end_transaction(txn(5), ABORT, 3)  # of which the topic knows nothing
    for ended in (1, 2, 3, 5):
        with pytest.raises(NotAllowedError, match="Please use a new transaction to send message"):
            await send(broker, topic, txn(ended))
    assert await send(broker, topic, txn(4))
    assert await send(broker, topic, txn(1, most=1)), "another coordinator's"


async def test_ending_twice_and_ending_what_is_unknown_succeeds_and_writes_no_marker(broker: MemoryBroker) -> None:
    topic = await broker.topic(TOPIC)
    await topic.end_transaction(txn(9), COMMIT, 0)
    assert topic.ledger.last_confirmed.entry_id == -1
    await send(broker, topic, txn(1))
    await asyncio.gather(*(topic.end_transaction(txn(1), ABORT, 0) for _ in range(3)))
    await topic.end_transaction(txn(1), ABORT, 0)
    assert topic.ledger.last_confirmed.entry_id == 1


@pytest.mark.parametrize("had_transactions", [False, True])
async def test_a_late_message_of_a_transaction_that_ended_without_any_is_refused_also_after_a_crash(
    broker: MemoryBroker, had_transactions: bool
) -> None:
    topic = await broker.topic(TOPIC)
    if had_transactions:
        await send(broker, topic, txn(1))
    await asyncio.gather(*(topic.end_transaction(txn(2), ABORT, 0) for _ in range(3)))
    with pytest.raises(NotAllowedError, match="has been ended"):
        await send(broker, topic, txn(2))
    topic.transactions.store = _nothing  # type: ignore[method-assign] # a crash stores nothing more
    topic = await loaded_again(broker, topic)
    with pytest.raises(NotAllowedError, match="has been ended"):
        await send(broker, topic, txn(2))
    assert await send(broker, topic, txn(3))


async def _nothing() -> None:
    """Stores nothing."""


async def test_an_end_without_messages_that_could_not_be_stored_is_stored_when_it_is_asked_for_again(
    broker: MemoryBroker,
) -> None:
    topic = await broker.topic(TOPIC)
    await send(broker, topic, txn(1))
    store = topic.transactions.store

    async def fail() -> None:
        raise StoreError("the disk is full")

    topic.transactions.store = fail  # type: ignore[method-assign]
    for _ in range(2):
        with pytest.raises(BrokerError, match="the disk is full"):
            await topic.end_transaction(txn(2), ABORT, 0)
    with pytest.raises(NotAllowedError, match="has been ended"):
        await send(broker, topic, txn(2))
    topic.transactions.store = store  # type: ignore[method-assign]
    await topic.end_transaction(txn(2), ABORT, 0)
    topic.transactions.store = _nothing  # type: ignore[method-assign]
    topic = await loaded_again(broker, topic)
    with pytest.raises(NotAllowedError, match="has been ended"):
        await send(broker, topic, txn(2))


async def test_a_message_that_only_its_metadata_puts_into_a_transaction_is_refused_where_that_would_hold_it_back(
    broker: MemoryBroker,
) -> None:
    topic = await broker.topic(TOPIC)
    for is_refused in (False, True):
        if is_refused:
            await send(broker, topic, txn(1))
        run, peer = run_in(txn(7), 1, first=int(is_refused)), RecordingPeer()
        run.txn = None
        topic.publish(broker.producer(topic, peer, f"p{is_refused}"), run)
        await broker.until(lambda peer=peer: bool(peer.receipts or peer.errors))  # type: ignore[misc]
        assert bool(peer.errors) is is_refused
    topic = await loaded_again(broker, topic)
    await topic.end_transaction(txn(1), COMMIT, 0)
    assert topic.ledger.read_limit.limit is None


async def test_a_late_message_that_was_on_its_way_when_the_low_water_mark_passed_it_is_aborted(
    broker: MemoryBroker,
) -> None:
    topic = await broker.topic(TOPIC)
    await send(broker, topic, txn(9))
    peer = RecordingPeer()
    topic.publish(broker.producer(topic, peer, "late"), run_in(txn(1), 1))
    await topic.end_transaction(txn(9), COMMIT, 8)
    await broker.until(lambda: bool(peer.receipts))
    assert topic.ledger.read_limit.limit is None


async def test_what_the_low_water_mark_had_passed_is_aborted_when_its_marker_was_lost_in_a_crash(
    broker: MemoryBroker,
) -> None:
    topic = await broker.topic(TOPIC)
    await send(broker, topic, txn(1))
    assert topic.transactions.buffer is not None
    assert topic.transactions.buffer.raise_low_water_mark(0, 3) == [txn(1)]
    topic = await loaded_again(broker, topic)
    assert topic.ledger.read_limit.limit is None
    reader = RecordingPeer()
    await broker.consumer(topic, "s", reader)
    behind = await send(broker, topic, None)
    await broker.quiet(topic)
    assert reader.delivered == behind


async def test_an_end_right_behind_messages_that_are_not_stored_yet_takes_them_along(broker: MemoryBroker) -> None:
    topic = await broker.topic(TOPIC)
    await send(broker, topic, txn(1))
    await topic.end_transaction(txn(1), ABORT, 0)
    peer, reader = RecordingPeer(), RecordingPeer()
    await broker.consumer(topic, "s", reader)
    producer = broker.producer(topic, peer)
    topic.publish(producer, run_in(txn(2), 5))
    await topic.end_transaction(txn(2), COMMIT, 0)
    await broker.quiet(topic)
    assert reader.delivered == peer.receipts
    assert len(peer.receipts) == 5


async def test_late_messages_of_what_the_low_water_mark_has_passed_are_aborted(broker: MemoryBroker) -> None:
    topic = await broker.topic(TOPIC)
    reader = RecordingPeer()
    await broker.consumer(topic, "s", reader)
    await send(broker, topic, txn(1), 2)
    behind = await send(broker, topic, txn(7), 2)
    await topic.end_transaction(txn(7), COMMIT, 6)
    await broker.quiet(topic)
    assert reader.delivered == behind
    assert topic.ledger.read_limit.limit is None


async def test_a_message_of_which_only_the_command_names_the_transaction_is_stored_with_it_in_its_metadata(
    broker: MemoryBroker,
) -> None:
    """The Go client sends such messages."""
    topic = await broker.topic(TOPIC)
    run = run_in(txn(1, most=2), 1)
    run.payloads = run_in(None, 1).payloads
    peer = RecordingPeer()
    topic.publish(broker.producer(topic, peer), run)
    await broker.until(lambda: bool(peer.receipts))
    [position] = peer.receipts
    assert topic.ledger.read_limit.limit == position
    stored = await topic.ledger.read_if_there(position, 1, 1 << 20)
    assert stored is not None
    [entry] = stored.payloads
    said = of_transaction(entry)
    assert said is not None
    assert said.txn == txn(1, most=2)
    assert entry == entry_of(txn(1, most=2))
    assert topic.ledger.ledgers.size_bytes == len(entry)


@pytest.mark.parametrize("said", [txn(2), txn(1, most=3)])
async def test_a_message_whose_metadata_says_something_else_than_its_command_is_refused(
    broker: MemoryBroker, said: object
) -> None:
    topic = await broker.topic(TOPIC)
    run = run_in(txn(1), 1)
    run.payloads = run_in(said, 1).payloads  # type: ignore[arg-type]
    peer = RecordingPeer()
    topic.publish(broker.producer(topic, peer), run)
    await broker.until(lambda: bool(peer.errors))
    assert isinstance(peer.errors[0], NotAllowedError)
    assert topic.ledger.read_limit.limit is None


async def test_one_open_transaction_too_many_is_refused_and_those_that_are_open_go_on() -> None:
    async with memory_broker(max_open_transactions_per_topic=2) as broker:
        topic = await broker.topic(TOPIC)
        await send(broker, topic, txn(1))
        await send(broker, topic, txn(2))
        with pytest.raises(TooManyRequests, match="maxOpenTransactionsPerTopic"):
            await send(broker, topic, txn(3))
        await send(broker, topic, txn(2))
        await topic.end_transaction(txn(1), COMMIT, 0)
        await send(broker, topic, txn(3))


async def test_an_aborted_message_stays_known_to_deduplication() -> None:
    async with memory_broker(broker_deduplication_enabled=True) as broker:
        topic = await broker.topic(TOPIC)
        await send(broker, topic, txn(1), 3)
        await topic.end_transaction(txn(1), ABORT, 0)
        assert await send(broker, topic, txn(2), 3) == [Position(-1, -1)] * 3
        assert len(await send(broker, topic, txn(2), 1, first=3)) == 1


async def test_a_topic_that_is_unloaded_refuses_ends_and_the_next_one_takes_them(broker: MemoryBroker) -> None:
    topic = await broker.topic(TOPIC)
    inside = await send(broker, topic, txn(1))
    ending = asyncio.ensure_future(topic.end_transaction(txn(1), COMMIT, 0))
    await broker.service.topics.unload(topic)
    try:
        await ending
    except (ServiceNotReady, TopicFenced):
        pass
    with pytest.raises(TopicFenced):
        await topic.end_transaction(txn(1), COMMIT, 0)
    topic = await broker.topic(TOPIC)
    await topic.end_transaction(txn(1), COMMIT, 0)
    reader = RecordingPeer()
    await broker.consumer(topic, "s", reader)
    await broker.quiet(topic)
    assert reader.delivered == inside


@pytest.mark.parametrize("turns", range(4))
async def test_the_first_end_at_a_topic_that_is_unloaded_at_once_is_answered(broker: MemoryBroker, turns: int) -> None:
    topic = await broker.topic(TOPIC)
    ending = asyncio.ensure_future(topic.end_transaction(txn(1), COMMIT, 0))
    for _ in range(turns):
        await asyncio.sleep(0)
    await topic.tasks.close()
    await broker.service.topics.unload(topic)
    async with asyncio.timeout(10):
        try:
            await ending
        except (ServiceNotReady, TopicFenced, PersistenceError):
            pass  # the coordinator repeats the end
    topic = await broker.topic(TOPIC)
    await topic.end_transaction(txn(1), COMMIT, 0)


async def test_a_deleted_topic_leaves_nothing_of_its_transactions_to_the_next_one_of_its_name(
    broker: MemoryBroker,
) -> None:
    topic = await broker.topic(TOPIC)
    await send(broker, topic, txn(1))
    await topic.transactions.store()
    assert (await broker.rest("DELETE", f"{TOPIC_PATH}?force=true")).status == 204
    again = await broker.topic(TOPIC)
    assert again.transactions.buffer is None
    reader = RecordingPeer()
    await broker.consumer(again, "s", reader)
    sent = await send(broker, again, None, 2)
    await broker.quiet(again)
    assert reader.delivered == sent


async def test_a_marker_that_cannot_be_stored_leaves_the_transaction_open_and_is_tried_again(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = await broker.topic(TOPIC)
    await send(broker, topic, txn(1))

    def refuse(*_: object) -> None:
        raise StoreError("no")

    with monkeypatch.context() as broken:
        broken.setattr(topic.ledger, "append", refuse)
        with pytest.raises(BrokerError, match="no"):
            await topic.end_transaction(txn(1), ABORT, 0)
    assert topic.ledger.read_limit.limit is not None
    await send(broker, topic, txn(1))
    await topic.end_transaction(txn(1), ABORT, 0)
    assert topic.ledger.read_limit.limit is None


async def test_transactions_of_a_terminated_topic_can_end(broker: MemoryBroker) -> None:
    topic = await broker.topic(TOPIC)
    reader = RecordingPeer()
    await broker.consumer(topic, "s", reader)
    committed = await send(broker, topic, txn(1), 2)
    await send(broker, topic, txn(2), 2)
    await topic.terminate()
    await topic.end_transaction(txn(1), COMMIT, 0)
    await topic.end_transaction(txn(2), ABORT, 0)
    await broker.quiet(topic)
    assert reader.delivered == committed
    topic = await loaded_again(broker, topic)
    assert topic.ledger.read_limit.limit is None


async def test_clients_cannot_say_that_a_transaction_has_ended(broker: MemoryBroker) -> None:
    from pybroker.wire.transaction_metadata import end_marker

    topic = await broker.topic(TOPIC)
    await send(broker, topic, txn(1))
    peer = RecordingPeer()
    run = run_in(None, 1)
    run.payloads, run.has_markers = [end_marker(txn(1), COMMIT, 1)], True
    topic.publish(broker.producer(topic, peer), run)
    assert isinstance(peer.errors[0], NotAllowedError)
    assert topic.ledger.read_limit.limit is not None


async def test_the_first_transaction_waits_for_its_cursor_and_a_failure_to_make_it_is_answered(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    topic = await broker.topic(TOPIC)

    async def refuse(*_: object) -> None:
        raise StoreError("no")

    with monkeypatch.context() as broken:
        broken.setattr(broker.service.broker_context.ledgers, "create_cursor", refuse)
        for _ in range(3):
            with pytest.raises(BrokerError, match="no"):
                await send(broker, topic, txn(1))
    assert [record.levelname for record in caplog.records if "transactions.start_failed" in record.getMessage()] == [
        "ERROR"
    ]
    assert topic.publish_throttle is None, "nobody waits any more"
    assert await send(broker, topic, txn(1))


async def test_a_bug_at_the_first_transaction_is_logged_and_its_messages_are_answered(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    topic = await broker.topic(TOPIC)

    async def fail(*_: object) -> None:
        raise RuntimeError("a bug")

    with monkeypatch.context() as broken:
        broken.setattr(broker.service.broker_context.ledgers, "create_cursor", fail)
        with pytest.raises(PersistenceError, match="cannot be started"):
            await send(broker, topic, txn(1))
    assert await send(broker, topic, txn(1))
    assert any("task.failed" in record.getMessage() for record in caplog.records)


async def test_a_non_persistent_topic_takes_no_transactions(broker: MemoryBroker) -> None:
    topic = await broker.service.topics.any(TopicName.parse("non-persistent://public/default/n"), may_create=True)
    peer = RecordingPeer()
    topic.publish(broker.producer(topic, peer), run_in(txn(1), 1))
    assert isinstance(peer.errors[0], NotAllowedError)


async def test_the_cursor_of_transactions_is_no_subscription(broker: MemoryBroker) -> None:
    topic = await broker.topic(TOPIC)
    await send(broker, topic, txn(1))
    with pytest.raises(ProducerBusy):
        await topic.subscription(TRANSACTIONS_CURSOR, True, True, {})
    topic = await loaded_again(broker, topic)
    assert topic.subscriptions == {}


async def test_ledgers_are_trimmed_when_a_snapshot_has_what_they_say_and_what_they_hid_is_forgotten() -> None:
    limits = LedgerLimits(max_entries_per_ledger=4, min_rollover_ms=0)
    async with memory_broker(limits) as broker:
        topic = await broker.topic(TOPIC)
        for least in range(1, 11):
            await send(broker, topic, txn(least), 2)
            await topic.end_transaction(txn(least), ABORT, 0)
        await broker.until(lambda: len(topic.ledger.ledgers.ledger_ids()) > 5)
        await topic.ledger.trim()
        assert topic.ledger.ledgers.entry_count == 30, "they are to be read again"
        await topic.transactions.store()
        await topic.ledger.trim()
        await broker.until(lambda: topic.ledger.ledgers.entry_count <= 4)
        buffer = topic.transactions.buffer
        assert buffer is not None
        buffer.snapshot()
        topic.transactions.snapshot()
        assert set(buffer.hidden) <= set(topic.ledger.ledgers.ledger_ids())


async def test_compaction_keeps_no_value_of_an_open_or_aborted_transaction(broker: MemoryBroker) -> None:
    topic = await broker.topic(TOPIC)
    first = await send(broker, topic, None, key="a")
    await send(broker, topic, txn(1), key="a")
    await topic.end_transaction(txn(1), ABORT, 0)
    await send(broker, topic, txn(2), key="a")
    assert topic.compaction.start()
    await broker.until(lambda: topic.compaction.counters.has_run)
    view = topic.ledger.compacted
    assert view is not None
    assert view.entries == 1
    assert Position(*view.horizon) < (await send(broker, topic, None))[0]
    found = await topic.compaction.last_message() or await topic.last_message()
    assert found[0] == first[0]


async def test_a_plain_topic_has_no_buffer_no_cursor_and_no_limit(broker: MemoryBroker) -> None:
    topic = await broker.topic(TOPIC)
    await send(broker, topic, None, 5)
    assert topic.transactions.buffer is None
    assert not topic.ledger.cursors
    assert topic.ledger.read_limit.limit is None
