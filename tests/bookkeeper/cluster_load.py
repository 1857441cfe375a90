"""Clients of one topic while faults happen to its broker, bookies and ZooKeeper, and a judge of what they saw.

The official client publishes (single messages, batches, batches by key) and consumes with all types of subscriptions. It cannot
request receipts of acknowledgements, so a second set of subscriptions has consumers on single connections, which do.
Consumers reconnect after each loss of their connection.
"""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from random import Random
from typing import Any
from urllib.parse import urlsplit

import pulsar
from tests.support.raw_client import all_frames, encode, frame, to_dict

from pybroker.wire import pulsar_api_pb2 as pb

BATCH_MESSAGES = 10
KEYS = 7
PERMITS = 500
ACK_EVERY = 10
MAX_PENDING = 300
PAUSE_S = 0.02
ANSWER_S = 5.0
QUIET_S = 2.0
READER_ATTEMPTS = 6
LEFT_SHARE = 0.1
"""Share of messages that consumers with receipts do not acknowledge at once."""
TYPES = {
    "Exclusive": pulsar.ConsumerType.Exclusive,
    "Failover": pulsar.ConsumerType.Failover,
    "Shared": pulsar.ConsumerType.Shared,
    "Key_Shared": pulsar.ConsumerType.KeyShared,
}
KEYED = "keyed"
PRODUCERS = ("single", "batched", KEYED)

STEP = {name: KEYS if name == KEYED else 1 for name in PRODUCERS}
Message = tuple[int, int, int]
"""Ledger, entry, index in the batch or -1."""


def stream_of(name: str, number: int) -> str:
    """Return the messages among which this one has its order: those of its producer, with batches by key those of its key."""
    return f"{name}-{number % KEYS}" if name == KEYED else name


class Promises:
    """What was sent and receipted. Threads of the official client change it under `lock`."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.sent = dict.fromkeys(PRODUCERS, 0)
        self.receipted: dict[str, Message] = {}
        self.receipts = dict.fromkeys(PRODUCERS, 0)
        self.failed: list[str] = []
        self.broken: list[str] = []

    def answered(self, name: str, number: int, result: pulsar.Result, where: pulsar.MessageId) -> None:
        with self.lock:
            body = f"{name}:{number}"
            if result != pulsar.Result.Ok:
                self.failed.append(f"{body}: {result}")
                return
            self.receipted[body] = (where.ledger_id(), where.entry_id(), where.batch_index())
            self.receipts[name] += 1

    def check_receipts(self) -> None:
        """Positions of a stream's receipts have the order in which the messages were sent."""
        positions: dict[str, list[Message]] = defaultdict(list)
        for name in PRODUCERS:
            for number in range(self.sent[name]):
                where = self.receipted.get(f"{name}:{number}")
                if where is not None:
                    positions[stream_of(name, number)].append(where)
        for stream, found in positions.items():
            if found != sorted(set(found)):
                self.broken.append(f"receipts of {stream} are not in the order of the messages")


class Publisher:
    """A thread with one producer, which resends until it has a receipt."""

    def __init__(self, client: pulsar.Client, topic: str, name: str, promises: Promises, chance: Random) -> None:
        self._name = name
        self._promises = promises
        self._chance = chance
        self._stop = threading.Event()
        self._producer = client.create_producer(
            topic,
            producer_name=f"{topic.rpartition('/')[2]}-{name}",
            send_timeout_millis=0,
            max_pending_messages=2 * MAX_PENDING,
            batching_enabled=name != "single",
            batching_max_messages=BATCH_MESSAGES,
            batching_type=pulsar.BatchingType.KeyBased if name == KEYED else pulsar.BatchingType.Default,
        )
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        promises, name = self._promises, self._name
        while not self._stop.is_set():
            number = promises.sent[name]
            body = f"{name}:{number}:".ljust(self._chance.choice((20, 20, 1000, 6000)), ".")
            key = stream_of(name, number) if name == KEYED else None
            if number - promises.receipts[name] >= MAX_PENDING:
                self._stop.wait(0.02)
                continue
            self._producer.send_async(
                body.encode(),
                lambda result, where, number=number: promises.answered(name, number, result, where),
                partition_key=key,
            )
            promises.sent[name] += 1
            self._stop.wait(PAUSE_S if name == "single" or number % BATCH_MESSAGES == 0 else 0.001)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


