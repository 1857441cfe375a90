"""The coordinators of one broker: creation of their topic, and closing with a bundle."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.managed_ledger.stack import SMALL, MemoryStack

from pybroker.config import BrokerConfig
from pybroker.metadata.partitioned_topics import PartitionedTopics
from pybroker.model.txn_id import TxnAction, TxnId
from pybroker.runtime.runtime import Runtime
from pybroker.transactions.coordinators import ASSIGN, DEFAULT_COORDINATORS, Coordinators
from pybroker.transactions.participant_notification import Participant
from pybroker.transactions.transaction_log import TransactionLog


async def _end(_participant: Participant, _txn: TxnId, _action: TxnAction, _low_water_mark: int) -> None: ...


async def _coordinators() -> tuple[Coordinators, PartitionedTopics]:
    stack = MemoryStack(SMALL)
    await stack.start()
    partitioned = PartitionedTopics(stack.metadata)
    runtime = Runtime(BrokerConfig(transaction_coordinator_enabled=True), clock=stack.clock)
    return Coordinators(runtime, stack.metadata, stack.factory, partitioned, _end), partitioned


async def test_coordinator_of_next_session_waits_until_log_of_former_one_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Closing takes long while the metadata store cannot be reached, and the bundle can be acquired again meanwhile."""
    coordinators, _ = await _coordinators()
    former = await coordinators.connect(3)
    closed, close = asyncio.Event(), TransactionLog.close

    async def slow_close(log: TransactionLog) -> None:
        await closed.wait()
        await close(log)

    monkeypatch.setattr(TransactionLog, "close", slow_close)
    stopping = [asyncio.create_task(coordinators.stop([3]))]
    await asyncio.sleep(0)
    second = asyncio.create_task(coordinators.connect(3))
    await asyncio.sleep(0.01)
    assert not second.done()
    # The bundle is lost once more, before the first log is closed.
    stopping.append(asyncio.create_task(coordinators.stop([3])))
    await asyncio.sleep(0)
    third = asyncio.create_task(coordinators.connect(3))
    await asyncio.sleep(0.01)
    assert not third.done()
    closed.set()
    await asyncio.gather(*stopping)
    assert await third is coordinators.find(3) is not former
    await asyncio.gather(second, return_exceptions=True)
    await coordinators.close()


async def test_connect_accepts_topic_that_another_broker_created() -> None:
    coordinators, partitioned = await _coordinators()
    other = PartitionedTopics(partitioned._store)
    await other.create(ASSIGN, DEFAULT_COORDINATORS + 4)
    await coordinators.connect(0)
    assert coordinators.count == DEFAULT_COORDINATORS + 4
    await coordinators.close()
