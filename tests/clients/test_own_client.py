"""The client of the package itself: what it sends is stored once and in order, whatever the broker does meanwhile."""

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.rest import call

from pybroker.client.access import Access, Secret
from pybroker.client.background import BackgroundClient
from pybroker.client.client import Client, TopicSchema
from pybroker.client.client_connection import Connection
from pybroker.client.consuming.entry_consumer import END_OF_TOPIC, START_OF_TOPIC, Subscribing, open_consumer
from pybroker.client.failures import ClientError, ConnectionLost, NotSent, RequestTimedOut
from pybroker.client.producing.entry_producer import ProducerSettings, open_producer
from pybroker.errors import (
    BrokerError,
    ConsumerBusy,
    IncompatibleSchema,
    ProducerBusy,
    TopicNotFound,
    TopicTerminatedError,
)
from pybroker.model.names import TopicName
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.entry_builder import build_entry
from pybroker.wire.entry_metadata import message_metadata

TIMEOUT_S = 20.0


@pytest.fixture
async def connected(broker: BrokerProcess) -> AsyncIterator[Client]:
    async with Client(Access(broker.url, operation_timeout_s=TIMEOUT_S)) as client:
        yield client


@pytest.fixture
def name(topic: str) -> TopicName:
    return TopicName.parse(topic)


def entry(sequence_id: int, payload: bytes = b"payload", producer_name: str = "p") -> bytes:
    return build_entry(producer_name, sequence_id, 1, payload)


async def stored(client: Client, topic: TopicName) -> list[int]:
    """The sequence ids of all entries of the topic, in order."""
    reader = await open_consumer(client, topic, Subscribing("look", start=START_OF_TOPIC))
    last = (await reader.ends()).last
    found: list[int] = []
    while last is not None:
        for each in await reader.receive(TIMEOUT_S):
            found.append(message_metadata(each.data).sequence_id)
            if (each.ledger_id, each.entry_id) == last:
                last = None
    await reader.close()
    return found


async def test_entries_are_stored_in_order_and_receipted(connected: Client, name: TopicName) -> None:
    producer = await open_producer(connected, name)
    assert producer.name
    receipts = [await producer.send(entry(index), index) for index in range(500)]
    await producer.flush()
    ids = [receipt.result() for receipt in receipts]
    assert [each.entry_id for each in ids] == list(range(500))
    await producer.close()
    with pytest.raises(NotSent, match="closed"):
        await producer.send(entry(1), 1)
    assert await stored(connected, name) == list(range(500))


async def test_what_is_unanswered_is_bounded_and_senders_wait(connected: Client, name: TopicName) -> None:
    settings = ProducerSettings(max_pending_entries=10, max_pending_bytes=4000)
    producer = await open_producer(connected, name, settings)
    most = 0
    for index in range(200):
        await producer.send(entry(index, bytes(100)), index)
        most = max(most, producer.pending_entries)
    await producer.flush()
    assert 1 < most <= 10
    assert await stored(connected, name) == list(range(200))


async def test_an_entry_over_the_brokers_limit_is_not_sent(connected: Client, name: TopicName) -> None:
    producer = await open_producer(connected, name)
    with pytest.raises(NotSent, match="maxMessageSize"):
        await producer.send(bytes(producer.max_message_bytes + 20_000), 0)
    await producer.send(entry(1), 1)
    await producer.flush()


async def test_entries_under_way_while_the_broker_is_killed_come_once_with_deduplication(
    tmp_path: Path, topic: str
) -> None:
    with BrokerProcess(tmp_path, {"brokerDeduplicationEnabled": "true"}).running() as broker:
        name = TopicName.parse(topic)
        async with Client(Access(broker.url, operation_timeout_s=TIMEOUT_S)) as client:
            # Without a subscription a ledger goes as soon as deduplication needs it no more.
            await (await open_consumer(client, name, Subscribing("keeps", may_create_topic=True))).close()
            producer = await open_producer(client, name, ProducerSettings("named"))
            restarting: asyncio.Future[None] | None = None
            for index in range(3000):
                if index == 1000:
                    restarting = asyncio.get_running_loop().run_in_executor(None, broker.restart_after_kill)
                await producer.send(entry(index, bytes(2000), "named"), index)
            await producer.flush()
            assert restarting is not None
            await restarting
            assert await stored(client, name) == list(range(3000))
            await producer.close()
            again = await open_producer(client, name, ProducerSettings("named"))
            assert again.last_sequence_id == 2999
            known = await again.send(entry(5, producer_name="named"), 5)
            await again.flush()
            assert known.result() == (-1, -1)


