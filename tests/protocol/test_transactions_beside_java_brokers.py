"""Transactions of a pybroker and of Java brokers in one cluster, on modelled servers. The test writes the registrations, snapshots
and messages of Java brokers.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from io import BytesIO

import pytest
from fastavro import schemaless_writer
from tests.protocol.test_cluster import rest
from tests.support import modelled_cluster as model
from tests.support.modelled_cluster import ClusterBroker, ModelledCluster, run_on_uvloop
from tests.unit.broker.test_java_transaction_snapshots import SCHEMA
from tests.unit.managed_ledger.stack import Topic

from pybroker.client import PulsarClient, RequestTimedOut, connect
from pybroker.metadata import metadata_paths
from pybroker.metadata.metadata_store import ANY_VERSION
from pybroker.model.names import TopicName
from pybroker.model.position import Position
from pybroker.model.txn_id import TxnAction, TxnId
from pybroker.transactions.coordinators import partition_of
from pybroker.transactions.java_brokers import BROKERS
from pybroker.wire.entry_builder import build_entry
from pybroker.wire.transaction_metadata import end_marker, put_into

TOPIC = "persistent://public/default/orders"
NAMESPACE = "persistent://public/default"
FIRST_TIMEOUT_S = 20.0
QUIET_S = 0.3
FOR_EVER_S = 3600.0
JAVA = {
    "webServiceUrl": "http://127.0.0.1:1",
    "pulsarServiceUrl": "pulsar://127.0.0.1:1",
    "brokerVersionString": "4.2.4",
}
Story = Callable[[ModelledCluster, ClusterBroker, PulsarClient], Awaitable[None]]


@pytest.fixture(autouse=True)
def with_coordinators(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(model.SETTINGS, "transaction_coordinator_enabled", True)


def run(story: Story) -> None:
    async def work() -> None:
        async with model.modelled_cluster(1) as cluster:
            broker = cluster.brokers[0]
            async with connect(broker.registered.broker_service_url, operation_timeout_s=20) as client:
                await story(cluster, broker, client)

    run_on_uvloop(work())


async def register_java_broker(cluster: ModelledCluster) -> None:
    await cluster.tree.values.put(f"{BROKERS}/127.0.0.1:1", json.dumps(JAVA).encode(), ANY_VERSION)


async def leave_open(client: PulsarClient, topic: str = TOPIC) -> TxnId:
    transaction = await client.transaction(FOR_EVER_S)
    async with await client.producer(topic) as producer:
        await producer.send(b"first")
        await producer.send(b"open", transaction=transaction)
        await producer.send(b"behind")
    return transaction.id


async def read(client: PulsarClient, topic: str = TOPIC) -> list[bytes | None]:
    found: list[bytes | None] = []
    async with await client.reader(topic) as reader:
        while True:
            try:
                found.append((await reader.receive(QUIET_S if found else FIRST_TIMEOUT_S)).value)
            except RequestTimedOut:
                return found


def test_last_pybroker_aborts_its_open_transactions_when_it_stops_beside_java_brokers() -> None:
    async def story(cluster: ModelledCluster, broker: ClusterBroker, client: PulsarClient) -> None:
        await leave_open(client)
        await broker.service.end_transactions()
        assert await read(client) == [b"first"], "without a Java broker, this is a restart"
        await register_java_broker(cluster)
        await broker.service.end_transactions()
        assert await read(client) == [b"first", b"behind"]

    run(story)


def test_transactions_of_a_coordinator_at_a_java_broker_are_aborted() -> None:
    async def story(cluster: ModelledCluster, broker: ClusterBroker, client: PulsarClient) -> None:
        txn = await leave_open(client)
        await register_java_broker(cluster)
        service = broker.service
        assert service.ownership is not None
        assert service._unattended is not None
        bundle = service.ownership.bundle_of(partition_of(txn.most))
        await service.ownership.release(bundle)
        document = {"nativeUrl": JAVA["pulsarServiceUrl"], "httpUrl": JAVA["webServiceUrl"], "disabled": False}
        await cluster.tree.values.put(bundle.path, json.dumps(document).encode(), ANY_VERSION)
        assert await read(client) == [b"first"]
        await service._unattended.check()
        assert await read(client) == [b"first", b"behind"]

    run(story)


def message(name: str, txn: TxnId | None = None) -> bytes:
    entry = build_entry("java", 0, 1, name.encode())
    if txn is None:
        return entry
    named = put_into(entry, txn)
    assert named is not None
    return named


async def leave_as_java_broker(broker: ClusterBroker) -> list[Position]:
    """Store messages of an aborted, a committed and an open transaction of the Java coordinator 0."""
    ledgers = broker.service.broker_context.ledgers
    managed = await ledgers.open(metadata_paths.managed_ledger(TopicName.parse(TOPIC)))
    positions = await Topic(managed).publish(
        message("plain"),
        message("aborted", TxnId(0, 0)),
        message("committed", TxnId(0, 1)),
        end_marker(TxnId(0, 0), TxnAction.ABORT, 1),
        end_marker(TxnId(0, 1), TxnAction.COMMIT, 1),
        message("later"),
        message("aborted later", TxnId(0, 2)),
        end_marker(TxnId(0, 2), TxnAction.ABORT, 1),
        message("last"),
        message("open", TxnId(0, 3)),
        message("behind"),
    )
    await managed.close()
    return positions


async def publish_snapshot(client: PulsarClient, aborts: list[TxnId], last: Position, name: str = "") -> None:
    value = BytesIO()
    document = {
        "aborts": [
            {
                "txnIdMostBits": txn.most,
                "txnIdLeastBits": txn.least,
                "ledgerId": last.ledger_id,
                "entryId": last.entry_id,
            }
            for txn in aborts
        ],
        "maxReadPositionLedgerId": last.ledger_id,
        "maxReadPositionEntryId": last.entry_id,
        "topicName": TOPIC,
    }
    schemaless_writer(value, SCHEMA, document)
    async with await client.producer(f"{NAMESPACE}/__transaction_buffer_snapshot{name}") as producer:
        await producer.send(value.getvalue(), key=TOPIC)


EXPLAIN = "/admin/v2/persistent/public/default/orders/explain"


async def explained_message(broker: ClusterBroker, client: PulsarClient, position: Position) -> str:
    path = EXPLAIN.replace("/explain", f"/subscription/s/explain?messageId={position.ledger_id}:{position.entry_id}")
    async with await client.consumer(TOPIC, "s", from_earliest=True):
        return str(await rest(broker, "GET", path))


async def explained(broker: ClusterBroker, client: PulsarClient) -> str:
    async with await client.consumer(TOPIC, "s", from_earliest=True):
        return str(await rest(broker, "GET", EXPLAIN))


VISIBLE = [b"plain", b"committed", b"later", b"last"]


@pytest.mark.parametrize("kind", ["aborted", "none aborted", "segments"])
def test_aborted_messages_of_java_coordinators_are_not_delivered(kind: str) -> None:
    async def story(_cluster: ModelledCluster, broker: ClusterBroker, client: PulsarClient) -> None:
        positions = await leave_as_java_broker(broker)
        if kind == "segments":
            await publish_snapshot(client, [], positions[4], "_indexes")
        else:
            await publish_snapshot(client, [], Position(0, -1))
            await publish_snapshot(
                client, [TxnId(0, 0)] if kind == "aborted" else [], positions[4 if kind == "aborted" else 0]
            )
        assert await read(client) == VISIBLE
        topic = broker.service.loaded.persistent[TOPIC]
        assert topic.transactions.buffer is not None
        assert list(topic.transactions.buffer.open) == [TxnId(0, 3)]
        await broker.service.topics.unload(topic)
        assert await read(client) == VISIBLE
        for text in [
            await explained(broker, client),
            await explained_message(broker, client, positions[9]),
            await explained_message(broker, client, positions[10]),
        ]:
            assert "only a Java broker can end it" in text
            assert "abortTransaction" not in text
        # The coordinator of the Java broker ends it.
        await broker.service.loaded.persistent[TOPIC].end_transaction(TxnId(0, 3), TxnAction.COMMIT, 2)
        assert await read(client) == [*VISIBLE, b"open", b"behind"]

    run(story)


def test_low_water_mark_of_pybroker_ends_no_transaction_of_a_java_coordinator() -> None:
    async def story(_cluster: ModelledCluster, broker: ClusterBroker, client: PulsarClient) -> None:
        positions = await leave_as_java_broker(broker)
        await publish_snapshot(client, [TxnId(0, 0)], positions[4])
        await (await client.consumer(TOPIC, "s", from_earliest=True)).close()  # keeps the messages
        async with await client.producer(TOPIC) as producer:
            for _ in range(20):
                transaction = await client.transaction()
                await producer.send(b"own", transaction=transaction)
                await transaction.commit()
        assert await read(client) == VISIBLE
        topic = broker.service.loaded.persistent[TOPIC]
        await broker.service.topics.unload(topic)
        assert await read(client) == VISIBLE

    run(story)


def test_topic_without_snapshot_is_not_read() -> None:
    async def story(_cluster: ModelledCluster, broker: ClusterBroker, client: PulsarClient) -> None:
        async with await client.producer(TOPIC) as producer:
            await producer.send(b"plain")
        await publish_snapshot(client, [], Position(0, -1))
        other = f"{NAMESPACE}/other"
        async with await client.producer(other) as producer:
            await producer.send(b"plain")
        assert broker.service.loaded.persistent[other].transactions.buffer is None

    run(story)
