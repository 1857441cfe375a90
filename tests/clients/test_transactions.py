"""Transactions as programs see them, by `pybroker.client`: on all subscription types, ended in every way, and unloads meanwhile."""

import asyncio
import itertools
from collections.abc import AsyncIterator

import pytest
from tests.clients.conftest import admin, path_of
from tests.support.broker_process import BrokerProcess
from tests.support.rest import call
from tests.support.waiting import until

from pybroker.client import (
    ConnectionLost,
    Message,
    MessageConsumer,
    MessageProducer,
    OutgoingMessage,
    PulsarClient,
    RequestTimedOut,
    Transaction,
    TransactionEnded,
    TransactionFailed,
    connect,
)
from pybroker.client.client_transactions import TransactionState
from pybroker.embedding import embed
from pybroker.errors import (
    InvalidTxnStatus,
    NotAllowedError,
    TransactionConflict,
    TransactionCoordinatorNotFound,
    TransactionNotFound,
)
from pybroker.model.txn_id import TxnId

TIMEOUT_S = 20.0
ENDS = ["commit", "abort"]


@pytest.fixture
async def client(broker: BrokerProcess) -> AsyncIterator[PulsarClient]:
    async with connect(broker.url, operation_timeout_s=TIMEOUT_S) as opened:
        yield opened


async def sent(producer: MessageProducer, count: int, transaction: Transaction | None = None, first: int = 0) -> None:
    for index in range(first, first + count):
        await producer.send(b"%d" % index, key=f"k{index}", transaction=transaction)


async def sent_as_batch(producer: MessageProducer, count: int, transaction: Transaction | None = None) -> None:
    """One entry: the producer has to wait longer than this takes."""
    receipts = [await producer.submit(OutgoingMessage(b"%d" % index), transaction) for index in range(count)]
    await producer.flush()
    await asyncio.gather(*receipts)


async def received(consumer: MessageConsumer, count: int) -> list[Message]:
    return [await consumer.receive(TIMEOUT_S) for _ in range(count)]


def numbers(messages: list[Message]) -> list[int]:
    return [int(message.value or b"") for message in messages]


async def left_of(client: PulsarClient, topic: str, count: int, subscription: str = "s") -> list[int]:
    """What a new consumer of the subscription gets, when nobody else is there: so many, in front of a last one that it adds."""
    producer = await client.producer(topic)
    await producer.send(b"-1")
    consumer = await client.consumer(topic, subscription, kind="shared")
    found = numbers(await received(consumer, count + 1))
    assert found[-1] == -1
    assert -1 not in found[:-1]
    await consumer.close()
    await producer.close()
    return found[:-1]


async def end(transaction: Transaction, how: str) -> None:
    await (transaction.commit() if how == "commit" else transaction.abort())


async def test_consumed_and_produced_messages_take_effect_together(client: PulsarClient, topic: str) -> None:
    """An abort brings the messages back to the same consumer, which hands them on in a second transaction."""
    source, sink = await client.producer(topic + "-in"), await client.producer(topic + "-out")
    await sent(source, 6)
    consumer = await client.consumer(topic + "-in", "s", kind="shared", from_earliest=True)
    out = await client.consumer(topic + "-out", "s", from_earliest=True)
    for how in ("abort", "commit"):
        transaction = await client.transaction()
        messages = await received(consumer, 6)
        assert sorted(numbers(messages)) == list(range(6))
        for message in messages:
            await sink.send(message.value, transaction=transaction)
            await consumer.ack(message, transaction=transaction)
        await end(transaction, how)
    assert numbers(await received(out, 6)) == numbers(messages)
    await consumer.close()
    assert await left_of(client, topic + "-in", 0) == []
    await sink.send(b"-1")
    assert numbers(await received(out, 1)) == [-1], "something came of the aborted transaction"


@pytest.mark.parametrize("how", ENDS)
async def test_pending_acks_go_to_next_consumer_only_after_abort(client: PulsarClient, topic: str, how: str) -> None:
    await sent(await client.producer(topic), 0)
    consumer = await client.consumer(topic, "s", kind="shared", from_earliest=True)
    await sent(await client.producer(topic), 4)
    transaction = await client.transaction()
    messages = await received(consumer, 4)
    await consumer.ack(*[message for message in messages if message.value in (b"1", b"3")], transaction=transaction)
    await consumer.close()
    assert sorted(await left_of(client, topic, 2)) == [0, 2]
    await end(transaction, how)
    again = await client.consumer(topic, "s", kind="shared")
    expected = {b"0", b"2", b"-1"} | ({b"1", b"3"} if how == "abort" else set())
    assert {message.value for message in await received(again, len(expected))} == expected


