"""Who may do what in the name of a transaction: whom it belongs to, where its coordinator knows of, while it is open."""

from __future__ import annotations

from typing import Any

import pytest
from tests.protocol.test_transactions import B, end, ids, opened
from tests.support.async_client import AsyncClient, BinaryPort, binary_port
from tests.support.memory_broker import MemoryBroker, memory_broker
from tests.support.recording_peer import RecordingPeer
from tests.support.transactions import ABORT, COMMIT, run_in, send, txn

from pybroker.broker.topic.topic import Topic
from pybroker.errors import BrokerError, InvalidTxnStatus, NotAllowedError, StoreError, TransactionNotFound
from pybroker.model.events import Ack
from pybroker.model.names import NamespaceName
from pybroker.model.policies import AuthAction, NamespacePolicies
from pybroker.model.position import Position
from pybroker.model.txn_id import TxnId
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.transaction_metadata import end_marker

TOPIC = "persistent://public/default/t"
SECURED: dict[str, Any] = {
    "authentication_enabled": True,
    "anonymous_user_role": "anonymous",
    "authorization_enabled": True,
    "super_user_roles": ["admin"],
}


async def refused(broker: MemoryBroker, topic: Topic, of: TxnId | None, role: str | None = None) -> BrokerError:
    """What a producer of that role is told that publishes in that transaction."""
    peer = RecordingPeer(role=role)
    producer = broker.producer(topic, peer, f"of {role}")
    topic.publish(producer, run_in(of, 1))
    await broker.until(lambda: bool(peer.receipts or peer.errors))
    producer.detach()
    assert not peer.receipts, "it was taken"
    return peer.errors[0]


async def acknowledged(
    broker: MemoryBroker, topic: Topic, of: TxnId, at: Position, role: str | None = None
) -> BrokerError | None:
    peer = RecordingPeer(role=role)
    consumer = await broker.consumer(topic, "s", peer)
    ack = Ack(consumer.consumer_id)
    ack.txn, ack.request_id = of, 1
    ack.groups.append((at.ledger_id, [at.entry_id]))
    consumer.subscription.acknowledge(consumer, ack)
    await broker.until(lambda: bool(peer.ack_responses))
    consumer.detach()
    return peer.ack_responses[0][1]


async def taking_part(client: AsyncClient, of: TxnId) -> list[dict[str, Any]]:
    subscription = [pb.Subscription(topic=TOPIC, subscription="s")]
    return [
        await client.request(B.ADD_PARTITION_TO_TXN, **ids(of), partitions=[TOPIC]),
        await client.request(B.ADD_SUBSCRIPTION_TO_TXN, **ids(of), subscription=subscription),
    ]


async def connected(port: BinaryPort, role: str) -> AsyncClient:
    """A client that has proved that it is that role."""
    before = set(port.connections)
    client = await port.connect()
    [connection] = set(port.connections) - before
    connection.role = role
    return client


async def test_a_transaction_is_used_by_no_role_but_the_one_that_opened_it() -> None:
    def grant(policies: NamespacePolicies) -> None:
        rights = [AuthAction.PRODUCE, AuthAction.CONSUME]
        policies.auth_policies.namespace_auth = {"alice": rights, "bob": rights}

    async with memory_broker(**SECURED, knows_transactions=True) as broker, binary_port(broker) as port:
        await broker.service.resources.update_namespace(NamespaceName("public", "default"), grant)
        alice, bob, admin = [await connected(port, role) for role in ("alice", "bob", "admin")]
        topic, peer = await broker.topic(TOPIC), RecordingPeer(role="alice")
        topic.publish(broker.producer(topic, peer), run_in(None, 1))
        await broker.until(lambda: len(peer.receipts) == 1)
        [first] = peer.receipts
        of = await opened(alice)
        answers = await taking_part(bob, of)
        answers += [await end(bob, of, COMMIT), await end(bob, of, ABORT)]
        assert [each["error"] for each in answers] == ["TransactionNotFound"] * 4
        assert all("error" not in each for each in await taking_part(alice, of))
        assert isinstance(await refused(broker, topic, of, "bob"), NotAllowedError)
        assert isinstance(await acknowledged(broker, topic, of, first, "bob"), TransactionNotFound)
        for client in (alice, bob):
            told = await client.request(B.END_TXN_ON_PARTITION, **ids(of), topic=TOPIC, txn_action=1)
            assert told["error"] == "TransactionNotFound"
        assert await acknowledged(broker, topic, of, first, "alice") is None
        assert "error" not in await end(admin, of, COMMIT)
        assert topic.subscriptions["s"].cursor.backlog_entries == 0
        assert topic.ledger.ledgers.entry_count == 1, "what bob sent was stored"


