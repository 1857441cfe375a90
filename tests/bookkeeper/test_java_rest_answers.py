"""The REST answers about topics at pybroker and at a Java broker, on the same ZooKeeper and bookies.

Each broker prepares topics of all kinds. Their answers are compared when they are prepared, kind by kind, and when each broker
loads the topics that the other one has prepared.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from datetime import datetime
from fnmatch import fnmatchcase
from typing import NamedTuple

import pulsar
import pytest
from tests.bookkeeper.rest_answers import PartitionedAnswers, TopicAnswers, fetch
from tests.bookkeeper.test_java_brokers import TIMEOUT_MS, Brokers, subscribe, two_brokers
from tests.differential.normalise import Json
from tests.support.bookkeeper_cluster import BookKeeperCluster

pytestmark = [pytest.mark.long, pytest.mark.cluster]
NAMESPACE = "public/answers"
DEADLINE_S = 60.0
FOLLOWING_TIME_S = 1.5
"""Acknowledgements are without a receipt, and counters of stats follow."""
KINDS = (
    "plain",
    "batches",
    "chunks",
    "holes",
    "compaction",
    "schemas",
    "deduplication",
    "ledgers",
    "terminated",
    "acknowledged",
    "partitioned",
)
Answers = dict[str, dict[str, Json]]
"""By kind of topic, or partition; then by call and path."""


class Builder:
    """Prepares topics at a running broker."""

    def __init__(self, client: pulsar.Client, http_url: str, prefix: str) -> None:
        self._client = client
        self._admin = f"{http_url}/admin/v2"
        self._prefix = prefix

    def name(self, kind: str) -> str:
        return f"persistent://{NAMESPACE}/{self._prefix}-{kind}"

    def call(self, method: str, path: str, body: object = None) -> object:
        status, _, content = fetch(method, f"{self._admin}/{path}", body)
        assert status < 400, f"{method} {path}: {status} {content}"
        return content

    def path(self, kind: str) -> str:
        return f"persistent/{NAMESPACE}/{self._prefix}-{kind}"

    def all(self) -> None:
        for kind in KINDS:
            getattr(self, kind)(self.name(kind))
        time.sleep(FOLLOWING_TIME_S)

    def plain(self, topic: str) -> None:
        self.call("PUT", self.path("plain"), {"owner": "me", "empty": ""})
        subscribe(self._client, topic, "s").close()
        self._client.subscribe(topic, "with properties", properties={"a": "b"}).close()
        self._publish(topic, range(5))

    def batches(self, topic: str) -> None:
        """Batches of ten. Of some, a part of the messages is acknowledged."""
        consumer = subscribe(self._client, topic, "s")
        self._publish(topic, range(60), batched=True)
        self._acknowledge(
            consumer, 60, lambda number: number in range(3) or number in range(20, 30) or number % 10 == 7
        )

    def chunks(self, topic: str) -> None:
        consumer = subscribe(self._client, topic, "s")
        producer = self._client.create_producer(topic, producer_name="chunks", chunking_enabled=True)
        for _ in range(3):
            producer.send(bytes(6 << 20))
        producer.close()
        consumer.acknowledge(consumer.receive(TIMEOUT_MS))
        self._closed(consumer)

    def holes(self, topic: str) -> None:
        consumers = {name: subscribe(self._client, topic, name) for name in ("even", "thirds", "all but first", "none")}
        self._publish(topic, range(37))
        self._acknowledge(consumers["even"], 37, lambda number: number % 2 == 0)
        self._acknowledge(consumers["thirds"], 37, lambda number: number % 3 != 1)
        self._acknowledge(consumers["all but first"], 37, lambda number: number > 0)
        self._closed(consumers["none"])

    def compaction(self, topic: str) -> None:
        subscribe(self._client, topic, "s").close()
        producer = self._client.create_producer(topic, producer_name="keys", batching_enabled=False)
        for number in range(30):
            producer.send(b"%d" % number, partition_key=f"k{number % 7}")
        producer.close()
        self.call("PUT", f"{self.path('compaction')}/compaction")
        deadline = time.monotonic() + DEADLINE_S
        while self.call("GET", f"{self.path('compaction')}/compaction")["status"] != "SUCCESS":  # type: ignore[index]
            assert time.monotonic() < deadline
            time.sleep(0.1)

    def schemas(self, topic: str) -> None:
        fields = [{"name": "a", "type": "string"}]
        for _ in range(2):
            record = {"type": "record", "name": "R", "fields": list(fields)}
            body = {"type": "AVRO", "schema": json.dumps(record), "properties": {"p": "q"}}
            self.call("POST", f"schemas/{NAMESPACE}/{topic.rpartition('/')[2]}/schema", body)
            fields.append({"name": "b", "type": ["null", "int"], "default": None})  # type: ignore[dict-item]
        subscribe(self._client, topic, "s").close()
        producer = self._client.create_producer(
            topic, producer_name="p", schema=pulsar.schema.AvroSchema(None, schema_definition=record)
        )
        producer.send({"a": "one", "b": 1})
        producer.close()

    def deduplication(self, topic: str) -> None:
        self.call("PUT", self.path("deduplication"))
        subscribe(self._client, topic, "s").close()
        self.call("POST", f"namespaces/{NAMESPACE}/deduplication", True)
        deadline = time.monotonic() + DEADLINE_S
        while self.call("GET", f"{self.path('deduplication')}/stats")["deduplicationStatus"] != "Enabled":  # type: ignore[index]
            assert time.monotonic() < deadline
            time.sleep(0.1)
        self._publish(topic, range(20), name="p")
        self._publish(topic, range(3), name="q")
        self.call("POST", f"namespaces/{NAMESPACE}/deduplication", False)

    def ledgers(self, topic: str) -> None:
        consumer = subscribe(self._client, topic, "s")
        subscribe(self._client, topic, "first").close()
        self._publish(topic, range(505))
        self._acknowledge(consumer, 505, lambda number: number < 205 or number % 5 == 0)

    def terminated(self, topic: str) -> None:
        consumer = subscribe(self._client, topic, "s")
        self._publish(topic, range(15))
        self.call("POST", f"{self.path('terminated')}/terminate")
        self._acknowledge(consumer, 15, lambda number: number < 4)

    def acknowledged(self, topic: str) -> None:
        consumer = subscribe(self._client, topic, "s")
        self._publish(topic, range(25))
        self._acknowledge(consumer, 25, lambda _: True)

    def partitioned(self, topic: str) -> None:
        self.call("PUT", f"{self.path('partitioned')}/partitions", 2)
        subscribe(self._client, topic, "s").close()
        for index in range(2):
            self._publish(f"{topic}-partition-{index}", range(4 + index))

    def _publish(self, topic: str, numbers: range, *, batched: bool = False, name: str = "p") -> None:
        producer = self._client.create_producer(
            topic,
            producer_name=name,
            batching_enabled=batched,
            batching_max_messages=10,
            batching_max_publish_delay_ms=5000,
            block_if_queue_full=True,
        )
        for number in numbers:
            content = b"%03d" % number
            more = {"properties": {"number": f"{number}"}, "event_timestamp": 1000 + number, "partition_key": "k"}
            if batched:
                producer.send_async(content, lambda _result, _: None, **more)
            else:  # A broker appends messages that arrive together to one ledger.
                producer.send(content, **more)
        producer.flush()
        producer.close()

    def _acknowledge(self, consumer: pulsar.Consumer, count: int, takes: object) -> None:
        received = sorted((consumer.receive(TIMEOUT_MS) for _ in range(count)), key=lambda message: message.data())
        for message in received:
            if takes(int(message.data())):  # type: ignore[operator]
                consumer.acknowledge(message)
        self._closed(consumer)

    @staticmethod
    def _closed(consumer: pulsar.Consumer) -> None:
        time.sleep(0.3)  # The client sends acknowledgements in groups.
        consumer.close()


SUBSCRIPTIONS = {
    "plain": ["s", "with properties"],
    "holes": ["even", "thirds", "all but first", "none"],
    "ledgers": ["s", "first"],
    "compaction": ["s", "__compaction"],
}


class Shown:
    """The answers of one broker about the topics of one builder."""

    def __init__(self, http_url: str, prefix: str) -> None:
        self._http_url = http_url
        self._prefix = prefix

    def _topics(self) -> dict[str, TopicAnswers]:
        names = [kind for kind in KINDS if kind != "partitioned"] + [f"partitioned-partition-{n}" for n in range(2)]
        return {
            name: TopicAnswers(
                self._http_url, f"persistent://{NAMESPACE}/{self._prefix}-{name}", SUBSCRIPTIONS.get(name, ["s"])
            )
            for name in names
        }

    def ledger_ids(self) -> dict[str, list[int]]:
        return {kind: topic.ledger_ids() for kind, topic in self._topics().items()}

    def unload(self) -> None:
        for kind in (*KINDS[:-1], "partitioned-partition-0", "partitioned-partition-1"):
            url = f"{self._http_url}/admin/v2/persistent/{NAMESPACE}/{self._prefix}-{kind}/unload"
            assert fetch("PUT", url)[0] == 204

    def all(self, known: Mapping[str, list[int]]) -> Answers:
        """`known`: the ledgers of the owner before; the others are the present owner's."""
        found: Answers = {}
        names: dict[int, str] = {}
        for kind, topic in self._topics().items():
            topic.ledger_ids()  # loads the topic
            names |= {ledger_id: f"L{number}" for number, ledger_id in enumerate(known[kind])}
            found[kind] = self._named(topic.all(names))
        partitioned = PartitionedAnswers(self._http_url, f"persistent://{NAMESPACE}/{self._prefix}-partitioned")
        found["partitioned"] = self._named(partitioned.all(names))
        return found

    def _named(self, leaves: dict[str, Json]) -> dict[str, Json]:
        """The name of the builder is in the names of topics."""
        return {
            path.replace(f"/{self._prefix}-", "/x-"): leaf.replace(f"/{self._prefix}-", "/x-")
            if isinstance(leaf, str)
            else leaf
            for path, leaf in leaves.items()
        }