class OfficialSubscription:
    """A subscription of the official client, with one thread for each consumer. Checks the order of first deliveries."""

    def __init__(self, client: pulsar.Client, topic: str, kind: str, consumers: int, promises: Promises) -> None:
        self.kind = kind
        self.seen: set[str] = set()
        self._promises = promises
        self._last: dict[str, int] = defaultdict(lambda: -1)
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._consumers = [
            client.subscribe(
                topic,
                f"official-{kind}",
                TYPES[kind],
                consumer_name=f"c{number}",
                initial_position=pulsar.InitialPosition.Earliest,
            )
            for number in range(consumers)
        ]
        self._threads = [threading.Thread(target=self._guarded, args=(each,), daemon=True) for each in self._consumers]
        for thread in self._threads:
            thread.start()

    def _guarded(self, consumer: pulsar.Consumer) -> None:
        try:
            self._work(consumer)
        except Exception as error:  # noqa: BLE001  (the test reports it)
            self._promises.broken.append(f"{self.kind}: {error!r}")

    def _work(self, consumer: pulsar.Consumer) -> None:
        while not self._stop.is_set():
            try:
                message = consumer.receive(200)
            except pulsar.Timeout:
                continue
            except pulsar.PulsarException:
                self._stop.wait(0.1)
                continue
            name, number, _ = message.data().decode().split(":")
            self._received(name, int(number))
            with suppress(pulsar.PulsarException):
                consumer.acknowledge(message)

    def _received(self, name: str, number: int) -> None:
        with self._lock:
            body = f"{name}:{number}"
            if body in self.seen:
                return
            self.seen.add(body)
            if self.kind == "Shared" or (self.kind == "Key_Shared" and name != KEYED):
                return
            stream = stream_of(name, number)
            if number < self._last[stream]:
                self._promises.broken.append(f"{self.kind}: {body} came after {self._last[stream]} of {stream}")
            self._last[stream] = max(number, self._last[stream])

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


class ReceiptedSubscription:
    """A subscription of which every acknowledgement has a receipt."""

    def __init__(self, kind: str, promises: Promises) -> None:
        self.kind = kind
        self.seen: set[Message] = set()
        self.acked: set[Message] = set()
        self.acked_up_to = (-1, -1)
        self.maybe_acked: set[Message] = set()
        self.maybe_up_to = (-1, -1)
        self.receipts = 0
        self._promises = promises

    @property
    def name(self) -> str:
        return f"receipted-{self.kind}"

    @property
    def is_cumulative(self) -> bool:
        return self.kind in {"Exclusive", "Failover"}

    def delivered(self, messages: Iterable[Message]) -> None:
        for message in messages:
            self.seen.add(message)
            if message in self.acked or message[:2] <= self.acked_up_to:
                self._promises.broken.append(f"{self.kind}: {message} came again after its receipted acknowledgement")

    def is_owed(self, message: Message) -> bool:
        """Return whether no acknowledgement of the message was sent."""
        return message not in self.maybe_acked and message[:2] > self.maybe_up_to