async def test_a_topic_that_is_unloaded_costs_nothing(
    connected: Client, broker: BrokerProcess, name: TopicName
) -> None:
    producer = await open_producer(connected, name)
    path = str(name).replace("persistent://", "persistent/")
    for index in range(600):
        if index % 200 == 100:
            await asyncio.to_thread(call, f"{broker.http_url}/admin/v2/{path}/unload", "PUT")
        await producer.send(entry(index), index)
    await producer.flush()
    found = await stored(connected, name)
    assert sorted(set(found)) == list(range(600))


async def test_a_broker_that_does_not_answer_in_time_fails_what_was_sent(tmp_path: Path, topic: str) -> None:
    broker = BrokerProcess(tmp_path).start()
    access = Access(broker.url, operation_timeout_s=TIMEOUT_S, connection_timeout_s=1)
    async with Client(access) as client:
        producer = await open_producer(client, TopicName.parse(topic), ProducerSettings(send_timeout_s=0.5))
        broker.kill()
        receipt = await producer.send(entry(0), 0)
        with pytest.raises(RequestTimedOut, match="may or may not be stored"):
            await producer.flush()
        assert isinstance(receipt.exception(), RequestTimedOut)
        with pytest.raises(RequestTimedOut):
            await producer.send(entry(1), 1)


async def test_a_taken_name_is_refused_or_waited_for(connected: Client, name: TopicName) -> None:
    first = await open_producer(connected, name, ProducerSettings("mine"))
    with pytest.raises(ProducerBusy):
        await open_producer(connected, name, ProducerSettings("mine"))
    async with asyncio.TaskGroup() as group:
        patient = group.create_task(open_producer(connected, name, ProducerSettings("mine", busy_patience_s=TIMEOUT_S)))
        await asyncio.sleep(0)
        await first.close()
    assert patient.result().name == "mine"


async def test_an_exclusive_producer_keeps_others_out(connected: Client, name: TopicName) -> None:
    await open_producer(connected, name, ProducerSettings(access_mode=pb.Exclusive))
    with pytest.raises(ProducerBusy):
        await open_producer(connected, name)


async def test_a_terminated_topic_takes_nothing(connected: Client, broker: BrokerProcess, name: TopicName) -> None:
    producer = await open_producer(connected, name)
    path = str(name).replace("persistent://", "persistent/")
    await asyncio.to_thread(call, f"{broker.http_url}/admin/v2/{path}/terminate", "POST")

    async def send() -> None:
        await (await producer.send(entry(0), 0))  # it may have been told before

    with pytest.raises(TopicTerminatedError):
        await send()
    assert isinstance(await raised(producer.flush()), TopicTerminatedError)


async def test_schemas_are_registered_and_looked_up(connected: Client, name: TopicName) -> None:
    assert await connected.schema(name) is None if await exists(connected, name) else True
    schema = TopicSchema(pb.Schema.String)
    producer = await open_producer(connected, name, ProducerSettings(schema=schema))
    found = await connected.schema(name)
    assert found is not None
    assert found.type == pb.Schema.String
    assert found.version == producer.schema_version
    again = await connected.schema(name, producer.schema_version)
    assert again == found
    with pytest.raises(IncompatibleSchema):
        await open_producer(connected, name, ProducerSettings(schema=TopicSchema(pb.Schema.Int32)))


async def exists(client: Client, name: TopicName) -> bool:
    return str(name) in await client.topics(str(name.namespace))


async def test_a_consumer_acknowledges_and_comes_back_behind_it(connected: Client, name: TopicName) -> None:
    consumer = await open_consumer(connected, name, Subscribing("durable", may_create_topic=True))
    with pytest.raises(ConsumerBusy):
        await open_consumer(connected, name, Subscribing("durable"))
    producer = await open_producer(connected, name)
    ids = [await (await producer.send(entry(index), index)) for index in range(20)]
    received: list[Any] = []
    while len(received) < 20:
        received += await consumer.receive(TIMEOUT_S)
    await consumer.acknowledge_up_to(ids[9])  # type: ignore[arg-type]
    assert (await consumer.ends()).mark_delete == ids[9]  # type: ignore[comparison-overlap]
    await consumer.close()
    back = await open_consumer(connected, name, Subscribing("durable"))
    assert (await back.receive(TIMEOUT_S))[0][1:3] == ids[10]
    await back.unsubscribe()


