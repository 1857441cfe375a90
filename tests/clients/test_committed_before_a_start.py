"""Transactions that were committed before the broker stopped: readers wait for their messages after the next start."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from tests.support.explaining import TOPIC, Explained, codes, explained

from pybroker.broker.lifecycle.transaction_participants import TransactionParticipants
from pybroker.client import MessageId, connect
from pybroker.errors import ServiceNotReady
from pybroker.transactions.coordinator import Coordinator
from pybroker.transactions.transaction_log import TransactionLog

AT = "/persistent/public/default/t"


@pytest.fixture
async def world() -> AsyncIterator[Explained]:
    async with explained() as found:
        yield found


def held_up(patch: pytest.MonkeyPatch, owner: type, name: str) -> asyncio.Event:
    """Calls of that method wait until the event is set."""
    goes_on, method = asyncio.Event(), getattr(owner, name)

    async def waits(*args: Any) -> Any:
        await goes_on.wait()
        return await method(*args)

    patch.setattr(owner, name, staticmethod(waits) if owner is TransactionLog else waits)
    return goes_on


def held_up_before_reading(patch: pytest.MonkeyPatch) -> asyncio.Event:
    """Coordinators do not read their logs yet."""
    return held_up(patch, TransactionLog, "open")


def held_up_before_telling(patch: pytest.MonkeyPatch) -> asyncio.Event:
    """Coordinators do not tell topics yet how transactions have ended."""
    return held_up(patch, TransactionParticipants, "end")


async def committed_and_stopped(world: Explained, patch: pytest.MonkeyPatch) -> MessageId:
    """A message of a transaction whose commit is durable when the broker crashes, before the topic is told."""
    producer = await world.client.producer(TOPIC, batching=False)
    await producer.send(b"before")
    transaction = await world.client.transaction()
    sent = await producer.send(b"in", transaction=transaction)
    coordinator = coordinator_of(world, transaction.id.most)
    patch.setattr(coordinator.endings, "_end_participant", never)
    committing = asyncio.ensure_future(transaction.commit())
    await world.until(lambda: coordinator.endings.find(transaction.id) is not None)
    await world.client.close()
    await world.broker.crash()
    await asyncio.wait([committing])
    return sent


async def never(*_: object) -> None:
    """The topic is not told."""
    await asyncio.Event().wait()


def coordinator_of(world: Explained, coordinator_id: int) -> Coordinator:
    found = world.broker.broker.service.transactions.begun(coordinator_id)
    assert found is not None
    return found


@pytest.mark.parametrize("hold_up", [held_up_before_reading, held_up_before_telling])
async def test_last_message_id_after_a_start_waits_for_committed_transactions(
    world: Explained, monkeypatch: pytest.MonkeyPatch, hold_up: Callable[[pytest.MonkeyPatch], asyncio.Event]
) -> None:
    sent = await committed_and_stopped(world, monkeypatch)
    goes_on = hold_up(monkeypatch)
    await world.broker.restart()
    async with connect(world.broker.service_url) as client:
        reader = await client.reader(TOPIC)
        assert (await reader.receive(20)).value == b"before"
        has_more = asyncio.ensure_future(reader.has_more())
        over_rest = asyncio.ensure_future(world.rest("GET", f"{AT}/lastMessageId"))
        transactions = world.topic().transactions
        await world.until(lambda: has_more.done() or over_rest.done() or transactions.waiting_readers == 2)
        found = await world.explain()
        assert codes(found["findings"]) == ["transaction-end-pending"]
        (finding,) = found["findings"]
        assert finding["waits"]
        assert finding["evidence"]["waitingReaders"] == 2
        assert finding["evidence"]["isCommitted"] == (hold_up is held_up_before_telling)
        assert not any("abort" in each["path"] for each in finding["actions"]), "a committed one cannot be aborted"
        (subscription,) = world.topic().subscriptions
        assert "transaction-end-pending" in codes((await world.explain(subscription=subscription))["findings"])
        goes_on.set()
        assert await has_more
        assert (await over_rest).json["entryId"] == sent.entry_id
        assert (await reader.receive(20)).value == b"in"
        assert (await world.explain())["findings"] == []


async def test_last_message_id_is_refused_with_the_cause_when_the_wait_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    async with explained(transactionBufferEndsWaitTimeInMillis=10) as world:
        await committed_and_stopped(world, monkeypatch)
        goes_on = held_up_before_reading(monkeypatch)
        await world.broker.restart()
        async with connect(world.broker.service_url, operation_timeout_s=0.1) as client:
            reader = await client.reader(TOPIC)
            with pytest.raises(ServiceNotReady, match="known when transaction coordinator 0 has read"):
                await reader.has_more()
        answer = await world.rest("GET", f"{AT}/lastMessageId")
        assert answer.status == 503
        assert "transactionBufferEndsWaitTimeInMillis" in answer.text
        plan = {"topics": [{"topic": "t"}]}
        (planned,) = (await world.rest("POST", "/admin/v3/entries/persistent/public/default/plan", plan)).json["topics"]
        assert planned["status"] == 503
        goes_on.set()


async def test_last_message_id_wait_ends_when_the_topic_is_unloaded(
    world: Explained, monkeypatch: pytest.MonkeyPatch
) -> None:
    await committed_and_stopped(world, monkeypatch)
    goes_on = held_up_before_reading(monkeypatch)
    await world.broker.restart()
    async with connect(world.broker.service_url):
        asked = asyncio.ensure_future(world.rest("GET", f"{AT}/lastMessageId"))
        await world.until(lambda: TOPIC in world.broker.broker.service.loaded.persistent)
        await world.until(lambda: world.topic().transactions.waiting_readers == 1)
        await world.done("PUT", f"{AT}/unload")
        assert (await asked).status == 503
        goes_on.set()


async def test_an_open_transaction_of_before_a_start_does_not_delay_the_last_message_id(world: Explained) -> None:
    producer = await world.client.producer(TOPIC, batching=False)
    before = await producer.send(b"before")
    transaction = await world.client.transaction(timeout_s=3600)
    await producer.send(b"in", transaction=transaction)
    await world.client.close()
    await world.broker.restart()
    answer = await world.rest("GET", f"{AT}/lastMessageId")
    assert answer.json["entryId"] == before.entry_id
    assert world.topic().transactions.pending_end is None
