"""Topics, partitioned topics and namespaces that several make, use and delete at once: who can be served by waiting waits."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest
from tests.protocol.conftest import running
from tests.support.broker_process import BrokerProcess
from tests.support.broker_stores import OnModelBookies, choice_of_stores
from tests.support.memory_broker import MemoryBroker, memory_broker
from tests.support.raw_client import Type, connected, encode, frame
from tests.support.recording_peer import RecordingPeer
from tests.support.rest import call

from pybroker.broker.topic.topic import Topic
from pybroker.errors import (
    AdminError,
    BrokerError,
    NotAllowedError,
    PersistenceError,
    StoreError,
    TooManyRequests,
    TopicNotFound,
)
from pybroker.model.events import SendRun
from pybroker.model.names import NamespaceName, TopicName
from pybroker.model.policies import NamespacePolicies
from pybroker.wire import pulsar_api_pb2 as pb

NAMESPACE = NamespaceName("public", "default")
ORDERS = TopicName.parse("persistent://public/default/orders")
ALSO = "persistent://public/default/also-"


class BlockedReason:
    """Holds calls of one method until it is opened, and says how many have come."""

    def __init__(self, owner: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.arrived = 0
        self._may_pass = asyncio.Event()
        self._method: Callable[..., Awaitable[Any]] = getattr(owner, name)
        monkeypatch.setattr(owner, name, self._pass)

    async def _pass(self, *args: Any, **named: Any) -> Any:
        self.arrived += 1
        await self._may_pass.wait()
        return await self._method(*args, **named)

    def open(self) -> None:
        self._may_pass.set()


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def outcomes(*work: Awaitable[Any]) -> list[Any]:
    return await asyncio.gather(*work, return_exceptions=True)


@pytest.fixture
async def broker() -> AsyncIterator[MemoryBroker]:
    async with memory_broker(force_delete_namespace_allowed=True) as running:
        yield running


@pytest.fixture
async def partitioning() -> AsyncIterator[MemoryBroker]:
    """A broker that makes partitioned topics of three partitions by itself."""
    async with memory_broker(allow_auto_topic_creation_type="partitioned", default_num_partitions=3) as running:
        yield running


# --- partitioned topics --------------------------------------------------------------------------------------------------


async def test_clients_that_make_one_partitioned_topic_at_once_all_get_it(partitioning: MemoryBroker) -> None:
    async def use(_: int) -> int:
        partitions = await partitioning.service.partitioned_metadata(ORDERS, create=True)
        for index in range(partitions):
            await partitioning.service.topics.any(ORDERS.partition(index), may_create=True)
        return partitions

    assert await outcomes(*map(use, range(40))) == [3] * 40


async def test_a_client_of_a_partition_waits_while_the_partitions_are_made(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = broker.service
    blocked_reason = BlockedReason(service.ledgers, "create", monkeypatch)
    making = asyncio.ensure_future(service.partitioned_operations.create(ORDERS, 2, {}))
    await broker.until(lambda: blocked_reason.arrived == 2)
    asking = asyncio.ensure_future(service.partitioned_metadata(ORDERS, create=True))
    using = asyncio.ensure_future(service.topics.any(ORDERS.partition(1), may_create=True))
    await turns()
    assert not using.done()
    blocked_reason.open()
    assert [await asking, (await using).name] == [2, ORDERS.partition(1)]
    await making


async def test_of_two_that_make_a_partitioned_topic_one_is_told_that_it_exists_once_it_does(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = broker.service
    blocked_reason = BlockedReason(service.partitioned, "create", monkeypatch)
    both = [asyncio.ensure_future(service.partitioned_operations.create(ORDERS, 2, {})) for _ in range(2)]
    await broker.until(lambda: blocked_reason.arrived == 1)
    await turns()
    assert not any(each.done() for each in both)
    blocked_reason.open()
    await asyncio.wait(both, return_when=asyncio.ALL_COMPLETED)
    error = both[1].exception()
    assert isinstance(error, AdminError)
    assert error.status == 409
    assert await service.partitioned_metadata(ORDERS, create=True) == 2
    await both[0]


async def test_who_grows_a_topic_to_the_same_size_at_once_succeeds(broker: MemoryBroker) -> None:
    operations = broker.service.partitioned_operations
    await operations.create(ORDERS, 1, {})
    await (await broker.topic(str(ORDERS.partition(0)))).subscription("s", True, True, {})
    found = await outcomes(*(operations.update(ORDERS, count) for count in (4, 4, 6, 5)))
    assert found[:3] == [None, None, None]
    assert isinstance(found[3], AdminError)
    assert found[3].status == 422
    assert await broker.service.partitioned_metadata(ORDERS, create=False) == 6
    assert "s" in (await broker.topic(str(ORDERS.partition(5)))).subscriptions


async def test_partitions_that_there_are_go_on_while_their_topic_grows(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = broker.service
    await service.partitioned_operations.create(ORDERS, 1, {})
    blocked_reason = BlockedReason(service.partitioned, "update", monkeypatch)
    growing = asyncio.ensure_future(service.partitioned_operations.update(ORDERS, 2))
    await broker.until(lambda: blocked_reason.arrived == 1)
    await service.topics.any(ORDERS.partition(0), may_create=True)
    added = asyncio.ensure_future(service.topics.any(ORDERS.partition(1), may_create=True))
    await turns()
    assert not added.done()
    blocked_reason.open()
    await added
    await growing


async def test_a_topic_is_never_both_partitioned_and_not(broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    service = broker.service
    blocked_reason = BlockedReason(service.ledgers, "create", monkeypatch)
    single = asyncio.ensure_future(service.making.create(ORDERS, {}))
    await broker.until(lambda: blocked_reason.arrived == 1)
    partitioned = asyncio.ensure_future(service.partitioned_operations.create(ORDERS, 2, {}))
    await turns()
    blocked_reason.open()
    await single
    with pytest.raises(AdminError, match="already exists"):
        await partitioned
    assert await service.partitioned_metadata(ORDERS, create=False) == 0


async def test_two_that_make_one_topic_both_can_use_it(broker: MemoryBroker) -> None:
    found = await outcomes(*(broker.service.making.create(ORDERS, {}) for _ in range(3)))
    assert [type(each) for each in found] == [type(None), AdminError, AdminError]
    assert {each.status for each in found[1:]} == {409}


async def test_a_wait_for_a_change_ends_with_an_error_that_no_client_hangs_on(monkeypatch: pytest.MonkeyPatch) -> None:
    async with memory_broker(topic_load_timeout_seconds=0.05) as broker:
        service = broker.service
        blocked_reason = BlockedReason(service.ledgers, "create", monkeypatch)
        making = asyncio.ensure_future(service.partitioned_operations.create(ORDERS, 1, {}))
        await broker.until(lambda: blocked_reason.arrived == 1)
        with pytest.raises(TooManyRequests, match="topicLoadTimeoutSeconds"):
            await service.topics.any(ORDERS.partition(0), may_create=True)
        with pytest.raises(TooManyRequests, match="topicLoadTimeoutSeconds"):
            await service.partitioned_operations.create(ORDERS, 1, {})
        blocked_reason.open()
        await making
        assert (service.broker_context.waiting.topics.count, service.broker_context.waiting.topics.late_total) == (0, 2)
        page = await asyncio.to_thread(call, broker.url("").removesuffix("/admin/v2") + "/metrics/")
        assert 'pybroker_late_topic_requests_total{cluster="standalone"} 2' in page.text


async def test_only_so_many_requests_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    async with memory_broker(max_waiting_topic_requests=3) as broker:
        service = broker.service
        blocked_reason = BlockedReason(service.ledgers, "create", monkeypatch)
        making = asyncio.ensure_future(service.partitioned_operations.create(ORDERS, 1, {}))
        await broker.until(lambda: blocked_reason.arrived == 1)
        waiting = [asyncio.ensure_future(service.partitioned_operations.create(ORDERS, 1, {})) for _ in range(3)]
        await turns()
        with pytest.raises(TooManyRequests, match="maxWaitingTopicRequests"):
            await service.topics.any(ORDERS.partition(0), may_create=True)
        assert service.broker_context.waiting.topics.refused_total == 1
        waiting[0].cancel()
        await turns()
        assert service.broker_context.waiting.topics.count == 2
        blocked_reason.open()
        await making
        await asyncio.wait(waiting)
        assert service.broker_context.waiting.topics.count == 0
        await service.topics.any(ORDERS.partition(0), may_create=True)


# --- topics being loaded -------------------------------------------------------------------------------------------------


async def test_topics_above_the_limit_are_loaded_in_order_of_arrival(monkeypatch: pytest.MonkeyPatch) -> None:
    async with memory_broker(max_concurrent_topic_load_request=2) as broker:
        blocked_reason = BlockedReason(broker.service.ledgers, "open", monkeypatch)
        order: list[str] = []

        async def use(name: str) -> None:
            order.append((await broker.topic(name)).name.local_name)

        loading = [asyncio.ensure_future(use(f"{ALSO}{index}")) for index in range(20)]
        await broker.until(lambda: blocked_reason.arrived == 2)
        await turns()
        assert (blocked_reason.arrived, broker.service.topics.loading_count) == (2, 20)
        blocked_reason.open()
        await asyncio.gather(*loading)
        assert order == [f"also-{index}" for index in range(20)]
        assert broker.service.topics.loading_count == 0


async def test_a_load_that_nobody_waits_for_any_more_leaves_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    async with memory_broker(max_concurrent_topic_load_request=1) as broker:
        blocked_reason = BlockedReason(broker.service.ledgers, "open", monkeypatch)
        first = asyncio.ensure_future(broker.topic(f"{ALSO}first"))
        left, shared, stays = (asyncio.ensure_future(broker.topic(f"{ALSO}{name}")) for name in ("left", "two", "two"))
        await broker.until(lambda: blocked_reason.arrived == 1)
        await turns()
        left.cancel()
        shared.cancel()
        await turns()
        assert broker.service.topics.loading_count == 2
        blocked_reason.open()
        assert {(await first).name.local_name, (await stays).name.local_name} == {"also-first", "also-two"}
        assert f"{ALSO}left" not in broker.service.loaded.persistent


async def test_topics_load_while_all_slots_of_loading_wait_for_policies() -> None:
    """The policies are in a topic, which is loaded by a client of the broker and needs no free slot."""
    with choice_of_stores(OnModelBookies()):
        async with memory_broker(max_concurrent_topic_load_request=1, topic_load_timeout_seconds=10) as broker:
            assert (await broker.topic(f"{ALSO}first")).name.local_name == "also-first"


async def test_what_the_broker_itself_loads_waits_for_no_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    async with memory_broker(max_concurrent_topic_load_request=1, max_topics_per_namespace=10) as broker:
        service = broker.service
        await service.partitioned_operations.create(ORDERS, 1, {})
        await (await broker.topic(str(ORDERS.partition(0)))).subscription("s", True, True, {})
        await service.topics.unload(await broker.topic(str(ORDERS.partition(0))))
        blocked_reason = BlockedReason(service.partitioned, "update", monkeypatch)
        growing = asyncio.ensure_future(service.partitioned_operations.update(ORDERS, 2))
        # One that waits, in its turn, for the namespace's limit to be looked at, while others wait behind it.
        others = [asyncio.ensure_future(broker.topic(f"{ALSO}{index}")) for index in range(3)]
        await broker.until(lambda: blocked_reason.arrived == 1)
        blocked_reason.open()
        await growing
        await asyncio.gather(*others)


async def test_a_topic_that_is_closed_is_loaded_again_for_who_waits(broker: MemoryBroker, topic: Topic) -> None:
    closing = asyncio.ensure_future(broker.service.topics.unload(topic))
    await broker.until(lambda: topic.is_fenced)
    again = await broker.topic(str(topic.name))
    assert again is not topic
    assert not again.is_fenced
    await closing


# --- namespaces ----------------------------------------------------------------------------------------------------------


async def new_namespace(broker: MemoryBroker) -> TopicName:
    name = NamespaceName("public", "gone")
    await broker.service.resources.create_namespace(name, NamespacePolicies())
    return TopicName("persistent", name, "t")


@pytest.mark.parametrize("force", [False, True])
async def test_a_topic_that_is_being_made_is_no_orphan_of_its_namespace(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch, force: bool
) -> None:
    service = broker.service
    name = await new_namespace(broker)
    blocked_reason = BlockedReason(service.ledgers, "open", monkeypatch)
    using = asyncio.ensure_future(service.topics.any(name, may_create=True))
    await broker.until(lambda: blocked_reason.arrived == 1)
    deleting = asyncio.ensure_future(service.namespace_deletion.delete(name.namespace, force=force))
    await turns()
    late = asyncio.ensure_future(service.topics.any(TopicName("persistent", name.namespace, "late"), may_create=True))
    await turns()
    assert not deleting.done()
    assert not late.done()
    blocked_reason.open()
    if force:
        await deleting
        with pytest.raises(TopicNotFound):
            await late
        (used,) = await outcomes(using)
        assert isinstance(used, TopicNotFound) or used.is_fenced
        assert await service.directory.list(name.namespace, None, include_system=True) == []
    else:
        with pytest.raises(AdminError, match="non empty"):
            await deleting
        assert not (await using).is_fenced
        await late  # It goes on as if nothing had been asked for.


@pytest.mark.parametrize("domain", ["persistent", "non-persistent"])
async def test_whoever_makes_topics_while_a_namespace_goes_leaves_nothing_behind(
    broker: MemoryBroker, domain: str
) -> None:
    service = broker.service
    for attempt in range(25):
        name = await new_namespace(broker)
        name = TopicName(domain, name.namespace, "t")

        async def use(name: TopicName, wait_turns: int) -> None:
            await turns(wait_turns)
            await service.topics.any(name, may_create=True)

        async def delete(name: TopicName) -> None:
            await turns(10)
            await service.namespace_deletion.delete(name.namespace, force=False)

        made, deleted = await outcomes(use(name, attempt), delete(name))
        assert (made is None) == (deleted is not None), (attempt, made, deleted)
        assert isinstance(made, TopicNotFound | None)
        left = await service.directory.list(name.namespace, None, include_system=True)
        assert left == ([] if deleted is None else [str(name)])
        if deleted is not None:
            await service.namespace_deletion.delete(name.namespace, force=True)


async def test_a_partitioned_topic_is_not_made_in_a_namespace_that_goes(broker: MemoryBroker) -> None:
    name = await new_namespace(broker)
    service = broker.service
    deleted, made, single = await outcomes(
        service.namespace_deletion.delete(name.namespace, force=False),
        service.partitioned_operations.create(name, 2, {}),
        service.making.create(TopicName("persistent", name.namespace, "u"), {}),
    )
    assert deleted is None
    assert [type(made), type(single)] == [TopicNotFound, TopicNotFound]
    assert service.partitioned.get(name) is None


async def test_a_namespace_is_made_again_once_it_is_gone(broker: MemoryBroker) -> None:
    name = await new_namespace(broker)
    await broker.service.topics.any(name, may_create=True)
    deleting = asyncio.ensure_future(broker.service.namespace_deletion.delete(name.namespace, force=True))
    await turns(1)
    assert (await broker.rest("PUT", "/namespaces/public/gone")).status == 204
    await deleting
    assert await broker.service.directory.list(name.namespace, None) == []


async def test_a_namespace_that_a_crash_left_marked_is_as_before_when_its_deletion_is_refused(
    broker: MemoryBroker,
) -> None:
    name = await new_namespace(broker)
    service = broker.service
    topic = await service.topics.any(name, may_create=True)

    def mark(policies: NamespacePolicies) -> None:
        policies.deleted = True

    await service.resources.update_namespace(name.namespace, mark)
    await service.topics.unload(topic)
    with pytest.raises(TopicNotFound):
        await service.topics.any(name, may_create=True)
    assert (await broker.rest("DELETE", "/namespaces/public/gone")).status == 409
    await service.topics.any(name, may_create=False)


async def test_a_deletion_that_fails_lets_nobody_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(info: object, record: object) -> None:
        raise StoreError("no")

    # Without system topics, so that the deletion fails at the topic of the test.
    async with memory_broker(force_delete_namespace_allowed=True, system_topic_enabled=False) as broker:
        name = await new_namespace(broker)
        await broker.service.topics.any(name, may_create=True)
        with monkeypatch.context() as patched:
            patched.setattr(broker.service.ledgers, "_delete_stored", fail)
            with pytest.raises(StoreError):
                await broker.service.namespace_deletion.delete(name.namespace, force=True)
        with pytest.raises(TopicNotFound):
            await broker.service.topics.any(name, may_create=True)
        await broker.service.namespace_deletion.delete(name.namespace, force=True)
        assert broker.service.resources.namespace(name.namespace) is None


async def test_a_namespace_that_is_missing_is_answered_as_a_missing_topic(broker: MemoryBroker) -> None:
    for domain in ("persistent", "non-persistent"):
        with pytest.raises(TopicNotFound, match="Namespace"):
            await broker.service.topics.any(TopicName.parse(f"{domain}://public/none/t"), may_create=True)
    with pytest.raises(NotAllowedError):
        await broker.service.topics.any(ORDERS.partition(1), may_create=True)


# --- producers of a topic that ends ----------------------------------------------------------------------------------------


class OrderedPeer(RecordingPeer):
    """Remembers in which order it was told what."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[str] = []

    def send_receipts(self, run: SendRun, ledger_id: int, first_entry_id: int) -> None:
        self.told += ["receipt"] * len(run.sequence_ids)

    def send_errors(self, producer_id: int, sequence_ids: list[int], error: BrokerError, size_bytes: int) -> None:
        self.told += [type(error).__name__] * len(sequence_ids)

    def close_producer(self, producer_id: int) -> None:
        self.told.append("closed")


