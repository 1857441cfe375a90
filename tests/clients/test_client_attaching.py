"""`pybroker.client` beside a broker that closes what it has just attached, and what a client leaves behind at a broker."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

import pytest
from tests.support.raw_client import encode, frame
from tests.support.rest import call
from tests.support.waiting import until

from pybroker.client import EARLIEST, ClientError, NotSent, OutgoingMessage, PulsarClient, RequestTimedOut, connect
from pybroker.client.access import Access, AccessRefused, Secret
from pybroker.client.client import Client
from pybroker.client.frames import FrameReader, read_event
from pybroker.client.producing.entry_producer import ProducerSettings, open_producer
from pybroker.embedding import embed
from pybroker.embedding.embedded_broker import EmbeddedBroker
from pybroker.errors import ProducerBusy
from pybroker.model.names import TopicName
from pybroker.wire import pulsar_api_pb2 as pb

Type = pb.BaseCommand
TOPIC = "persistent://public/default/t"
TIMEOUT_S = 20.0


class ScriptedBroker:
    """Serves every topic itself, and lets a test say what SUBSCRIBE and PRODUCER are answered with."""

    def __init__(self) -> None:
        self.url = ""
        self.seen: Counter[str] = Counter()
        self.closed_ids: list[int] = []
        self.attach: Callable[[pb.BaseCommand], Awaitable[bytes]] = self.attached

    async def attached(self, command: pb.BaseCommand) -> bytes:
        if command.type == Type.SUBSCRIBE:
            return frame(encode(Type.SUCCESS, request_id=command.subscribe.request_id))
        request_id = command.producer.request_id
        return frame(encode(Type.PRODUCER_SUCCESS, request_id=request_id, producer_name="p", producer_ready=True))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        frames = FrameReader(read_event)
        while data := await reader.read(1 << 16):
            for command in frames.feed(data):
                assert isinstance(command, pb.BaseCommand)
                self.seen[Type.Type.Name(command.type)] += 1
                writer.write(await self.answer(command))
        writer.close()

    async def answer(self, command: pb.BaseCommand) -> bytes:
        if command.type == Type.CONNECT:
            return frame(encode(Type.CONNECTED, server_version="scripted", protocol_version=21))
        if command.type == Type.PARTITIONED_METADATA:
            request_id = command.partitionMetadata.request_id
            return frame(encode(Type.PARTITIONED_METADATA_RESPONSE, request_id=request_id, partitions=0, response=0))
        if command.type == Type.LOOKUP:
            request_id = command.lookupTopic.request_id
            fields = {"brokerServiceUrl": self.url, "response": pb.CommandLookupTopicResponse.Connect}
            return frame(encode(Type.LOOKUP_RESPONSE, request_id=request_id, authoritative=True, **fields))
        if command.type in (Type.SUBSCRIBE, Type.PRODUCER):
            return await self.attach(command)
        if command.type == Type.CLOSE_CONSUMER:
            self.closed_ids.append(command.close_consumer.consumer_id)
            return frame(encode(Type.SUCCESS, request_id=command.close_consumer.request_id))
        if command.type == Type.CLOSE_PRODUCER:
            self.closed_ids.append(command.close_producer.producer_id)
            return frame(encode(Type.SUCCESS, request_id=command.close_producer.request_id))
        return b""


@asynccontextmanager
async def scripted() -> AsyncIterator[tuple[ScriptedBroker, PulsarClient]]:
    broker = ScriptedBroker()
    server = await asyncio.start_server(broker.serve, "127.0.0.1", 0)
    broker.url = f"pulsar://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, connect(broker.url, operation_timeout_s=TIMEOUT_S) as client:
        yield broker, client


def closing_the_first(broker: ScriptedBroker) -> Callable[[pb.BaseCommand], Awaitable[bytes]]:
    """Each first one is closed in the same breath: the topic moves at that moment."""
    numbers = count()

    async def attach(command: pb.BaseCommand) -> bytes:
        answer = await broker.attached(command)
        if next(numbers):
            return answer
        if command.type == Type.SUBSCRIBE:
            return answer + frame(
                encode(Type.CLOSE_CONSUMER, consumer_id=command.subscribe.consumer_id, request_id=(1 << 64) - 1)
            )
        return answer + frame(
            encode(Type.CLOSE_PRODUCER, producer_id=command.producer.producer_id, request_id=(1 << 64) - 1)
        )

    return attach


async def test_a_consumer_that_is_closed_as_it_is_attached_attaches_again() -> None:
    async with scripted() as (broker, client):
        broker.attach = closing_the_first(broker)
        consumer = await client.consumer(TOPIC, "s")
        await until(lambda: broker.seen["FLOW"] == 1)
        assert broker.seen["SUBSCRIBE"] == 2
        await consumer.close()
        assert broker.closed_ids == [1]  # the broker has forgotten the first one itself


async def test_a_producer_that_is_closed_as_it_is_attached_attaches_again() -> None:
    async with scripted() as (broker, client):
        broker.attach = closing_the_first(broker)
        producer = await open_producer(client, TopicName.parse(TOPIC))
        assert broker.seen["PRODUCER"] == 2
        await producer.send(b"entry", 0)
        await until(lambda: broker.seen["SEND"] == 1)
        await producer.close()
        assert broker.closed_ids == [1]


async def test_a_consumer_that_is_closed_while_it_attaches_again_is_not_left_at_the_broker() -> None:
    async with scripted() as (broker, client):
        consumer = await client.consumer(TOPIC, "s")
        await until(lambda: broker.seen["FLOW"] == 1)
        may_answer = asyncio.Event()

        async def attach(command: pb.BaseCommand) -> bytes:
            await may_answer.wait()
            return await broker.attached(command)

        broker.attach = attach
        for connection in [*client._connections.values()]:
            connection.abort("cut")
        await until(lambda: broker.seen["SUBSCRIBE"] == 2)
        await consumer.close()
        assert broker.closed_ids == []
        may_answer.set()
        await until(lambda: len(broker.closed_ids) == 1)


async def test_a_producer_that_failed_gives_its_name_back() -> None:
    async with scripted() as (broker, client):
        producer = await open_producer(client, TopicName.parse(TOPIC), ProducerSettings("name", send_timeout_s=0.05))
        receipt = await producer.send(b"entry", 0)
        with pytest.raises(RequestTimedOut, match="was not confirmed within"):
            await receipt
        await producer.close()
        await until(lambda: len(broker.closed_ids) == 1)
        assert broker.seen["PRODUCER"] == 1


async def test_a_receipt_out_of_turn_has_everything_sent_again_over_a_new_connection() -> None:
    async with scripted() as (broker, client):
        producer = await open_producer(client, TopicName.parse(TOPIC), ProducerSettings("name"))
        receipts = [await producer.send(b"entry", number) for number in range(2)]
        await until(lambda: broker.seen["SEND"] == 2)
        message_id = pb.MessageIdData(ledgerId=1, entryId=1)
        receipt = pb.CommandSendReceipt(producer_id=0, sequence_id=1, message_id=message_id)
        producer.received(pb.BaseCommand(type=Type.SEND_RECEIPT, send_receipt=receipt))
        await until(lambda: broker.seen["SEND"] == 4)
        assert broker.seen["CONNECT"] == 2
        assert not any(each.done() for each in receipts)
        await producer.close()
        with pytest.raises(NotSent, match="closed"):
            await receipts[0]


@pytest.fixture
async def embedded() -> AsyncIterator[tuple[EmbeddedBroker, PulsarClient]]:
    async with (
        embed(maxMessageSize=100_000) as broker,
        connect(broker.service_url, operation_timeout_s=TIMEOUT_S) as client,
    ):
        yield broker, client


async def test_nothing_is_left_of_a_producer_that_was_refused(embedded: tuple[EmbeddedBroker, PulsarClient]) -> None:
    _, client = embedded
    name = TopicName.parse(TOPIC)
    holder = await open_producer(client, name, ProducerSettings("taken"))
    parts = [*client.parts]
    for patience_s in (0.0, 0.1):
        with pytest.raises(ProducerBusy):
            await open_producer(client, name, ProducerSettings("taken", busy_patience_s=patience_s))
    assert [*client.parts] == parts == [holder]


async def test_a_message_that_came_again_after_a_lost_connection_is_not_asked_for_a_third_time(
    embedded: tuple[EmbeddedBroker, PulsarClient],
) -> None:
    _, client = embedded
    producer = await client.producer(TOPIC)
    await producer.send(b"m")
    consumer = await client.consumer(TOPIC, "s", kind="shared", from_earliest=True)
    consumer.nack(await consumer.receive(TIMEOUT_S), delay_s=0.3)
    cut(client)
    assert (await consumer.receive(TIMEOUT_S)).value == b"m"
    with pytest.raises(RequestTimedOut):
        await consumer.receive(0.6)


def cut(client: Client) -> None:
    for connection in [*client._connections.values()]:
        connection.abort("cut")


async def test_of_messages_in_parts_that_were_acknowledged_nothing_is_kept(
    embedded: tuple[EmbeddedBroker, PulsarClient],
) -> None:
    broker, client = embedded
    producer = await client.producer(TOPIC, chunking=True)
    large = bytes(150_000)
    for _ in range(2):
        await producer.send(large)
    consumer = await client.consumer(TOPIC, "s", from_earliest=True)
    reader = await client.reader(TOPIC)
    for _ in range(2):
        last = await consumer.receive(TIMEOUT_S)
        await reader.receive(TIMEOUT_S)
    await consumer.ack_cumulative(last, wants_receipt=True)
    assert broker.broker.service.loaded.persistent[TOPIC].subscriptions["s"].cursor.backlog_entries == 0
    for each in (consumer, reader):
        (partition,) = each._partitions.values()
        await asyncio.sleep(0)
        assert not len(partition._entries_of_parts)


async def test_a_message_that_nobody_could_send_fails_alone(embedded: tuple[EmbeddedBroker, PulsarClient]) -> None:
    _, client = embedded
    producer = await client.producer(TOPIC, batch_delay_s=60)
    first = await producer.submit(OutgoingMessage(b"first"))  # goes at once; the others wait for its receipt
    bad = [
        OutgoingMessage(b"bad", event_time_ms=-1),
        OutgoingMessage(b"bad", "\ud800"),
        OutgoingMessage(b"bad", sequence_id=0),
    ]
    messages = [OutgoingMessage(b"1"), bad[0], OutgoingMessage(b"2"), bad[1], bad[2], OutgoingMessage(b"3")]
    receipts = [await producer.submit(message) for message in messages]
    await producer.flush()
    failures = [receipt.exception() for receipt in (first, *receipts)]
    assert [type(failure) for failure in failures] == [
        type(None), type(None), ValueError, type(None), UnicodeEncodeError, NotSent, type(None),
    ]  # fmt: skip
    assert producer._partitions[0]._queued_bytes == 0
    reader = await client.reader(TOPIC)
    found = [await reader.receive(TIMEOUT_S) for _ in range(4)]
    assert [message.value for message in found] == [b"first", b"1", b"2", b"3"]
    ids = [message.sequence_id for message in found]
    assert ids == sorted(set(ids))


async def test_who_waits_for_exclusive_access_waits_longer_than_for_any_answer(
    embedded: tuple[EmbeddedBroker, PulsarClient],
) -> None:
    broker, client = embedded
    holder = await client.producer(TOPIC, access_mode="exclusive")
    async with connect(broker.service_url, operation_timeout_s=1.5) as hasty, asyncio.TaskGroup() as group:
        waiting = group.create_task(hasty.producer(TOPIC, access_mode="wait_for_exclusive"))
        await asyncio.sleep(2)
        assert not waiting.done()
        await holder.close()
        producer = await waiting
        await producer.send(b"m")


async def test_a_producer_that_is_closed_while_it_waits_asks_again() -> None:
    async with scripted() as (broker, client):
        numbers = count()

        async def attach(command: pb.BaseCommand) -> bytes:
            if next(numbers):
                return await broker.attached(command)
            said = command.producer
            waits = encode(Type.PRODUCER_SUCCESS, request_id=said.request_id, producer_name="p", producer_ready=False)
            closed = encode(Type.CLOSE_PRODUCER, producer_id=said.producer_id, request_id=(1 << 64) - 1)
            return frame(waits) + frame(closed)

        broker.attach = attach
        await open_producer(client, TopicName.parse(TOPIC), ProducerSettings(access_mode=pb.WaitForExclusive))
        assert broker.seen["PRODUCER"] == 2


async def test_a_reader_that_was_moved_to_a_time_stays_there_when_its_connection_is_lost(
    embedded: tuple[EmbeddedBroker, PulsarClient],
) -> None:
    broker, client = embedded
    producer = await client.producer(TOPIC)
    for text in (b"early", b"late"):
        await producer.send(text)
        await asyncio.sleep(0.02)
    other = await client.reader(TOPIC)
    times_ms = [(await other.receive(TIMEOUT_S)).publish_time_ms for _ in range(2)]
    reader = await client.reader(TOPIC)
    await reader.seek(publish_time_ms=times_ms[1])
    await broker.restart()  # which knows nothing of readers that were there before
    assert (await reader.receive(TIMEOUT_S)).value == b"late"


async def test_places_of_one_partition_are_not_taken_for_those_of_all(
    embedded: tuple[EmbeddedBroker, PulsarClient],
) -> None:
    broker, client = embedded
    path = "/admin/v2/persistent/public/default/p/partitions"
    assert (await asyncio.to_thread(call, broker.admin_url + path, "PUT", body=2)).status == 204
    message_id = await (await client.producer("p")).send(b"m")
    consumer = await client.consumer("p", "s", from_earliest=True)
    with pytest.raises(ClientError, match="belongs to one partition, but the topic has 2"):
        await consumer.seek(message_id)
    with pytest.raises(ClientError, match="belongs to one partition, but the topic has 2"):
        await client.reader("p", message_id)
    reader = await client.reader(f"p-partition-{message_id.partition}", message_id)
    message = await reader.receive(TIMEOUT_S)
    assert message.value == b"m"
    await consumer.seek(EARLIEST)
    other = await client.consumer(TOPIC, "s")
    with pytest.raises(ClientError, match="cannot be acknowledged here"):
        await other.ack(message)
    with pytest.raises(ClientError, match="cannot be acknowledged here"):
        other.nack(message)


async def test_a_consumer_that_can_never_attach_again_says_so(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret")
    async with scripted() as (broker, _), PulsarClient(Access(broker.url, token=Secret(in_file=str(token)))) as client:
        consumer = await client.consumer(TOPIC, "s")
        receiving = asyncio.ensure_future(consumer.receive(TIMEOUT_S))
        token.unlink()
        cut(client)
        with pytest.raises(AccessRefused, match="cannot be read"):
            await receiving


async def test_a_topic_that_is_named_twice_is_attached_to_once_and_a_queue_has_room() -> None:
    async with scripted() as (broker, client):
        consumer = await client.consumer([TOPIC, "t"], "s", kind="shared")
        assert broker.seen["SUBSCRIBE"] == 1
        await consumer.close()
        with pytest.raises(ValueError, match="queue_messages=0"):
            await client.consumer(TOPIC, "s", queue_messages=0)
