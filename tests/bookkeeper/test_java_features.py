"""Compacted views, deduplication and delayed delivery of topics that change between a Java broker and pybroker.

All features share the runs of the brokers, because a Java broker takes long to start. The first broker of each order is killed,
also during a compaction.
"""

from __future__ import annotations

import json
import signal
import time
import urllib.error
import urllib.request
from typing import Any, Protocol

import pulsar
import pytest
from tests.bookkeeper.conftest import connected
from tests.bookkeeper.test_java_brokers import QUIET_MS, TIMEOUT_MS, Brokers, brokers
from tests.support.bookkeeper_cluster import BookKeeperCluster

from pybroker.bookkeeper import BookKeeperOptions
from pybroker.bookkeeper.errors import NoSuchLedger
from pybroker.wire import pulsar_api_pb2 as pb

pytestmark = pytest.mark.long
__all__ = ["brokers"]
NAMESPACE = "public/features"
DEADLINE_S = 60.0
FAR_MS = 3_600_000
NEAR_MS = 3_000
TICK_MS = 1_000
"""delayedDeliveryTickTimeMillis. Both brokers may deliver a message this much before its delivery time, because
isDelayedDeliveryDeliverAtTimeStrict is false."""


class Rest:
    """The REST calls of the broker that runs."""

    def __init__(self, url: str) -> None:
        self._url = f"{url}/admin/v2"

    def call(self, method: str, path: str, body: object = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self._url}/{path}", data, headers, method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def compact(self, topic: str) -> None:
        self.call("PUT", f"persistent/{NAMESPACE}/{topic}/compaction")

    def wait_for_compaction(self, topic: str) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while (status := self.call("GET", f"persistent/{NAMESPACE}/{topic}/compaction"))["status"] != "SUCCESS":
            assert status["status"] == "RUNNING", status
            assert time.monotonic() < deadline, status
            time.sleep(0.1)

    def internal_stats(self, topic: str) -> Any:
        return self.call("GET", f"persistent/{NAMESPACE}/{topic}/internalStats")

    def stats(self, topic: str) -> Any:
        return self.call("GET", f"persistent/{NAMESPACE}/{topic}/stats")


class Scenario(Protocol):
    def turn(self, number: int, client: pulsar.Client, rest: Rest) -> None:
        """Use the feature at a broker, after the turns at other brokers."""

    def before_kill(self, client: pulsar.Client, rest: Rest) -> None:
        """Start work during which the broker is killed."""