class Intended(NamedTuple):
    """Differences that are no defects. Patterns as in `fnmatch`; `[[]` stands for a bracket."""

    kind: str
    path: str
    reason: str


_OWN_TIMES = "The topics of the two brokers are prepared at different times."
_OWN_IDS = "Names of topics and ids of ledgers have different lengths."
_LAST_LEDGER = (
    "After it has loaded a terminated topic, a Java broker reads nothing from its last ledger for these calls, and counts none of"
    " its entries."
)
_MOVES_MARK = (
    "A Java broker moves a mark at the end of a ledger to the next ledger when it loads the topic, and stores it."
)
_READS_AS_CLIENT = "A Java broker compacts as a consumer of the subscription. pybroker reads the ledgers."
_IN_DOCUMENT = "pybroker keeps the state of this cursor in its document."
INTENDED = (
    Intended("*", "GET /examinemessage*=latest&*=[27]: status", "404, where Pulsar answers an internal error."),
    Intended("*", "*.oldestUnackedMessageAgeSeconds", "Only pybroker shows it."),
    Intended("*", "GET /*stats*erializedSize", "Java brokers count another format, and only after it was stored."),
    Intended("*", "GET /internalStats*.underReplicated", "pybroker does not ask the auditor of the bookies."),
    Intended(
        "*", "GET /internalStats*.active", "Whether a Java broker caches entries for the cursor depends on the time."
    ),
    Intended("*", "GET /internalStats*.numberOfEntriesSinceFirstNotAckedMessage", "It follows the read position."),
    Intended(
        "*",
        "GET /internalStats*.readPosition",
        "pybroker moves it back when the last consumer leaves.",
    ),
    Intended("compaction", "GET /messageid/0: body.*", "Pulsar begins at the compacted view."),
    Intended("compaction", "*.cursors.__compaction.*", _IN_DOCUMENT),
    Intended("compaction", "GET /stats*: body.*bytesOut*Counter", _READS_AS_CLIENT),
    Intended("compaction", "GET /stats*: body.*msgOutCounter", _READS_AS_CLIENT),
    Intended("compaction", "GET /stats*: body.subscriptions.__compaction.*", _READS_AS_CLIENT),
    Intended("acknowledged", "GET /internal*cursors.s.*", _MOVES_MARK),
    Intended(
        "acknowledged", "GET /stats*: body.subscriptions.s.*arliest*", "Nothing is unread: 0, and -1 at a Java broker."
    ),
    Intended("terminated", "GET /examinemessage*", _LAST_LEDGER),
    Intended("terminated", "GET /subscription/s/position/7: *", _LAST_LEDGER),
    Intended("terminated", "POST /subscription/s/analyzeBacklog: body.*", _LAST_LEDGER),
    Intended("terminated", "GET /internal-info: body.ledgers[[]1].*", _LAST_LEDGER),
    Intended("terminated", "GET /internalStats*: body.ledgers[[]1].*", _LAST_LEDGER),
    Intended("terminated", "GET /internalStats*: body.currentLedger*", _LAST_LEDGER),
    Intended(
        "terminated",
        "GET /internalStats*.waitingReadOp",
        "A consumer that leaves a Java broker may leave its read behind.",
    ),
    Intended("ledgers", "GET /stats*backlogSize", "Pulsar estimates it from the average size of an entry."),
    Intended("terminated", "GET /stats*backlogSize", "Pulsar estimates it from the average size of an entry."),
    Intended("partitioned", "GET /properties: body", "An empty map, where Pulsar answers null."),
    Intended("chunks", "GET /stats*.msgChunkPublished", "Whether a Java broker shows it depends on the time."),
    Intended("*", "GET /stats*.oldestBacklogMessage*", "Checked from time to time."),
)
"""For topics that are loaded after the other broker."""
WHEN_PREPARED = (
    *INTENDED,
    Intended("*", "GET /internalStats*: body.compactedLedger.size", _OWN_IDS),
    Intended("*", "GET /internalStats*: body.schemaLedgers*.size", _OWN_IDS),
    Intended("*", "GET /internalStats*.metadata", "Each topic has its own ledgers, on bookies of its own."),
    Intended("ledgers", "*", "pybroker writes into the current ledger until the next one is created."),
    Intended("*", "*ublish-time", _OWN_TIMES),
    Intended("*", "*creationDate", _OWN_TIMES),
    Intended("*", "*imestamp", _OWN_TIMES),
    Intended("*", "*TimeStamp", _OWN_TIMES),
    Intended("*", "*PublishTimeInBacklog*", _OWN_TIMES),
    Intended(
        "*", "GET /internalStats*.cursorLedgerLastEntry", "Java brokers store the state before the first change too."
    ),
    Intended(
        "*",
        "GET /internal-info: body.cursors.*.markDelete.*",
        "Stored with the cursor ledger, before or after the change.",
    ),
)
"""For topics of each broker that are not loaded again. The time since the last consumer has left differs."""
NEARLY_EQUAL_MS = 1000
"""Java brokers show when the node was created, pybroker when it began to."""


