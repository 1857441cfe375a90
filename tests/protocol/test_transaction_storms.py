"""Thousands of transactions at once, and topics that are slow: nobody else is held up, and nothing is kept."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.memory_broker import MemoryBroker, memory_broker
from tests.support.recording_peer import RecordingPeer
from tests.support.transactions import ABORT, COMMIT, run_in, send, txn

from pybroker.broker.transactions import transaction_recovery
from pybroker.broker.transactions.transaction_buffer import TransactionBuffer
from pybroker.errors import StoreError
from pybroker.managed_ledger.managed_ledger import ManagedLedger
from pybroker.managed_ledger.pending_transaction_acks import PendingTransactionAcks
from pybroker.model.position import Position
from pybroker.model.txn_id import TxnAction
from pybroker.runtime.clock import Clock
from pybroker.transactions.coordinator import GONE_ON_WITH_AT_ONCE, TIMED_OUT_AT_ONCE, Coordinator

SLOW, QUICK = "persistent://public/default/slow", "persistent://public/default/quick"
MANY = 2000


class NeverLookedThrough(OrderedDict[Any, Any]):
    """A table in which things are found, and never all of them."""

    def __iter__(self) -> Iterator[Any]:
        raise AssertionError("all of them were looked at")


async def opened(coordinator: Coordinator, count: int, timeout_ms: int = 3_600_000) -> list[int]:
    ids = await asyncio.gather(*(coordinator.new(timeout_ms, None) for _ in range(count)))
    return [each.least for each in ids]


def test_a_low_water_mark_that_rises_by_little_looks_at_little() -> None:
    buffer, held = TransactionBuffer(), PendingTransactionAcks()
    for least in range(1, MANY + 1):
        buffer.found(txn(least), Position(1, least), 1, 0, "p")
        held.hold(txn(least), None, [(1, [least])], [])
    for least in range(1, 100):
        last = next(reversed(buffer.open))  # which the order of all is not needed for
        buffer.ended(txn(least), COMMIT, None)
        buffer.open, opened_there = NeverLookedThrough(buffer.open), buffer.open
        held.end(txn(least))
        held.open, held_there = NeverLookedThrough(held.open), held.open
        assert buffer.raise_low_water_mark(0, least + (least == 99)) == ([txn(100)] if least == 99 else [])
        assert held.raise_low_water_mark(0, least) == []
        buffer.open, held.open = opened_there, held_there
        assert last == txn(MANY)
    buffer.check_invariants()


async def test_a_storm_of_time_outs_is_worked_off_in_slices() -> None:
    async with memory_broker() as broker:
        coordinator = await broker.service.transactions.connect(0)
        await opened(coordinator, MANY, 200)
        most = 0

        def seen() -> bool:
            nonlocal most, before  # type: ignore[misc]
            most, before = max(most, coordinator.counters.timed_out - before), coordinator.counters.timed_out
            return not len(coordinator.state)

        before = coordinator.counters.timed_out
        await broker.until(seen)
        assert coordinator.counters.timed_out == MANY
        assert most <= TIMED_OUT_AT_ONCE


async def test_what_is_found_in_the_log_is_gone_on_with_in_slices_and_what_ends_meanwhile_ends_once() -> None:
    async with memory_broker() as broker:
        coordinator = await broker.service.transactions.connect(0)
        ids = await opened(coordinator, MANY)
        coordinator._log_failed(StoreError("a planned failure"))
        await coordinator.ready()
        assert len(coordinator._timeouts) <= GONE_ON_WITH_AT_ONCE, "all of it in one turn"
        last = coordinator.state.find(ids[-1])
        assert last is not None
        await coordinator.end(last, COMMIT)
        await broker.until(lambda: len(coordinator._timeouts) >= MANY - 1)
        for least in ids[:-1]:
            transaction = coordinator.state.find(least)
            assert transaction is not None
            coordinator._begin_end(transaction, ABORT)
        await broker.until(lambda: coordinator.counters.aborted == MANY - 1)
        assert coordinator.counters.committed == 1
        assert not len(coordinator.state)


async def test_a_topic_that_is_slow_to_recover_delays_its_own_transactions_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with memory_broker() as broker:
        coordinator = await broker.service.transactions.connect(0)
        [both, other] = await opened(coordinator, 2)
        ending = {}
        for least, names in ((both, [SLOW, QUICK]), (other, [QUICK])):
            transaction = coordinator.state.find(least)
            assert transaction is not None
            await coordinator.add(transaction, names, [])
            ending[least] = transaction
            for name in names:
                await send(broker, await broker.topic(name), transaction.id)
        for name in (SLOW, QUICK):
            await broker.service.topics.unload(await broker.topic(name))
        may_recover, begun, recover = asyncio.Event(), asyncio.Event(), transaction_recovery.recover

        async def slow(ledger: ManagedLedger, clock: Clock, *rest: Any, **named: Any) -> Any:
            if "slow" in ledger.name:
                begun.set()
                await may_recover.wait()
            return await recover(ledger, clock, *rest, **named)

        monkeypatch.setattr(transaction_recovery, "recover", slow)
        waits = asyncio.ensure_future(coordinator.end(ending[both], COMMIT))
        await asyncio.wait_for(begun.wait(), 10)
        await coordinator.end(ending[other], ABORT)
        quick = await broker.topic(QUICK)
        await broker.until(lambda: quick.ledger.read_limit.limit is None)  # both have ended there
        assert not waits.done()
        assert isinstance(await coordinator.new(1000, None), tuple)
        may_recover.set()
        await asyncio.wait_for(waits, 10)
        assert (await broker.topic(SLOW)).ledger.read_limit.limit is None


@pytest.mark.parametrize("action", TxnAction)
async def test_thousands_of_transactions_of_one_topic_end_at_once(action: TxnAction) -> None:
    count = 1000
    async with memory_broker() as broker:
        topic, peer = await broker.topic(QUICK), RecordingPeer()
        await send(broker, topic, None)
        producer = broker.producer(topic, peer)
        for least in range(1, count + 1):
            topic.publish(producer, run_in(txn(least), 1, least))
        await broker.until(lambda: len(peer.receipts) == count)
        await asyncio.gather(*(topic.end_transaction(txn(each), action, each - 1) for each in range(count, 0, -1)))
        buffer = topic.transactions.buffer
        assert buffer is not None
        buffer.check_invariants()
        assert not buffer.open
        assert topic.ledger.read_limit.limit is None
        hidden = sum(map(len, topic.ledger.read_limit.hidden.values()))
        assert hidden == (count if action is COMMIT else 2 * count)


async def test_the_log_of_ended_transactions_is_let_go(broker: MemoryBroker) -> None:
    coordinator = await broker.service.transactions.connect(0)
    for _ in range(10):
        for least in await opened(coordinator, 50):
            transaction = coordinator.state.find(least)
            assert transaction is not None
            coordinator._begin_end(transaction, COMMIT)
        await broker.until(lambda: not len(coordinator.state))
    assert coordinator.log is not None
    await broker.until(lambda: coordinator.log is not None and coordinator.log.cursor.backlog_entries <= 1)


@pytest.fixture
async def broker() -> Any:
    async with memory_broker() as found:
        yield found
