"""Several brokers share topics on a real ZooKeeper and bookies: official clients reach the owner through any broker."""

from __future__ import annotations

import json
import os
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from typing import Any

import pulsar
import pytest
from tests.bookkeeper.conftest import init_metadata
from tests.support.bookkeeper_cluster import BookKeeperCluster
from tests.support.broker_process import BrokerProcess
from tests.support.raw_client import RawClient

from pybroker.wire import pulsar_api_pb2 as pb

pytestmark = pytest.mark.long
BROKERS = 3
PARTITIONS = 6
SESSION_MS = 3_000
ROUNDS = int(os.environ.get("CLUSTER_KILLS", "1"))
"""Kills of an owner under load; each is followed by a restart."""
TOPIC = "persistent://public/default/shared-orders"
ADMIN = "/admin/v2/persistent/public/default"
NAMESPACE = "/admin/v2/namespaces/public/default"
SETTINGS = {
    "clusterName": "c1",
    "advertisedAddress": "127.0.0.1",
    "ledgerStore": "bookkeeper",
    "managedLedgerDefaultEnsembleSize": "2",
    "managedLedgerDefaultWriteQuorum": "2",
    "managedLedgerDefaultAckQuorum": "2",
    "metadataStoreSessionTimeoutMillis": str(SESSION_MS),
    "transactionCoordinatorEnabled": "false",
}
TIMEOUT_MS = 30_000


@contextmanager
def running_brokers(
    cluster: BookKeeperCluster, tmp_path_factory: pytest.TempPathFactory, **more: str
) -> Iterator[list[BrokerProcess]]:
    """Run brokers of one cluster for the block. `more`: settings of all of them."""
    init_metadata("c1", cluster.zookeeper.address)
    started: list[BrokerProcess] = []
    with ExitStack() as stack:
        for number in range(BROKERS):
            directory = tmp_path_factory.mktemp(f"broker{number}")
            values = {**SETTINGS, **more, "metadataStoreUrl": f"zk:{cluster.zookeeper.address}"}
            broker = BrokerProcess(directory, values)
            broker.start()
            stack.callback(broker.stop)
            started.append(broker)
        yield started


@pytest.fixture(scope="module")
def brokers(cluster: BookKeeperCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[BrokerProcess]]:
    with running_brokers(cluster, tmp_path_factory) as started:
        yield started


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


def call(
    broker: BrokerProcess, method: str, path: str, body: object = None, *, follows: bool = True
) -> tuple[int, Any]:
    """Return status and JSON, or for a redirect that is not followed its location."""
    data = None if body is None else json.dumps(body).encode()
    url = f"{broker.http_url}{path}"
    for _ in range(5):
        request = urllib.request.Request(url, data, method=method)
        request.add_header("Content-Type", "application/json")
        try:
            with urllib.request.build_opener(_NoRedirect).open(request, timeout=30) as answer:
                text = answer.read().decode()
                is_json = text.startswith(("{", "[", '"'))
                return answer.status, json.loads(text) if is_json else text or None
        except urllib.error.HTTPError as error:
            if error.code != 307:
                return error.code, error.read().decode()
            url = error.headers["location"]
            if not follows:
                return 307, url
    raise AssertionError(f"{path} is redirected in a circle")


def lookup_until_owned(broker: BrokerProcess, topic: str) -> dict[str, Any]:
    status, found = call(broker, "GET", f"/lookup/v2/topic/{topic.replace('://', '/')}")
    assert status == 200, found
    assert isinstance(found, dict)
    return found


def owner_of(brokers: list[BrokerProcess], topic: str) -> BrokerProcess:
    url = lookup_until_owned(brokers[0], topic)["brokerUrl"]
    return next(broker for broker in brokers if broker.url == url)