def differences(own: Answers, java: Answers, intended: tuple[Intended, ...]) -> list[str]:
    found = []
    for kind in own:
        for path in sorted({*own[kind], *java[kind]}):
            ours, theirs = own[kind].get(path, "<absent>"), java[kind].get(path, "<absent>")
            if (type(ours), ours) == (type(theirs), theirs) or _are_nearly_equal(path, ours, theirs):
                continue
            if any(fnmatchcase(kind, each.kind) and fnmatchcase(path, each.path) for each in intended):
                continue
            found.append(f"{kind} {path}: {ours!r} at pybroker, {theirs!r} at the Java broker")
    return found


def _are_nearly_equal(path: str, ours: Json, theirs: Json) -> bool:
    """Return whether two times of creation, as numbers or texts, are of the same creation."""
    if not path.endswith(("topicCreationTimeStamp", "creationDate", ".timestamp")):
        return False
    if isinstance(ours, str) and isinstance(theirs, str) and "<absent>" not in (ours, theirs):
        times = [datetime.fromisoformat(each).timestamp() * 1000 for each in (ours, theirs)]
    elif isinstance(ours, int) and isinstance(theirs, int):
        times = [float(ours), float(theirs)]
    else:
        return False
    return abs(times[0] - times[1]) < NEARLY_EQUAL_MS


