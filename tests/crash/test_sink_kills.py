"""`kill -9` while batches of a sink are written and committed: each batch is there once and as a whole, whatever was answered."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path

import pytest
from tests.support.broker_process import BrokerProcess

from pybroker.client import ClientError, PulsarClient, Sink, Transaction, connect
from pybroker.errors import BrokerError

pytestmark = pytest.mark.long

TOPICS = ["persistent://public/default/a", "persistent://public/default/b"]
KILLS = 4
TASKS = 3
SETTINGS = {
    "managedLedgerMaxEntriesPerLedger": "50",
    "managedLedgerMinLedgerRolloverTimeMinutes": "0",
    "defaultRetentionTimeInMinutes": "-1",
    "defaultRetentionSizeInMB": "-1",
}


class Driver:
    """Writes batch after batch in three tasks each; after any failure it is another run, which begins the batch again."""

    def __init__(self, broker: BrokerProcess, name: str, seed: int, advanced: asyncio.Semaphore) -> None:
        """`advanced` is told of each batch."""
        self.broker = broker
        self.advanced = advanced
        self.name = name
        self.batch = 0
        self.runs = 0
        self.repeats = 0
        self.is_over = False
        self._random = random.Random(seed)

    async def run(self) -> None:
        while not self.is_over:
            self.runs += 1
            try:
                async with connect(self.broker.url, admin_url=self.broker.http_url, operation_timeout_s=5) as client:
                    sink = client.sink(self.name, writer="q", run=str(self.runs))
                    while not self.is_over:
                        await self._one(client, sink)
            except (ClientError, BrokerError):
                await asyncio.sleep(0.05)

    async def _one(self, client: PulsarClient, sink: Sink) -> None:
        opened = [await self._task(client, sink, task) for task in range(TASKS)]
        if None in opened:
            self.repeats += 1  # committed, and the answer was lost
        else:
            if self._random.random() < 0.3:
                await self._task(client, sink, 0)  # a second attempt, which nobody commits
            group = [each for each in opened if each is not None]
            self.repeats += not await sink.commit_together(self.batch, group)
        self.batch += 1
        self.advanced.release()

    async def _task(self, client: PulsarClient, sink: Sink, task: int) -> Transaction | None:
        transaction = await sink.transaction(self.batch)
        if transaction is not None:
            for topic in TOPICS:
                producer = await client.producer(topic, batching=False, send_timeout_s=5)
                await producer.send(f"{self.name} {self.batch} {task}".encode(), transaction=transaction)
                await producer.close()
        return transaction


async def delivered(client: PulsarClient, topic: str) -> Counter[str]:
    reader = await client.reader(topic)
    found: Counter[str] = Counter()
    while await reader.has_more():
        found[((await reader.receive(20)).value or b"").decode()] += 1
    return found


async def test_each_batch_is_there_once_and_as_a_whole_whatever_was_killed(tmp_path: Path) -> None:
    chance = random.Random(4)
    broker = BrokerProcess(tmp_path, SETTINGS).start()
    advanced = asyncio.Semaphore(0)
    drivers = [Driver(broker, f"sink-{number}", number, advanced) for number in range(2)]
    async with asyncio.TaskGroup() as group:
        running = [group.create_task(driver.run()) for driver in drivers]
        for _ in range(KILLS):
            for _ in range(4):
                await advanced.acquire()
            await asyncio.sleep(chance.uniform(0, 0.15))
            broker.kill()
            await asyncio.to_thread(broker.start)
        for driver in drivers:
            driver.is_over = True
        await asyncio.wait(running)
    async with connect(broker.url, admin_url=broker.http_url) as client:
        for driver in drivers:
            sink = client.sink(driver.name, writer="q")
            await sink.abort()
            assert await sink.last_batch() in (driver.batch - 1, driver.batch), (
                driver.name
            )  # the last answer may be lost
        seen = [await delivered(client, topic) for topic in TOPICS]
    broker.stop()
    assert seen[0] == seen[1], "a transaction is there in part"
    assert set(seen[0].values()) == {1}, "a message came twice"
    for driver in drivers:
        batches = Counter(int(text.split()[1]) for text in seen[0] if text.startswith(driver.name))
        assert set(batches.values()) == {TASKS}, "a batch is there in part"
        assert set(range(driver.batch)) <= set(batches) <= set(range(driver.batch + 1)), "a batch is missing"
