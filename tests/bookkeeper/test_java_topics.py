"""Topics of every kind, exchanged with a real Java broker on the same ZooKeeper and bookies, in both directions.

One broker prepares all topics, the other one serves and changes them, and the first one serves them again. So each broker
reads what the other has written, and what the other has changed in its own documents.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from typing import Any
from urllib.parse import quote

import pulsar
import pytest
from tests.bookkeeper.test_java_brokers import (
    CLUSTER,
    TIMEOUT_MS,
    Brokers,
    require_silence,
    subscribe,
    take,
)
from tests.support.bookkeeper_cluster import BookKeeperCluster
from tests.support.rest import Answer, call

from pybroker.bookkeeper.ledger_metadata import decode_metadata
from pybroker.bookkeeper.ledger_paths import ledger_path
from pybroker.bookkeeper_store.documents.cursor_documents import decode_cursor_info
from pybroker.bookkeeper_store.documents.document_compression import plain
from pybroker.metadata.metadata_paths import java_encoded
from pybroker.zookeeper import ClientOptions, ServerAddresses, ZooKeeperClient

pytestmark = [pytest.mark.long, pytest.mark.cluster]
NAMESPACE = "public/default"
COMPRESSED = {
    "managedLedgerInfoCompressionType": "LZ4",
    "managedLedgerInfoCompressionThresholdInBytes": "0",
    "managedCursorInfoCompressionType": "ZSTD",
    "managedCursorInfoCompressionThresholdInBytes": "0",
    "managedLedgerDefaultMarkDeleteRateLimit": "0",
}
"""A Java broker with these settings compresses the documents; pybroker writes plain ones. Without the limit of its writes of
cursors, it trims all acknowledged ledgers at once."""
UNUSUAL = ["a b", "50%", "a%2Fb", "a+b", "~x*", "ü–日本", "it's(1)!", "q?#&=;"]
LEDGERS = 50
ENTRIES_PER_LEDGER = 10


class Served:
    """A running broker with one client."""

    def __init__(self, brokers: Brokers, kind: str, client: pulsar.Client) -> None:
        self.kind = kind
        self.client = client
        self._zookeeper = brokers.zookeeper
        self.url = brokers.java.http_url if kind == "java" else brokers.own.http_url

    def call(self, method: str, path: str, body: object = None) -> Answer:
        """`path` follows the namespace in the paths of topics."""
        return call(f"{self.url}/admin/v2/persistent/{NAMESPACE}{path}", method, body=body)

    def get(self, topic: str, path: str) -> Any:
        answer = self.call("GET", f"/{quote(topic, safe='')}{path}")
        assert answer.status == 200, f"{self.kind} {topic} {path}: {answer}"
        return answer.json

    def change(self, method: str, topic: str, path: str, body: object = None) -> Answer:
        answer = self.call(method, f"/{quote(topic, safe='')}{path}", body)
        assert answer.status in {200, 204}, f"{self.kind} {method} {topic} {path}: {answer}"
        return answer

    def state(self, topic: str) -> dict[str, Any]:
        """Return the part of `internalStats` that does not depend on the owner: the next owner begins with another ledger, and may
        delete the last one of the owner before, if it is acknowledged."""
        found = self.get(topic, "/internalStats")
        rows = {row["ledgerId"]: (row["entries"], row["size"]) for row in found["ledgers"]}
        if found["currentLedgerEntries"]:
            rows[max(rows)] = (found["currentLedgerEntries"], found["currentLedgerSize"])
        cursors = found["cursors"]
        marks = {name: _position_in(cursor["markDeletePosition"]) for name, cursor in cursors.items()}
        last = max(((each, entries - 1) for each, (entries, _) in rows.items() if entries > 0), default=(-1, -1))
        first = min(marks.values(), default=(-1, -1))
        return {
            "last": last if any(mark < last for mark in marks.values()) else "acknowledged",
            "ledgers": [
                (each, *counts)
                for each, counts in sorted(rows.items())
                if counts[0] > 0 and (each, counts[0] - 1) > first
            ],
            "cursors": {
                name: (_in_following_ledger(marks[name], rows), cursor["individuallyDeletedMessages"].replace(" ", ""))
                if marks[name] < last
                else "acknowledged"
                for name, cursor in cursors.items()
            },
            "subscriptions": sorted(self.get(topic, "/subscriptions")),
        }

    def custom_of_ledger(self, ledger_id: int) -> dict[str, bytes]:
        """Return the custom metadata of a ledger, without the marks that only pybroker adds."""
        custom = decode_metadata(asyncio.run(self._node(f"/ledgers/{ledger_path(ledger_id)}"))).custom
        return {name: value for name, value in custom.items() if not name.startswith("pybroker/")}

    def document(self, topic: str) -> bytes:
        """Return the document of the managed ledger."""
        return asyncio.run(self._node(f"/managed-ledgers/{NAMESPACE}/persistent/{java_encoded(topic)}"))

    def cursor_ledger(self, topic: str, subscription: str) -> int:
        """Return the ledger that the document of the cursor names, as soon as it names one."""
        path = f"/managed-ledgers/{NAMESPACE}/persistent/{java_encoded(topic)}/{java_encoded(subscription)}"
        deadline = time.monotonic() + 20
        while (ledger_id := decode_cursor_info(path, asyncio.run(self._node(path))).cursors_ledger_id) < 0:
            assert time.monotonic() < deadline, f"{self.kind} has not stored the cursor {path}"
            time.sleep(0.2)
        return ledger_id

    async def _node(self, path: str) -> bytes:
        client = ZooKeeperClient(ServerAddresses.parse(self._zookeeper), ClientOptions(session_timeout_ms=10_000))
        await client.start(30)
        try:
            return (await client.get(path))[0]
        finally:
            await client.close()

    def send(self, topic: str, *names: str) -> None:
        producer = self.client.create_producer(full(topic), batching_enabled=False)
        for name in names:
            producer.send(name.encode())
        producer.close()


def _in_following_ledger(mark: tuple[int, int], rows: dict[int, tuple[int, int]]) -> tuple[int, int]:
    """Return an equal position: a Java broker moves a mark from the end of a ledger to entry -1 of the next one."""
    following = [each for each, (entries, _) in rows.items() if each > mark[0] and entries > 0]
    is_at_end = mark[0] not in rows or mark[1] >= rows[mark[0]][0] - 1
    return (min(following), -1) if is_at_end and following else mark


def _position_in(text: str) -> tuple[int, int]:
    ledger_id, entry_id = text.split(":")
    return int(ledger_id), int(entry_id)


def full(topic: str) -> str:
    return f"persistent://{NAMESPACE}/{topic}"


# --- kinds of topics -----------------------------------------------------------------------------------------------------


class Kind:
    """One kind of topic: prepared once, then checked and changed by each broker that follows."""

    name = ""

    def __init__(self, prefix: str) -> None:
        self.topic = f"{prefix}-{self.name}"
        self.states: dict[str, dict[str, Any]] = {}

    def topics(self) -> list[str]:
        return [self.topic]

    def prepare(self, broker: Served) -> None:
        raise NotImplementedError

    def go_on(self, broker: Served) -> None:
        raise NotImplementedError

    def remember(self, broker: Served) -> None:
        self.states = {topic: broker.state(topic) for topic in self.topics()}

    def require_equal_state(self, broker: Served) -> None:
        assert {topic: broker.state(topic) for topic in self.topics()} == self.states, f"{broker.kind} {self.topic}"


class Chunked(Kind):
    """A message of three chunks is acknowledged at each step, and one stays."""

    name = "chunked"

    def prepare(self, broker: Served) -> None:
        subscribe(broker.client, full(self.topic), "s").close()
        self.large = os.urandom(11 << 20)
        producer = broker.client.create_producer(full(self.topic), chunking_enabled=True)
        for number in range(4):
            producer.send(b"%d" % number + self.large)
        producer.close()
        self.next = 0
        self._take(broker)

    def go_on(self, broker: Served) -> None:
        self._take(broker)

    def _take(self, broker: Served) -> None:
        consumer = broker.client.subscribe(full(self.topic), "s", consumer_type=pulsar.ConsumerType.Shared)
        message = consumer.receive(TIMEOUT_MS)
        assert message.data() == b"%d" % self.next + self.large, f"message {self.next}"
        consumer.acknowledge(message)
        self.next += 1
        consumer.close()


class Partitioned(Kind):
    """Three partitions, then four."""

    name = "partitioned"

    def prepare(self, broker: Served) -> None:
        self.partitions = 3
        broker.change("PUT", self.topic, "/partitions", 3)
        self.sent: set[str] = set()
        self._exchange(broker, "first")

    def topics(self) -> list[str]:
        return [f"{self.topic}-partition-{index}" for index in range(self.partitions)]

    def go_on(self, broker: Served) -> None:
        assert broker.get(self.topic, "/partitions")["partitions"] == self.partitions
        listed = broker.call("GET", "/partitioned").json
        assert full(self.topic) in listed
        self._exchange(broker, f"next-{self.partitions}")
        self.partitions += 1
        broker.change("POST", self.topic, "/partitions", self.partitions)
        self._exchange(broker, f"more-{self.partitions}")

    def _exchange(self, broker: Served, turn: str) -> None:
        consumer = broker.client.subscribe(
            full(self.topic),
            "s",
            consumer_type=pulsar.ConsumerType.Shared,
            initial_position=pulsar.InitialPosition.Earliest,
        )
        names = {f"{turn}-{number}" for number in range(24)}
        broker.send(self.topic, *sorted(names))
        expected = self.sent | names
        received: set[str] = set()
        left: set[str] = set()
        while received < expected:
            message = consumer.receive(TIMEOUT_MS)
            name = message.data().decode()
            received.add(name)
            if name.endswith("7"):
                left.add(name)
            else:
                consumer.acknowledge(message)
        assert received == expected
        require_silence(consumer)
        consumer.close()
        self.sent = left


class ManyLedgers(Kind):
    """50 ledgers, of which half are trimmed when the other broker takes over."""

    name = "ledgers"

    def prepare(self, broker: Served) -> None:
        subscribe(broker.client, full(self.topic), "s").close()
        self.names = [str(number) for number in range((LEDGERS + 5) * ENTRIES_PER_LEDGER)]
        producer = broker.client.create_producer(full(self.topic), batching_enabled=False)
        for name in self.names:
            producer.send(name.encode())
        producer.close()
        count = len([row for row in broker.get(self.topic, "/internalStats")["ledgers"] if row["entries"] >= 0])
        assert count >= LEDGERS
        self._take(broker, len(self.names) // 2)

    def go_on(self, broker: Served) -> None:
        self._take(broker, len(self.names) // 3)

    def _take(self, broker: Served, count: int) -> None:
        consumer = subscribe(broker.client, full(self.topic), "s")
        received, _ = take(consumer, count)
        assert received == self.names[:count]
        del self.names[:count]
        time.sleep(0.5)  # The client sends acknowledgements in groups.
        consumer.close()
        broker.change("POST", self.topic, "/trim")
        wanted = len(self.names) // ENTRIES_PER_LEDGER + 4
        deadline = time.monotonic() + 20
        while (left := len(broker.get(self.topic, "/internalStats")["ledgers"])) > wanted:
            assert time.monotonic() < deadline, f"{broker.kind}: {left} ledgers, expected {wanted}"
            time.sleep(0.2)


class Terminated(Kind):
    """Terminated topics give the same answer for ever, and their messages stay."""

    name = "terminated"

    def prepare(self, broker: Served) -> None:
        subscribe(broker.client, full(self.topic), "s").close()
        self.names = [str(number) for number in range(25)]
        broker.send(self.topic, *self.names)
        self.answer = _position(broker.change("POST", self.topic, "/terminate").json)
        self._check(broker)

    def go_on(self, broker: Served) -> None:
        assert _position(broker.change("POST", self.topic, "/terminate").json) == self.answer
        self._check(broker)

    def _check(self, broker: Served) -> None:
        with pytest.raises(pulsar.TopicTerminated):
            broker.client.create_producer(full(self.topic))
        consumer = subscribe(broker.client, full(self.topic), "s")
        received, _ = take(consumer, 5)
        assert received == self.names[:5]
        del self.names[:5]
        consumer.close()


def _position(message_id: dict[str, Any]) -> tuple[int, int]:
    return message_id["ledgerId"], message_id["entryId"]


class UnusualNames(Kind):
    """Topics and subscriptions whose names have characters with a meaning in paths and URLs, and properties of them."""

    name = "names"

    def __init__(self, prefix: str) -> None:
        super().__init__(prefix)
        self.customs: dict[str, dict[str, bytes]] = {}

    def topics(self) -> list[str]:
        return [f"{self.topic} {name}" for name in UNUSUAL]

    def subscriptions(self, topic: str) -> list[str]:
        """Return all names for the first topic, and one for each other one."""
        return UNUSUAL if topic == self.topics()[0] else UNUSUAL[:1]

    def prepare(self, broker: Served) -> None:
        for topic in self.topics():
            for subscription in self.subscriptions(topic):
                subscribe(broker.client, full(topic), subscription).close()
            broker.send(topic, "one", "two", "three")
            path = f"/subscription/{quote(UNUSUAL[0], safe='')}/properties"
            broker.change("PUT", topic, path, {"key ü": "value %2F", "k": ""})
        self._check(broker, "one")

    def go_on(self, broker: Served) -> None:
        self._check(broker, {"one": "two", "two": "three"}[self.first])

    def _check(self, broker: Served, first: str) -> None:
        self.first = first
        for topic in self.topics():
            document = broker.document(topic)
            assert (plain(topic, document) != document) == (broker.kind == "java"), "a Java broker compresses documents"
            found = broker.get(topic, "/internalStats")
            custom = broker.custom_of_ledger(found["ledgers"][-1]["ledgerId"])
            assert custom == self.customs.setdefault(topic, custom), f"{broker.kind} {topic}"
        listed = broker.call("GET", "").json
        assert {full(topic) for topic in self.topics()} <= set(listed), f"{broker.kind}: {listed}"
        for topic in self.topics():
            assert sorted(broker.get(topic, "/subscriptions")) == sorted(self.subscriptions(topic)), (
                f"{broker.kind} {topic}"
            )
            stats = broker.get(topic, "/stats")["subscriptions"]
            assert sorted(stats) == sorted(self.subscriptions(topic))
            assert stats[UNUSUAL[0]]["subscriptionProperties"] == {"key ü": "value %2F", "k": ""}
            for subscription in self.subscriptions(topic):
                consumer = subscribe(broker.client, full(topic), subscription)
                assert take(consumer, 1)[0] == [first], f"{broker.kind} {topic} {subscription}"
                time.sleep(0.15)  # The client sends acknowledgements in groups.
                consumer.close()
            ledger_id = broker.cursor_ledger(topic, UNUSUAL[0])
            custom = broker.custom_of_ledger(ledger_id)
            assert custom == self.customs.setdefault(f"cursor of {topic}", custom), f"{broker.kind} {topic}"


KINDS: tuple[type[Kind], ...] = (Chunked, Partitioned, ManyLedgers, Terminated, UnusualNames)


@pytest.fixture(scope="module")
def compressing(cluster: BookKeeperCluster, tmp_path_factory: pytest.TempPathFactory) -> Brokers:
    zookeeper = cluster.zookeeper.address
    url = f"metadataStoreUrl=zk:{zookeeper}"
    command = [sys.executable, "-m", "pybroker", "metadata", "init", "--cluster", CLUSTER, "--set", url]
    subprocess.run(command, check=True, capture_output=True)
    return Brokers(tmp_path_factory.mktemp("compressing"), zookeeper, only_java=COMPRESSED)


@pytest.mark.parametrize("order", [("java", "own", "java"), ("own", "java", "own")], ids="-".join)
def test_topics_of_every_kind_are_served_and_changed_by_each_broker(
    compressing: Brokers, order: tuple[str, str, str]
) -> None:
    kinds = [kind("-".join(order)) for kind in KINDS]
    for turn, broker_kind in enumerate(order):
        with compressing.running(broker_kind) as client:
            broker = Served(compressing, broker_kind, client)
            for kind in kinds:
                if turn:
                    kind.require_equal_state(broker)
                    kind.go_on(broker)
                else:
                    kind.prepare(broker)
            time.sleep(1.5)  # acknowledgements without a receipt
            for kind in kinds:
                kind.remember(broker)
    with compressing.running(order[1]) as client:
        for kind in kinds:
            kind.require_equal_state(Served(compressing, order[1], client))