def a_run(count: int = 1) -> SendRun:
    run = SendRun(1)
    meta = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1).SerializeToString()
    for index in range(count):
        run.sequence_ids.append(index)
        run.highest_sequence_ids.append(0)
        run.message_counts.append(1)
        run.payloads.append(len(meta).to_bytes(4, "big") + meta + b"x")
    run.size_bytes = sum(map(len, run.payloads))
    return run


@pytest.mark.parametrize("ending", ["terminate", "unload"])
async def test_what_was_sent_before_is_answered_and_what_comes_after_is_dropped(
    broker: MemoryBroker, topic: Topic, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    service, peer = broker.service, OrderedPeer()
    producer = broker.producer(topic, peer)
    blocked_reason = BlockedReason(topic.ledger.document, "save", monkeypatch)
    topic.publish(producer, a_run(5))
    ended = asyncio.ensure_future(topic.terminate() if ending == "terminate" else service.topics.unload(topic))
    await turns(1)
    topic.publish(producer, a_run(3))
    await broker.until(lambda: blocked_reason.arrived == 1)
    blocked_reason.open()
    await ended
    assert peer.told == ["receipt"] * 5 + ["closed"]
    assert peer.dropped == 3
    assert (await broker.topic(str(topic.name))).ledger.ledgers.entry_count == 5


async def test_a_termination_that_fails_lets_producers_come_back(
    broker: MemoryBroker, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail() -> None:
        raise StoreError("no")

    peer = OrderedPeer()
    broker.producer(topic, peer)
    with monkeypatch.context() as patched:
        patched.setattr(topic.ledger.document, "save", fail)
        with pytest.raises(StoreError):
            await topic.terminate()
    assert peer.told == ["closed"]
    broker.producer(topic, peer)  # It is not refused as one of a terminated topic.


async def test_the_broker_itself_is_answered_while_its_topic_is_closed(
    broker: MemoryBroker, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked_reason = BlockedReason(topic.ledger.document, "save", monkeypatch)
    closing = asyncio.ensure_future(broker.service.topics.unload(topic))
    await broker.until(lambda: topic.is_fenced)
    with pytest.raises(PersistenceError):
        await topic.internal_producer().publish(b"x")
    blocked_reason.open()
    await closing


# --- one connection ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with running(tmp_path_factory.mktemp("process"), maxConcurrentRequestsPerConnection=100) as found:
        yield found


def test_a_burst_of_requests_on_one_connection_is_answered_to_the_last(process: BrokerProcess) -> None:
    with connected(process) as client:
        topic = "persistent://public/default/cold"
        client.send_bytes(
            b"".join(
                frame(encode(Type.PRODUCER, topic=topic, producer_id=index, request_id=index)) for index in range(1500)
            )
        )
        answers = [client.reply() for _ in range(1500)]
        assert {each["type"] for each in answers} == {"PRODUCER_SUCCESS"}
        assert sorted(int(each["request_id"]) for each in answers) == list(range(1500))


def test_a_producer_id_that_is_being_set_up_is_waited_for(process: BrokerProcess) -> None:
    with connected(process) as client:
        named = {"topic": "persistent://public/default/twice", "producer_id": 1, "producer_name": "p"}
        client.send_bytes(b"".join(frame(encode(Type.PRODUCER, request_id=index, **named)) for index in range(3)))
        answers = [client.reply() for _ in range(3)]
        assert [(each["type"], each["producer_name"]) for each in answers] == [("PRODUCER_SUCCESS", "p")] * 3


def test_a_client_that_publishes_while_its_topic_is_terminated_is_never_refused_first(process: BrokerProcess) -> None:
    with ExitStack() as stack:
        for attempt in range(10):
            client = stack.enter_context(connected(process))
            topic = f"persistent://public/default/ends-{attempt}"
            client.open_producer(topic, 1)
            with ThreadPoolExecutor(1) as pool:
                ended = pool.submit(call, f"{process.http_url}/admin/v2/{topic.replace('://', '/')}/terminate", "POST")
                for index in range(300):
                    client.send_message(1, index)
                assert ended.result().status == 200
            client.send(Type.PING)
            told = []
            while (answer := client.reply()["type"]) != "PONG":
                told.append(answer)
            assert set(told) <= {"SEND_RECEIPT", "CLOSE_PRODUCER"}
            assert told.index("CLOSE_PRODUCER") == len(told) - 1
            again = client.request(Type.PRODUCER, topic=topic, producer_id=1)
            assert (again["type"], again["error"]) == ("ERROR", "TopicTerminatedError")