@pytest.mark.parametrize("how", ENDS)
async def test_cumulative_ack_in_transaction_covers_earlier_messages(
    client: PulsarClient, topic: str, how: str
) -> None:
    consumer = await client.consumer(topic, "s", kind="exclusive", from_earliest=True)
    await sent(await client.producer(topic), 5)
    messages = await received(consumer, 5)
    transaction, other = await client.transaction(), await client.transaction()
    await consumer.ack_cumulative(messages[2], transaction=transaction)
    with pytest.raises(TransactionConflict):
        await consumer.ack_cumulative(messages[3], transaction=other)
    with pytest.raises(TransactionConflict):
        await consumer.ack(messages[1], transaction=other)
    await other.abort()
    await end(transaction, how)
    await consumer.close()
    assert await left_of(client, topic, 2 if how == "commit" else 5) == ([3, 4] if how == "commit" else [0, 1, 2, 3, 4])


async def test_two_transactions_acknowledge_messages_of_one_batch(client: PulsarClient, topic: str) -> None:
    consumer = await client.consumer(topic, "s", kind="shared", from_earliest=True)
    first, last = await client.producer(topic), await client.producer(topic, batch_delay_s=5)
    await asyncio.gather(*(first.send(b"9") for _ in range(1)))
    await sent_as_batch(last, 6)
    _, *messages = await received(consumer, 7)
    batch = [message for message in messages if message.id.batch_size == 5]
    assert len(batch) == 5
    committed, aborted = await client.transaction(), await client.transaction()
    await consumer.ack(batch[0], batch[2], transaction=committed)
    await consumer.ack(batch[1], transaction=aborted)
    with pytest.raises(TransactionConflict):
        await consumer.ack(batch[2], transaction=aborted)
    await committed.commit()
    await aborted.abort()
    with pytest.raises(TransactionConflict):
        await consumer.ack(batch[0], transaction=await client.transaction())
    await consumer.close()
    left = await left_of(client, topic, 5)
    assert left == [9, 0, *numbers([batch[1], batch[3], batch[4]])]


@pytest.mark.parametrize("how", ENDS)
async def test_open_transaction_holds_back_later_messages(client: PulsarClient, topic: str, how: str) -> None:
    consumer = await client.consumer(topic, "s", from_earliest=True)
    producer = await client.producer(topic)
    await sent(producer, 1)
    transaction = await client.transaction()
    await sent(producer, 2, transaction, first=1)
    await sent_as_batch(await client.producer(topic, batch_delay_s=5), 3, transaction)
    await sent(producer, 1, first=5)
    assert numbers(await received(consumer, 1)) == [0]
    reader = await client.reader(topic)
    assert numbers(await received(reader, 1)) == [0]
    assert not await reader.has_more()
    with pytest.raises(RequestTimedOut):
        await consumer.receive(0.2)
    await end(transaction, how)
    expected = [1, 2, 0, 1, 2, 5] if how == "commit" else [5]
    assert numbers(await received(consumer, len(expected))) == expected
    assert numbers(await received(reader, len(expected))) == expected
    assert not await reader.has_more()


async def test_chunked_message_belongs_to_transaction_as_a_whole(client: PulsarClient, topic: str) -> None:
    large = bytes(range(256)) * 30_000
    consumer = await client.consumer(topic, "s", from_earliest=True)
    producer = await client.producer(topic, chunking=True)
    for how in ENDS:
        async with await client.transaction() as transaction:
            assert (await producer.send(large, transaction=transaction)).first_chunk is not None
            await end(transaction, how)
    await producer.send(b"7")
    whole, small = await received(consumer, 2)
    assert (whole.value, small.value) == (large, b"7")
    async with await client.transaction() as transaction:
        await consumer.ack(whole, transaction=transaction)
    await consumer.close()
    assert await left_of(client, topic, 1) == [7]


