"""`/admin/v3/transactions`: coordinators, their transactions, and an administrator's abort; and their metrics."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.protocol.test_transactions import TOPIC, Told, ask, ids
from tests.support.async_client import AsyncClient, binary_port
from tests.support.memory_broker import START_MS, MemoryBroker, memory_broker, stored_subscription
from tests.support.metric_rules import problems
from tests.support.recording_peer import RecordingPeer
from tests.support.rest import Answer, call
from tests.support.transactions import send

from pybroker.broker.delivery.acknowledgement import Acknowledged, PartOfBatch
from pybroker.errors import PersistenceError
from pybroker.model.position import Position
from pybroker.model.txn_id import TxnAction, TxnId
from pybroker.transactions.coordinators import MAX_COORDINATORS
from pybroker.transactions.participant_notification import Participant
from pybroker.transactions.records import decode, encode
from pybroker.wire import pulsar_api_pb2 as pb

B = pb.BaseCommand


@pytest.fixture
def told(broker: MemoryBroker) -> Told:
    return Told(broker)


@pytest.fixture
async def client(broker: MemoryBroker, told: Told) -> AsyncIterator[AsyncClient]:
    async with binary_port(broker) as port:
        yield await port.connect()


async def rest(broker: MemoryBroker, path: str, method: str = "GET", body: object = None) -> Answer:
    url = f"http://127.0.0.1:{broker.port}/admin/v3/transactions/{path}"
    return await asyncio.to_thread(call, url, method, body=body)


async def opened(client: AsyncClient, *topics: str) -> TxnId:
    await ask(client, B.TC_CLIENT_CONNECT_REQUEST, tc_id=0)
    answer = await ask(client, B.NEW_TXN, tc_id=0, txn_ttl_seconds=60_000)
    txn = TxnId(0, int(answer["txnid_least_bits"]))
    if topics:
        await ask(client, B.ADD_PARTITION_TO_TXN, **ids(txn), partitions=list(topics))
    return txn


def path_of(txn: TxnId) -> str:
    return f"{txn.most}/{txn.least}"


def later(txn: TxnId, count: int) -> TxnId:
    return TxnId(txn.most, txn.least + count)


async def test_coordinators_are_listed_before_anybody_has_used_one(broker: MemoryBroker) -> None:
    listed = (await rest(broker, "coordinators")).json
    assert [each["id"] for each in listed] == list(range(16))
    assert (await rest(broker, "coordinatorStats")).json == {}
    for path in (
        "coordinatorStats?coordinatorId=0",
        "coordinatorInternalStats/0",
        "slowTransactions/0?coordinatorId=0",
    ):
        answer = await rest(broker, path)
        assert answer.status == 404
        assert answer.json == {"reason": "Transaction coordinator not found! coordinator id : 0"}


async def test_stats_of_a_coordinator(broker: MemoryBroker, client: AsyncClient) -> None:
    first, last = await opened(client), await opened(client)
    stats = (await rest(broker, "coordinatorStats?coordinatorId=0")).json
    assert stats == {
        "state": "Ready",
        "leastSigBits": last.least,
        "lowWaterMark": first.least - 1,
        "ongoingTxnSize": 2,
        "recoverStartTime": START_MS,
        "recoverEndTime": START_MS,
    }
    assert (await rest(broker, "coordinatorStats")).json == {"0": stats}
    log = (await rest(broker, "coordinatorInternalStats/0?metadata=true")).json["transactionLogStats"]
    assert log["managedLedgerName"] == "pulsar/system/persistent/__transaction_log_0"
    assert log["managedLedgerInternalStats"]["numberOfEntries"] == 2
    assert list(log["managedLedgerInternalStats"]["cursors"]) == ["transaction.subscription"]


async def test_metadata_of_a_transaction_say_what_takes_part(broker: MemoryBroker, client: AsyncClient) -> None:
    txn = await opened(client, TOPIC)
    pair = pb.Subscription(topic=TOPIC, subscription="s")
    await ask(client, B.ADD_SUBSCRIPTION_TO_TXN, **ids(txn), subscription=[pair])
    broker.clock.now_ms += 5000
    found = (await rest(broker, f"transactionMetadata/{path_of(txn)}")).json
    assert found == {
        "txnId": str(txn),
        "status": "OPEN",
        "openTimestamp": START_MS,
        "timeoutAt": START_MS + 60_000,
        "producedPartitions": {TOPIC: {"aborted": False}},
        "ackedPartitions": {TOPIC: {"s": {}}},
        "pybroker": {"ageMillis": 5000},
    }
    assert (await rest(broker, f"transactionMetadata/{path_of(later(txn, 1))}")).status == 404
    assert (await rest(broker, "transactionMetadata/9/1")).status == 404


async def test_participants_are_named_as_the_client_wrote_them(broker: MemoryBroker, client: AsyncClient) -> None:
    txn = await opened(client, "my-topic-1", TOPIC)
    pairs = [pb.Subscription(topic=topic, subscription="s") for topic in ("public/default/my-topic-2", "my-topic-1")]
    await ask(client, B.ADD_SUBSCRIPTION_TO_TXN, **ids(txn), subscription=pairs)
    found = (await rest(broker, f"transactionMetadata/{path_of(txn)}")).json
    assert found["producedPartitions"] == {"my-topic-1": {"aborted": False}, TOPIC: {"aborted": False}}
    assert found["ackedPartitions"] == {"public/default/my-topic-2": {"s": {}}, "my-topic-1": {"s": {}}}
    assert found["pybroker"]["fullNames"] == {
        "my-topic-1": "persistent://public/default/my-topic-1",
        "public/default/my-topic-2": "persistent://public/default/my-topic-2",
    }
    state = broker.service.transactions.find(0).state
    transaction = state.existing(txn)
    state.apply(decode(encode(state.whole(transaction))))
    assert (await rest(broker, f"transactionMetadata/{path_of(txn)}")).json == found, "the same after a restart"
    state.check_invariants()


async def test_a_stuck_transaction_says_whom_it_waits_for_and_why(
    broker: MemoryBroker, client: AsyncClient, told: Told
) -> None:
    told.refuse[TOPIC] = PersistenceError("no disk")
    txn = await opened(client, TOPIC, "persistent://public/default/u")
    await opened(client)
    client.ask(B.END_TXN, **ids(txn), txn_action=pb.COMMIT)
    endings = broker.service.transactions.find(0).endings
    await broker.until(lambda: (ending := endings.find(txn)) is not None and bool(ending.last_error))
    broker.clock.now_ms += 10_000
    slow = (await rest(broker, "slowTransactions/10000")).json
    assert list(slow) == [str(txn), str(later(txn, 1))]
    own = slow[str(txn)]["pybroker"]
    assert (own["waitsFor"], own["waitsForCount"], own["lastError"]) == ([TOPIC], 1, f"{TOPIC}: no disk")
    assert slow[str(txn)]["status"] == "COMMITTING"
    assert (await rest(broker, "slowTransactions/10001?coordinatorId=0")).json == {}
    refused = await rest(broker, f"abortTransaction/{path_of(txn)}", "POST")
    assert refused.status == 409
    assert "COMMITTING" in refused.json["reason"]


async def test_an_administrator_aborts_a_transaction(broker: MemoryBroker, client: AsyncClient, told: Told) -> None:
    txn = await opened(client, TOPIC)
    assert (await rest(broker, f"abortTransaction/{path_of(txn)}", "POST")).status == 204
    assert told.of(txn) == [(Participant(TOPIC), TxnAction.ABORT)]
    for path in (
        f"abortTransaction/{path_of(txn)}",
        f"abortTransaction/{path_of(later(txn, 76))}",
        "abortTransaction/9/1",
    ):
        assert (await rest(broker, path, "POST")).status == 404


async def test_coordinators_can_only_grow(broker: MemoryBroker, client: AsyncClient) -> None:
    path = "transactionCoordinator/replicas"
    for count in (-1, 0, 16):
        answer = await rest(broker, path, "POST", count)
        assert answer.status == 406
        assert answer.json["reason"].startswith("Number of transaction coordinators should be more than")
    assert (await rest(broker, path, "POST", MAX_COORDINATORS + 1)).status == 412
    assert (await rest(broker, path, "POST", "many")).status == 400
    assert (await rest(broker, path, "POST", 20)).status == 204
    assert len((await rest(broker, "coordinators")).json) == 20
    assert "error" not in await ask(client, B.TC_CLIENT_CONNECT_REQUEST, tc_id=19)
    assert (await rest(broker, path, "POST", 24)).status == 204
    assert (await rest(broker, path, "POST", 24)).status == 406
    name = "persistent://pulsar/system/transaction_coordinator_assign"
    assert (await ask(client, B.PARTITIONED_METADATA, topic=name))["partitions"] == 24


async def test_all_of_it_is_503_without_transactions() -> None:
    async with memory_broker(transaction_coordinator_enabled=False) as broker:
        for method, path in (
            ("GET", "coordinators"),
            ("GET", "coordinatorStats"),
            ("GET", "coordinatorInternalStats/0"),
            ("GET", "transactionMetadata/0/1"),
            ("GET", "slowTransactions/1"),
            ("GET", "transactionBufferStats/public/default/t"),
            ("GET", "pendingAckStats/public/default/t/s"),
            ("POST", "abortTransaction/0/1"),
            ("POST", "transactionCoordinator/replicas"),
        ):
            answer = await rest(broker, path, method, 20 if method == "POST" else None)
            assert answer.status == 503
            assert answer.json["reason"].startswith("This Broker is not configured with")


async def test_the_metrics_count_what_coordinators_do(broker: MemoryBroker, client: AsyncClient) -> None:
    for action in (pb.COMMIT, pb.ABORT, None):
        txn = await opened(client)
        if action is not None:
            await ask(client, B.END_TXN, **ids(txn), txn_action=action)
    broker.service.transactions.find(0)._timeouts.add(txn.least, 0.0)
    broker.service.transactions.find(0).check_timeouts()
    await broker.until(lambda: not len(broker.service.transactions.find(0).state))
    answer = await asyncio.to_thread(call, f"http://127.0.0.1:{broker.port}/metrics/", "GET")
    assert problems(answer.text) == []
    lines: dict[str, Any] = dict(
        line.rsplit(" ", 1) for line in answer.text.splitlines() if line.startswith("pulsar_txn")
    )
    labels = '{cluster="standalone",coordinator_id="0"}'
    values = {name: int(lines[f"pulsar_txn_{name}{labels}"]) for name in ("active_count", "created_total")}
    assert values == {"active_count": 0, "created_total": 3}
    assert lines[f"pulsar_txn_committed_total{labels}"] == "1"
    assert lines[f"pulsar_txn_timeout_total{labels}"] == "1"
    assert lines[f"pulsar_txn_append_log_total{labels}"] == "9"
    assert lines[f"pulsar_txn_execution_latency_le_10{labels}"] == lines[f"pulsar_txn_execution_latency_count{labels}"]


async def test_a_topic_says_which_transactions_hold_its_readers_back(broker: MemoryBroker) -> None:
    async with binary_port(broker) as port:
        client = await port.connect()
        topic = await broker.topic(TOPIC)
        name = "public/default/t"
        fresh = (await rest(broker, f"transactionBufferStats/{name}")).json
        assert (fresh["state"], fresh["ongoingTxnSize"], fresh["snapshotType"]) == ("NoSnapshot", 0, "Single")
        txn = await opened(client, TOPIC)
        [before] = await send(broker, topic, None)
        [first] = await send(broker, topic, txn)
        stats = (await rest(broker, f"transactionBufferStats/{name}?lowWaterMarks=true")).json
        assert (stats["ongoingTxnSize"], stats["maxReadPosition"]) == (1, str(before))
        start = (await rest(broker, f"transactionInBufferStats/{name}/{path_of(txn)}")).json["startPosition"]
        assert start == str(first)
        shown = (await rest(broker, f"transactionMetadata/{path_of(txn)}")).json
        assert shown["producedPartitions"] == {TOPIC: {"startPosition": start, "aborted": False}}
        assert shown["pybroker"]["holds"] == [{"topic": TOPIC, "entries": 1}]
        assert "error" not in await ask(client, B.END_TXN, **ids(txn), txn_action=pb.COMMIT)
        stats = (await rest(broker, f"transactionBufferStats/{name}")).json
        assert stats["ongoingTxnSize"] == 0
        assert (await rest(broker, f"transactionInBufferStats/{name}/{path_of(txn)}")).json == {"aborted": False}
        assert (await rest(broker, f"transactionBufferInternalStats/{name}")).json == {"snapshotType": "Single"}
        assert (await rest(broker, "transactionBufferStats/public/default/missing")).status == 404


async def test_a_subscription_says_what_transactions_hold_of_it(broker: MemoryBroker) -> None:
    async with binary_port(broker) as port:
        client = await port.connect()
        topic, of = await broker.topic(TOPIC), "public/default/t/a%2Fb"
        consumer = await broker.consumer(topic, "a/b", RecordingPeer(), "Shared")
        state = stored_subscription(consumer.subscription).cursor.state
        sent = await send(broker, topic, None, 4)
        assert (await rest(broker, f"pendingAckStats/{of}")).json == {
            "state": "None",
            "ongoingTxnSize": 0,
            "recoverStartTime": START_MS,
            "recoverEndTime": START_MS,
        }
        txn = await opened(client)
        pair = pb.Subscription(topic=TOPIC, subscription="a/b")
        await ask(client, B.ADD_SUBSCRIPTION_TO_TXN, **ids(txn), subscription=[pair])
        ack = stored_subscription(consumer.subscription).transactions
        part = PartOfBatch(sent[3], [0b0101], 4)
        assert ack.hold(txn, Acknowledged(None, [(sent[1].ledger_id, [sent[1].entry_id])], [part])) is None
        state.acknowledge(sent[0].ledger_id, [sent[0].entry_id])

        async def state_of(position: Position, query: str = "") -> object:
            path = f"positionStatsInPendingAck/{of}/{position.ledger_id}/{position.entry_id}{query}"
            return (await rest(broker, path)).json["state"]

        stats = (await rest(broker, f"pendingAckStats/{of}?lowWaterMarks=true")).json
        assert (stats["state"], stats["ongoingTxnSize"], stats["lowWaterMarks"]) == ("Ready", 1, {})
        assert [await state_of(each) for each in sent] == ["MarkDelete", "PendingAck", "NotInPendingAck", "PendingAck"]
        bits = [await state_of(sent[3], f"?batchIndex={index}") for index in range(-1, 5)]
        free, held, wrong = "NotInPendingAck", "PendingAck", "InvalidPosition"
        assert bits == [wrong, free, held, free, held, wrong]
        assert await state_of(sent[1], "?batchIndex=0") == held
        assert (await rest(broker, f"transactionInPendingAckStats/{of}/{path_of(txn)}")).json == {}
        assert ack.hold(txn, Acknowledged(sent[2], [], [])) is None
        assert await state_of(sent[2]) == held
        up_to = {"cumulativeAckPosition": str(sent[2])}
        assert (await rest(broker, f"transactionInPendingAckStats/{of}/{path_of(txn)}")).json == up_to
        assert (await rest(broker, f"transactionMetadata/{path_of(txn)}")).json["ackedPartitions"] == {
            TOPIC: {"a/b": up_to}
        }
        held_here = {"topic": TOPIC, "subscription": "a/b", "entries": 2}
        assert (await rest(broker, "slowTransactions/0")).json[str(txn)]["pybroker"]["holds"] == [held_here]
        assert (await rest(broker, f"transactionInPendingAckStats/{of}/{path_of(later(txn, 1))}")).json == {}
        assert (await rest(broker, f"pendingAckInternalStats/{of}")).json == {}
        assert "error" not in await ask(client, B.END_TXN, **ids(txn), txn_action=pb.COMMIT)
        assert (await rest(broker, f"pendingAckStats/{of}")).json["ongoingTxnSize"] == 0
        assert (await rest(broker, f"pendingAckStats/{of}")).json["state"] == "Ready"
        for path in ("pendingAckStats/public/default/t/missing", "pendingAckInternalStats/public/default/missing/s"):
            assert (await rest(broker, path)).status == 404


async def test_the_log_of_a_coordinator_cannot_be_deleted_as_a_topic(broker: MemoryBroker, client: AsyncClient) -> None:
    txn = await opened(client)
    answer = await broker.rest("DELETE", "/persistent/pulsar/system/__transaction_log_0?force=true")
    assert answer.status == 405
    assert "error" not in await ask(client, B.END_TXN, **ids(txn), txn_action=pb.COMMIT)


async def test_transaction_of_an_unused_coordinator_is_reported_as_missing_transaction(broker: MemoryBroker) -> None:
    for method, path in (("GET", "transactionMetadata/0/99"), ("POST", "abortTransaction/0/99")):
        answer = await rest(broker, path, method=method)
        assert answer.status == 404
        assert answer.json == {"reason": "The transaction with this txdID `(0,99)`not found "}
    answer = await rest(broker, "transactionMetadata/99/0")
    assert answer.status == 404
    assert answer.json == {"reason": "Transaction coordinator with id 99 not found!"}
    assert broker.service.transactions.running() == [], "a question starts no coordinator"
