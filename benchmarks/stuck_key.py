"""Latency of all other keys while a consumer is stuck at one of 100,000 keys of a Key_Shared subscription.

The first consumer receives a message of the key and does not acknowledge it. Then other consumers join, and one of them
owns the key's hash. The key is hot, so parked messages accumulate. At a fixed rate, every message of the other keys
must arrive about as fast as in the same run with the message acknowledged.
"""

import random
import select
import statistics
import struct
import time
from collections import Counter

from benchmarks import frames, load
from benchmarks.brokers import Broker
from pybroker.dispatch.consumer_state import ConsumerState
from pybroker.dispatch.selectors.consistent_hash import ConsistentHashSelector
from pybroker.model.hashing import key_hash
from pybroker.wire import pulsar_api_pb2 as pb

KEYS = 100_000
MESSAGES_PER_S = 2000
STUCK_SHARE = 0.01
SUBSCRIPTION = "load"
STUCK_NAME, JOINING_NAMES = "first", ("second", "third", "fourth", "fifth")
RING_POINTS = 100  # per consumer: the default of both brokers
PRODUCER_ID = 1
DRAIN_TIMEOUT_S = 30.0
LEAD_IN_S = 2.0

# End of a payload: the key's number, and the message's due time.
_TAIL = struct.Struct(">Id")
_PAYLOAD = bytes(240)


class KeyedPublisher(load.Driver):
    """Sends each message of a key when it is due."""

    def __init__(self, link: load.Link, topic: str, padding: bytes = _PAYLOAD) -> None:
        """`padding`: the content of each message before the tail."""
        self._producer_name = link.open_producer(topic, PRODUCER_ID)
        self._padding = padding
        super().__init__(link)
        self._sequence_id = 0
        self.receipted = 0

    def send(self, key: int, due_s: float) -> None:
        metadata = pb.MessageMetadata(
            producer_name=self._producer_name,
            sequence_id=self._sequence_id,
            publish_time=int(time.time() * 1000),
            partition_key=key_name(key),
        )
        tail = frames.encode_tail(metadata, self._padding + _TAIL.pack(key, due_s))
        send = pb.CommandSend(producer_id=PRODUCER_ID, sequence_id=self._sequence_id)
        command = pb.BaseCommand(type=pb.BaseCommand.SEND, send=send).SerializeToString()
        self._out += struct.pack(">II", 4 + len(command) + len(tail), len(command)) + command + tail
        self._sequence_id += 1

    def take(self, found: list[tuple[int, int, int]]) -> None:
        for command_type, start, _ in found:
            if command_type == frames.SEND_RECEIPT:
                self.receipted += 1
            else:
                self.take_other(command_type, start)

    def write(self) -> bool:
        return self._flush()


class KeyWatcher(load.Driver):
    """All consumers on one connection. Acknowledges immediately, except the first message of the stuck key."""

    def __init__(self, link: load.Link, topic: str, stuck_key: int) -> None:
        self._topic = topic
        self._stuck_key = stuck_key
        self._used_permits: dict[int, int] = {}
        self.arrived: dict[int, int] = {}  # messages by key
        self.latencies_ms: list[float] = []
        self.held: tuple[int, bytes] | None = None
        super().__init__(link)
        self.join(STUCK_NAME)

    def join(self, name: str) -> None:
        consumer_id = len(self._used_permits) + 1
        self.link.socket.setblocking(True)
        self.link.subscribe(self._topic, SUBSCRIPTION, pb.CommandSubscribe.Key_Shared, consumer_id, name)
        self.link.socket.setblocking(False)
        self._used_permits[consumer_id] = 0
        self._out += frames.encode_flow(consumer_id, load.CONSUMER_QUEUE_MESSAGES)

    def take(self, found: list[tuple[int, int, int]]) -> None:
        now_s = time.perf_counter()
        buffer = self.link.walker.buffer
        acks: dict[int, list[bytes]] = {}
        for command_type, start, end in found:
            if command_type != frames.MESSAGE:
                self.take_other(command_type, start)
                continue
            consumer_id, field = frames.message_id_field(buffer, start)
            key, due_s = _TAIL.unpack_from(buffer, end - _TAIL.size)
            self.arrived[key] = self.arrived.get(key, 0) + 1
            self._used_permits[consumer_id] += 1
            if key != self._stuck_key:
                self.latencies_ms.append((now_s - due_s) * 1000)
            elif self.held is None:
                self.held = consumer_id, field
                continue
            acks.setdefault(consumer_id, []).append(field)
        for consumer_id, fields in acks.items():
            self._out += frames.encode_ack(consumer_id, fields)
            if self._used_permits[consumer_id] >= load.CONSUMER_QUEUE_MESSAGES // 2:
                self._out += frames.encode_flow(consumer_id, self._used_permits[consumer_id])
                self._used_permits[consumer_id] = 0

    def acknowledge_held(self) -> None:
        assert self.held is not None
        consumer_id, field = self.held
        self._out += frames.encode_ack(consumer_id, [field])

    def write(self) -> bool:
        return self._flush()


