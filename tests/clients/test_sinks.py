"""`Sink` of `pybroker.client`: several transactions committed together, each batch once; and what refuses them."""

import asyncio
import itertools
from collections.abc import AsyncIterator

import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.rest import call

from pybroker.client import (
    BatchRefused,
    ClientError,
    MessageProducer,
    PulsarClient,
    Sink,
    SinksNotServed,
    Transaction,
    TransactionEnded,
    TransactionFailed,
    connect,
)
from pybroker.client.client_transactions import TransactionState
from pybroker.errors import InvalidTxnStatus, NotAllowedError

TIMEOUT_S = 20.0
names = (f"sink/{number}" for number in itertools.count())


@pytest.fixture
async def client(broker: BrokerProcess) -> AsyncIterator[PulsarClient]:
    async with connect(broker.url, admin_url=broker.http_url, operation_timeout_s=TIMEOUT_S) as opened:
        yield opened


async def written(sink: Sink, producer: MessageProducer, batch: int, *values: bytes) -> Transaction:
    transaction = await sink.transaction(batch)
    assert transaction is not None
    for value in values:
        await producer.send(value, transaction=transaction)
    return transaction


async def seen(client: PulsarClient, topic: str) -> list[bytes | None]:
    reader = await client.reader(topic)
    found = []
    while await reader.has_more():
        found.append((await reader.receive(TIMEOUT_S)).value)
    await reader.close()
    return found


async def test_transactions_of_two_processes_are_committed_as_one(
    broker: BrokerProcess, client: PulsarClient, topic: str
) -> None:
    name = next(names)
    async with connect(broker.url, admin_url=broker.http_url) as other:
        theirs = await written(other.sink(name), await other.producer(topic), 3, b"theirs")
        mine = await written(client.sink(name), await client.producer(topic), 3, b"mine", b"too")
        lost = await written(other.sink(name), await other.producer(topic), 3, b"never")
        assert await seen(client, topic) == []
        assert await client.sink(name).last_batch() is None
        assert await client.sink(name).commit_together(3, [mine, theirs.id])
        assert sorted(await seen(client, topic)) == [b"mine", b"theirs", b"too"]  # type: ignore[type-var]
        assert mine.state is TransactionState.COMMITTED
        with pytest.raises(TransactionEnded):
            await client.sink(name).commit_together(4, [mine])
        with pytest.raises(NotAllowedError):
            await (await other.producer(topic)).send(b"late", transaction=lost)
    assert await client.sink(name).last_batch() == 3


async def test_a_batch_that_comes_again_has_no_effect(client: PulsarClient, topic: str) -> None:
    sink, producer = client.sink(next(names)), await client.producer(topic)
    first = await written(sink, producer, 0, b"one")
    planned_again = await written(sink, producer, 0, b"one, again")
    assert await sink.commit_together(0, [first])
    assert not await sink.commit_together(0, [planned_again]), "with other transactions"
    assert not await sink.commit_together(0, [first.id]), "with the same"
    assert await sink.transaction(0) is None
    second = await written(sink, producer, 1, b"two")
    assert await sink.commit_together(1, [second])
    assert not await sink.commit_together(0, []), "an older one"
    assert await seen(client, topic) == [b"one", b"two"]


async def test_a_batch_is_refused_as_a_whole_and_written_again(client: PulsarClient, topic: str) -> None:
    sink, producer = client.sink(next(names)), await client.producer(topic)
    good = await written(sink, producer, 0, b"good")
    over = await written(sink, producer, 0, b"over")
    await over.abort()
    with pytest.raises(BatchRefused, match="not"):
        await sink.commit_together(0, [good, over.id])
    assert good.state is TransactionState.ABORTED
    again = await written(sink, producer, 0, b"again")
    assert await sink.commit_together(0, [again])
    assert await seen(client, topic) == [b"again"]


async def test_a_transaction_of_a_batch_is_not_committed_by_itself(client: PulsarClient, topic: str) -> None:
    sink, producer = client.sink(next(names)), await client.producer(topic)
    transaction = await written(sink, producer, 0, b"a")
    with pytest.raises(InvalidTxnStatus, match="committed only with this batch"):
        await transaction.commit()
    assert await sink.commit_together(0, [transaction.id])
    assert await seen(client, topic) == [b"a"]


async def test_nothing_is_committed_when_something_of_it_failed(client: PulsarClient, topic: str) -> None:
    sink, producer = client.sink(next(names)), await client.producer(topic)
    fine, failed = await written(sink, producer, 0, b"a"), await written(sink, producer, 0, b"b")
    lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    failed.watch(lost)
    lost.set_exception(ClientError("a message that was not stored"))
    with pytest.raises(TransactionFailed, match="was not stored"):
        await sink.commit_together(0, [fine, failed])
    assert await seen(client, topic) == []
    assert await sink.last_batch() is None


async def test_what_a_run_has_left_open_is_aborted_by_the_next_one(client: PulsarClient, topic: str) -> None:
    name, producer = next(names), await client.producer(topic)
    await written(client.sink(name, writer="q", run="1"), producer, 5, b"of a driver that died")
    await producer.send(b"behind")
    assert await seen(client, topic) == []
    run = client.sink(name, writer="q", run="2")
    transaction = await written(run, producer, 5, b"again")
    assert await run.commit_together(5, [transaction])
    assert await seen(client, topic) == [b"behind", b"again"]
    assert await run.abort() == 0


async def test_another_writer_is_told_so_before_it_has_written(client: PulsarClient, topic: str) -> None:
    name = next(names)
    assert await client.sink(name, writer="a").commit_together(8, [])
    with pytest.raises(BatchRefused, match="belongs to the writer 'a'"):
        await client.sink(name, writer="b").transaction(0)
    taken = client.sink(name, writer="b", takes_over=True)
    assert await taken.transaction(0) is not None
    assert await taken.commit_together(0, [])
    assert await taken.last_batch() == 0


async def test_who_cannot_ask_is_told_what_to_do(broker: BrokerProcess, client: PulsarClient) -> None:
    async with connect(broker.url) as without:
        with pytest.raises(ClientError, match="set admin_url"):
            await without.sink("s").transaction(0)
    async with connect(broker.url, admin_url=broker.http_url + "/behind-a-proxy-that-knows-nothing") as elsewhere:
        with pytest.raises(SinksNotServed, match="effectively-once"):
            await elsewhere.sink("s").transaction(0)
    with pytest.raises(BatchRefused, match="256"):
        await client.sink("s" * 300).commit_together(0, [])
    assert call(f"{broker.http_url}/admin/v3/transactions/sinks/nobody").status == 404


@pytest.mark.long
async def test_a_restart_forgets_no_batch_and_aborts_no_transaction(own_broker: BrokerProcess, topic: str) -> None:
    async with connect(own_broker.url, admin_url=own_broker.http_url) as client:
        sink, producer = client.sink("s"), await client.producer(topic)
        assert await sink.commit_together(0, [await written(sink, producer, 0, b"0")])
        opened = await written(sink, producer, 1, b"1")
        own_broker.kill()
        own_broker.start()
        assert not await sink.commit_together(0, [opened.id]), "a repeat after a restart, with another transaction"
        assert await sink.commit_together(1, [opened.id])
        assert await seen(client, topic) == [b"0", b"1"]
