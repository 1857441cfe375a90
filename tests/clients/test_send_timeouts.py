"""Messages of `pybroker.client` that are not answered in time: they fail, and their producer goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from tests.clients.test_client_attaching import scripted
from tests.support.explaining import TIMEOUT_S, TOPIC, Explained, explained, received
from tests.support.waiting import until

from pybroker.client import MessageProducer, OutgoingMessage, RequestTimedOut, Transaction, TransactionFailed
from pybroker.client.producing.entry_producer import SEND_TIMEOUT_S, Producer, ProducerState
from pybroker.wire import pulsar_api_pb2 as pb

QUICK_S = 0.1
Type = pb.BaseCommand


@pytest.fixture
async def world() -> AsyncIterator[Explained]:
    async with explained() as found:
        yield found


def entries_of(producer: MessageProducer) -> Producer:
    return producer._partitions[0].producer


def time_out_after(producer: MessageProducer, seconds: float) -> None:
    """From now on; the other messages of a test have as long as a slow machine needs."""
    entries = entries_of(producer)
    entries._settings = replace(entries._settings, send_timeout_s=seconds)
    if entries._timer is not None:
        entries._timer.cancel()
        entries._timer = None


async def timed_out(producer: MessageProducer, value: bytes, transaction: Transaction | None = None) -> None:
    """A message that is not answered in time."""
    time_out_after(producer, QUICK_S)
    with pytest.raises(RequestTimedOut, match=r"may or may not be stored.*The producer continues"):
        await producer.send(value, transaction=transaction)
    time_out_after(producer, SEND_TIMEOUT_S)
    assert entries_of(producer).pending_entries == 0


async def test_producer_goes_on_after_a_message_timed_out_whose_receipt_comes_late(world: Explained) -> None:
    producer = await world.client.producer(TOPIC, batching=False)
    consumer = await world.client.consumer(TOPIC, "s", from_earliest=True)
    fault = world.broker.faults.stall_connections(topic=TOPIC)
    await timed_out(producer, b"late")
    fault.undo()
    first = await producer.send(b"second")
    second = await producer.send(b"third")
    messages = await received(consumer, 3)
    assert [each.value for each in messages] == [b"late", b"second", b"third"]
    assert [each.id[:2] for each in messages[1:]] == [first[:2], second[:2]]
    assert entries_of(producer).state is ProducerState.READY


async def test_producer_goes_on_after_messages_timed_out_while_the_broker_was_away(world: Explained) -> None:
    producer = await world.client.producer(TOPIC, batching=False)
    await producer.send(b"before")
    await world.broker.crash()
    time_out_after(producer, QUICK_S)
    receipts = [await producer.submit(OutgoingMessage(b"lost")) for _ in range(3)]
    await asyncio.wait(receipts)
    assert all(isinstance(each.exception(), RequestTimedOut) for each in receipts)
    time_out_after(producer, SEND_TIMEOUT_S)
    await world.broker.restart()
    await until(lambda: entries_of(producer).state is ProducerState.READY)
    await producer.send(b"after")
    consumer = await world.client.consumer(TOPIC, "s", from_earliest=True)
    assert [each.value for each in await received(consumer, 2)] == [b"before", b"after"]


async def test_a_transaction_fails_with_its_timed_out_message_and_the_next_one_succeeds(world: Explained) -> None:
    producer = await world.client.producer(TOPIC, batching=False)
    transaction = await world.client.transaction()
    await producer.send(b"in", transaction=transaction)
    with world.broker.faults.stall_connections(topic=TOPIC):
        await timed_out(producer, b"late", transaction)
    with pytest.raises(TransactionFailed):
        await transaction.commit()
    async with await world.client.transaction() as again:
        await producer.send(b"repeated", transaction=again)
    consumer = await world.client.consumer(TOPIC, "s", from_earliest=True)
    assert (await consumer.receive(TIMEOUT_S)).value == b"repeated"


async def test_with_deduplication_a_late_message_and_its_successors_are_stored_once() -> None:
    async with explained(brokerDeduplicationEnabled=True) as world:
        producer = await world.client.producer(TOPIC, name="p", batching=False)
        with world.broker.faults.stall_connections(topic=TOPIC):
            await timed_out(producer, b"late")
        await producer.send(b"second")
        assert world.broker.faults.drop_connections(topic=TOPIC)
        await producer.send(b"third")
        await producer.close()
        again = await world.client.producer(TOPIC, name="p", batching=False)
        assert again.last_sequence_id == 2
        consumer = await world.client.consumer(TOPIC, "s", from_earliest=True)
        assert [each.value for each in await received(consumer, 3)] == [b"late", b"second", b"third"]


async def test_parts_behind_one_that_timed_out_are_not_sent() -> None:
    async with scripted() as (broker, client):
        producer = await client.producer(TOPIC, chunking=True)
        entries = entries_of(producer)
        entries.max_message_bytes = 1000
        entries._pending._max_entries = 2
        time_out_after(producer, QUICK_S)
        with pytest.raises(RequestTimedOut):
            await producer.send(b"x" * 20_000)
        assert broker.seen["SEND"] <= 3, "two, and the one that got the room of those"
        await until(lambda: not entries.pending_entries)
        assert entries.state is ProducerState.READY


async def test_a_refusal_of_a_message_that_has_timed_out_fails_nothing_else() -> None:
    async with scripted() as (broker, client):
        producer = await client.producer(TOPIC, batching=False)
        entries = entries_of(producer)
        await timed_out(producer, b"late")
        sent = await producer.submit(OutgoingMessage(b"next"))
        await until(lambda: broker.seen["SEND"] == 2)
        for code in (pb.NotAllowedError, pb.MetadataError, pb.ChecksumError):
            refused = pb.CommandSendError(producer_id=0, sequence_id=0, error=code, message="refused")
            entries.received(pb.BaseCommand(type=Type.SEND_ERROR, send_error=refused))
        receipt = pb.CommandSendReceipt(producer_id=0, sequence_id=0)
        receipt.message_id.ledgerId, receipt.message_id.entryId = 1, 0
        entries.received(pb.BaseCommand(type=Type.SEND_RECEIPT, send_receipt=receipt))
        assert not sent.done()
        receipt.sequence_id, receipt.message_id.entryId = 1, 1
        entries.received(pb.BaseCommand(type=Type.SEND_RECEIPT, send_receipt=receipt))
        assert (await sent)[:2] == (1, 1)


async def test_without_a_send_timeout_messages_wait_for_their_answer(world: Explained) -> None:
    producer = await world.client.producer(TOPIC, batching=False, send_timeout_s=0)
    with world.broker.faults.stall_connections(topic=TOPIC):
        sent = await producer.submit(OutgoingMessage(b"m"))
        await until(lambda: entries_of(producer).pending_entries == 1)
        assert entries_of(producer)._timer is None
    await asyncio.wait_for(sent, TIMEOUT_S)
