"""Brokers with a shared metadata store and no `ledgerStore`: as in Pulsar, their ledgers are on BookKeeper."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pulsar
import pytest
from tests.support.bookkeeper_cluster import BookKeeperCluster
from tests.support.broker_process import BrokerProcess
from tests.support.rest import call

from pybroker.zookeeper import ClientOptions, ServerAddresses, ZooKeeperClient

CLUSTER = "default-store"
TOPIC = "persistent://public/default/in-bookies"
REFERENCE = Path(__file__).parents[1] / "support/PulsarConfiguration.java"
TIMEOUT_MS = 30_000


def prepare(cluster: BookKeeperCluster) -> str:
    """Return the URL of the metadata store."""
    url = f"zk:{cluster.zookeeper.address}"
    command = [sys.executable, "-m", "pybroker", "metadata", "init", "--cluster", CLUSTER, "--metadata-store", url]
    subprocess.run(command, check=True, capture_output=True)
    return url


def exchange(broker: BrokerProcess, topic: str, *names: str) -> list[str]:
    """Publish, and return everything that the subscription receives."""
    client = pulsar.Client(broker.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    consumer = client.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
    producer = client.create_producer(topic)
    for name in names:
        producer.send(name.encode())
    received: list[str] = []
    while len(received) < len(names):
        message = consumer.receive(TIMEOUT_MS)
        consumer.acknowledge(message)
        received.append(message.data().decode())
    client.close()
    return received


async def document_exists(cluster: BookKeeperCluster, topic: str) -> bool:
    client = ZooKeeperClient(ServerAddresses.parse(cluster.zookeeper.address), ClientOptions(session_timeout_ms=10_000))
    await client.start(30)
    try:
        return await client.exists(f"/managed-ledgers/public/default/persistent/{topic.rpartition('/')[2]}") is not None
    finally:
        await client.close()


@pytest.mark.long
@pytest.mark.cluster
def test_configuration_of_a_reference_broker_works_with_only_addresses_changed(
    cluster: BookKeeperCluster, tmp_path: Path
) -> None:
    jars = Path(os.environ.get("PULSAR_BASELINE_HOME", Path.home() / ".cache/pulsar-baseline")) / "server/cp.txt"
    if shutil.which("javac") is None or not jars.exists():
        pytest.skip("the reference configuration needs a JDK and the jars of `baseline setup` (PULSAR_BASELINE_HOME)")
    command = ["java", "-cp", jars.read_text().strip(), str(REFERENCE)]
    defaults = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    url = prepare(cluster)
    changed = {
        "metadataStoreUrl": url,
        "configurationMetadataStoreUrl": url,
        "clusterName": CLUSTER,
        "bindAddress": "127.0.0.1",
        "advertisedAddress": "127.0.0.1",
    }
    lines = [line for line in defaults.splitlines() if line.partition("=")[0] not in changed]
    assert len(lines) > 500
    assert "managedLedgerStorageClassName=org.apache.pulsar.broker.ManagedLedgerClientFactory" in lines
    configuration = tmp_path / "broker.conf"
    configuration.write_text("\n".join([*lines, *(f"{key}={value}" for key, value in changed.items()), ""]))
    broker = BrokerProcess(tmp_path)
    broker.arguments = ["--config", str(configuration)]
    topic = f"{TOPIC}-reference"
    for turn in range(2):
        with broker.running_well():
            names = [f"{turn}-{number}" for number in range(5)]
            assert exchange(broker, topic, *names) == names
    assert asyncio.run(document_exists(cluster, topic))
    assert not (broker.data / "journal").exists()


def test_start_with_too_few_bookies_serves_and_says_so(cluster: BookKeeperCluster, tmp_path: Path) -> None:
    """As a Java broker: it starts, topics cannot be opened, and they can when enough bookies have registered."""
    settings = {
        "metadataStoreUrl": prepare(cluster),
        "clusterName": CLUSTER,
        "advertisedAddress": "127.0.0.1",
        "managedLedgerDefaultEnsembleSize": "4",
    }
    (tmp_path / "few").mkdir()
    broker = BrokerProcess(tmp_path / "few", settings)
    topic = f"{TOPIC}-few"
    with broker.running():
        answer = call(f"{broker.http_url}/admin/v2/persistent/public/default/in-bookies-few", "PUT")
        assert answer.status in {204, 500}
        client = pulsar.Client(
            broker.url, operation_timeout_seconds=3, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        )
        with pytest.raises(pulsar.PulsarException):
            client.create_producer(topic)
        client.close()
        found = call(f"{broker.http_url}/admin/v2/persistent/public/default/in-bookies-few/explain").json
        assert "A new ledger needs 4 bookies, but only 3 bookies are usable" in json.dumps(found)
        assert "bookies.too_few" in broker.log.read_text()
    settings["managedLedgerDefaultEnsembleSize"] = "3"
    (tmp_path / "enough").mkdir()
    broker = BrokerProcess(tmp_path / "enough", settings)
    with broker.running():
        assert "bookies.too_few" not in broker.log.read_text()
        assert exchange(broker, topic, "a", "b") == ["a", "b"]