async def test_second_acknowledgement_is_a_conflict(client: PulsarClient, topic: str) -> None:
    consumer = await client.consumer(topic, "s", kind="shared", from_earliest=True)
    await sent(await client.producer(topic), 3)
    by_number = {int(message.value or b""): message for message in await received(consumer, 3)}
    plain, committed, held = (by_number[number] for number in range(3))
    await consumer.ack(plain, wants_receipt=True)
    async with await client.transaction() as before:
        await consumer.ack(committed, transaction=before)
    holder = await client.transaction()
    await consumer.ack(held, transaction=holder)
    for message in (plain, committed, held):
        refused = await client.transaction()
        with pytest.raises(TransactionConflict):
            await consumer.ack(message, transaction=refused)
        with pytest.raises(TransactionFailed):
            await refused.commit()
        assert refused.state is TransactionState.ABORTED
    await holder.commit()
    await consumer.close()
    assert await left_of(client, topic, 0) == []


async def test_transaction_timeout_aborts(topic: str) -> None:
    async with embed() as broker, connect(broker.service_url, operation_timeout_s=TIMEOUT_S) as client:
        consumer = await client.consumer(topic + "-in", "s", kind="shared", from_earliest=True)
        await sent(await client.producer(topic + "-in"), 2)
        messages = await received(consumer, 2)
        transaction = await client.transaction(timeout_s=600)
        producer = await client.producer(topic + "-out")
        await producer.send(b"never", transaction=transaction)
        await consumer.ack(*messages, transaction=transaction)
        await producer.send(b"7")
        out = await client.consumer(topic + "-out", "s", from_earliest=True)
        await broker.clock.advance(minutes=11)
        assert numbers(await received(out, 1)) == [7]  # which the time-out has let go
        assert sorted(numbers(await received(consumer, 2))) == [0, 1]
        with pytest.raises(NotAllowedError):
            await producer.send(b"late", transaction=transaction)
        with pytest.raises((TransactionNotFound, InvalidTxnStatus, TransactionFailed)):
            await transaction.commit()
        await producer.send(b"8")
        assert numbers(await received(out, 1)) == [8]


async def test_ended_or_unknown_transaction_is_refused(client: PulsarClient, topic: str) -> None:
    consumer = await client.consumer(topic, "s", from_earliest=True)
    producer = await client.producer(topic)
    await producer.send(b"0")
    [message] = await received(consumer, 1)
    ended = await client.transaction()
    await producer.send(b"1", transaction=ended)
    await ended.commit()
    for work in (
        ended.commit(),
        ended.abort(),
        producer.send(b"2", transaction=ended),
        consumer.ack(message, transaction=ended),
    ):
        with pytest.raises(TransactionEnded):
            await work
    made_up = await client._coordinators.adopted(TxnId(0, 1 << 40))
    with pytest.raises(TransactionNotFound):
        await producer.send(b"3", transaction=made_up)
    with pytest.raises(TransactionCoordinatorNotFound, match="1048576"):
        await client._coordinators.adopted(TxnId(1 << 20, 1))
    assert numbers(await received(consumer, 1)) == [1]


async def test_transaction_of_added_coordinator_is_found() -> None:
    async with embed() as broker, connect(broker.service_url, operation_timeout_s=TIMEOUT_S) as client:
        known = await client.transaction()
        path = f"{broker.admin_url}/admin/v3/transactions/transactionCoordinator/replicas"
        grown = await asyncio.to_thread(call, path, "POST", body=20)
        assert grown.status == 204, grown.text
        async with connect(broker.service_url, operation_timeout_s=TIMEOUT_S) as another:
            opened = [await another.transaction() for _ in range(20)]
        (late,) = [each.id for each in opened if each.id.most == 19]
        async with await client._coordinators.adopted(late) as transaction:
            await (await client.producer("grown")).send(b"m", transaction=transaction)
        assert transaction.state is TransactionState.COMMITTED
        await known.abort()


