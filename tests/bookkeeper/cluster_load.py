"""Clients of one topic while faults happen to brokers, bookies and ZooKeeper, and an oracle for the messages they receive.

The official client publishes (single messages, batches, batches by key) and consumes with all types of subscriptions. It cannot
request receipts of acknowledgements, so a second set of subscriptions has consumers on single connections, which do.
Consumers reconnect after each loss of their connection. With several brokers, each client begins at another one.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
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
LOOKUPS = 10
CHECK_OPEN_S = 60.0
LEFT_SHARE = 0.1
"""Share of messages that consumers with receipts do not acknowledge."""
LEFT_S = 3.0
"""A consumer of Key_Shared acknowledges them after this time: they block their keys when these move to another consumer."""
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
        self.partitions: dict[int, int] = {}
        """By ledger; -1 for a topic without partitions."""
        self.failed: list[str] = []
        self.broken: list[str] = []

    def answered(self, name: str, number: int, result: pulsar.Result, where: pulsar.MessageId) -> None:
        with self.lock:
            body = f"{name}:{number}"
            if result != pulsar.Result.Ok:
                self.failed.append(f"{body}: {result}")
                return
            self.receipted[body] = (where.ledger_id(), where.entry_id(), where.batch_index())
            self.partitions[where.ledger_id()] = where.partition()
            self.receipts[name] += 1

    def messages_of(self, partition: int) -> set[Message]:
        """Return the messages of one partition that have a receipt."""
        with self.lock:
            return {each for each in self.receipted.values() if self.partitions[each[0]] == partition}

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

    def __init__(
        self, client: pulsar.Client, topic: str, name: str, promises: Promises, chance: Random, pause_s: float
    ) -> None:
        self.name = name
        self._pause_s = pause_s
        self._promises = promises
        self._chance = chance
        self._stop = threading.Event()
        self.producer = client.create_producer(
            topic,
            producer_name=f"{topic.rpartition('/')[2]}-{name}",
            send_timeout_millis=0,
            max_pending_messages=2 * MAX_PENDING,
            batching_enabled=name != "single",
            batching_max_messages=BATCH_MESSAGES,
            batching_type=pulsar.BatchingType.KeyBased if name == KEYED else pulsar.BatchingType.Default,
            # Messages without a key have an order only within their partition.
            message_routing_mode=pulsar.PartitionsRoutingMode.UseSinglePartition,
        )
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        promises, name = self._promises, self.name
        while not self._stop.is_set():
            number = promises.sent[name]
            body = f"{name}:{number}:".ljust(self._chance.choice((20, 20, 1000, 6000)), ".")
            key = stream_of(name, number) if name == KEYED else None
            if number - promises.receipts[name] >= MAX_PENDING:
                self._stop.wait(0.02)
                continue
            self.producer.send_async(
                body.encode(),
                lambda result, where, number=number: promises.answered(name, number, result, where),
                partition_key=key,
            )
            promises.sent[name] += 1
            self._stop.wait(self._pause_s if name == "single" or number % BATCH_MESSAGES == 0 else 0.001)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


class OfficialSubscription:
    """A subscription of the official client, with one thread for each consumer. Checks the order of first deliveries."""

    def __init__(
        self, clients: Sequence[pulsar.Client], topic: str, kind: str, consumers: int, promises: Promises
    ) -> None:
        self.kind = kind
        self.seen: set[str] = set()
        self._promises = promises
        self._last: dict[str, int] = defaultdict(lambda: -1)
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self.consumers = [
            clients[number % len(clients)].subscribe(
                topic,
                f"official-{kind}",
                TYPES[kind],
                consumer_name=f"c{number}",
                initial_position=pulsar.InitialPosition.Earliest,
            )
            for number in range(consumers)
        ]
        self._threads = [threading.Thread(target=self._guarded, args=(each,), daemon=True) for each in self.consumers]
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

    def disconnected(self) -> list[int]:
        """Return the numbers of the consumers without a connection."""
        return [number for number, each in enumerate(self.consumers) if not each.is_connected()]

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


class ReceiptedSubscription:
    """A subscription of a topic or of one partition, in which every acknowledgement has a receipt."""

    def __init__(self, kind: str, topic: str, partition: int, promises: Promises) -> None:
        self.kind = kind
        self.topic = topic
        self.partition = partition
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
    def label(self) -> str:
        return self.name if self.partition < 0 else f"{self.name} of partition {self.partition}"

    @property
    def is_cumulative(self) -> bool:
        return self.kind in {"Exclusive", "Failover"}

    def delivered(self, messages: Iterable[Message]) -> None:
        for message in messages:
            self.seen.add(message)
            if message in self.acked or message[:2] <= self.acked_up_to:
                self._promises.broken.append(f"{self.label}: {message} came again after its receipted acknowledgement")

    def is_owed(self, message: Message) -> bool:
        """Return whether no acknowledgement of the message was sent."""
        return message not in self.maybe_acked and message[:2] > self.maybe_up_to


@dataclass(frozen=True)
class Service:
    """The brokers of a cluster. Clients use the addresses of `listener`, empty for the internal one."""

    urls: Sequence[str]
    listener: str = ""

    def client(self, first: int = 0, operation_timeout_s: int = 60) -> pulsar.Client:
        """Return a client that begins at broker number `first`."""
        urls = [self.urls[(first + each) % len(self.urls)] for each in range(len(self.urls))]
        return pulsar.Client(
            "pulsar://" + ",".join(each.removeprefix("pulsar://") for each in urls),
            operation_timeout_seconds=operation_timeout_s,
            logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
            listener_name=self.listener or None,
        )


class Connection:
    """One connection with one consumer."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._frames = all_frames()
        self._replies: list[dict[str, Any]] = []

    @classmethod
    async def open(
        cls, service: Service, first: int, subscription: ReceiptedSubscription, consumer_name: str
    ) -> Connection:
        """Look the topic up at broker number `first` and subscribe at its owner. Raises OSError and TimeoutError."""
        connection = await cls._at_owner(service, first, subscription.topic)
        try:
            connection.send(
                pb.BaseCommand.SUBSCRIBE,
                topic=subscription.topic,
                subscription=subscription.name,
                subType=pb.CommandSubscribe.SubType.Value(subscription.kind),
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

    @classmethod
    async def _at_owner(cls, service: Service, first: int, topic: str) -> Connection:
        url, is_authoritative = service.urls[first % len(service.urls)], False
        for _ in range(LOOKUPS):
            address = urlsplit(url)
            async with asyncio.timeout(ANSWER_S):
                connection = cls(*await asyncio.open_connection(address.hostname, address.port))
            try:
                connection.send(pb.BaseCommand.CONNECT, client_version="faults", protocol_version=21)
                await connection.reply()
                connection.send(
                    pb.BaseCommand.LOOKUP,
                    topic=topic,
                    request_id=1,
                    authoritative=is_authoritative,
                    advertised_listener_name=service.listener,
                )
                reply = await connection.reply()
                if reply["response"] == "Failed":
                    raise ConnectionError(str(reply))
                if reply["response"] == "Connect" and reply["brokerServiceUrl"] == url:
                    return connection
            except BaseException:
                connection.close()
                raise
            connection.close()
            is_authoritative = reply["response"] == "Redirect" and bool(reply.get("authoritative"))
            url = reply["brokerServiceUrl"]
        raise ConnectionError(f"the lookup of {topic} does not end at an owner")

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

    def __init__(self, subscription: ReceiptedSubscription, service: Service, name: str, chance: Random) -> None:
        self._subscription = subscription
        self._service = service
        self._name = name
        self._chance = chance
        self._request_id = 10
        self._left: deque[tuple[float, dict[str, Any]]] = deque()

    async def run(self) -> None:
        first = self._chance.randrange(len(self._service.urls))
        while True:
            first += 1
            with suppress(OSError, TimeoutError):
                connection = await Connection.open(self._service, first, self._subscription, self._name)
                try:
                    await self._consume(connection)
                finally:
                    connection.close()
            await asyncio.sleep(0.1)

    async def _consume(self, connection: Connection) -> None:
        subscription = self._subscription
        unanswered: dict[int, list[Message]] = {}
        self._left.clear()
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
            while self._left and self._left[0][0] < time.monotonic():
                self._request_id += 1
                unanswered[self._request_id] = self._acknowledge_left(connection, self._left.popleft()[1])

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
            if len(chosen) < len(messages) and subscription.kind == "Key_Shared":
                self._left.append((time.monotonic() + LEFT_S, reply))
            if chosen:
                ids.append(one)
                acked += chosen
        subscription.maybe_acked.update(acked)
        self._send_ack(connection, ids, pb.CommandAck.Individual)
        return acked

    def _acknowledge_left(self, connection: Connection, reply: dict[str, Any]) -> list[Message]:
        """Send one ACK of a whole entry, and return its messages."""
        ledger_id, entry_id = position_of(reply)
        messages = messages_of(reply)
        self._subscription.maybe_acked.update(messages)
        self._send_ack(connection, [pb.MessageIdData(ledgerId=ledger_id, entryId=entry_id)], pb.CommandAck.Individual)
        return messages

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
    """All clients of one topic, which has partitions unless `partitions` is 0.

    The constructor blocks until the official clients are connected. `begin` starts the other ones.
    """

    def __init__(
        self, service: Service, topic: str, chance: Random, *, partitions: int = 0, pause_s: float = PAUSE_S
    ) -> None:
        self.promises = Promises()
        self._service = service
        self._chance = chance
        self._topics = {index: f"{topic}-partition-{index}" for index in range(partitions)} or {-1: topic}
        self._clients = [service.client(each) for each in range(len(service.urls))]
        # Acknowledges nothing, so that all messages can be read at the end.
        self._clients[0].subscribe(topic, "audit", initial_position=pulsar.InitialPosition.Earliest).close()
        self.official = [
            OfficialSubscription(
                [*self._clients[number % len(self._clients) :], *self._clients],
                topic,
                kind,
                1 if kind == "Exclusive" else 2,
                self.promises,
            )
            for number, kind in enumerate(TYPES)
        ]
        self.receipted = [
            ReceiptedSubscription(kind, name, index, self.promises)
            for kind in TYPES
            for index, name in self._topics.items()
        ]
        self._publishers = [
            Publisher(
                self._clients[number % len(self._clients)], topic, name, self.promises, Random(chance.random()), pause_s
            )
            for number, name in enumerate(PRODUCERS)
        ]
        self._tasks: list[asyncio.Task[None]] = []

    def begin(self) -> None:
        """Start the consumers with receipts, on the present event loop."""
        self._tasks = [
            asyncio.create_task(
                ReceiptedConsumer(each, self._service, f"r{number}", Random(self._chance.random())).run()
            )
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

    async def catches_up(self, deadline_s: float) -> None:
        """Wait until each subscription has received all messages that have a receipt now, each stream of messages continues,
        acknowledgements of each subscription have receipts, and all clients are connected.
        """
        promises = self.promises
        bodies = set(promises.receipted)
        sent = dict(promises.sent)
        streams = {stream_of(name, sent[name] + each) for name in PRODUCERS for each in range(STEP[name])}
        missing: dict[str, set[Any]] = {}
        for official in self.official:
            missing[f"not received by {official.kind}"] = bodies - official.seen
        for each in self.receipted:
            missing[f"not received by {each.label}"] = promises.messages_of(each.partition) - each.seen
        acknowledged = {each: each.receipts for each in self.receipted}

        def is_behind() -> bool:
            assert not promises.broken, promises.broken[:5]
            for official in self.official:
                missing[f"not received by {official.kind}"] -= official.seen
            for each in self.receipted:
                missing[f"not received by {each.label}"] -= each.seen
            continued = {
                stream_of(name, number)
                for name, first in sent.items()
                for number in range(first, promises.sent[name])
                if f"{name}:{number}" in promises.receipted
            }
            missing["without a new receipt"] = streams - continued
            missing["without receipts of acknowledgements"] = {
                each.label for each, before in acknowledged.items() if each.receipts == before
            }
            missing["not connected"] = {
                *(f"{official.kind} {number}" for official in self.official for number in official.disconnected()),
                *(each.name for each in self._publishers if not each.producer.is_connected()),
            }
            return any(missing.values())

        await until(
            lambda: not is_behind(),
            deadline_s,
            lambda: str({text: (len(some), sorted(some)[:3]) for text, some in missing.items() if some}),
        )

    async def stop_publishing(self, deadline_s: float) -> None:
        """Stop the producers, and wait until all messages have receipts and were received by all subscriptions."""
        for publisher in self._publishers:
            await asyncio.to_thread(publisher.stop)
        promises = self.promises
        await until(lambda: not self._unanswered(), deadline_s, lambda: f"no answer: {self._unanswered()}")
        assert not promises.failed, promises.failed[:5]
        promises.check_receipts()
        bodies = set(promises.receipted)
        messages = {partition: promises.messages_of(partition) for partition in self._topics}
        await until(
            lambda: (
                all(bodies <= each.seen for each in self.official)
                and all(messages[each.partition] <= each.seen for each in self.receipted)
            ),
            deadline_s,
            lambda: (
                "not delivered: "
                + str(
                    {each.kind: sorted(bodies - each.seen)[:3] for each in self.official}
                    | {each.label: sorted(messages[each.partition] - each.seen)[:3] for each in self.receipted}
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
        for client in self._clients:
            with suppress(pulsar.PulsarException):
                await asyncio.to_thread(client.close)
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
        client = self._service.client(operation_timeout_s=5)
        missing = dict(promises.receipted)
        last: dict[str, int] = {}
        seen: set[str] = set()
        for topic in self._topics.values():
            reader = self._reader(client, topic)
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

    @staticmethod
    def _reader(client: pulsar.Client, topic: str) -> pulsar.Reader:
        for _ in range(READER_ATTEMPTS - 1):
            # A new consumer of this client does not try again after PersistenceError: not all bookies may have registered.
            with suppress(pulsar.Timeout):
                return client.create_reader(topic, pulsar.MessageId.earliest)
        return client.create_reader(topic, pulsar.MessageId.earliest)

    async def _opened(self, subscription: ReceiptedSubscription) -> Connection:
        """Open a consumer, perhaps of a topic without an owner at first."""
        async with asyncio.timeout(CHECK_OPEN_S):
            for first in itertools.count():
                with suppress(OSError, TimeoutError):
                    return await Connection.open(self._service, first, subscription, "check")
                await asyncio.sleep(0.5)
        raise AssertionError("the loop does not end")

    async def _check_subscription(self, subscription: ReceiptedSubscription) -> None:
        """Messages without an acknowledgement come again, those with a receipted one do not."""
        messages = self.promises.messages_of(subscription.partition)
        owed = {each for each in messages if subscription.is_owed(each)}
        connection = await self._opened(subscription)
        with suppress(TimeoutError):
            while True:
                reply = await connection.reply(20.0 if owed else QUIET_S)
                received = messages_of(reply)
                subscription.delivered(received)
                owed.difference_update(received)
                connection.send(pb.BaseCommand.FLOW, consumer_id=1, messagePermits=len(received))
        connection.close()
        if owed:
            self.promises.broken.append(f"{subscription.label}: {len(owed)} messages do not come: {sorted(owed)[:3]}")


async def until(condition: Callable[[], bool], deadline_s: float, text: Callable[[], str]) -> None:
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    while not condition():
        assert loop.time() - began_s < deadline_s, text()
        await asyncio.sleep(0.1)
