"""Transactions on BookKeeper after kill -9: committed, aborted and open ones, and pending transaction acks."""

from __future__ import annotations

import pulsar
import pytest
from tests.bookkeeper.test_java_brokers import QUIET_MS, TIMEOUT_MS, Brokers, two_brokers
from tests.support.bookkeeper_cluster import BookKeeperCluster

from pybroker.client import PulsarClient, RequestTimedOut, connect
from pybroker.client.client_transactions import Transaction

pytestmark = pytest.mark.long
TOPIC = "persistent://public/default/transactional"
TIMEOUT_S = 30.0
QUIET_S = 1.0


@pytest.fixture(scope="module")
def brokers(cluster: BookKeeperCluster, tmp_path_factory: pytest.TempPathFactory) -> Brokers:
    return two_brokers(cluster, tmp_path_factory.mktemp("brokers"), transactionCoordinatorEnabled="true")


async def send_in_transactions(client: PulsarClient, turn: str) -> None:
    """Send a message in no transaction, 12 in a committed one and 12 in an aborted one."""
    producer = await client.producer(TOPIC)
    await producer.send(f"{turn}-plain".encode())
    for end in ("committed", "aborted"):
        transaction = await client.transaction()
        for number in range(12):
            await producer.send(f"{turn}-{end}-{number}".encode(), transaction=transaction)
        await (transaction.commit() if end == "committed" else transaction.abort())
    await producer.close()


def visible(turn: str) -> list[str]:
    return [f"{turn}-plain", *(f"{turn}-committed-{number}" for number in range(12))]


async def received(client: PulsarClient, acknowledged_in: Transaction | None = None) -> list[str]:
    """Return the messages that the subscription delivers. The first one is acknowledged in the transaction."""
    names: list[str] = []
    async with await client.consumer(TOPIC, "s", kind="shared", from_earliest=True) as consumer:
        while True:
            try:
                message = await consumer.receive(TIMEOUT_S if not names else QUIET_S)
            except RequestTimedOut:
                return names
            names.append((message.value or b"").decode())
            if acknowledged_in is not None and len(names) == 1:
                await consumer.ack(message, transaction=acknowledged_in)


def all_at(url: str) -> list[str]:
    client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    reader = client.create_reader(TOPIC, pulsar.MessageId.earliest)
    names: list[str] = []
    while True:
        try:
            names.append(reader.read_next(TIMEOUT_MS if not names else QUIET_MS).data().decode())
        except pulsar.Timeout:
            client.close()
            return names


async def test_transactions_continue_after_kills(brokers: Brokers) -> None:
    own = brokers.own
    own.start()
    async with connect(own.url) as client:
        await (await client.consumer(TOPIC, "s", kind="shared", from_earliest=True)).close()
        await send_in_transactions(client, "first")
        pending = await client.transaction(timeout_s=3600)
        assert await received(client, pending) == visible("first")
        own.kill()
    own.start()
    async with connect(own.url) as client:
        assert await received(client) == visible("first")[1:], "the pending transaction ack is kept"
        await send_in_transactions(client, "second")
        left_open = await client.transaction(timeout_s=3600)
        await (await client.producer(TOPIC)).send(b"open", transaction=left_open)
        assert await received(client) == [*visible("first")[1:], *visible("second")]
    own.kill()
    own.start()
    async with connect(own.url) as client:
        assert await received(client) == [*visible("first")[1:], *visible("second")]
    assert all_at(own.url) == [*visible("first"), *visible("second")]
    own.stop()