async def test_what_no_coordinator_knows_holds_nobody_back() -> None:
    async with memory_broker(knows_transactions=True) as broker, binary_port(broker) as port:
        client = await port.connect()
        topic = await broker.topic(TOPIC)
        [first] = await broker.publish(topic, 1)
        without_part = await opened(client)
        for of in (without_part, txn(1 << 40), txn(1, 7), txn(1, 1 << 63)):
            assert isinstance(await refused(broker, topic, of), NotAllowedError)
            answer = await acknowledged(broker, topic, of, first)
            assert isinstance(answer, NotAllowedError if of == without_part else TransactionNotFound)
        assert topic.ledger.read_limit.limit is None
        assert not topic.subscriptions["s"].cursor.state.held
        assert all("error" not in each for each in await taking_part(client, without_part))
        assert await send(broker, topic, without_part)
        assert await acknowledged(broker, topic, without_part, first) is None
        assert "error" not in await end(client, without_part, ABORT)
        assert isinstance(await refused(broker, topic, without_part), NotAllowedError)


async def test_while_a_coordinator_reads_its_log_what_comes_in_is_taken() -> None:
    async with memory_broker(knows_transactions=True) as broker, binary_port(broker) as port:
        client = await port.connect()
        topic = await broker.topic(TOPIC)
        of = await opened(client)
        await taking_part(client, of)
        coordinator = broker.service.transactions.find(0)
        assert coordinator.log is not None
        coordinator._log_failed(StoreError("a planned failure"))
        assert await send(broker, topic, of)
        await coordinator.ready()
        assert await send(broker, topic, of, first=1)
        assert "error" not in await end(client, of, COMMIT)
        assert topic.ledger.read_limit.limit is None


async def test_what_is_being_ended_takes_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    async with memory_broker(knows_transactions=True) as broker, binary_port(broker) as port:
        client = await port.connect()
        topic = await broker.topic(TOPIC)
        [first] = await broker.publish(topic, 1)
        of = await opened(client)
        await taking_part(client, of)
        coordinator = broker.service.transactions.find(0)
        monkeypatch.setattr(coordinator, "_tell", lambda _transaction: None)  # nobody is told yet
        client.ask(B.END_TXN, **ids(of), txn_action=0)
        await broker.until(lambda: next(iter(coordinator.state.transactions())).action is COMMIT)
        assert isinstance(await refused(broker, topic, of), NotAllowedError)
        assert isinstance(await acknowledged(broker, topic, of, first), InvalidTxnStatus)


@pytest.mark.parametrize("of", [txn(1), None])
async def test_a_forged_message_is_refused_alone(of: TxnId | None) -> None:
    """All of them came with one read of the socket."""
    async with memory_broker() as broker:
        topic = await broker.topic(TOPIC)
        await send(broker, topic, txn(1))
        peer = RecordingPeer()
        producer = broker.producer(topic, peer)
        run = run_in(of, 5)
        run.payloads[1] = end_marker(txn(1), COMMIT, 1)
        run.payloads[3] = run_in(txn(2), 1).payloads[0]
        run.has_markers = True
        topic.publish(producer, run)
        await broker.until(lambda: len(peer.receipts) + len(peer.errors) == 5)
        assert [type(each) for each in peer.errors] == [NotAllowedError] * 2
        assert topic.ledger.read_limit.limit is not None
        await topic.end_transaction(txn(1), ABORT, 0)
        assert topic.ledger.read_limit.limit is None
        hidden = sum(map(len, topic.ledger.read_limit.hidden.values()))
        assert hidden == (5 if of else 2)
