"""Official clients of several topics of a cluster, while brokers change: a check of receipts, order and progress.

Every message has a number within its stream: the messages of one producer, or of one key. After a change, each producer must get
receipts and each consumer messages. At the end, every receipted message was received by each subscription and is stored, and the
first deliveries of a stream have the order in which it was sent.
"""

from __future__ import annotations

import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import pulsar
from pulsar.schema import Integer, JsonSchema, Record, String
from tests.bookkeeper.mixed_cluster import Place, move, require_leader, until_all_know_all

BURST = 5
PAUSE_S = 0.2
KEYS = 24
PARTITIONS = 4
DEADLINE_S = 90.0
RECEIVE_MS = 300
OPERATION_S = 60
KINDS = {
    "Exclusive": pulsar.ConsumerType.Exclusive,
    "Failover": pulsar.ConsumerType.Failover,
    "Shared": pulsar.ConsumerType.Shared,
    "Key_Shared": pulsar.ConsumerType.KeyShared,
}
SINGLE, BATCHED, KEYED = "single", "batched", "keyed"
"""Producers: without batches, with batches, with keys and batches of one key."""


class Order(Record):
    """The value of messages with a schema."""

    stream = String()
    number = Integer()


class LoadedTopic(NamedTuple):
    """A topic, its producers, and the subscription types that receive all of it."""

    name: str
    producers: tuple[str, ...]
    kinds: tuple[str, ...]
    has_schema: bool = False
    partitions: int = 0

    @property
    def local_name(self) -> str:
        return self.name.rpartition("/")[2]


def several_urls(first: int, urls: Sequence[str]) -> str:
    """Return a service URL of all brokers that begins with one of them."""
    ordered = [urls[(first + number) % len(urls)] for number in range(len(urls))]
    return ",".join([ordered[0], *(each.removeprefix("pulsar://") for each in ordered[1:])])


def new_client(url: str) -> pulsar.Client:
    quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    return pulsar.Client(url, logger=quiet, operation_timeout_seconds=OPERATION_S)


class Deliveries:
    """The messages that the consumers of one subscription received. Checks the order of first deliveries."""

    def __init__(self, topic: LoadedTopic, kind: str, broken: list[str]) -> None:
        self.label = f"subscription {topic.local_name} {kind}"
        self.topic = topic
        self.kind = kind
        self.seen: set[tuple[str, int]] = set()
        self.counts = [0] * consumers_of(kind)
        self._broken = broken
        self._last: dict[str, int] = defaultdict(lambda: -1)
        self._lock = threading.Lock()

    def received(self, consumer: int, stream: str, number: int) -> None:
        with self._lock:
            self.counts[consumer] += 1
            if (stream, number) in self.seen:
                return
            self.seen.add((stream, number))
            has_order = self.kind in {"Exclusive", "Failover"} or (self.kind == "Key_Shared" and "-" in stream)
            if has_order and number < self._last[stream]:
                self._broken.append(f"{self.label}: {stream}/{number} came after {self._last[stream]}")
            self._last[stream] = max(number, self._last[stream])

    def progress(self) -> dict[str, int]:
        """Only one consumer of a Failover subscription of a topic without partitions receives messages."""
        if self.kind == "Failover" and not self.topic.partitions:
            return {self.label: sum(self.counts)}
        return {f"{self.label} c{number}": count for number, count in enumerate(self.counts)}


def consumers_of(kind: str) -> int:
    """Return the number of consumers of a subscription."""
    return 1 if kind == "Exclusive" else 2


def schema_of(topic: LoadedTopic) -> dict[str, Any]:
    """Return the arguments of a producer or consumer."""
    return {"schema": JsonSchema(Order)} if topic.has_schema else {}


def read(topic: LoadedTopic, message: pulsar.Message) -> tuple[str, int]:
    if topic.has_schema:
        value = message.value()
        return value.stream, value.number
    stream, _, number = message.data().decode().partition("/")
    return stream, int(number)