def test_each_broker_leads_to_the_owner(brokers: list[BrokerProcess]) -> None:
    assert call(brokers[0], "PUT", f"{ADMIN}/plain") == (204, None)
    topic = "persistent://public/default/plain"
    owner = owner_of(brokers, topic)
    assert {lookup_until_owned(broker, topic)["brokerUrl"] for broker in brokers} == {owner.url}
    for broker in brokers:
        status, stats = call(broker, "GET", f"{ADMIN}/plain/stats")
        assert (status, stats["ownerBroker"]) == (200, owner.http_url.removeprefix("http://"))
    other = next(broker for broker in brokers if broker is not owner)
    status, location = call(other, "GET", f"{ADMIN}/plain/stats?x=1", follows=False)
    assert status == 307
    assert location.startswith(f"{owner.http_url}{ADMIN}/plain/stats?x=1&authoritative=")
    client = RawClient(other.url)
    try:
        client.connect()
        found = client.request(pb.BaseCommand.LOOKUP, topic=topic)
        assert found["response"] == "Connect", found
        assert found["brokerServiceUrl"] == owner.url
        refused = client.request(pb.BaseCommand.PRODUCER, topic=topic, producer_id=1)
        assert refused["error"] == "ServiceNotReady", refused
        assert "not served by this instance" in refused["message"]
    finally:
        client.close()


class Load:
    """Producers and consumers of a partitioned topic, each client connected to another broker at first.

    Every message has a number within its key. Receipts are recorded when they arrive.
    """

    KEYS = 12

    def __init__(self, brokers: list[BrokerProcess]) -> None:
        self.receipted: set[str] = set()
        self.shared: set[str] = set()
        self.by_key: dict[str, list[int]] = {}
        self.errors: list[str] = []
        self.gaps_s: list[float] = []
        self._stop = threading.Event()
        self._done = threading.Event()
        self._lock = threading.Lock()
        self._clients = [
            pulsar.Client(
                ",".join((broker.url, *(each.url.removeprefix("pulsar://") for each in brokers if each is not broker))),
                operation_timeout_seconds=60,
                logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
            )
            for broker in brokers
        ]
        self._consumers = [
            self._clients[number % BROKERS].subscribe(
                TOPIC,
                name,
                consumer_type=kind,
                unacked_messages_timeout_ms=None,
                initial_position=pulsar.InitialPosition.Earliest,
            )
            for number, (name, kind) in enumerate(
                [("shared", pulsar.ConsumerType.Shared)] * 2 + [("keyed", pulsar.ConsumerType.KeyShared)] * 2
            )
        ]
        self._threads = [
            threading.Thread(target=self._consume, args=(consumer, number < 2), daemon=True)
            for number, consumer in enumerate(self._consumers)
        ]
        self._threads += [
            threading.Thread(target=self._produce, args=(client, number), daemon=True)
            for number, client in enumerate(self._clients[:2])
        ]
        for thread in self._threads:
            thread.start()

    def _produce(self, client: pulsar.Client, number: int) -> None:
        producer = client.create_producer(
            TOPIC,
            batching_type=pulsar.BatchingType.KeyBased,
            send_timeout_millis=0,
            block_if_queue_full=True,
            max_pending_messages=200,
        )
        last = [time.monotonic()]
        count = 0

        def stored(text: str, result: pulsar.Result) -> None:
            now = time.monotonic()
            with self._lock:
                if result == pulsar.Result.Ok:
                    self.receipted.add(text)
                    self.gaps_s.append(now - last[0])
                    last[0] = now
                else:
                    self.errors.append(f"{text}: {result}")

        while not self._stop.is_set():
            key = f"{number}-{count % self.KEYS}"
            text = f"{key}/{count // self.KEYS}"
            producer.send_async(text.encode(), lambda result, _, text=text: stored(text, result), partition_key=key)
            count += 1
            time.sleep(0.002)
        producer.flush()
        producer.close()

    def _consume(self, consumer: pulsar.Consumer, is_shared: bool) -> None:
        while not self._done.is_set():
            try:
                message = consumer.receive(500)
            except pulsar.Timeout:
                continue
            except pulsar.PulsarException as error:
                self.errors.append(f"receive: {error}")
                return
            text = message.data().decode()
            with self._lock:
                if is_shared:
                    self.shared.add(text)
                else:
                    key, _, number = text.partition("/")
                    self.by_key.setdefault(key, []).append(int(number))
            consumer.acknowledge(message)

    def progress(self, count: int) -> None:
        """Wait until `count` more messages have a receipt, and both subscriptions received as many."""
        with self._lock:
            goals = len(self.receipted) + count, len(self.shared) + count, self._keyed() + count
        deadline = time.monotonic() + 60
        while True:
            with self._lock:
                present = len(self.receipted), len(self.shared), self._keyed()
            if all(now >= goal for now, goal in zip(present, goals, strict=True)):
                return
            assert time.monotonic() < deadline, f"no progress: {present} of {goals}, {self.errors}"
            time.sleep(0.05)

    def _keyed(self) -> int:
        return sum(map(len, self.by_key.values()))

    def finish(self) -> None:
        """Stop the producers, and wait until both subscriptions have received every receipted message."""
        self._stop.set()
        for thread in self._threads[-2:]:
            thread.join(60)
            assert not thread.is_alive(), "a producer did not receive its receipts"
        deadline = time.monotonic() + 60
        while missing := self._missing():
            assert time.monotonic() < deadline, f"{len(missing)} of {len(self.receipted)} are missing: {missing[:5]}"
            time.sleep(0.1)
        self._done.set()
        for thread in self._threads[:-2]:
            thread.join(10)
        for client in self._clients:
            client.close()
        assert not self.errors, self.errors[:5]
        for key, numbers in self.by_key.items():
            firsts = list(dict.fromkeys(numbers))
            assert firsts == sorted(firsts), f"the order of key {key} is broken"

    def _missing(self) -> list[str]:
        with self._lock:
            keyed = {f"{key}/{number}" for key, numbers in self.by_key.items() for number in numbers}
            return sorted((self.receipted - self.shared) | (self.receipted - keyed))


