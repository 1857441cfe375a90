"""Messages that transactions move from one topic to another while faults happen, and an oracle for what arrived.

Each mover reads some messages of the input, writes one message for each to the output, and acknowledges them in the same
transaction. Some transactions are aborted on purpose. A message of the output names the input's message that it was made of.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections import Counter, defaultdict, deque
from contextlib import suppress
from datetime import UTC, datetime
from random import Random

import pulsar
from tests.bookkeeper.cluster_load import ANSWER_S, Service, until

from pybroker.client import (
    ClientError,
    OutcomeUnknown,
    PulsarClient,
    RequestTimedOut,
    TransactionEnded,
    TransactionFailed,
)
from pybroker.client.access import Access
from pybroker.errors import BrokerError

MOVERS = 2
MESSAGES_OF_TRANSACTION = 5
ABORTED_SHARE = 0.2
TRANSACTION_TIMEOUT_S = 15.0
FEED_PAUSE_S = 0.1
CHECKER = "checker"
MOVER = "mover"
ABORTED = "aborted"
_FAILURES = (ClientError, BrokerError, OutcomeUnknown, TransactionEnded, TransactionFailed, RequestTimedOut, OSError)


class _OnPurpose(Exception):
    """Aborts a transaction."""


class TransactionLoad:
    """The clients of an input and an output topic, which exist and have partitions.

    The constructor blocks until the official clients are connected. `begin` starts the movers.
    """

    def __init__(self, service: Service, source: str, target: str, partitions: int, chance: Random) -> None:
        self._service = service
        self._source = source
        self._target = target
        self._partitions = partitions
        self.fed: set[str] = set()
        """Positions of the input with a receipt."""
        self.moved: dict[str, str] = {}
        """What the output has: the input's position, by the position of the output."""
        self.committed = 0
        self.aborted = 0
        self.unknown = 0
        self.failures: deque[str] = deque(maxlen=20)
        """Of transactions, the last ones."""
        self.broken: list[str] = []
        self.attempts: dict[str, list[str]] = defaultdict(list)
        """For the report of a failure: the steps of the transactions of each message of the input."""
        self._feeds = threading.Event()
        self._ends = threading.Event()
        self._clients = [service.client(each) for each in range(2)]
        self._checker = self._clients[0].subscribe(
            target, CHECKER, initial_position=pulsar.InitialPosition.Earliest, consumer_name=CHECKER
        )
        for topic in (source, target):  # keep all messages for the end
            self._clients[1].subscribe(topic, "audit", initial_position=pulsar.InitialPosition.Earliest).close()
        self._producer = self._clients[1].create_producer(source, send_timeout_millis=0, batching_enabled=False)
        self._threads = [
            threading.Thread(target=self._feed, daemon=True),
            threading.Thread(target=self._check, daemon=True),
        ]
        for thread in self._threads:
            thread.start()
        self._chance = chance
        self._movers: list[asyncio.Task[None]] = []

    def begin(self) -> None:
        """Start the movers, on the present event loop."""
        self._movers = [
            asyncio.create_task(self._move_all(number, Random(self._chance.random()))) for number in range(MOVERS)
        ]

    # --- official clients

    def _feed(self) -> None:
        def answered(result: pulsar.Result, where: pulsar.MessageId) -> None:
            if result == pulsar.Result.Ok:
                self.fed.add(f"{where.ledger_id()}:{where.entry_id()}")
            else:
                self.broken.append(f"the input refused a message: {result}")

        for number in itertools.count():
            if self._feeds.wait(FEED_PAUSE_S):
                break
            self._producer.send_async(b"%d" % number, answered)
        self._producer.flush()

    def _check(self) -> None:
        while not self._ends.is_set():
            try:
                message = self._checker.receive(200)
            except pulsar.Timeout:
                continue
            except pulsar.PulsarException:
                self._ends.wait(0.1)
                continue
            where, text = message.message_id(), message.data().decode()
            if text.startswith(ABORTED):
                self.broken.append(f"a message of an aborted transaction was delivered: {text}")
            self.moved[f"{where.ledger_id()}:{where.entry_id()}:{where.batch_index()}"] = text
            with suppress(pulsar.PulsarException):
                self._checker.acknowledge(message)

    # --- transactions

    async def _move_all(self, number: int, chance: Random) -> None:
        urls = [
            self._service.urls[(number + each) % len(self._service.urls)] for each in range(len(self._service.urls))
        ]
        access = Access(
            "pulsar://" + ",".join(each.removeprefix("pulsar://") for each in urls),
            operation_timeout_s=10.0,
            listener_name=self._service.listener or None,
        )
        async with PulsarClient(access) as client:
            while True:
                try:
                    await self._move(client, chance)
                except _FAILURES as error:
                    self.failures.append(f"{type(error).__name__}: {error}")
                await asyncio.sleep(0.1)

    async def _move(self, client: PulsarClient, chance: Random) -> None:
        """Run transactions until one fails. Its messages return to the subscription when the consumer closes."""
        consumer = await client.consumer(self._source, MOVER, kind="shared", from_earliest=True, queue_messages=20)
        try:
            async with await client.producer(self._target) as producer:
                while True:
                    try:
                        messages = await consumer.receive_some(MESSAGES_OF_TRANSACTION, timeout_s=ANSWER_S)
                    except RequestTimedOut:
                        continue
                    is_aborted = chance.random() < ABORTED_SHARE
                    with suppress(_OnPurpose):
                        transaction = await client.transaction(timeout_s=TRANSACTION_TIMEOUT_S)
                        names = [f"{message.id.ledger_id}:{message.id.entry_id}" for message in messages]
                        try:
                            async with transaction:
                                for name in names:
                                    text = f"{ABORTED} {name}" if is_aborted else name
                                    sent = await producer.send(text.encode(), key=text, transaction=transaction)
                                    self.attempts[name].append(f"{_now()} {transaction.id} sent as {sent}")
                                await consumer.ack(*messages, transaction=transaction)
                                if is_aborted:
                                    raise _OnPurpose
                            self.committed += 1
                        except OutcomeUnknown:
                            self.unknown += 1
                            raise
                        finally:
                            for name in names:
                                self.attempts[name].append(f"{_now()} {transaction.id} {transaction.state.value}")
                    if is_aborted:
                        self.aborted += 1
        finally:
            with suppress(*_FAILURES):
                await consumer.close()

    # --- oracle

    async def catches_up(self, deadline_s: float) -> None:
        """Wait until all messages that the input has now are moved, new ones are committed, and all clients are connected."""
        missing = set(self.fed)
        count, committed = len(self.fed), self.committed

        def is_done() -> bool:
            assert not self.broken, self.broken[:5]
            missing.difference_update(self.moved.copy().values())
            return (
                not missing
                and len(self.fed) > count
                and self.committed > committed
                and self._checker.is_connected()
                and self._producer.is_connected()
            )

        def text() -> str:
            return (
                f"transactions: {len(missing)} not moved: {sorted(missing)[:3]}, {len(self.fed) - count} new in the input,"
                f" {self.committed - committed} commits, checker connected: {self._checker.is_connected()},"
                f" producer connected: {self._producer.is_connected()}, failed transactions: {list(self.failures)},"
                f" attempts: { {name: self.attempts[name] for name in sorted(missing)[:3]} }"
            )

        await until(is_done, deadline_s, text)

    async def stop_feeding(self, deadline_s: float) -> None:
        """Stop the producer, and wait until all messages are moved, also those that were stored without a receipt."""
        self._feeds.set()
        await asyncio.to_thread(self._threads[0].join, deadline_s)
        assert not self._threads[0].is_alive(), "the producer of the input received no receipts"
        missing = self.fed | await asyncio.to_thread(self._stored)

        def is_done() -> bool:
            missing.difference_update(self.moved.copy().values())
            return not missing

        await until(is_done, deadline_s, lambda: f"{len(missing)} messages were not moved: {sorted(missing)[:3]}")

    async def stop(self) -> None:
        """End all clients. Open transactions end by their time-out."""
        self._feeds.set()
        self._ends.set()
        for mover in self._movers:
            mover.cancel()
        await asyncio.gather(*self._movers, return_exceptions=True)
        for thread in self._threads:
            await asyncio.to_thread(thread.join)
        for client in self._clients:
            with suppress(pulsar.PulsarException):
                await asyncio.to_thread(client.close)

    async def check(self) -> None:
        """Each message of the input, also those stored without a receipt, is in the output exactly once."""
        await asyncio.to_thread(self._check_topics)
        assert not self.broken, self.broken[:5]

    def _check_topics(self) -> None:
        sources = self._stored()
        client = self._service.client()
        moved = self._read(client, self._target)
        client.close()
        counts = Counter(moved.values())
        self.broken += [
            f"{text} was moved {count} times, as {[where for where, each in moved.items() if each == text]}:"
            f" {self.attempts[text]}"
            for text, count in counts.items()
            if count != 1
        ]
        self.broken += [f"{text} is in the output and was aborted" for text in counts if text.startswith(ABORTED)]
        for text, some in {
            "of the input are lost": self.fed - sources,
            "were not moved": sources - counts.keys(),
            "of the output were not in the input": counts.keys() - sources,
            "of the output did not reach its consumer": moved.keys() - self.moved.keys(),
        }.items():
            if some:
                attempts = {name: self.attempts[name] for name in sorted(some)[:3]}
                self.broken.append(f"{len(some)} messages {text}: {attempts}")

    def _stored(self) -> set[str]:
        """Return the positions of the input."""
        client = self._service.client()
        found = self._read(client, self._source)
        client.close()
        return {each.rpartition(":")[0] for each in found}

    def _read(self, client: pulsar.Client, topic: str) -> dict[str, str]:
        """Return the committed messages of a topic by position."""
        found = {}
        for index in range(self._partitions):
            reader = client.create_reader(f"{topic}-partition-{index}", pulsar.MessageId.earliest)
            while True:
                try:
                    # Without `has_message_available`, which counts messages of aborted transactions.
                    message = reader.read_next(2000)
                except pulsar.Timeout:
                    break
                where = message.message_id()
                found[f"{where.ledger_id()}:{where.entry_id()}:{where.batch_index()}"] = message.data().decode()
        return found


def _now() -> str:
    """Return the time in the form of the brokers' logs."""
    return f"{datetime.now(UTC):%H:%M:%S.%f}"[:-3]