class Connection:
    """One connection with one consumer."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._frames = all_frames()
        self._replies: list[dict[str, Any]] = []

    @classmethod
    async def open(cls, url: str, topic: str, name: str, kind: str, consumer_name: str) -> Connection:
        """Raises OSError and TimeoutError."""
        address = urlsplit(url)
        connection = cls(*await asyncio.open_connection(address.hostname, address.port))
        try:
            connection.send(pb.BaseCommand.CONNECT, client_version="faults", protocol_version=21)
            await connection.reply()
            connection.send(pb.BaseCommand.PARTITIONED_METADATA, topic=topic, request_id=1)
            await connection.reply()
            connection.send(pb.BaseCommand.LOOKUP, topic=topic, request_id=2)
            await connection.reply()
            connection.send(
                pb.BaseCommand.SUBSCRIBE,
                topic=topic,
                subscription=name,
                subType=pb.CommandSubscribe.SubType.Value(kind),
                consumer_id=1,
                consumer_name=consumer_name,
                request_id=3,
                initialPosition=pb.CommandSubscribe.Earliest,
            )
            reply = await connection.reply(30.0)
            if reply["type"] != "SUCCESS":
                raise ConnectionError(str(reply))
        except BaseException:
            connection.close()
            raise
        connection.send(pb.BaseCommand.FLOW, consumer_id=1, messagePermits=PERMITS)
        return connection

    def send(self, command_type: pb.BaseCommand.Type, **fields: Any) -> None:
        self._writer.write(frame(encode(command_type, **fields)))

    async def reply(self, timeout_s: float = ANSWER_S) -> dict[str, Any]:
        """Return the next command. Raises ConnectionError at the end of the connection, and TimeoutError."""
        while not self._replies:
            async with asyncio.timeout(timeout_s):
                data = await self._reader.read(1 << 16)
            if not data:
                raise ConnectionError("closed")
            for command, rest in self._frames.feed(data):
                if command.type == pb.BaseCommand.PING:
                    self.send(pb.BaseCommand.PONG)
                elif command.type not in (pb.BaseCommand.PONG, pb.BaseCommand.ACTIVE_CONSUMER_CHANGE):
                    self._replies.append(to_dict(command, rest))
        return self._replies.pop(0)

    def close(self) -> None:
        self._writer.close()


class ReceiptedConsumer:
    """A consumer that acknowledges with receipts, and reconnects until it is cancelled."""

    def __init__(self, subscription: ReceiptedSubscription, url: str, topic: str, name: str, chance: Random) -> None:
        self._subscription = subscription
        self._url = url
        self._topic = topic
        self._name = name
        self._chance = chance
        self._request_id = 10

    async def run(self) -> None:
        while True:
            with suppress(OSError, TimeoutError):
                connection = await Connection.open(
                    self._url, self._topic, self._subscription.name, self._subscription.kind, self._name
                )
                try:
                    await self._consume(connection)
                finally:
                    connection.close()
            await asyncio.sleep(0.1)

    async def _consume(self, connection: Connection) -> None:
        subscription = self._subscription
        unanswered: dict[int, list[Message]] = {}
        received: list[dict[str, Any]] = []
        used = 0
        while True:
            try:
                reply = await connection.reply(1.0)
            except TimeoutError:
                reply = None
            if reply is not None and reply["type"] == "MESSAGE":
                messages = messages_of(reply)
                subscription.delivered(messages)
                received.append(reply)
                used += len(messages)
            elif reply is not None and reply["type"] == "ACK_RESPONSE":
                acked = unanswered.pop(int(reply["request_id"]))
                if "error" not in reply:
                    self._receipted(acked)
            elif reply is not None:
                raise ConnectionError(str(reply))
            if used >= PERMITS // 2:
                connection.send(pb.BaseCommand.FLOW, consumer_id=1, messagePermits=used)
                used = 0
            if received and (reply is None or len(received) >= ACK_EVERY):
                self._request_id += 1
                unanswered[self._request_id] = self._acknowledge(connection, received)
                received = []

    def _receipted(self, messages: list[Message]) -> None:
        subscription = self._subscription
        subscription.receipts += 1
        if subscription.is_cumulative:
            subscription.acked_up_to = max(subscription.acked_up_to, messages[0][:2])
        else:
            subscription.acked.update(messages)

    def _acknowledge(self, connection: Connection, received: list[dict[str, Any]]) -> list[Message]:
        """Send one ACK, and return the messages that it acknowledges."""
        subscription = self._subscription
        if subscription.is_cumulative:
            ledger_id, entry_id = position_of(self._chance.choice(received))
            subscription.maybe_up_to = max(subscription.maybe_up_to, (ledger_id, entry_id))
            self._send_ack(
                connection, [pb.MessageIdData(ledgerId=ledger_id, entryId=entry_id)], pb.CommandAck.Cumulative
            )
            return [(ledger_id, entry_id, -1)]
        ids: list[pb.MessageIdData] = []
        acked: list[Message] = []
        for reply in received:
            ledger_id, entry_id = position_of(reply)
            messages = messages_of(reply)
            chosen = [each for each in messages if self._chance.random() >= LEFT_SHARE]
            count = int(reply["metadata"].get("num_messages_in_batch", 1))
            one = pb.MessageIdData(ledgerId=ledger_id, entryId=entry_id)
            if count > 1 and len(chosen) < count:
                kept = (1 << count) - 1
                for _, _, index in chosen:
                    kept &= ~(1 << index)
                one.ack_set.append(kept)
                one.batch_size = count
            if chosen:
                ids.append(one)
                acked += chosen
        subscription.maybe_acked.update(acked)
        self._send_ack(connection, ids, pb.CommandAck.Individual)
        return acked

    def _send_ack(self, connection: Connection, ids: list[pb.MessageIdData], ack_type: pb.CommandAck.AckType) -> None:
        connection.send(
            pb.BaseCommand.ACK, consumer_id=1, ack_type=ack_type, message_id=ids, request_id=self._request_id
        )


def position_of(reply: dict[str, Any]) -> tuple[int, int]:
    return int(reply["message_id"].get("ledgerId", 0)), int(reply["message_id"].get("entryId", 0))


def messages_of(reply: dict[str, Any]) -> list[Message]:
    """Return the messages in a MESSAGE command: of a batch, those in its ack set."""
    ledger_id, entry_id = position_of(reply)
    count = reply["metadata"].get("num_messages_in_batch")
    if count is None:
        return [(ledger_id, entry_id, -1)]
    left = int(reply["ack_set"][0]) if "ack_set" in reply else -1
    return [(ledger_id, entry_id, index) for index in range(count) if left >> index & 1]


class ClusterLoad:
    """All clients of one topic."""

    def __init__(self, url: str, topic: str, chance: Random) -> None:
        self.promises = Promises()
        self._url = url
        self._topic = topic
        self._chance = chance
        logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        self._client = pulsar.Client(url, logger=logger, operation_timeout_seconds=60)
        # Acknowledges nothing, so that all messages can be read at the end.
        self._client.subscribe(topic, "audit", initial_position=pulsar.InitialPosition.Earliest).close()
        self.official = [
            OfficialSubscription(self._client, topic, kind, 1 if kind == "Exclusive" else 2, self.promises)
            for kind in TYPES
        ]
        self.receipted = [ReceiptedSubscription(kind, self.promises) for kind in TYPES]
        self._publishers = [
            Publisher(self._client, topic, name, self.promises, Random(chance.random())) for name in PRODUCERS
        ]
        self._tasks = [
            asyncio.create_task(ReceiptedConsumer(each, url, topic, f"r{number}", Random(chance.random())).run())
            for each in self.receipted
            for number in range(1 if each.kind == "Exclusive" else 2)
        ]

    def progress(self) -> list[int]:
        """Return counters, each of which must rise while the cluster works."""
        return [
            *self.promises.receipts.values(),
            *(len(each.seen) for each in self.official),
            *(each.receipts for each in self.receipted),
        ]

    async def advances(self, least: int, deadline_s: float) -> float:
        """Wait until each counter has risen by `least`. Return the seconds."""
        before = self.progress()
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        while True:
            assert not self.promises.broken, self.promises.broken[:5]
            now = self.progress()
            if all(after >= earlier + least for earlier, after in zip(before, now, strict=True)):
                return loop.time() - began_s
            assert loop.time() - began_s < deadline_s, f"no progress in {deadline_s} s: {before} {now}"
            await asyncio.sleep(0.02)

    async def stop_publishing(self, deadline_s: float) -> None:
        """Stop the producers, and wait until all messages have receipts and were received by all subscriptions."""
        for publisher in self._publishers:
            await asyncio.to_thread(publisher.stop)
        promises = self.promises
        await _until(lambda: not self._unanswered(), deadline_s, lambda: f"no answer: {self._unanswered()}")
        assert not promises.failed, promises.failed[:5]
        promises.check_receipts()
        bodies, messages = set(promises.receipted), set(promises.receipted.values())
        await _until(
            lambda: (
                all(bodies <= each.seen for each in self.official)
                and all(messages <= each.seen for each in self.receipted)
            ),
            deadline_s,
            lambda: (
                "not delivered: "
                + str(
                    {each.kind: sorted(bodies - each.seen)[:3] for each in self.official}
                    | {each.name: sorted(messages - each.seen)[:3] for each in self.receipted}
                )
            ),
        )

    def _unanswered(self) -> dict[str, int]:
        promises = self.promises
        answered = len(promises.receipted) + len(promises.failed)
        return (
            {}
            if answered == sum(promises.sent.values())
            else {"sent": sum(promises.sent.values()), "answered": answered}
        )

    async def stop(self) -> None:
        """End all clients, and wait for answers on the way."""
        for subscription in self.official:
            await asyncio.to_thread(subscription.stop)
        with suppress(pulsar.PulsarException):
            await asyncio.to_thread(self._client.close)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def check(self) -> None:
        """Compare what the topic and the receipted subscriptions have with what was receipted."""
        await asyncio.to_thread(self._check_topic)
        async with asyncio.TaskGroup() as group:
            for subscription in self.receipted:
                group.create_task(self._check_subscription(subscription))
        assert not self.promises.broken, self.promises.broken[:5]

    def _check_topic(self) -> None:
        promises = self.promises
        logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        client = pulsar.Client(self._url, logger=logger, operation_timeout_seconds=5)
        for attempt in range(READER_ATTEMPTS):
            # A new consumer of this client does not try again after PersistenceError: not all bookies may have registered.
            try:
                reader = client.create_reader(self._topic, pulsar.MessageId.earliest)
                break
            except pulsar.Timeout:
                if attempt == READER_ATTEMPTS - 1:
                    raise
        missing = dict(promises.receipted)
        last: dict[str, int] = {}
        seen: set[str] = set()
        while reader.has_message_available():
            message = reader.read_next(30_000)
            name, text, _ = message.data().decode().split(":")
            body, number = f"{name}:{text}", int(text)
            where = message.message_id()
            if missing.get(body) == (where.ledger_id(), where.entry_id(), where.batch_index()):
                del missing[body]
            if body not in seen:
                seen.add(body)
                stream = stream_of(name, number)
                expected = last[stream] + STEP[name] if stream in last else number % STEP[name]
                if number != expected:
                    promises.broken.append(f"{body} is stored where {expected} is expected")
                last[stream] = number
        client.close()
        if missing:
            promises.broken.append(f"{len(missing)} receipted messages are lost: {sorted(missing.items())[:3]}")

    async def _check_subscription(self, subscription: ReceiptedSubscription) -> None:
        """Messages without an acknowledgement come again, those with a receipted one do not."""
        owed = {each for each in self.promises.receipted.values() if subscription.is_owed(each)}
        connection = await Connection.open(self._url, self._topic, subscription.name, subscription.kind, "check")
        with suppress(TimeoutError):
            while True:
                reply = await connection.reply(20.0 if owed else QUIET_S)
                messages = messages_of(reply)
                subscription.delivered(messages)
                owed.difference_update(messages)
                connection.send(pb.BaseCommand.FLOW, consumer_id=1, messagePermits=len(messages))
        connection.close()
        if owed:
            self.promises.broken.append(f"{subscription.kind}: {len(owed)} messages do not come: {sorted(owed)[:3]}")


async def _until(condition: Any, deadline_s: float, text: Any) -> None:
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    while not condition():
        assert loop.time() - began_s < deadline_s, text()
        await asyncio.sleep(0.05)