class Compaction:
    """Keys in batches and in single messages, tombstones, and a view whose sources are trimmed."""

    def __init__(self, name: str) -> None:
        self.local_name = f"compacted-{name}"
        self.topic = f"persistent://{NAMESPACE}/{self.local_name}"
        self.expected: dict[str, str] = {}
        self.ids: dict[str, str] = {}
        self.ledgers: list[int] = []
        self.results: set[pulsar.Result] = set()

    def turn(self, number: int, client: pulsar.Client, rest: Rest) -> None:
        if number:
            self._require_view(client, "of the previous broker")
            shown = rest.internal_stats(self.local_name)["compactedLedger"]
            assert shown["ledgerId"] >= self.ledgers[-1], (
                "the view of the previous broker, or the one begun before its end"
            )
        else:  # Before the first compaction, only a subscription protects messages from trimming.
            client.subscribe(self.topic, "first", initial_position=pulsar.InitialPosition.Earliest).close()
        self._publish(client, f"{number}", 40)
        self._require_view(client, "and later messages")
        rest.compact(self.local_name)
        rest.wait_for_compaction(self.local_name)
        if not number:
            rest.call("DELETE", f"persistent/{NAMESPACE}/{self.local_name}/subscription/first")
        self._require_view(client, "of this broker")
        shown = rest.internal_stats(self.local_name)
        self.ledgers.append(shown["compactedLedger"]["ledgerId"])
        assert shown["cursors"]["__compaction"]["properties"] == {"CompactedTopicLedger": self.ledgers[-1]}

    def before_kill(self, client: pulsar.Client, rest: Rest) -> None:
        self._publish(client, "many", 2000)
        rest.compact(self.local_name)

    def _publish(self, client: pulsar.Client, turn: str, count: int) -> None:
        """Three updates of each key; each seventh key ends with a tombstone."""
        for is_batched in (True, False):
            producer = client.create_producer(
                self.topic,
                batching_enabled=is_batched,
                batching_max_messages=10,
                batching_max_publish_delay_ms=1000,
                block_if_queue_full=True,
            )
            keys = [f"{'b' if is_batched else 's'}{number}" for number in range(count if is_batched else count // 2)]
            for value in (f"{turn}-old", f"{turn}-new"):
                for key in keys:
                    self._send(producer, key, f"{key} {value}")
            for key in keys[::7]:
                self._send(producer, key, "")
            producer.flush()
            producer.close()
        assert self.results == {pulsar.Result.Ok}

    def _send(self, producer: pulsar.Producer, key: str, value: str) -> None:
        producer.send_async(value.encode(), lambda result, _: self.results.add(result), partition_key=key)
        if value:
            self.expected[key] = value
        else:
            self.expected.pop(key, None)

    def _require_view(self, client: pulsar.Client, which: str) -> None:
        """Read as a table does. Message ids of a key and value never change."""
        reader = client.create_reader(self.topic, pulsar.MessageId.earliest, is_read_compacted=True)
        seen: dict[str, str] = {}
        while reader.has_message_available():
            message = reader.read_next(TIMEOUT_MS)
            key, value = message.partition_key(), message.data().decode()
            if value:
                seen[key] = value
                assert self.ids.setdefault(f"{key} {value}", str(message.message_id())) == str(message.message_id())
            else:
                seen.pop(key, None)
        reader.close()
        assert seen == self.expected, f"the view {which}"

    async def require_only_last_ledger(self, cluster: BookKeeperCluster, last: int, writer: str) -> None:
        """`writer`: the kind of the broker that wrote the ledger `last`."""
        async with connected(cluster, BookKeeperOptions()) as client:
            for ledger_id in {*self.ledgers} - {last}:
                with pytest.raises(NoSuchLedger):
                    await client.ledger_metadata(ledger_id)
            custom = (await client.ledger_metadata(last)).custom
            assert custom["component"] == b"compacted-ledger"
            assert custom.keys() == {"application", "component", "pulsar/compactedTopic", "pulsar/compactedTo"}, writer
            assert custom["pulsar/compactedTopic"] == self.topic.encode()
            last_message = pb.MessageIdData.FromString(custom["pulsar/compactedTo"])
            expected = pb.MessageIdData(ledgerId=last_message.ledgerId, entryId=last_message.entryId, batch_size=0)
            assert last_message == expected, writer


class Deduplicated:
    """One producer that sends messages again at the next broker."""

    STEP = 35

    def __init__(self, name: str) -> None:
        self.local_name = f"deduplicated-{name}"
        self.topic = f"persistent://{NAMESPACE}/{self.local_name}"
        self.sent = 0

    def turn(self, number: int, client: pulsar.Client, rest: Rest) -> None:
        del number
        client.subscribe(self.topic, "all", initial_position=pulsar.InitialPosition.Earliest).close()
        producer = client.create_producer(self.topic, producer_name="p", batching_enabled=False)
        assert producer.last_sequence_id() == self.sent - 1
        for sequence_id in range(max(0, self.sent - 20), self.sent + self.STEP):
            producer.send(b"%d" % sequence_id, sequence_id=sequence_id)
        self.sent += self.STEP
        assert producer.last_sequence_id() == self.sent - 1
        producer.close()
        reader = client.create_reader(self.topic, pulsar.MessageId.earliest)
        seen = []
        while reader.has_message_available():
            seen.append(int(reader.read_next(TIMEOUT_MS).data()))
        reader.close()
        assert seen == list(range(self.sent))
        deadline = time.monotonic() + DEADLINE_S
        while "p" not in (shown := rest.internal_stats(self.local_name)["cursors"]["pulsar.dedup"]["properties"]):
            assert time.monotonic() < deadline, shown
            time.sleep(0.2)
        assert shown["p"] < self.sent

    def before_kill(self, client: pulsar.Client, rest: Rest) -> None:
        pass


class Delayed:
    """Messages that are due at the next broker, and messages that are not due for an hour."""

    COUNT = 5

    def __init__(self, name: str) -> None:
        self.local_name = f"delayed-{name}"
        self.topic = f"persistent://{NAMESPACE}/{self.local_name}"
        self.due: dict[str, int] = {}
        self.far = 0

    def turn(self, number: int, client: pulsar.Client, rest: Rest) -> None:
        consumer = client.subscribe(
            self.topic, "s", pulsar.ConsumerType.Shared, initial_position=pulsar.InitialPosition.Earliest
        )
        if number:
            self._receive(consumer)
        self._publish(client, f"{number}-here")
        self._receive(consumer)
        self._publish(client, f"{number}-next")
        deadline = time.monotonic() + DEADLINE_S
        while (delayed := rest.stats(self.local_name)["subscriptions"]["s"]["msgDelayed"]) < self.far:
            assert time.monotonic() < deadline, delayed
            time.sleep(0.2)
        consumer.close()

    def before_kill(self, client: pulsar.Client, rest: Rest) -> None:
        pass

    def _publish(self, client: pulsar.Client, name: str) -> None:
        producer = client.create_producer(self.topic, batching_enabled=False)
        now_ms = int(time.time() * 1000)
        for number in range(self.COUNT):
            producer.send(f"{name}-far-{number}".encode(), deliver_at=now_ms + FAR_MS)
            self.far += 1
            self.due[f"{name}-{number}"] = now_ms + NEAR_MS
            producer.send(f"{name}-{number}".encode(), deliver_at=now_ms + NEAR_MS)
        producer.close()

    def _receive(self, consumer: pulsar.Consumer) -> None:
        while self.due:
            message = consumer.receive(TIMEOUT_MS)
            name = message.data().decode()
            assert time.time() * 1000 >= self.due.pop(name) - TICK_MS, f"{name} was delivered too early"
            consumer.acknowledge(message)
        with pytest.raises(pulsar.Timeout):
            consumer.receive(QUIET_MS)


def make_namespace(rest: Rest) -> None:
    try:
        rest.call("PUT", f"namespaces/{NAMESPACE}", {})
    except urllib.error.HTTPError as error:
        if error.code != 409:  # another order has created it
            raise
    rest.call("POST", f"namespaces/{NAMESPACE}/deduplication", True)


@pytest.mark.parametrize(
    "order",
    [
        pytest.param(("own", "own"), id="own-own"),
        pytest.param(("java", "own", "java"), id="java-own-java", marks=pytest.mark.cluster),
        pytest.param(("own", "java", "own"), id="own-java-own", marks=pytest.mark.cluster),
    ],
)
async def test_features_continue_at_the_next_broker(
    brokers: Brokers, cluster: BookKeeperCluster, order: tuple[str, ...]
) -> None:
    name = "-".join(order)
    compaction = Compaction(name)
    scenarios: list[Scenario] = [compaction, Deduplicated(name), Delayed(name)]
    for number, kind in enumerate(order):
        ends_with = signal.SIGTERM if number else signal.SIGKILL
        with brokers.running(kind, ends_with=ends_with) as client:
            rest = Rest(brokers.java.http_url if kind == "java" else brokers.own.http_url)
            if not number:
                make_namespace(rest)
            for scenario in scenarios:
                scenario.turn(number, client, rest)
            if not number:
                for scenario in scenarios:
                    scenario.before_kill(client, rest)
    await compaction.require_only_last_ledger(cluster, compaction.ledgers[-1], order[-1])