@pytest.fixture(scope="module")
def brokers(cluster: BookKeeperCluster, tmp_path_factory: pytest.TempPathFactory) -> Brokers:
    return two_brokers(cluster, tmp_path_factory.mktemp("brokers"))


def test_answers_are_equal(brokers: Brokers) -> None:
    shown: dict[str, Answers] = {}
    known: dict[str, dict[str, list[int]]] = {}
    for turn, kind in enumerate(("java", "own", "java")):
        with brokers.running(kind) as client:
            http_url = brokers.java.http_url if kind == "java" else brokers.own.http_url
            if turn:
                before = "own" if kind == "java" else "java"
                shown[f"{before} loaded by {kind}"] = Shown(http_url, before).all(known[before])
            if turn < 2:
                builder = Builder(client, http_url, kind)
                if not turn:
                    builder.call("PUT", f"namespaces/{NAMESPACE}", {})
                    builder.call(
                        "POST",
                        f"namespaces/{NAMESPACE}/retention",
                        {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1},
                    )
                builder.all()
                topics = Shown(http_url, kind)
                known[kind] = topics.ledger_ids()
                shown[f"{kind} prepared"] = topics.all(known[kind])
                topics.unload()
                shown[f"{kind} loaded by {kind}"] = topics.all(known[kind])
    found = {
        "prepared": differences(shown["own prepared"], shown["java prepared"], WHEN_PREPARED),
        "of the Java broker": differences(shown["java loaded by own"], shown["java loaded by java"], INTENDED),
        "of pybroker": differences(shown["own loaded by own"], shown["own loaded by java"], INTENDED),
    }
    lines = [f"{title}: {line}" for title, each in found.items() for line in each]
    assert not lines, "\n".join(lines)