class CheckedLoad:
    """Clients of several topics of one namespace, and a record of receipts and deliveries.

    Subclasses have the clients: they call `receipted`, `failed` and the deliveries' `received`.
    """

    def __init__(self, urls: Sequence[str], topics: Sequence[LoadedTopic]) -> None:
        self.topics = topics
        self.broken: list[str] = []
        self.subscriptions = {
            (topic, kind): Deliveries(topic, kind, self.broken) for topic in topics for kind in topic.kinds
        }
        self._receipted: dict[LoadedTopic, set[tuple[str, int]]] = {topic: set() for topic in topics}
        self._receipts = {(topic, kind): 0 for topic in topics for kind in topic.producers}
        self._auditor = new_client(several_urls(0, urls))
        for topic in topics:
            self._audit(topic).close()  # from now on, nothing is trimmed

    @property
    def namespace(self) -> str:
        return self.topics[0].name.removeprefix("persistent://").rpartition("/")[0]

    def receipted(self, topic: LoadedTopic, producer: str, stream: str, number: int) -> None:
        self._receipted[topic].add((stream, number))
        self._receipts[topic, producer] += 1

    def failed(self, topic: LoadedTopic, producer: str, text: str) -> None:
        self.broken.append(f"producer {topic.local_name} {producer}: {text}")

    def end_producers(self) -> None:
        """End the producers when all their messages have receipts."""
        raise NotImplementedError

    def close_clients(self) -> None:
        """End all clients, perhaps for the second time."""
        raise NotImplementedError

    def _progress(self) -> dict[str, int]:
        found = {f"producer {topic.local_name} {kind}": count for (topic, kind), count in self._receipts.items()}
        for deliveries in self.subscriptions.values():
            found |= deliveries.progress()
        return found

    def advance(self, least: int = 15) -> float:
        """Wait until each producer has as many more receipts, and each consumer as many more messages. Return seconds."""
        before, began = self._progress(), time.monotonic()
        while True:
            assert not self.broken, self.broken[:5]
            now = self._progress()
            left = {label: count - before[label] for label, count in now.items() if count - before[label] < least}
            if not left:
                return time.monotonic() - began
            assert time.monotonic() - began < DEADLINE_S, f"no progress: {left}"
            time.sleep(0.05)

    def finish(self) -> int:
        """End the producers, wait for every message at every subscription, and check. Return the number of receipts."""
        self.end_producers()
        deadline = time.monotonic() + DEADLINE_S
        while missing := self._missing():
            assert time.monotonic() < deadline, f"not received: {missing}"
            time.sleep(0.1)
        for topic in self.topics:
            self._check_stored(topic)
        self.stop()
        assert not self.broken, self.broken[:5]
        return sum(map(len, self._receipted.values()))

    def _missing(self) -> dict[str, list[tuple[str, int]]]:
        return {
            each.label: sorted(self._receipted[each.topic] - each.seen)[:5]
            for each in self.subscriptions.values()
            if not self._receipted[each.topic] <= each.seen
        }

    def _audit(self, topic: LoadedTopic) -> pulsar.Consumer:
        return self._auditor.subscribe(
            topic.name, "audit", initial_position=pulsar.InitialPosition.Earliest, **schema_of(topic)
        )

    def _check_stored(self, topic: LoadedTopic) -> None:
        """Read the topic from its beginning. Messages without a receipt may be stored, once or twice."""
        consumer = self._audit(topic)
        missing = set(self._receipted[topic])
        seen: set[tuple[str, int]] = set()
        last: dict[str, int] = defaultdict(lambda: -1)
        while missing:
            try:
                message = consumer.receive(20_000)
            except pulsar.Timeout:
                self.broken.append(f"{topic.name}: {len(missing)} receipted messages are lost: {sorted(missing)[:5]}")
                break
            stream, number = read(topic, message)
            missing.discard((stream, number))
            if (stream, number) not in seen:
                seen.add((stream, number))
                if number != last[stream] + 1:
                    self.broken.append(f"{topic.name}: {stream}/{number} is stored after {last[stream]}")
                last[stream] = number
        consumer.close()

    def stop(self) -> None:
        self.close_clients()
        with suppress(pulsar.PulsarException):
            self._auditor.close()


class _Publisher:
    def __init__(self, load: MixedLoad, client: pulsar.Client, topic: LoadedTopic, kind: str) -> None:
        self._load = load
        self._topic = topic
        self._kind = kind
        self._producer = client.create_producer(
            topic.name,
            producer_name=f"{topic.local_name}-{kind}",
            send_timeout_millis=0,
            block_if_queue_full=True,
            batching_enabled=kind != SINGLE,
            batching_max_publish_delay_ms=20,
            batching_type=pulsar.BatchingType.KeyBased if kind == KEYED else pulsar.BatchingType.Default,
            **schema_of(topic),
        )
        self.thread = threading.Thread(target=self._work, daemon=True)

    def _work(self) -> None:
        count = 0
        while not self._load.is_ending.is_set():
            for _ in range(BURST):
                self._send(count)
                count += 1
            self._load.is_ending.wait(PAUSE_S)
        self._producer.flush()

    def _send(self, count: int) -> None:
        is_keyed = self._kind == KEYED
        stream = f"{self._kind}-{count % KEYS}" if is_keyed else self._kind
        number = count // KEYS if is_keyed else count
        body: Any = Order(stream=stream, number=number) if self._topic.has_schema else f"{stream}/{number}".encode()
        self._producer.send_async(
            body,
            lambda result, _: self._answered(result, stream, number),
            partition_key=stream if is_keyed else None,
        )

    def _answered(self, result: pulsar.Result, stream: str, number: int) -> None:
        if result == pulsar.Result.Ok:
            self._load.receipted(self._topic, self._kind, stream, number)
        else:
            self._load.failed(self._topic, self._kind, f"{stream}/{number}: {result}")