def key_name(key: int) -> str:
    return f"key-{key}"


def moving_key() -> int:
    """Return a key whose hash moves from the first consumer to another when the others join, and which no other key
    has.
    """
    ring = ConsistentHashSelector(RING_POINTS)
    consumers = [ConsumerState(name, 0, 0, None) for name in (STUCK_NAME, *JOINING_NAMES)]
    for consumer in consumers:
        ring.add(consumer)
    sticky_hashes = ring.sticky_hashes(key_hash(key_name(key).encode()) for key in range(KEYS))
    counts = Counter(sticky_hashes)
    return next(
        key
        for key, sticky_hash in enumerate(sticky_hashes)
        if counts[sticky_hash] == 1 and ring.owner(sticky_hash) is not consumers[0]
    )


def run(broker: Broker, topic: str, measure_s: float, is_stuck: bool) -> KeyWatcher:
    """Run once. Return the watcher with the latencies of all other keys' messages. Raises LoadError."""
    stuck_key = moving_key()
    link, publishing = load.Link(broker.service_url), load.Link(broker.service_url)
    watcher = KeyWatcher(link, topic, stuck_key)
    publisher = KeyedPublisher(publishing, topic)
    drivers: list[load.Driver] = [publisher, watcher]
    publisher.send(stuck_key, time.perf_counter())
    load.run(drivers, lambda: watcher.held is not None, DRAIN_TIMEOUT_S)
    for name in JOINING_NAMES:
        watcher.join(name)
    if not is_stuck:
        watcher.acknowledge_held()
    chances = random.Random(1)
    keys = [
        stuck_key if chances.random() < STUCK_SHARE else (stuck_key + chances.randrange(1, KEYS)) % KEYS
        for _ in range(int((LEAD_IN_S + measure_s) * MESSAGES_PER_S))
    ]
    stuck = keys.count(stuck_key)
    paced(publisher, watcher, keys)
    load.run(drivers, lambda: len(watcher.latencies_ms) == len(keys) - stuck, DRAIN_TIMEOUT_S)
    if is_stuck:
        if watcher.arrived[stuck_key] != 1:
            raise load.LoadError("messages of the stuck key were sent while one of them was unacknowledged")
        watcher.acknowledge_held()
    load.run(drivers, lambda: watcher.arrived[stuck_key] == 1 + stuck, DRAIN_TIMEOUT_S)
    watcher.write()
    link.close()
    publishing.close()
    del watcher.latencies_ms[: int(LEAD_IN_S * MESSAGES_PER_S * (1 - STUCK_SHARE))]
    return watcher


def paced(publisher: KeyedPublisher, watcher: KeyWatcher, keys: list[int]) -> None:
    sockets = {publisher.link.socket: publisher, watcher.link.socket: watcher}
    interval_s = 1 / MESSAGES_PER_S
    started_s = time.perf_counter()
    sent = 0
    while sent < len(keys):
        due = min(int((time.perf_counter() - started_s) / interval_s) + 1, len(keys))
        for index in range(sent, due):
            publisher.send(keys[index], started_s + index * interval_s)
        sent = due
        publisher.write()
        watcher.write()
        for ready in select.select(list(sockets), [], [], interval_s)[0]:
            sockets[ready].read()


def figures(undisturbed: list[float], disturbed: list[float]) -> dict[str, float | None]:
    shown: dict[str, float | None] = {"msg_s": MESSAGES_PER_S}
    for name, latencies_ms in (("undisturbed_", undisturbed), ("", disturbed)):
        ordered = sorted(latencies_ms)
        shown[f"{name}p50_ms"] = statistics.median(ordered)
        shown[f"{name}p99_ms"] = percentile(ordered, 99)
        shown[f"{name}max_ms"] = ordered[-1]
    shown["p99_ratio"] = percentile(sorted(disturbed), 99) / percentile(sorted(undisturbed), 99)
    return shown


def percentile(ordered: list[float], percent: int) -> float:
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]
