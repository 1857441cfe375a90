"""Topics that are exchanged with a real Java broker on the same ZooKeeper and bookies, in both directions."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

import pulsar
import pytest
from tests.bookkeeper.conftest import init_metadata
from tests.support.bookkeeper_cluster import BookKeeperCluster
from tests.support.broker_process import BrokerProcess
from tests.support.java_broker import JavaBroker

pytestmark = pytest.mark.long
CLUSTER = "c1"
TOPIC = "persistent://public/default/exchanged"
SETTINGS = {
    "brokerDeduplicationEntriesInterval": "10",
    "clusterName": CLUSTER,
    "acknowledgmentAtBatchIndexLevelEnabled": "true",
    "ledgerStore": "bookkeeper",
    "managedLedgerMaxEntriesPerLedger": "10",
    "managedLedgerMinLedgerRolloverTimeMinutes": "0",
    "managedLedgerDefaultEnsembleSize": "2",
    "managedLedgerDefaultWriteQuorum": "2",
    "managedLedgerDefaultAckQuorum": "2",
    "metadataStoreSessionTimeoutMillis": "5000",  # the registration of a killed broker ends with its session
}
TIMEOUT_MS = 30_000
_NONE: Mapping[str, str] = MappingProxyType({})
QUIET_MS = 2_000


class Brokers:
    """A Java broker and a pybroker, of which one runs."""

    def __init__(
        self, directory: Path, zookeeper: str, *, only_java: Mapping[str, str] = _NONE, both: Mapping[str, str] = _NONE
    ) -> None:
        settings = {**SETTINGS, **both}
        java = {key: value for key, value in settings.items() if key != "ledgerStore"} | dict(only_java)
        self.zookeeper = zookeeper
        self.java = JavaBroker(directory / "java", zookeeper, java)
        (directory / "own").mkdir()
        self.own = BrokerProcess(directory / "own", {**settings, "metadataStoreUrl": f"zk:{zookeeper}"})

    @contextmanager
    def running(self, kind: str, *, ends_with: signal.Signals = signal.SIGTERM) -> Iterator[pulsar.Client]:
        """Run one of them for the block, with a client."""
        broker = self.java if kind == "java" else self.own
        broker.start()
        client = pulsar.Client(broker.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        try:
            yield client
            if ends_with == signal.SIGTERM:
                client.close()
        finally:
            broker.stop(ends_with)


def two_brokers(cluster: BookKeeperCluster, directory: Path, **more: str) -> Brokers:
    """Prepare the metadata of the cluster. `more`: settings of both brokers."""
    zookeeper = cluster.zookeeper.address
    init_metadata(CLUSTER, zookeeper)
    return Brokers(directory, zookeeper, both=more)


@pytest.fixture(scope="module")
def brokers(cluster: BookKeeperCluster, tmp_path_factory: pytest.TempPathFactory) -> Brokers:
    return two_brokers(cluster, tmp_path_factory.mktemp("brokers"))


def publish(client: pulsar.Client, topic: str, names: list[str]) -> None:
    """Half of them in batches of ten, the others singly."""
    half = len(names) // 2
    batched = client.create_producer(
        topic, batching_enabled=True, batching_max_messages=10, batching_max_publish_delay_ms=1000
    )
    for name in names[:half]:
        batched.send_async(name.encode(), lambda result, _: None)
    batched.flush()
    single = client.create_producer(topic, batching_enabled=False)
    for name in names[half:]:
        single.send(name.encode())
    batched.close()
    single.close()


def subscribe(client: pulsar.Client, topic: str, name: str) -> pulsar.Consumer:
    return client.subscribe(
        topic,
        name,
        consumer_type=pulsar.ConsumerType.Shared,
        initial_position=pulsar.InitialPosition.Earliest,
        batch_index_ack_enabled=True,
        negative_ack_redelivery_delay_ms=60_000,
    )


def take(consumer: pulsar.Consumer, count: int, *, leaves: int = 0) -> tuple[list[str], list[str]]:
    """Receive messages, and acknowledge all but each one in `leaves`. Return those received and those acknowledged."""
    received, acknowledged = [], []
    for number in range(count):
        message = consumer.receive(TIMEOUT_MS)
        received.append(message.data().decode())
        if not leaves or number % leaves:
            consumer.acknowledge(message)
            acknowledged.append(received[-1])
    return received, acknowledged


def require_silence(consumer: pulsar.Consumer) -> None:
    with pytest.raises(pulsar.Timeout):
        consumer.receive(QUIET_MS)


def drain(consumer: pulsar.Consumer, *, leaves: int = 0) -> tuple[set[str], set[str]]:
    """Receive all messages, and acknowledge all but each one in `leaves`. Return those received and those acknowledged."""
    received: list[str] = []
    acknowledged: set[str] = set()
    while True:
        try:
            message = consumer.receive(TIMEOUT_MS if not received else QUIET_MS)
        except pulsar.Timeout:
            return set(received), acknowledged
        if not leaves or len(received) % leaves:
            consumer.acknowledge(message)
            acknowledged.add(message.data().decode())
        received.append(message.data().decode())


def in_batches(names: set[str]) -> set[str]:
    """Return the names of the batches that contain these, as `publish` has made them."""
    batched = {(turn, int(number) // 10) for turn, number in (name.split("-") for name in names) if int(number) < 50}
    return names | {f"{turn}-{batch * 10 + number}" for turn, batch in batched for number in range(10)}


@pytest.mark.parametrize(
    "order",
    [
        pytest.param(("java", "own", "java"), id="java-own-java", marks=pytest.mark.cluster),
        pytest.param(("own", "java", "own"), id="own-java-own"),
    ],
)
def test_messages_and_acknowledgements_survive_each_change_of_the_broker(
    brokers: Brokers, order: tuple[str, str, str]
) -> None:
    """A Java broker delivers a partly acknowledged batch again as a whole after any restart, also after one of its own."""
    topic = f"{TOPIC}-{'-'.join(order)}"
    left: set[str] = set()
    for turn, kind in enumerate(order):
        with brokers.running(kind) as client:
            consumer = subscribe(client, topic, "s")
            if turn:
                received, acknowledged = drain(consumer, leaves=7)
                allowed = left if kind == "own" else in_batches(left)
                assert left <= received <= allowed, f"{kind} as number {turn}"
                left = (left | received) - acknowledged
            names = [f"{turn}-{number}" for number in range(100)]
            publish(client, topic, names)
            received, acknowledged = drain(consumer, leaves=7)
            assert received == set(names), f"{kind} as number {turn}"
            left |= received - acknowledged
            consumer.close()
    with brokers.running("own") as client:
        consumer = subscribe(client, topic, "s")
        received, _ = drain(consumer)
        assert received == left
        consumer.close()


@pytest.mark.parametrize("killed", ["java", pytest.param("own", marks=pytest.mark.cluster)])
def test_take_over_after_a_kill_loses_no_message(brokers: Brokers, killed: str) -> None:
    topic = f"{TOPIC}-killed-{killed}"
    names = [f"{number}" for number in range(60)]
    with brokers.running(killed, ends_with=signal.SIGKILL) as client:
        consumer = subscribe(client, topic, "s")
        publish(client, topic, names)
        received, _ = take(consumer, 30)
    with brokers.running("own" if killed == "java" else "java") as client:
        consumer = subscribe(client, topic, "s")
        publish(client, topic, ["last"])
        again: list[str] = []
        while again[-1:] != ["last"]:
            again += take(consumer, 1)[0]
        assert set(received) | set(again) == {*names, "last"}
        require_silence(consumer)
        consumer.close()