class _Consumer:
    def __init__(self, load: MixedLoad, client: pulsar.Client, deliveries: Deliveries, number: int) -> None:
        self._load = load
        self._deliveries = deliveries
        self._number = number
        self._consumer = client.subscribe(
            deliveries.topic.name,
            deliveries.kind,
            KINDS[deliveries.kind],
            consumer_name=f"c{number}",
            initial_position=pulsar.InitialPosition.Earliest,
            **schema_of(deliveries.topic),
        )
        self.thread = threading.Thread(target=self._guarded, daemon=True)

    def _guarded(self) -> None:
        try:
            self._work()
        except Exception as error:  # noqa: BLE001  (the test reports it)
            self._load.broken.append(f"{self._deliveries.label}: {error!r}")

    def _work(self) -> None:
        while not self._load.is_over.is_set():
            try:
                message = self._consumer.receive(RECEIVE_MS)
            except pulsar.Timeout:
                continue
            self._deliveries.received(self._number, *read(self._deliveries.topic, message))
            with suppress(pulsar.PulsarException):  # then the message comes again
                self._consumer.acknowledge(message)


class MixedLoad(CheckedLoad):
    """Clients of the official Python library. They start with the construction."""

    def __init__(self, urls: Sequence[str], topics: Sequence[LoadedTopic]) -> None:
        super().__init__(urls, topics)
        self.is_ending = threading.Event()
        self.is_over = threading.Event()
        self._clients = [new_client(several_urls(number, urls)) for number in range(len(urls))]
        self._consumers = [
            _Consumer(self, self._next_client(number), deliveries, consumer)
            for number, deliveries in enumerate(self.subscriptions.values())
            for consumer in range(len(deliveries.counts))
        ]
        self._publishers = [
            _Publisher(self, self._next_client(number), topic, kind)
            for topic in topics
            for number, kind in enumerate(topic.producers)
        ]
        for thread in [*(each.thread for each in self._consumers), *(each.thread for each in self._publishers)]:
            thread.start()

    def _next_client(self, number: int) -> pulsar.Client:
        return self._clients[number % len(self._clients)]

    def end_producers(self) -> None:
        self.is_ending.set()
        for publisher in self._publishers:
            publisher.thread.join(DEADLINE_S)
        late = [label for label, each in zip(self._receipts, self._publishers, strict=True) if each.thread.is_alive()]
        assert not late, f"producers did not get their receipts: {late}"

    def close_clients(self) -> None:
        self.is_ending.set()
        self.is_over.set()
        for consumer in self._consumers:
            consumer.thread.join(10)
        for client in self._clients:
            with suppress(pulsar.PulsarException):
                client.close()


def topics_of(namespace: str) -> Sequence[LoadedTopic]:
    """Return a topic with all types of producers and subscriptions, a partitioned one, and one with a schema."""
    prefix = f"persistent://{namespace}"
    return (
        LoadedTopic(f"{prefix}/plain", (SINGLE, BATCHED, KEYED), ("Exclusive", "Failover", "Shared", "Key_Shared")),
        LoadedTopic(f"{prefix}/parted", (KEYED,), ("Failover", "Shared", "Key_Shared"), partitions=PARTITIONS),
        LoadedTopic(f"{prefix}/typed", (BATCHED, KEYED), ("Exclusive", "Key_Shared"), has_schema=True),
    )


@contextmanager
def loaded(
    places: Sequence[Place],
    topics: Sequence[LoadedTopic],
    start: Callable[[Sequence[str], Sequence[LoadedTopic]], CheckedLoad] = MixedLoad,
) -> Iterator[CheckedLoad]:
    """Run clients of new topics for the block, then check that they have lost nothing."""
    for topic in topics:
        if topic.partitions:
            path = f"/admin/v2/{topic.name.replace('://', '/')}/partitions"
            assert places[0].call("PUT", path, topic.partitions) == (204, None)
    load = start([each.url for each in places], topics)
    try:
        load.advance()
        yield load
        print(f"{load.finish()} receipts")
    finally:
        load.stop()


def single_topics(topics: Sequence[LoadedTopic]) -> list[str]:
    """Return the names of all topics and partitions."""
    return [
        name
        for topic in topics
        for name in ([f"{topic.name}-partition-{each}" for each in range(topic.partitions)] or [topic.name])
    ]


def bundles_with_topics(place: Place, topics: Sequence[LoadedTopic]) -> list[str]:
    """Return the bundles of one namespace that contain these topics."""
    paths = [f"/lookup/v2/topic/{topic.replace('://', '/')}/bundle" for topic in single_topics(topics)]
    return sorted({place.get(path) for path in paths})


def replace(load: CheckedLoad, places: Sequence[Place], place: Place, kind: str, number: signal.Signals) -> None:
    """Stop one broker that owns topics, let the others serve them, and start the other kind at its address."""
    before = place.kind
    for bundle in bundles_with_topics(place, load.topics)[:2]:
        move(places, place, load.namespace, bundle, place)
    load.advance()
    place.stop(number)
    without_s = load.advance(1)
    require_leader(places)
    place.start(kind)
    until_all_know_all(places)
    require_leader(places)
    took_s = load.advance()
    end = f"{before} ends with {number.name}"
    print(f"{place.name}: {end}, all clients advance after {without_s:.1f} s; {kind} starts: {took_s:.1f} s")
