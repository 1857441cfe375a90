"""Transactions of each kind of broker at the other kind: committed messages are delivered, aborted ones never, and no topic stays
blocked behind a transaction of pybroker.
"""

from __future__ import annotations

import asyncio
import time

import pytest
from tests.bookkeeper.test_java_brokers import Brokers, two_brokers
from tests.support.bookkeeper_cluster import BookKeeperCluster

from pybroker.client import PulsarClient, RequestTimedOut, connect
from pybroker.client.client_transactions import Transaction

pytestmark = [pytest.mark.long, pytest.mark.cluster]
PREFIX = "persistent://public/default/transactions"
FIRST_TIMEOUT_S = 40.0
QUIET_S = 1.5
DEADLINE_S = 60.0
FOR_EVER_S = 3600.0


@pytest.fixture(scope="module")
def brokers(cluster: BookKeeperCluster, tmp_path_factory: pytest.TempPathFactory) -> Brokers:
    return two_brokers(cluster, tmp_path_factory.mktemp("brokers"), transactionCoordinatorEnabled="true")


async def publish(client: PulsarClient, topic: str, turn: str) -> None:
    """Publish messages in no transaction, in a committed and in an aborted one, interleaved, over several ledgers."""
    await (await client.consumer(topic, "keeps all messages", from_earliest=True)).close()
    async with await client.producer(topic) as producer:
        committed, aborted = await client.transaction(), await client.transaction()
        for number in range(12):
            await producer.send(f"{turn}-aborted-{number}".encode(), transaction=aborted)
            await producer.send(f"{turn}-committed-{number}".encode(), transaction=committed)
        await committed.commit()
        await aborted.abort()
        await producer.send(f"{turn}-plain".encode())


def visible(*turns: str) -> list[str]:
    return sorted(
        name for turn in turns for name in (f"{turn}-plain", *(f"{turn}-committed-{number}" for number in range(12)))
    )


async def leave_open(client: PulsarClient, topic: str, timeout_s: float) -> Transaction:
    """Publish a message in a transaction that stays open, and one behind it."""
    transaction = await client.transaction(timeout_s)
    async with await client.producer(topic) as producer:
        await producer.send(b"open", transaction=transaction)
        await producer.send(b"behind")
    return transaction


async def read(url: str, topic: str, expected: list[str] | None = None) -> list[str]:
    """Return what a reader receives, until it is `expected` and nothing follows."""
    deadline = time.monotonic() + DEADLINE_S
    names: list[str] = []
    async with connect(url, operation_timeout_s=30) as client, await client.reader(topic) as reader:
        while True:
            try:
                message = await reader.receive(FIRST_TIMEOUT_S if not names else QUIET_S)
                names.append((message.value or b"").decode())
            except RequestTimedOut:
                if expected is None or sorted(names) == sorted(expected) or time.monotonic() > deadline:
                    return sorted(names)


async def test_transactions_of_each_broker_at_the_other(brokers: Brokers) -> None:
    own, java = brokers.own, brokers.java
    ended, killed, settled = (f"{PREFIX}-{name}" for name in ("ended", "killed", "settled"))
    await asyncio.to_thread(own.start)
    async with connect(own.url) as client:
        await publish(client, ended, "own")
        await publish(client, killed, "own")
        await leave_open(client, killed, 30)
        await asyncio.to_thread(own.kill)

    await asyncio.to_thread(java.start)
    assert await read(java.url, ended) == visible("own")
    assert await read(java.url, killed) == visible("own"), "the transaction is open"
    await asyncio.to_thread(own.start)
    complete = sorted([*visible("own"), "behind"])
    assert await read(java.url, killed, complete) == complete
    await asyncio.to_thread(java.stop)

    assert await read(own.url, ended) == visible("own")
    assert await read(own.url, killed) == sorted([*visible("own"), "behind"])
    async with connect(own.url) as client:
        await publish(client, settled, "own")
        await leave_open(client, settled, FOR_EVER_S)
        await asyncio.to_thread(java.start)
        await asyncio.to_thread(own.stop)
    assert await read(java.url, settled) == sorted([*visible("own"), "behind"])

    adopted = f"{PREFIX}-adopted"
    opened = f"{PREFIX}-opened"
    async with connect(java.url, operation_timeout_s=30) as client:
        for topic in (ended, adopted, opened):
            await publish(client, topic, "java")
        await leave_open(client, opened, FOR_EVER_S)
        await asyncio.to_thread(java.stop)
    await asyncio.to_thread(own.start)
    assert await read(own.url, adopted) == visible("java")
    assert await read(own.url, ended) == visible("own", "java")
    assert await read(own.url, opened) == visible("java"), "the transaction of the Java broker is open"
    async with connect(own.url) as client:
        for topic in (ended, adopted):
            await publish(client, topic, "last")
    await asyncio.to_thread(own.kill)
    await asyncio.to_thread(own.start)
    assert await read(own.url, adopted) == visible("java", "last")
    assert await read(own.url, ended) == visible("own", "java", "last")
    await asyncio.to_thread(own.stop)
