"""A topic that the managed ledger classes of a Java broker take over and leave without closing anything: view and deduplication."""

from __future__ import annotations

import subprocess
import urllib.error

import pulsar
import pytest
from tests.bookkeeper.test_java_brokers import TIMEOUT_MS, Brokers, two_brokers
from tests.bookkeeper.test_java_features import Rest
from tests.support.bookkeeper_cluster import EXCHANGE, BookKeeperCluster
from tests.support.java_broker import class_path

pytestmark = [pytest.mark.long, pytest.mark.cluster]
PROGRAM = EXCHANGE.parent / "PulsarTopic.java"
NAMESPACE, LOCAL_NAME = "public/features", "taken-over"
TOPIC = f"persistent://{NAMESPACE}/{LOCAL_NAME}"
DRIVER = "-Dbookkeeper.metadata.client.drivers=org.apache.pulsar.metadata.bookkeeper.PulsarMetadataClientDriver"


@pytest.fixture
def brokers(cluster: BookKeeperCluster, tmp_path_factory: pytest.TempPathFactory) -> Brokers:
    return two_brokers(cluster, tmp_path_factory.mktemp("brokers"))


def taken_over(zookeeper: str, sequence_id: int) -> list[str]:
    command = ["java", "-Xmx256m", "-XX:TieredStopAtLevel=1", DRIVER, "-cp", class_path(), str(PROGRAM)]
    command += [zookeeper, f"{NAMESPACE}/persistent/{LOCAL_NAME}", "p", str(sequence_id)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, (result.stdout + result.stderr)[-3000:]
    return [line[1:] for line in result.stdout.splitlines() if line.startswith("=")]


def compacted(client: pulsar.Client) -> list[tuple[str, str]]:
    reader = client.create_reader(TOPIC, pulsar.MessageId.earliest, is_read_compacted=True)
    found = []
    while reader.has_message_available():
        message = reader.read_next(TIMEOUT_MS)
        found.append((f"{message.message_id().ledger_id()}:{message.message_id().entry_id()}", message.data().decode()))
    reader.close()
    return found


def test_view_and_sequence_ids_pass_to_java_and_back(brokers: Brokers, cluster: BookKeeperCluster) -> None:
    with brokers.running("own") as client:
        rest = Rest(brokers.own.http_url)
        try:
            rest.call("PUT", f"namespaces/{NAMESPACE}", {})
        except urllib.error.HTTPError as error:
            assert error.code == 409, error  # noqa: PT017  (another module has created it)
        rest.call("POST", f"namespaces/{NAMESPACE}/deduplication", True)
        producer = client.create_producer(TOPIC, producer_name="p", batching_enabled=False)
        for number in range(12):
            producer.send(b"%d" % number, partition_key=f"k{number % 4}")
        producer.close()
        rest.compact(LOCAL_NAME)
        rest.wait_for_compaction(LOCAL_NAME)
        before = compacted(client)
        assert [value for _, value in before] == ["8", "9", "10", "11"]
        view = rest.call("GET", f"persistent/{NAMESPACE}/{LOCAL_NAME}/internalStats")["compactedLedger"]["ledgerId"]
    compaction, deduplication, *positions, next_view = taken_over(cluster.zookeeper.address, 99)
    assert positions == [position for position, _ in before]
    assert (compaction, deduplication) == (f"{{CompactedTopicLedger={view}}}", "{p=11}")
    with brokers.running("own") as client:
        rest = Rest(brokers.own.http_url)
        shown = rest.call("GET", f"persistent/{NAMESPACE}/{LOCAL_NAME}/internalStats")
        assert shown["compactedLedger"]["ledgerId"] == int(next_view)
        assert shown["cursors"]["pulsar.dedup"]["properties"] == {"p": 99}
        assert compacted(client) == before[-1:]
        producer = client.create_producer(TOPIC, producer_name="p", batching_enabled=False)
        assert producer.last_sequence_id() == 99
        producer.close()