def divide(brokers: list[BrokerProcess]) -> None:
    """Give each broker some bundles, asked of the first one."""
    _, found = call(brokers[0], "GET", f"{NAMESPACE}/bundles")
    for number, (lower, upper) in enumerate(pairwise(found["boundaries"])):
        destination = brokers[number % BROKERS].http_url.removeprefix("http://")
        path = f"{NAMESPACE}/{lower}_{upper}/unload?destinationBroker={destination}"
        assert call(brokers[0], "PUT", path) == (204, None)


def test_unload_transfer_and_kill_of_owners_lose_nothing(brokers: list[BrokerProcess]) -> None:
    assert call(brokers[0], "PUT", f"{ADMIN}/shared-orders/partitions", PARTITIONS) == (204, None)
    load = Load(brokers)
    load.progress(200)
    divide(brokers)
    owners = [owner_of(brokers, f"{TOPIC}-partition-{index}") for index in range(PARTITIONS)]
    assert len({broker.url for broker in owners}) > 1, "one broker has all bundles"
    for broker in brokers:
        status, stats = call(broker, "GET", f"{ADMIN}/shared-orders/partitioned-stats")
        assert status == 200, stats
        assert len(stats["partitions"]) == PARTITIONS
        assert sorted(stats["subscriptions"]) == ["keyed", "shared"]
        status, names = call(broker, "GET", f"{ADMIN}/shared-orders/subscriptions")
        assert (status, sorted(names)) == (200, ["keyed", "shared"])
    # unload of the namespace, asked of each broker
    for broker in brokers:
        assert call(broker, "PUT", f"{NAMESPACE}/unload") == (204, None)
        load.progress(100)
    # transfer of a bundle to each broker
    _, bundle = call(brokers[0], "GET", "/lookup/v2/topic/persistent/public/default/shared-orders-partition-0/bundle")
    for broker in brokers:
        destination = broker.http_url.removeprefix("http://")
        path = f"{NAMESPACE}/{bundle}/unload?destinationBroker={destination}"
        assert call(brokers[0], "PUT", path) == (204, None)
        assert owner_of(brokers, f"{TOPIC}-partition-0") is broker
        load.progress(100)
    # split
    assert call(brokers[1], "PUT", f"{NAMESPACE}/{bundle}/split?unload=true") == (204, None)
    load.progress(100)
    for _ in range(ROUNDS):
        divide(brokers)
        load.progress(100)
        victim = owner_of(brokers, f"{TOPIC}-partition-0")
        victim.kill()
        began = time.monotonic()
        load.progress(300)
        print(f"progress {time.monotonic() - began:.1f} s after kill -9")
        victim.start()
        load.progress(100)
    load.finish()
    longest = max(load.gaps_s)
    print(f"{len(load.receipted)} receipted, longest pause of receipts {longest:.2f} s, session {SESSION_MS} ms")
    assert longest < SESSION_MS / 1000 + 10
    for broker in brokers:
        assert "Traceback" not in broker.log.read_text(), broker.log