async def test_a_reader_at_the_end_sees_what_comes_and_nothing_else(connected: Client, name: TopicName) -> None:
    producer = await open_producer(connected, name)
    await (await producer.send(entry(0), 0))
    reader = await open_consumer(connected, name, Subscribing("r", start=END_OF_TOPIC, is_from_earliest=False))
    with pytest.raises(RequestTimedOut, match="slow"):
        await reader.receive(0.05)
    await producer.send(entry(1), 1)
    (found,) = await reader.receive(TIMEOUT_S)
    assert message_metadata(found.data).sequence_id == 1


async def test_a_reader_much_slower_than_its_topic_holds_a_window_of_it(connected: Client, name: TopicName) -> None:
    producer = await open_producer(connected, name)
    for index in range(400):
        await producer.send(entry(index, bytes(100_000)), index)
    await producer.flush()
    window = 1 << 20
    reader = await open_consumer(connected, name, Subscribing("slow", start=START_OF_TOPIC, window_bytes=window))
    sizes = []
    count = 0
    while count < 400:
        received = await reader.receive(TIMEOUT_S)
        count += len(received)
        sizes.append(sum(len(each.data) for each in received))
        await asyncio.sleep(0.01)
    # The first permits are given before anything is known of the entries' sizes; reading stops at twice the window.
    assert max(sizes) < 2 * window + 64 * 100_000
    assert sorted(sizes)[len(sizes) // 2] < 2 * window


async def test_a_broker_that_is_not_there_is_told_with_its_address(unused_tcp_port: int) -> None:
    url = f"pulsar://127.0.0.1:{unused_tcp_port}"
    async with Client(Access(url, operation_timeout_s=0.3)) as client:
        with pytest.raises(ConnectionLost, match=url):
            await client.partitions(TopicName.parse("t"))


async def test_the_second_host_of_a_service_url_is_asked_when_the_first_is_gone(
    broker: BrokerProcess, unused_tcp_port: int, name: TopicName
) -> None:
    url = f"pulsar://127.0.0.1:{unused_tcp_port},{broker.url.removeprefix('pulsar://')}"
    async with Client(Access(url)) as client:
        await open_producer(client, name)
        assert await client.partitions(name) == [name]


async def test_a_topic_that_does_not_exist_is_not_made_by_asking(connected: Client, name: TopicName) -> None:
    with pytest.raises(TopicNotFound):
        await connected.partitions(name)
    assert not await exists(connected, name)


async def test_a_lost_connection_ends_requests_and_consumers(connected: Client, name: TopicName) -> None:
    await open_producer(connected, name)
    reader = await open_consumer(connected, name, Subscribing("r", start=START_OF_TOPIC))
    connection: Connection = await connected.connection_for(name)
    command = pb.BaseCommand(type=pb.BaseCommand.GET_TOPICS_OF_NAMESPACE)
    command.getTopicsOfNamespace.namespace = "public/default"
    async with asyncio.TaskGroup() as group:
        asked = group.create_task(raised(connection.request(command)))
        received = group.create_task(raised(reader.receive(TIMEOUT_S)))
        await asyncio.sleep(0)
        connection.abort("the test wants it")
    assert isinstance(asked.result(), ConnectionLost)
    assert isinstance(received.result(), ConnectionLost)
    assert await connected.partitions(name) == [name]


async def raised(work: object) -> BaseException | None:
    try:
        await work  # type: ignore[misc]
    except (ClientError, BrokerError) as error:
        return error
    return None


def test_callers_without_a_loop_have_one_in_a_thread(broker: BrokerProcess, topic: str) -> None:
    name = TopicName.parse(topic)
    before = threading.active_count()
    background = BackgroundClient(Access(broker.url))
    producer = background.run(open_producer(background.client, name))
    for index in itertools.islice(itertools.count(), 10):
        background.run(producer.send(entry(index), index))
    background.run(producer.flush())
    assert background.run(stored(background.client, name)) == list(range(10))
    background.close()
    background.close()
    assert threading.active_count() == before
    with pytest.raises(ClientError, match="closed"):
        background.run(producer.flush())


def test_the_thread_ends_with_a_client_that_cannot_be_closed_in_order(
    broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    background = BackgroundClient(Access(broker.url))

    async def close() -> None:
        raise TimeoutError

    monkeypatch.setattr(background.client, "close", close)
    with pytest.raises(TimeoutError):
        background.close()
    assert not background.is_usable
    assert "pulsar-client" not in [thread.name for thread in threading.enumerate()]


def test_no_secret_is_in_what_a_client_says(broker: BrokerProcess) -> None:
    access = Access(broker.url, token=Secret(text="very-secret"))
    background = BackgroundClient(access)
    assert "very-secret" not in repr(access) + repr(background.client.__dict__)
    background.close()
