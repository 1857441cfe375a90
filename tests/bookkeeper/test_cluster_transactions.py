"""Transactions in a cluster: coordinators and participants at different brokers, and the loss of a coordinator's broker."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress

import pytest
from tests.bookkeeper.test_cluster import call, owner_of, running_brokers
from tests.support.bookkeeper_cluster import BookKeeperCluster
from tests.support.broker_process import BrokerProcess

from pybroker.client import (
    ClientError,
    OutcomeUnknown,
    PulsarClient,
    RequestTimedOut,
    TransactionEnded,
    TransactionFailed,
    connect,
)
from pybroker.errors import BrokerError
from pybroker.transactions.coordinators import partition_of

pytestmark = pytest.mark.long
INPUT, OUTPUT = "persistent://public/default/input", "persistent://public/default/output"
ADMIN = "/admin/v2/persistent/public/default"
TRANSACTIONS = "/admin/v3/transactions"
MESSAGES = 32
DEADLINE_S = 90.0
ENDED = (ClientError, BrokerError, OutcomeUnknown, TransactionEnded, TransactionFailed)


@pytest.fixture(scope="module")
def brokers(cluster: BookKeeperCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[BrokerProcess]]:
    with running_brokers(cluster, tmp_path_factory, transactionCoordinatorEnabled="true") as started:
        yield started


def service_url(brokers: list[BrokerProcess]) -> str:
    return "pulsar://" + ",".join(broker.url.removeprefix("pulsar://") for broker in brokers)


async def move(client: PulsarClient, number: int) -> bool:
    """Read some messages, write them to the other topic, and acknowledge them in the same transaction. Return whether this is
    certainly committed.
    """
    consumer = await client.consumer(INPUT, "mover", kind="shared", from_earliest=True)
    producer = await client.producer(OUTPUT)
    try:
        messages = await consumer.receive_some(4, timeout_s=5)
        async with await client.transaction(timeout_s=20) as transaction:
            for message in messages:
                await producer.send(message.value, key=str(number), transaction=transaction)
            await consumer.ack(*messages, transaction=transaction)
    except RequestTimedOut:
        return False
    except ENDED:
        return False
    finally:
        with suppress(ClientError, BrokerError):
            await consumer.close()
            await producer.close()
    return True


async def moved_values(client: PulsarClient, expected: int) -> Counter[bytes]:
    reader = await client.consumer(OUTPUT, "checker")
    found: Counter[bytes] = Counter()
    async with asyncio.timeout(DEADLINE_S):
        while len(found) < expected:
            with suppress(RequestTimedOut):
                value = (await reader.receive(2.0)).value
                assert value is not None
                found[value] += 1
    await reader.close()
    return found


async def move_all(brokers: list[BrokerProcess], kills: bool) -> Counter[bytes]:
    """Move all messages of the input, and meanwhile kill the broker of a coordinator."""
    async with connect(service_url(brokers), operation_timeout_s=20) as client:
        # Without a subscription, the broker that takes the topic over would trim its first ledger.
        await (await client.consumer(OUTPUT, "checker", from_earliest=True)).close()
        producer = await client.producer(INPUT)
        for number in range(MESSAGES):
            await producer.send(b"%d" % number)
        rounds = 0
        async with asyncio.timeout(DEADLINE_S):
            while await backlog(brokers) > 0:
                rounds += 1
                await asyncio.gather(*(move(client, each) for each in range(2)))
                if kills and rounds == 2:
                    victim = owner_of(brokers, str(partition_of(0)))
                    await asyncio.to_thread(victim.kill)
                    await asyncio.to_thread(victim.start)
        return await moved_values(client, MESSAGES)


async def backlog(brokers: list[BrokerProcess]) -> int:
    for _ in range(100):
        with suppress(OSError):
            status, stats = await asyncio.to_thread(call, brokers[1], "GET", f"{ADMIN}/input/stats")
            if status == 200:
                return int(stats["subscriptions"].get("mover", {"msgBacklog": MESSAGES})["msgBacklog"])
        await asyncio.sleep(0.3)
    raise AssertionError("the topic's owner does not answer")


def test_messages_move_exactly_once_over_loss_of_coordinator(brokers: list[BrokerProcess]) -> None:
    assert call(brokers[0], "PUT", f"{ADMIN}/input") == (204, None)
    assert call(brokers[0], "PUT", f"{ADMIN}/output") == (204, None)
    found = asyncio.run(move_all(brokers, kills=True))
    assert set(found.values()) == {1}, found
    assert len(found) == MESSAGES


def test_calls_about_a_coordinator_reach_its_broker(brokers: list[BrokerProcess]) -> None:
    for coordinator_id in range(4):
        owner = owner_of(brokers, str(partition_of(coordinator_id)))
        path = f"{TRANSACTIONS}/coordinatorStats?coordinatorId={coordinator_id}"
        for broker in brokers:
            if broker is not owner:
                status, location = call(broker, "GET", path, follows=False)
                assert status == 307
                assert location.startswith(owner.http_url)
        assert call(brokers[0], "GET", path)[0] in (200, 404)


@pytest.mark.cluster
def test_transaction_of_lost_broker_times_out_at_another(brokers: list[BrokerProcess]) -> None:
    """Its messages are aborted, so they do not block the readers of the topic."""

    async def story() -> None:
        topic = "persistent://public/default/abandoned"
        async with connect(service_url(brokers), operation_timeout_s=20) as client:
            producer = await client.producer(topic)
            transaction = await client.transaction(timeout_s=15)
            await producer.send(b"abandoned", transaction=transaction)
            victim = owner_of(brokers, str(partition_of(transaction.id.most)))
            await asyncio.to_thread(victim.kill)
        try:
            others = [broker for broker in brokers if broker is not victim]
            async with connect(service_url(others), operation_timeout_s=20) as client:
                plain = await client.producer(topic)
                await plain.send(b"behind")
                reader = await client.reader(topic)
                assert (await reader.receive(DEADLINE_S)).value == b"behind"
        finally:
            await asyncio.to_thread(victim.start)

    asyncio.run(story())