@pytest.mark.parametrize("how", ENDS)
async def test_unload_during_transaction_changes_nothing(
    client: PulsarClient, topic: str, how: str, broker: BrokerProcess
) -> None:
    consumer = await client.consumer(topic + "-in", "s", kind="shared", from_earliest=True)
    await sent(await client.producer(topic + "-in"), 4)
    producer = await client.producer(topic + "-out")
    out = await client.consumer(topic + "-out", "s", from_earliest=True)
    messages = await received(consumer, 4)
    transaction = await client.transaction()

    async def unload() -> None:
        for each in ("-in", "-out"):
            await asyncio.to_thread(admin, broker, "PUT", path_of(topic + each) + "/unload")

    await sent(producer, 2, transaction)
    await consumer.ack(*[message for message in messages if message.value in (b"0", b"1")], transaction=transaction)
    await unload()
    await sent(producer, 2, transaction, first=2)
    again = await received(consumer, 2)
    assert sorted(numbers(again)) == [2, 3], "what a transaction holds was delivered"
    await consumer.ack(again[0], transaction=transaction)
    await unload()
    await end(transaction, how)
    await unload()
    await consumer.close()
    await producer.send(b"7")
    expected = [0, 1, 2, 3, 7] if how == "commit" else [7]
    assert numbers(await received(out, len(expected))) == expected
    left = numbers([again[1]]) if how == "commit" else [0, 1, 2, 3]
    assert sorted(await left_of(client, topic + "-in", len(left))) == left


@pytest.mark.parametrize("how", ENDS)
async def test_transaction_ends_after_participants_are_deleted(
    client: PulsarClient, topic: str, how: str, broker: BrokerProcess
) -> None:
    consumer = await client.consumer(topic + "-in", "s", kind="shared", from_earliest=True)
    other = await client.consumer(topic + "-in", "other", kind="shared", from_earliest=True)
    await sent(await client.producer(topic + "-in"), 2)
    gone, kept = await client.producer(topic + "-gone"), await client.producer(topic + "-kept")
    transaction = await client.transaction()
    await sent(gone, 1, transaction)
    await sent(kept, 1, transaction)
    for each in (consumer, other):
        await each.ack((await received(each, 2))[0], transaction=transaction)
    await consumer.unsubscribe()
    await gone.close()
    await asyncio.to_thread(admin, broker, "DELETE", path_of(topic + "-gone") + "?force=true")
    await end(transaction, how)
    await kept.send(b"7")
    out = await client.consumer(topic + "-kept", "s", from_earliest=True)
    expected = [0, 7] if how == "commit" else [7]
    assert numbers(await received(out, len(expected))) == expected
    await other.close()
    left = [1] if how == "commit" else [0, 1]
    assert sorted(await left_of(client, topic + "-in", len(left), "other")) == left


async def test_concurrent_transactions_do_not_mix(client: PulsarClient, topic: str) -> None:
    """Each moves one message; every third is aborted, and its message moves in another one later."""
    consumer = await client.consumer(topic + "-in", "s", kind="shared", from_earliest=True)
    await sent(await client.producer(topic + "-in"), 30)
    producer = await client.producer(topic + "-out")
    turns = itertools.count()

    async def move() -> None:
        message = await consumer.receive(TIMEOUT_S)
        transaction = await client.transaction()
        await producer.send(message.value, transaction=transaction)
        await consumer.ack(message, transaction=transaction)
        if next(turns) % 3 == 0:
            await transaction.abort()
            await move()
        else:
            await transaction.commit()

    await asyncio.gather(*(move() for _ in range(30)))
    out = await client.consumer(topic + "-out", "s", from_earliest=True)
    await producer.send(b"-1")
    found = numbers(await received(out, 31))
    assert sorted(found[:-1]) == list(range(30))
    assert found[-1] == -1
    await consumer.close()
    assert await left_of(client, topic + "-in", 0) == []


async def test_lost_receipt_fails_transaction_and_stores_at_most_once(topic: str) -> None:
    async with embed() as broker, connect(broker.service_url, operation_timeout_s=TIMEOUT_S) as client:
        consumer = await client.consumer(topic, "s", from_earliest=True)
        producer = await client.producer(topic)
        transaction = await client.transaction()
        await producer.send(b"told", transaction=transaction)
        with broker.faults.lose_receipts():
            sending = asyncio.create_task(producer.send(b"stored, not told", transaction=transaction))
            await until(lambda: not any(each.left for each in broker.faults._receipts))
        broker.faults.drop_connections()
        outside = asyncio.create_task(producer.send(b"outside"))
        with pytest.raises(ConnectionLost, match="may or may not be stored in its transaction"):
            await sending
        await outside  # is sent again
        with pytest.raises(TransactionFailed):
            await transaction.commit()
        async with await client.transaction() as again:
            await producer.send(b"repeated", transaction=again)
        seen: list[bytes | None] = []
        while b"repeated" not in seen:
            seen.append((await consumer.receive(TIMEOUT_S)).value)
        assert set(seen) == {b"outside", b"repeated"}
        assert seen.count(b"repeated") == 1
