"""Consume, transform, produce over three topics in transactions, with `kill -9` and aborts: each input has its effect exactly once.

Seconds of kills, and what they are drawn from: TRANSACTION_LOOP_SECONDS (20), TRANSACTION_LOOP_SEED.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.rest import call

from pybroker.client import (
    ClientError,
    Message,
    MessageConsumer,
    MessageProducer,
    OutgoingMessage,
    PulsarClient,
    RequestTimedOut,
    Transaction,
    connect,
)
from pybroker.errors import BrokerError

pytestmark = pytest.mark.long

SECONDS = float(os.environ.get("TRANSACTION_LOOP_SECONDS", "20"))
SEED = int(os.environ.get("TRANSACTION_LOOP_SEED", "1"))
TOPICS = ["persistent://public/default/in", "persistent://public/default/middle", "persistent://public/default/out"]
STAGES = [(TOPICS[0], TOPICS[1], "shared"), (TOPICS[1], TOPICS[2], "failover")]
WORKERS_OF_A_STAGE = 2
TRANSACTION_S = 3.0
PATIENCE_S = 20.0
SETTLED_S = 120.0  # A deadline, not an expectation: other tests may load the machine.
"""Much more than anything takes; what lasts longer hangs."""
SETTINGS = {
    "brokerDeduplicationEnabled": "true",  # what is sent again after a kill is no second message
    "managedLedgerMaxEntriesPerLedger": "300",
    "managedLedgerMinLedgerRolloverTimeMinutes": "0",
    "defaultRetentionTimeInMinutes": "-1",  # the topics are read once more in the end
    "defaultRetentionSizeInMB": "-1",
    "transactionBufferSnapshotMaxTransactionCount": "20",
}


class Loop:
    """What has been put in, and what workers have seen of it."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.stored: list[bytes] = []
        self.commits = self.aborts = 0
        self.failures: Counter[str] = Counter()
        self.is_fed = asyncio.Event()
        self.is_over = asyncio.Event()

    async def feed(self, client: PulsarClient) -> None:
        """Inputs, in batches and alone, until there were enough kills."""
        producer = await client.producer(TOPICS[0], name="feeder")
        while not self.is_fed.is_set():
            count = self.random.choice((1, 1, 5))
            values = [b"%d" % (len(self.stored) + index) for index in range(count)]
            receipts = [await producer.submit(OutgoingMessage(value, value.decode())) for value in values]
            await asyncio.gather(*receipts)
            self.stored += values
            await asyncio.sleep(0.01)

    async def work(self, client: PulsarClient, stage: int, number: int) -> None:
        """Hand on what comes, some of it in one transaction."""
        source, sink, kind = STAGES[stage]
        consumer = await client.consumer(source, "s", kind=kind, from_earliest=True, queue_messages=40)
        producer = await client.producer(sink, name=f"worker-{stage}-{number}")
        while not self.is_over.is_set():
            try:
                messages = await consumer.receive_some(self.random.randint(1, 8), timeout_s=0.5)
            except RequestTimedOut:
                continue
            try:
                transaction = await client.transaction(TRANSACTION_S)
                await self._hand_on(messages, consumer, producer, transaction)
            except (ClientError, BrokerError) as failure:
                self.failures[repr(failure.__cause__ or failure)] += 1
                for message in messages:
                    consumer.nack(message, 0.1)

    async def _hand_on(
        self, messages: list[Message], consumer: MessageConsumer, producer: MessageProducer, transaction: Transaction
    ) -> None:
        for message in messages:
            await producer.submit(OutgoingMessage(message.value, message.key), transaction)
        await consumer.ack(*messages, transaction=transaction)
        lot = self.random.random()
        if lot < 0.1:
            return  # left open: it ends by time
        if lot < 0.3:
            await transaction.abort()
            self.aborts += 1
        else:
            await transaction.commit()
            self.commits += 1


async def taken(client: PulsarClient, topic: str, count: int) -> Counter[bytes]:
    """What a reader sees, until there is no more."""
    reader, seen = await client.reader(topic), Counter[bytes]()
    while len(seen) < count or await reader.has_more():
        seen[(await reader.receive(PATIENCE_S)).value or b""] += 1
    await reader.close()
    return seen


def admin(broker: BrokerProcess, path: str) -> Any:
    return call(f"{broker.http_url}/admin/{path}", "GET").json


def held_back(broker: BrokerProcess) -> dict[str, object]:
    """Transactions that are open somewhere, and messages that are not acknowledged."""
    found: dict[str, object] = {}
    for name, stats in admin(broker, "v3/transactions/coordinatorStats").items():
        found[f"coordinator {name}"] = stats["ongoingTxnSize"]
    for topic, _, _ in STAGES:
        path = topic.replace("://", "/")
        stats = admin(broker, f"v2/{path}/stats")
        found[f"{topic} open"] = stats["ongoingTxnCount"]
        found[f"{topic} backlog"] = stats["subscriptions"]["s"]["msgBacklog"]
        of = path.removeprefix("persistent/")
        found[f"{topic} held"] = admin(broker, f"v3/transactions/pendingAckStats/{of}/s")["ongoingTxnSize"]
    return {name: count for name, count in found.items() if count}


async def until_nothing_is_held_back(broker: BrokerProcess, loop: Loop) -> None:
    left: dict[str, object] = {}
    try:
        async with asyncio.timeout(SETTLED_S):
            while left := await asyncio.to_thread(held_back, broker):  # noqa: ASYNC110 - it is known by REST only
                await asyncio.sleep(0.1)
    except TimeoutError:
        raise AssertionError(f"this is held back for ever: {left}; workers failed of {loop.failures}") from None


async def test_each_input_has_its_effect_exactly_once_whatever_is_killed_or_aborted(tmp_path: Path) -> None:
    loop, kills = Loop(SEED), 0
    with BrokerProcess(tmp_path, SETTINGS).running_well() as broker:
        async with (
            connect(broker.url, operation_timeout_s=PATIENCE_S) as client,
            connect(broker.url, operation_timeout_s=PATIENCE_S) as other,
            asyncio.TaskGroup() as tasks,
        ):
            tasks.create_task(loop.feed(client))
            for stage in range(len(STAGES)):
                for number in range(WORKERS_OF_A_STAGE):
                    tasks.create_task(loop.work((client, other)[number], stage, number))
            ends_s = asyncio.get_running_loop().time() + SECONDS
            while asyncio.get_running_loop().time() < ends_s:
                await asyncio.sleep(loop.random.uniform(1.0, 4.0))
                await asyncio.to_thread(broker.restart_after_kill)
                kills += 1
            loop.is_fed.set()
            await until_nothing_is_held_back(broker, loop)
            loop.is_over.set()
            seen = await taken(other, TOPICS[2], len(loop.stored))
            between = await taken(other, TOPICS[1], len(loop.stored))
    print(
        f"{kills} kills, {len(loop.stored)} inputs, {loop.commits} commits, {loop.aborts} aborts, {loop.failures.total()} failed"
    )
    assert kills
    assert loop.commits
    assert loop.aborts
    assert seen == Counter(loop.stored)
    assert between == Counter(loop.stored)
