"""Membership on a real ZooKeeper: pybrokers replace a killed leader; a Java broker and a pybroker see each other."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pulsar
import pytest
from tests.support.bookkeeper_cluster import BookKeeperCluster
from tests.support.broker_process import BrokerProcess
from tests.support.java_broker import JavaBroker

pytestmark = pytest.mark.long
CLUSTER = "c1"
SESSION_MS = 3_000
SETTINGS = {
    "clusterName": CLUSTER,
    "advertisedAddress": "127.0.0.1",
    "managedLedgerDefaultEnsembleSize": "2",
    "managedLedgerDefaultWriteQuorum": "2",
    "managedLedgerDefaultAckQuorum": "2",
    "metadataStoreSessionTimeoutMillis": str(SESSION_MS),
}
DEADLINE_S = 30.0
BROKERS = "/admin/v2/brokers"


@pytest.fixture(scope="module")
def zookeeper(cluster: BookKeeperCluster) -> str:
    address = cluster.zookeeper.address
    command = [sys.executable, "-m", "pybroker", "metadata", "init", "--cluster", CLUSTER]
    subprocess.run([*command, "--set", f"metadataStoreUrl=zk:{address}"], check=True, capture_output=True)
    return address


@contextmanager
def pybroker(directory: Path, name: str, zookeeper: str, **settings: str) -> Iterator[BrokerProcess]:
    (directory / name).mkdir()
    values = {**SETTINGS, "ledgerStore": "bookkeeper", "metadataStoreUrl": f"zk:{zookeeper}", **settings}
    broker = BrokerProcess(directory / name, values)
    broker.start()
    try:
        yield broker
    finally:
        broker.stop()


def rest(url: str, path: str) -> object:
    with urllib.request.urlopen(url + path, timeout=20) as response:
        return json.loads(response.read())


def command(url: str, *arguments: str) -> str:
    """Return the output of `pybroker brokers ...` at the broker with this URL."""
    line = [sys.executable, "-m", "pybroker", "brokers", *arguments, "--url", url]
    return subprocess.run(line, check=True, capture_output=True, text=True).stdout


def brokers_at(url: str) -> list[str]:
    found = rest(url, BROKERS)
    assert isinstance(found, list)
    return sorted(found)


def leader_at(url: str) -> str | None:
    try:
        found = rest(url, f"{BROKERS}/leaderBroker")
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return None
        raise
    assert isinstance(found, dict)
    return str(found["brokerId"])


def id_of(url: str) -> str:
    return url.removeprefix("http://")


def until(condition: Callable[[], bool]) -> float:
    """Wait, and return the time that it took in seconds."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() < began + DEADLINE_S, "not in time"
        time.sleep(0.02)
    return time.monotonic() - began


@pytest.mark.cluster
def test_pybrokers_elect_one_leader_and_replace_a_killed_one(zookeeper: str, tmp_path: Path) -> None:
    with ExitStack() as stack:
        first, second = (stack.enter_context(pybroker(tmp_path, name, zookeeper)) for name in ("a", "b"))
        urls = [first.http_url, second.http_url]
        ids = sorted(id_of(url) for url in urls)
        until(lambda: all(brokers_at(url) == ids for url in urls))
        until(lambda: all(leader_at(url) == id_of(first.http_url) for url in urls))
        assert command(second.http_url, "list").split() == ids
        assert command(second.http_url, "leader-broker").startswith(id_of(first.http_url))
        assert command(second.http_url, "health", "--broker", id_of(first.http_url)) == "ok\n"
        for leader, other in ((first, second), (second, first)):
            leader.kill()
            took_s = until(lambda other=other: leader_at(other.http_url) == id_of(other.http_url))  # type: ignore[misc]
            assert took_s < SESSION_MS / 1000 + 3
            assert brokers_at(other.http_url) == [id_of(other.http_url)]
            leader.start()
            until(lambda: all(brokers_at(url) == ids for url in urls))
            assert leader_at(leader.http_url) == id_of(other.http_url), "a leader stays one"
        began = time.monotonic()
        first.stop()
        until(lambda: leader_at(second.http_url) == id_of(second.http_url))
        assert time.monotonic() - began < SESSION_MS / 1000, "a broker that leaves ends its membership itself"


def publish_and_receive(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    producer.send(b"m")
    assert consumer.receive(20_000).data() == b"m"
    consumer.close()
    producer.close()


def test_java_broker_and_pybroker_are_members_of_one_cluster(zookeeper: str, tmp_path: Path) -> None:
    java = JavaBroker(tmp_path / "java", zookeeper, {**SETTINGS, "loadBalancerEnabled": "true"})
    java.start()
    client = pulsar.Client(java.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    lookup = "/lookup/v2/topic/persistent/public/default/before"
    try:
        publish_and_receive(client, "persistent://public/default/before")
        owner = rest(java.http_url, lookup)
        with pybroker(tmp_path, "own", zookeeper) as own:
            ids = sorted([id_of(java.http_url), id_of(own.http_url)])
            until(lambda: brokers_at(java.http_url) == brokers_at(own.http_url) == ids)
            assert leader_at(own.http_url) == leader_at(java.http_url) == id_of(java.http_url)
            assert f"joined broker={id_of(java.http_url)} version=4.2.4 pybroker=False" in own.log.read_text()
            # What the Java broker owns stays where it is, and its lookups of new bundles lead to a broker that serves.
            assert rest(java.http_url, lookup) == owner
            publish_and_receive(client, "persistent://public/default/before")
            for number in range(8):
                publish_and_receive(client, f"persistent://public/default/new-{number}")
            healthy = f"{BROKERS}/health?brokerId="
            for url in (java.http_url, own.http_url):
                for broker_id in ids:
                    with urllib.request.urlopen(f"{url}{healthy}{broker_id}", timeout=30) as response:
                        assert response.read() == b"ok"
        until(lambda: brokers_at(java.http_url) == [id_of(java.http_url)])
        publish_and_receive(client, "persistent://public/default/after")
        assert leader_at(java.http_url) == id_of(java.http_url)
        extensible = "org.apache.pulsar.broker.loadbalance.extensions.ExtensibleLoadManagerImpl"
        with (
            pytest.raises(RuntimeError, match="cannot join cluster c1: loadManagerClassName is"),
            pybroker(tmp_path, "other", zookeeper, loadManagerClassName=extensible),
        ):
            pass
        assert brokers_at(java.http_url) == [id_of(java.http_url)]
    finally:
        client.close()
        java.stop()
