"""Transactions over the binary protocol: coordinators, what they answer, and what they tell topics."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.support.async_client import AsyncClient, binary_port
from tests.support.memory_broker import MemoryBroker, memory_broker

from pybroker.errors import PersistenceError, StoreError, TopicNotFound
from pybroker.model.names import TopicName
from pybroker.model.system_topics import SYSTEM_NAMESPACE
from pybroker.model.txn_id import TxnAction, TxnId
from pybroker.transactions.coordinators import DEFAULT_COORDINATORS
from pybroker.transactions.participant_notification import Participant
from pybroker.transactions.records import Kind, Record
from pybroker.wire import pulsar_api_pb2 as pb

B = pb.BaseCommand
ASSIGN = "persistent://pulsar/system/transaction_coordinator_assign"
TOPIC = "persistent://public/default/t"
COMMIT = TxnAction.COMMIT


class Told:
    """Stands for topics and subscriptions: remembers what they were told, and may refuse or stall."""

    def __init__(self, broker: MemoryBroker) -> None:
        self.told: list[tuple[Participant, TxnId, TxnAction, int]] = []
        self.refuse: dict[str, Exception] = {}
        self.blocked_reason = asyncio.Event()
        self.blocked_reason.set()
        self.asked = asyncio.Event()
        broker.service.transactions._context.end_participant = self.end

    async def end(self, participant: Participant, txn: TxnId, action: TxnAction, low_water_mark: int) -> None:
        self.asked.set()
        await self.blocked_reason.wait()
        if (error := self.refuse.get(participant.topic)) is not None:
            raise error
        self.told.append((participant, txn, action, low_water_mark))

    def of(self, txn: TxnId) -> list[tuple[Participant, TxnAction]]:
        return [(participant, action) for participant, each, action, _ in self.told if each == txn]


@pytest.fixture
def told(broker: MemoryBroker) -> Told:
    return Told(broker)


@pytest.fixture
async def client(broker: MemoryBroker, told: Told) -> AsyncIterator[AsyncClient]:
    async with binary_port(broker) as port:
        yield await port.connect()


async def ask(client: AsyncClient, kind: Any, **fields: Any) -> dict[str, Any]:
    return await client.request(kind, **fields)


async def opened(client: AsyncClient, tc_id: int = 0, ttl_ms: int = 60_000) -> TxnId:
    assert "error" not in await ask(client, B.TC_CLIENT_CONNECT_REQUEST, tc_id=tc_id)
    answer = await ask(client, B.NEW_TXN, tc_id=tc_id, txn_ttl_seconds=ttl_ms)
    assert "error" not in answer
    return TxnId(int(answer["txnid_most_bits"]), int(answer["txnid_least_bits"]))


def ids(txn: TxnId) -> dict[str, int]:
    return {"txnid_most_bits": txn.most, "txnid_least_bits": txn.least}


async def end(client: AsyncClient, txn: TxnId, action: TxnAction) -> dict[str, Any]:
    return await ask(client, B.END_TXN, **ids(txn), txn_action=int(action))


async def test_a_coordinator_has_to_be_connected_to_first(client: AsyncClient) -> None:
    answer = await ask(client, B.NEW_TXN, tc_id=3, txn_ttl_seconds=1000)
    assert answer["error"] == "TransactionCoordinatorNotFound"
    assert answer["message"] == "Transaction coordinator with id 3 not found!"
    assert (await opened(client, 3)).most == 3


async def test_nothing_is_stored_before_a_client_connects_to_a_coordinator(
    broker: MemoryBroker, client: AsyncClient
) -> None:
    found = await ask(client, B.PARTITIONED_METADATA, topic=ASSIGN)
    assert found["partitions"] == DEFAULT_COORDINATORS
    found = await ask(client, B.LOOKUP, topic=f"{ASSIGN}-partition-15")
    assert found["response"] == "Connect"
    stored = await broker.service.metadata_store.children("/managed-ledgers/pulsar/system/persistent")
    assert not stored
    assert not broker.service.partitioned.names(SYSTEM_NAMESPACE, "persistent")


async def test_a_coordinator_that_there_is_none_of_is_refused(client: AsyncClient) -> None:
    for tc_id in (DEFAULT_COORDINATORS, 1 << 40, (1 << 64) - 1):
        answer = await ask(client, B.TC_CLIENT_CONNECT_REQUEST, tc_id=tc_id)
        assert answer["error"] == "TransactionCoordinatorNotFound"
        assert answer["message"] == f"Transaction coordinator with id {tc_id} not found!"


async def test_ids_of_a_coordinator_rise(client: AsyncClient) -> None:
    assert [await opened(client) for _ in range(3)] == [TxnId(0, 1), TxnId(0, 2), TxnId(0, 3)]
    assert await opened(client, 1) == TxnId(1, 1)


@pytest.mark.parametrize("action", list(TxnAction))
async def test_all_that_take_part_are_told_before_the_end_is_answered(
    client: AsyncClient, told: Told, action: TxnAction
) -> None:
    txn = await opened(client)
    names = [f"{TOPIC}-{index}" for index in range(40)]
    assert "error" not in await ask(client, B.ADD_PARTITION_TO_TXN, **ids(txn), partitions=names)
    pair = pb.Subscription(topic=TOPIC, subscription="s")
    assert "error" not in await ask(client, B.ADD_SUBSCRIPTION_TO_TXN, **ids(txn), subscription=[pair])
    told.blocked_reason.clear()
    request = client.ask(B.END_TXN, **ids(txn), txn_action=int(action))
    await told.asked.wait()
    assert not told.told
    told.blocked_reason.set()
    assert "error" not in await client.answer(request)
    expected = [Participant(name) for name in names] + [Participant(TOPIC, "s")]
    assert sorted(told.of(txn), key=str) == sorted([(each, action) for each in expected], key=str)


async def test_who_takes_part_twice_is_told_once(client: AsyncClient, told: Told) -> None:
    txn = await opened(client)
    for _ in range(2):
        assert "error" not in await ask(client, B.ADD_PARTITION_TO_TXN, **ids(txn), partitions=[TOPIC, "t", TOPIC])
    await end(client, txn, TxnAction.COMMIT)
    assert told.of(txn) == [(Participant(TOPIC), TxnAction.COMMIT)]


async def test_a_transaction_that_has_ended_is_not_found(client: AsyncClient) -> None:
    txn = await opened(client)
    assert "error" not in await end(client, txn, TxnAction.COMMIT)
    for answer in (
        await end(client, txn, TxnAction.COMMIT),
        await end(client, txn, TxnAction.ABORT),
        await ask(client, B.ADD_PARTITION_TO_TXN, **ids(txn), partitions=[TOPIC]),
        await ask(client, B.ADD_SUBSCRIPTION_TO_TXN, **ids(txn)),
        await end(client, TxnId(0, 1000), TxnAction.ABORT),
        await end(client, TxnId(0, 0), TxnAction.ABORT),
    ):
        assert answer["error"] == "TransactionNotFound"
        assert answer["message"].endswith("not found ")


async def test_the_same_end_twice_at_once_has_one_answer_and_the_other_end_is_refused(
    client: AsyncClient, told: Told
) -> None:
    txn = await opened(client)
    await ask(client, B.ADD_PARTITION_TO_TXN, **ids(txn), partitions=[TOPIC])
    told.blocked_reason.clear()
    first = client.ask(B.END_TXN, **ids(txn), txn_action=pb.COMMIT)
    again = client.ask(B.END_TXN, **ids(txn), txn_action=pb.COMMIT)
    refused = await end(client, txn, TxnAction.ABORT)
    assert refused["error"] == "InvalidTxnStatus"
    assert "COMMITTING" in refused["message"]
    late = await ask(client, B.ADD_PARTITION_TO_TXN, **ids(txn), partitions=["u"])
    assert late["error"] == "InvalidTxnStatus"
    told.blocked_reason.set()
    answers = [await client.next(), await client.next()]
    assert {answer["request_id"] for answer in answers} == {str(first), str(again)}
    assert all("error" not in answer for answer in answers)
    assert told.of(txn) == [(Participant(TOPIC), TxnAction.COMMIT)]


async def test_an_end_goes_on_when_the_client_is_gone(broker: MemoryBroker, client: AsyncClient, told: Told) -> None:
    txn = await opened(client)
    await ask(client, B.ADD_PARTITION_TO_TXN, **ids(txn), partitions=[TOPIC])
    told.blocked_reason.clear()
    client.ask(B.END_TXN, **ids(txn), txn_action=pb.COMMIT)
    await told.asked.wait()
    await client.close()
    told.blocked_reason.set()
    coordinator = broker.service.transactions.find(0)
    await broker.until(lambda: coordinator.state.find(txn.least) is None)
    assert told.of(txn) == [(Participant(TOPIC), TxnAction.COMMIT)]


async def test_an_end_is_answered_when_all_know_it_though_the_record_that_forgets_it_is_lost(
    broker: MemoryBroker, client: AsyncClient, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    txn = await opened(client)
    await ask(client, B.ADD_PARTITION_TO_TXN, **ids(txn), partitions=[TOPIC])
    coordinator = broker.service.transactions.find(0)
    log = coordinator.log
    assert log is not None
    append, lost = log.append, []

    def loses(record: Record) -> asyncio.Future[None]:
        if record.kind is not Kind.COMMITTED:
            return append(record)
        lost.append(record)
        return asyncio.get_running_loop().create_future()

    monkeypatch.setattr(log, "append", loses)
    assert "error" not in await end(client, txn, COMMIT)
    assert len(lost) == 1
    assert coordinator.counters.committed == 0
    coordinator._log_failed(StoreError("a planned failure"))
    await coordinator.ready()
    await broker.until(lambda: coordinator.counters.committed == 1)
    assert told.of(txn) == [(Participant(TOPIC), COMMIT)] * 2
    assert (await end(client, txn, COMMIT))["error"] == "TransactionNotFound"


async def test_a_topic_that_cannot_be_told_is_told_again_and_delays_no_other(client: AsyncClient, told: Told) -> None:
    told.refuse[TOPIC] = PersistenceError("no disk")
    stuck, other = await opened(client), await opened(client)
    await ask(client, B.ADD_PARTITION_TO_TXN, **ids(stuck), partitions=[TOPIC, "u"])
    await ask(client, B.ADD_PARTITION_TO_TXN, **ids(other), partitions=["u"])
    request = client.ask(B.END_TXN, **ids(stuck), txn_action=pb.COMMIT)
    assert "error" not in await end(client, other, TxnAction.COMMIT)
    del told.refuse[TOPIC]
    assert "error" not in await client.answer(request)
    assert [participant for participant, _ in told.of(stuck)].count(Participant(TOPIC)) == 1


async def test_a_transaction_is_aborted_when_its_time_is_over(client: AsyncClient, told: Told) -> None:
    for ttl_ms in (0, 1, (1 << 64) - 1):
        txn = await opened(client, ttl_ms=ttl_ms)
        while (answer := await ask(client, B.ADD_PARTITION_TO_TXN, **ids(txn), partitions=[])).get(
            "error"
        ) != "TransactionNotFound":
            assert answer.get("error") in (None, "InvalidTxnStatus")
        assert (await end(client, txn, TxnAction.COMMIT))["error"] == "TransactionNotFound"


async def test_a_time_out_and_a_commit_at_once_agree(broker: MemoryBroker, client: AsyncClient, told: Told) -> None:
    txn = await opened(client)
    await ask(client, B.ADD_PARTITION_TO_TXN, **ids(txn), partitions=[TOPIC])
    told.blocked_reason.clear()
    coordinator = broker.service.transactions.find(0)
    request = client.ask(B.END_TXN, **ids(txn), txn_action=pb.COMMIT)
    await told.asked.wait()
    coordinator._timeouts.add(txn.least, 0.0)
    coordinator.check_timeouts()
    told.blocked_reason.set()
    assert "error" not in await client.answer(request)
    assert told.of(txn) == [(Participant(TOPIC), TxnAction.COMMIT)]
    assert coordinator.counters.timed_out == 0


async def test_nothing_is_committed_by_an_end_that_does_not_say_how(client: AsyncClient) -> None:
    txn = await opened(client)
    answer = await ask(client, B.END_TXN, **ids(txn))
    assert answer["error"] == "NotAllowedError"
    assert "error" not in await end(client, txn, TxnAction.ABORT)


async def test_a_name_that_is_none_takes_no_part(client: AsyncClient) -> None:
    txn = await opened(client)
    answer = await ask(client, B.ADD_PARTITION_TO_TXN, **ids(txn), partitions=["per:///x y"])
    assert answer["error"] == "InvalidTopicName"
    assert "error" not in await end(client, txn, TxnAction.COMMIT)


async def test_the_low_water_mark_is_below_the_oldest_open_transaction(client: AsyncClient, told: Told) -> None:
    first, second, third = [await opened(client) for _ in range(3)]
    for txn in (first, second, third):
        await ask(client, B.ADD_PARTITION_TO_TXN, **ids(txn), partitions=[TOPIC])
    for txn in (second, first, third):
        await end(client, txn, TxnAction.COMMIT)
    assert [(txn.least, mark) for _, txn, _, mark in told.told] == [(2, 0), (1, 0), (3, 2)]


async def test_a_topic_that_is_gone_has_nothing_to_end(broker: MemoryBroker, client: AsyncClient) -> None:
    participants = broker.service.participants
    for participant in (
        Participant("persistent://public/default/missing"),
        Participant("persistent://public/nowhere/missing", "s"),
        Participant("persistent://nobody/default/missing"),
        Participant("non-persistent://public/default/t"),
        Participant("persistent://pulsar/system/__transaction_log_0"),
    ):
        await participants.end(participant, TxnId(0, 1), TxnAction.COMMIT, 0)
    with pytest.raises(TopicNotFound):
        await broker.service.topics.get(TopicName.parse("persistent://public/default/missing"), may_create=False)


async def test_without_transactions_all_is_refused_as_by_pulsar() -> None:
    async with memory_broker(transaction_coordinator_enabled=False) as broker, binary_port(broker) as port:
        client = await port.connect()
        for kind in (
            B.TC_CLIENT_CONNECT_REQUEST,
            B.NEW_TXN,
            B.ADD_PARTITION_TO_TXN,
            B.ADD_SUBSCRIPTION_TO_TXN,
            B.END_TXN,
        ):
            fields: dict[str, Any] = {"tc_id": 0} if kind == B.TC_CLIENT_CONNECT_REQUEST else {}
            answer = await ask(client, kind, **fields)
            assert (answer["type"], answer["error"]) == ("ERROR", "NotAllowedError")
            assert answer["message"] == "Transactions are not enabled."
        fields = {**ids(TxnId(0, 1)), "topic": "missing", "txn_action": pb.COMMIT}
        assert "error" not in await ask(client, B.END_TXN_ON_PARTITION, **fields)
        await broker.topic(TOPIC)
        answer = await ask(client, B.END_TXN_ON_PARTITION, **{**fields, "topic": TOPIC})
        assert (answer["error"], answer["message"]) == ("NotAllowedError", "Transaction buffer disable!")
        pair = pb.Subscription(topic=TOPIC, subscription="s")
        answer = await ask(
            client, B.END_TXN_ON_SUBSCRIPTION, **ids(TxnId(0, 1)), subscription=pair, txn_action=pb.COMMIT
        )
        assert "error" not in answer
        assert (await ask(client, B.PARTITIONED_METADATA, topic=ASSIGN))["partitions"] == 0


async def test_over_the_limit_new_ones_wait_in_the_order_in_which_they_came() -> None:
    async with memory_broker(max_active_transactions_per_coordinator=2) as broker, binary_port(broker) as port:
        Told(broker)
        client = await port.connect()
        first = await opened(client)
        await opened(client)
        waiting = [client.ask(B.NEW_TXN, tc_id=0, txn_ttl_seconds=60_000) for _ in range(2)]
        gone = await port.connect()
        gone.ask(B.NEW_TXN, tc_id=0, txn_ttl_seconds=60_000)
        coordinator = broker.service.transactions.find(0)
        await broker.until(lambda: coordinator.waiting == 3)
        await gone.close()
        await broker.until(lambda: coordinator.waiting == 2)
        await end(client, first, TxnAction.COMMIT)
        answer = await client.answer(waiting[0])
        assert int(answer["txnid_least_bits"]) == 3
        assert len(coordinator.state) == 2
        await end(client, TxnId(0, 2), TxnAction.ABORT)
        assert int((await client.answer(waiting[1]))["txnid_least_bits"]) == 4


async def test_memory_of_open_transactions_is_bounded() -> None:
    async with memory_broker(max_open_transactions_size_in_mb=1) as broker, binary_port(broker) as port:
        Told(broker)
        client = await port.connect()
        txn = await opened(client)
        name = "x" * 150
        refused: dict[str, Any] = {}
        for batch in range(100):
            names = [f"{name}{batch}-{index}" for index in range(500)]
            refused = await ask(client, B.ADD_PARTITION_TO_TXN, **ids(txn), partitions=names)
            if "error" in refused:
                break
        assert refused["error"] in ("TooManyRequests", "NotAllowedError")
        assert broker.service.transactions.find(0).state.size_bytes < 2 << 20
        waiting = client.ask(B.NEW_TXN, tc_id=0, txn_ttl_seconds=60_000)
        await end(client, txn, TxnAction.ABORT)
        assert "error" not in await client.answer(waiting)


async def test_a_transaction_has_so_many_participants_at_most() -> None:
    async with memory_broker(max_participants_per_transaction=3) as broker, binary_port(broker) as port:
        Told(broker)
        client = await port.connect()
        txn = await opened(client)
        answer = await ask(client, B.ADD_PARTITION_TO_TXN, **ids(txn), partitions=["a", "b", "c", "d"])
        assert answer["error"] == "NotAllowedError"
        assert "maxParticipantsPerTransaction" in answer["message"]
        assert "error" not in await ask(client, B.ADD_PARTITION_TO_TXN, **ids(txn), partitions=["a", "b", "c"])
        pair = pb.Subscription(topic="a", subscription="s")
        answer = await ask(client, B.ADD_SUBSCRIPTION_TO_TXN, **ids(txn), subscription=[pair])
        assert answer["error"] == "NotAllowedError"
        assert "error" not in await ask(client, B.ADD_PARTITION_TO_TXN, **ids(txn), partitions=["a", "c"])
