"""Topics that do not answer the ends of transactions in time: how many wait for them, and who does not."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.memory_broker import MemoryBroker, memory_broker
from tests.support.transactions import COMMIT

from pybroker.errors import PersistenceError
from pybroker.model.txn_id import TxnAction, TxnId
from pybroker.transactions.coordinator import Coordinator
from pybroker.transactions.coordinator_state import Transaction
from pybroker.transactions.participant_notification import Participant

SLOW, QUICK = "persistent://public/default/slow", "persistent://public/default/quick"
MANY = 70


class Hanging:
    """Stands for topics: those of `slow` do not answer."""

    def __init__(self, coordinator: Coordinator) -> None:
        self.slow = {SLOW}
        self.refusing: set[str] = set()
        self.waiting = self.most_waiting = 0
        coordinator.endings._end_participant = self.end

    async def end(self, participant: Participant, txn: TxnId, action: TxnAction, low_water_mark: int) -> None:
        if participant.topic in self.refusing:
            raise PersistenceError("a planned failure")
        if participant.topic not in self.slow:
            return
        self.waiting += 1
        self.most_waiting = max(self.most_waiting, self.waiting)
        try:
            await asyncio.Event().wait()
        finally:
            self.waiting -= 1


async def opened(coordinator: Coordinator, topics: list[str]) -> Transaction:
    transaction = coordinator.state.existing(await coordinator.new(3_600_000, None))
    await coordinator.add(transaction, topics, [])
    return transaction


async def stuck(broker: MemoryBroker, coordinator: Coordinator) -> None:
    """Many transactions end at the topic, and each was tried to be told."""
    for each in [await opened(coordinator, [SLOW]) for _ in range(MANY)]:
        coordinator._begin_end(
            each, COMMIT
        )  # all at once: the first may have waited too long before another one is opened
    endings = coordinator.endings
    await broker.until(lambda: all(each.attempts for each in endings._by_id.values()) and len(endings) == MANY)


async def test_once_a_topic_has_not_answered_one_transaction_alone_waits_for_it() -> None:
    async with memory_broker(transaction_buffer_client_operation_timeout_in_mills=50) as broker:
        coordinator = await broker.service.transactions.connect(0)
        hanging = Hanging(coordinator)
        await stuck(broker, coordinator)
        assert hanging.most_waiting > 1, "as many as may be, until it is known"
        await broker.until(lambda: hanging.waiting <= 1)
        hanging.most_waiting = 0
        tried = {each: each.attempts for each in coordinator.endings._by_id.values()}
        other = await opened(coordinator, [QUICK])
        await coordinator.end(other, COMMIT)
        await broker.until(lambda: all(each.attempts > before for each, before in tried.items()))
        assert hanging.most_waiting == 1
        assert all(SLOW in each.last_error for each in tried)
        hanging.slow.clear()
        await broker.until(lambda: coordinator.counters.committed == MANY + 1)


async def test_a_transaction_with_a_slow_topic_ends_at_the_others_meanwhile() -> None:
    async with memory_broker(transaction_buffer_client_operation_timeout_in_mills=50) as broker:
        coordinator = await broker.service.transactions.connect(0)
        hanging = Hanging(coordinator)
        both = await opened(coordinator, [SLOW, QUICK])
        coordinator._begin_end(both, COMMIT)
        await broker.until(lambda: bool(coordinator.endings.find(both.id)))
        ending = coordinator.endings.find(both.id)
        assert ending is not None
        await broker.until(lambda: ending.remaining == [Participant(SLOW)])
        hanging.slow.clear()
        await broker.until(lambda: not len(coordinator.endings))


async def test_a_topic_that_cannot_be_told_is_logged_once_until_it_can(caplog: pytest.LogCaptureFixture) -> None:
    async with memory_broker(transaction_buffer_client_operation_timeout_in_mills=50) as broker:
        coordinator = await broker.service.transactions.connect(0)
        hanging = Hanging(coordinator)
        hanging.slow.clear()
        hanging.refusing = {SLOW}
        await stuck(broker, coordinator)
        await broker.until(lambda: min(each.attempts for each in coordinator.endings._by_id.values()) > 5)
        said = [record for record in caplog.records if "transaction.end_delayed" in record.getMessage()]
        assert len(said) == 1
        hanging.refusing.clear()
        await broker.until(lambda: not len(coordinator.endings))
