"""`pybroker.client`: messages sent, received and acknowledged as its documentation says, whatever the broker does meanwhile."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.rest import call

from pybroker.client import (
    EARLIEST,
    LATEST,
    ClientError,
    EndOfTopic,
    Message,
    MessageConsumer,
    NotSent,
    OutcomeUnknown,
    OutgoingMessage,
    PulsarClient,
    RequestTimedOut,
    TransactionEnded,
    connect,
)
from pybroker.client.access import Access
from pybroker.client.consuming.message_consumer import open_message_consumer
from pybroker.client.consuming.partition_consumer import Receiving
from pybroker.client.producing.message_producer import Publishing, open_message_producer
from pybroker.embedding import embed
from pybroker.errors import BrokerError, TransactionConflict
from pybroker.model.names import TopicName

TIMEOUT_S = 20.0
numbers = itertools.count()


@pytest.fixture
async def client(broker: BrokerProcess) -> AsyncIterator[PulsarClient]:
    async with connect(broker.url, operation_timeout_s=TIMEOUT_S) as opened:
        yield opened


def put(broker: BrokerProcess, method: str, path: str, body: object = None) -> None:
    assert call(f"{broker.http_url}/admin/v2/{path}", method, body=body).status < 300


async def values(consumer: MessageConsumer, count: int) -> list[bytes | None]:
    return [(await consumer.receive(TIMEOUT_S)).value for _ in range(count)]


async def until_quiet(consumer: MessageConsumer) -> list[Message]:
    found: list[Message] = []
    with suppress(RequestTimedOut):
        while True:
            found.append(await consumer.receive(1.0))
    return found


@pytest.mark.parametrize("compression", ["none", "lz4", "zlib", "zstd", "snappy"])
@pytest.mark.parametrize("batching", [True, False])
async def test_messages_arrive_as_sent(client: PulsarClient, topic: str, compression: str, batching: bool) -> None:
    consumer = await client.consumer(topic, "s", from_earliest=True)
    producer = await client.producer(topic, compression=compression, batching=batching)
    sent = [
        OutgoingMessage(b"one" * 50, "k", properties={"a": "b"}, event_time_ms=5),
        OutgoingMessage(None, "k"),
        OutgoingMessage(b"", ordering_key=b"\x00o"),
        *(OutgoingMessage(b"%d" % index) for index in range(50)),
    ]
    receipts = [await producer.submit(message) for message in sent]
    ids = [await receipt for receipt in receipts]
    found = [await consumer.receive(TIMEOUT_S) for _ in sent]

    assert [(m.value, m.key, m.ordering_key, dict(m.properties), m.event_time_ms) for m in found] == [
        (m.value, m.key, m.ordering_key, dict(m.properties), m.event_time_ms) for m in sent
    ]
    assert [m.id for m in found] == ids
    assert ids == sorted(ids)
    assert [m.sequence_id for m in found] == list(range(len(sent)))
    assert (max(m.id.batch_size for m in found) > 1) == batching


async def test_large_messages_are_chunked_and_arrive_whole(client: PulsarClient, topic: str) -> None:
    consumer = await client.consumer(topic, "s", from_earliest=True)
    producer = await client.producer(topic, chunking=True)
    large = bytes(range(256)) * 60_000
    chunked = await producer.send(large, key="k")
    await producer.send(b"small")
    first = await consumer.receive(TIMEOUT_S)
    assert first.value == large
    assert first.id == chunked
    assert first.id.first_chunk is not None
    assert first.id.first_chunk[1] < first.id.entry_id
    assert (await consumer.receive(TIMEOUT_S)).value == b"small"
    await consumer.ack(first, wants_receipt=True)
    consumer.redeliver_all()
    assert await values(consumer, 1) == [b"small"]
    with pytest.raises(NotSent, match="maxMessageSize"):
        await (await client.producer(topic)).send(large)


async def test_batch_is_acknowledged_with_its_last_message(
    client: PulsarClient, topic: str, broker: BrokerProcess
) -> None:
    consumer = await client.consumer(topic, "s", kind="shared", from_earliest=True)
    producer = await client.producer(topic, batch_delay_s=0.2)
    await asyncio.gather(*(producer.send(b"%d" % index) for index in range(5)))
    messages = [await consumer.receive(TIMEOUT_S) for _ in range(5)]
    *batch, last = [message for message in messages if message.id.batch_size == 4]
    await consumer.ack(*[message for message in messages if message is not last], wants_receipt=True)
    consumer.redeliver_all()
    again = [await consumer.receive(TIMEOUT_S) for _ in range(4)]
    assert [message.value for message in again] == [*(message.value for message in batch), last.value]
    assert {message.redelivery_count for message in again} == {1}
    await consumer.ack(last, wants_receipt=True)
    consumer.redeliver_all()
    with pytest.raises(RequestTimedOut):
        await consumer.receive(0.5)


async def test_negatively_acknowledged_message_goes_to_another_consumer(client: PulsarClient, topic: str) -> None:
    producer = await client.producer(topic)
    first = await client.consumer(topic, "s", kind="shared", nack_delay_s=0.05)
    await producer.send(b"m")
    message = await first.receive(TIMEOUT_S)
    first.nack(message)
    again = await first.receive(TIMEOUT_S)
    assert (again.value, again.redelivery_count) == (b"m", 1)
    second = await client.consumer(topic, "s", kind="shared")
    await first.close()
    assert (await second.receive(TIMEOUT_S)).value == b"m"


async def test_cumulative_ack_inside_batch_keeps_the_rest(tmp_path: Path) -> None:
    settings = {"acknowledgmentAtBatchIndexLevelEnabled": "true"}
    with BrokerProcess(tmp_path, settings).running() as own:
        async with connect(own.url) as client:
            consumer = await client.consumer(
                "batched", "s", kind="exclusive", from_earliest=True, keeps_batch_bits=True
            )
            producer = await client.producer("batched", batch_delay_s=0.2)
            await asyncio.gather(*(producer.send(b"%d" % index) for index in range(6)))
            messages = [await consumer.receive(TIMEOUT_S) for _ in range(6)]
            await consumer.ack_cumulative(messages[0], wants_receipt=True)
            await consumer.ack_cumulative(messages[3], wants_receipt=True)
            await consumer.close()
            own.restart_after_kill()
            other = await client.consumer("batched", "s", kind="exclusive")
            assert await values(other, 2) == [b"4", b"5"]
            assert await until_quiet(other) == []


async def test_each_key_stays_in_order_at_one_consumer(client: PulsarClient, topic: str) -> None:
    consumers = [await client.consumer(topic, "s", kind="key_shared", from_earliest=True) for _ in range(2)]
    producer = await client.producer(topic, batch_by_key=True)
    for index in range(200):
        await producer.submit(OutgoingMessage(b"%d" % index, f"k{index % 10}"))
    await producer.flush()
    by_key: dict[str | None, list[tuple[int, int]]] = {}
    for number, consumer in enumerate(consumers):
        first = await consumer.receive(TIMEOUT_S)
        for message in [first, *await until_quiet(consumer)]:
            by_key.setdefault(message.key, []).append((number, int(message.value or b"")))
    assert len(by_key) == 10
    for each in by_key.values():
        assert len({number for number, _ in each}) == 1
        assert [index for _, index in each] == sorted(index for _, index in each)
    assert sum(map(len, by_key.values())) == 200


async def test_partitioned_topic_is_one_topic_to_clients(
    client: PulsarClient, topic: str, broker: BrokerProcess
) -> None:
    put(broker, "PUT", f"{topic.replace('://', '/')}/partitions", 3)
    producer = await client.producer(topic)
    consumer = await client.consumer(topic, "s", from_earliest=True)
    for index in range(60):
        await producer.submit(OutgoingMessage(b"%d" % index, f"k{index % 6}"))
    await producer.flush()
    found = [await consumer.receive(TIMEOUT_S) for _ in range(60)]
    assert sorted(int(message.value or b"") for message in found) == list(range(60))
    assert {message.id.partition for message in found} <= {0, 1, 2}
    for index in range(6):
        of_key = [message for message in found if message.key == f"k{index}"]
        assert len({message.topic for message in of_key}) == 1
        assert of_key == sorted(of_key, key=lambda message: message.id)
    await consumer.ack(*found, wants_receipt=True)


@pytest.mark.parametrize("kind", ["exclusive", "failover"])
async def test_ordered_consumer_receives_all_again_in_order_once(client: PulsarClient, topic: str, kind: str) -> None:
    consumer = await client.consumer(topic, "s", kind=kind, from_earliest=True, queue_messages=10)
    producer = await client.producer(topic, batching=False)
    for index in range(30):
        await producer.send(b"%d" % index)
    first, second, *_ = [await consumer.receive(TIMEOUT_S) for _ in range(3)]
    await consumer.ack(first, wants_receipt=True)
    consumer.nack(second, delay_s=0)
    while (await consumer.receive(TIMEOUT_S)).value != second.value:
        pass  # what was handed out before it was asked for again
    assert await values(consumer, 28) == [b"%d" % index for index in range(2, 30)]
    await producer.send(b"last")
    assert await values(consumer, 1) == [b"last"]


async def test_readers_start_at_requested_position(client: PulsarClient, topic: str) -> None:
    producer = await client.producer(topic)
    ids = [await producer.send(b"%d" % index) for index in range(5)]
    middle_ms = int(time.time() * 1000) + 1
    await asyncio.sleep(0.01)
    ids += [await producer.send(b"%d" % index) for index in range(5, 8)]

    reader = await client.reader(topic, ids[6])
    assert await values(reader, 2) == [b"6", b"7"]
    assert not await reader.has_more()
    await reader.seek(EARLIEST)
    assert await values(reader, 2) == [b"0", b"1"]
    await reader.seek(publish_time_ms=middle_ms)
    assert await values(reader, 3) == [b"5", b"6", b"7"]
    await reader.seek(ids[1])
    assert await values(reader, 1) == [b"1"]
    latest = await client.reader(topic, LATEST)
    assert not await latest.has_more()
    await producer.send(b"new")
    assert await values(latest, 1) == [b"new"]


async def test_end_of_terminated_topic_ends_iteration(client: PulsarClient, topic: str, broker: BrokerProcess) -> None:
    producer = await client.producer(topic)
    for index in range(3):
        await producer.send(b"%d" % index)
    put(broker, "POST", f"{topic.replace('://', '/')}/terminate")
    consumer = await client.consumer(topic, "s", from_earliest=True)
    found = []
    async for message in consumer:  # it ends when everything is acknowledged
        found.append(message.value)
        await consumer.ack(message)
    assert found == [b"0", b"1", b"2"]
    with pytest.raises(EndOfTopic):
        await consumer.receive(TIMEOUT_S)
    assert [message.value async for message in await client.reader(topic)] == found
    with pytest.raises(BrokerError):
        await producer.send(b"late")


async def test_cancelled_receive_takes_no_message_of_others(client: PulsarClient, topic: str) -> None:
    producer = await client.producer(topic)
    sending = [asyncio.get_running_loop().create_task(producer.send(b"%d" % index)) for index in range(20)]
    await asyncio.sleep(0)
    for task in sending[::2]:
        task.cancel()
    await asyncio.gather(*sending, return_exceptions=True)
    await producer.close()
    assert not any(task.exception() for task in sending[1::2])
    reader = await client.reader(topic)
    found = {(await reader.receive(TIMEOUT_S)).value for _ in range(10)}
    while await reader.has_more():
        found.add((await reader.receive(TIMEOUT_S)).value)
    assert found >= {b"%d" % index for index in range(1, 20, 2)}


async def test_broker_restarts_lose_nothing_and_keep_order(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path).running() as own:
        async with connect(own.url, operation_timeout_s=TIMEOUT_S) as client:
            topic = "persistent://public/default/restarted"
            put(own, "POST", "namespaces/public/default/deduplication", True)
            producer = await client.producer(topic, name="p")
            consumer = await client.consumer(topic, "s", from_earliest=True)
            receipts = []
            for index in range(300):
                receipts.append(await producer.submit(OutgoingMessage(b"%d" % index)))
                if index in (100, 200):
                    own.restart_after_kill()
            await asyncio.gather(*receipts)
            seen: dict[int, None] = {}
            while len(seen) < 300:
                message = await consumer.receive(TIMEOUT_S)
                seen[int(message.value or b"")] = None
                await consumer.ack(message)
            assert list(seen) == list(range(300))


# --- transactions


async def test_transaction_is_atomic(client: PulsarClient, topic: str) -> None:
    source = await client.producer(topic + "-in")
    for index in range(4):
        await source.send(b"%d" % index)
    consumer = await client.consumer(topic + "-in", "s", kind="shared", from_earliest=True)
    producer = await client.producer(topic + "-out")
    out = await client.consumer(topic + "-out", "s", from_earliest=True)

    async with await client.transaction() as committed:
        for _ in range(2):
            message = await consumer.receive(TIMEOUT_S)
            await producer.send(b"done " + (message.value or b""), transaction=committed)
            await consumer.ack(message, transaction=committed)
        with pytest.raises(RequestTimedOut):
            await out.receive(0.3)
    assert await values(out, 2) == [b"done 0", b"done 1"]

    async def fail() -> None:
        async with await client.transaction() as aborted:
            message = await consumer.receive(TIMEOUT_S)
            await producer.send(b"never", transaction=aborted)
            await consumer.ack(message, transaction=aborted)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    consumer.redeliver_all()
    await producer.send(b"plain")
    assert await values(out, 1) == [b"plain"]
    assert sorted(await values(consumer, 2)) == [b"2", b"3"]  # type: ignore[type-var]


async def test_two_transactions_cannot_acknowledge_one_message(client: PulsarClient, topic: str) -> None:
    consumer = await client.consumer(topic, "s", kind="shared")
    producer = await client.producer(topic)
    await producer.send(b"m")
    message: Message = await consumer.receive(TIMEOUT_S)
    first, second = await client.transaction(), await client.transaction()
    await consumer.ack(message, transaction=first)
    with pytest.raises(TransactionConflict):
        await consumer.ack(message, transaction=second)
    await first.commit()
    await second.abort()
    with pytest.raises(TransactionEnded):
        await producer.send(b"late", transaction=first)


async def test_timed_out_transaction_cannot_be_committed(topic: str) -> None:
    async with embed() as own, connect(own.service_url, operation_timeout_s=TIMEOUT_S) as client:
        producer = await client.producer(topic)
        transaction = await client.transaction(timeout_s=600)
        await producer.send(b"late", transaction=transaction)
        await producer.send(b"plain")
        await own.clock.advance(minutes=11)
        assert await values(await client.reader(topic), 1) == [b"plain"], "it comes when the transaction is over"
        with pytest.raises((BrokerError, OutcomeUnknown)):
            await transaction.commit()


async def test_client_of_forked_process_is_refused(client: PulsarClient, monkeypatch: pytest.MonkeyPatch) -> None:
    other = PulsarClient(Access(client.access.service_url))
    monkeypatch.setattr("os.getpid", lambda: -1)
    with pytest.raises(Exception, match="fork"):
        await other.reader("persistent://public/default/forked")


async def test_close_ends_waiting_calls_and_all_tasks(broker: BrokerProcess, topic: str) -> None:
    before = asyncio.all_tasks()
    client = connect(broker.url, operation_timeout_s=TIMEOUT_S)
    producer = await client.producer(topic, batch_delay_s=3600)
    fresh = await client.producer(topic)  # of which the sending task has not taken its first step
    consumer, reader = await client.consumer(topic, "s", kind="shared"), await client.reader(topic + "-other")
    receiving = [asyncio.ensure_future(each.receive()) for each in (consumer, reader)]
    stored = await producer.submit(
        OutgoingMessage(b"stored")
    )  # at once; who comes while it is on its way waits for others
    batched = [await producer.submit(OutgoingMessage(b"%d" % number)) for number in range(3)]
    await stored
    receiving.append(asyncio.ensure_future(consumer.receive()))
    await asyncio.wait(receiving, return_when=asyncio.FIRST_COMPLETED)
    await client.close()
    assert [type(each.exception()) for each in batched] == [NotSent] * 3
    done, waiting = await asyncio.wait(receiving, timeout=TIMEOUT_S)
    assert not waiting
    assert sum(isinstance(each.exception(), ClientError) for each in done) == 2
    for each in (producer, fresh):
        with pytest.raises(NotSent):
            await each.send(b"late")
        await each.close()
    with pytest.raises(ClientError):
        await client.producer(topic)
    assert not client.parts
    await asyncio.sleep(0)
    assert asyncio.all_tasks() <= before


async def test_queue_in_bytes_limits_buffered_messages(client: PulsarClient, topic: str, broker: BrokerProcess) -> None:
    settings = Receiving("s", is_from_earliest=True, queue_bytes=100_000)
    consumer = await open_message_consumer(client, [TopicName.parse(topic)], settings)
    producer = await client.producer(topic, batching=False)
    for index in range(100):
        await producer.send(b"%05d" % index * 4000)
    stats = call(f"{broker.http_url}/admin/v2/{topic.replace('://', '/')}/stats").json
    assert stats["subscriptions"]["s"]["msgBacklog"] == 100
    assert stats["subscriptions"]["s"]["consumers"][0]["msgOutCounter"] < 10
    assert [value[:5] for value in await values(consumer, 100) if value] == [b"%05d" % index for index in range(100)]


async def test_reader_without_its_start_begins_after_it(client: PulsarClient, topic: str) -> None:
    producer = await client.producer(topic, batch_delay_s=0.2)
    await producer.send(b"alone")
    ids = await asyncio.gather(*(producer.send(b"%d" % index) for index in range(4)))
    for start, expected in ((ids[1], [b"2", b"3"]), (ids[1]._replace(batch_index=-1), [])):
        settings = Receiving("r", start=start, is_start_inclusive=False, is_from_earliest=True)
        reader = await open_message_consumer(client, [TopicName.parse(topic)], settings)
        assert [message.value for message in await until_quiet(reader)][: len(expected)] == expected
        await reader.close()


async def test_subscription_that_is_not_durable_ends_with_its_consumer(
    client: PulsarClient, topic: str, broker: BrokerProcess
) -> None:
    consumer = await open_message_consumer(client, [TopicName.parse(topic)], Receiving("s", is_durable=False))
    producer = await client.producer(topic)
    await producer.send(b"x")
    assert await values(consumer, 1) == [b"x"]
    await consumer.close()
    subscriptions = f"{broker.http_url}/admin/v2/{topic.replace('://', '/')}/subscriptions"
    while call(subscriptions).json:  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def test_messages_of_one_producer_go_to_one_partition(
    client: PulsarClient, topic: str, broker: BrokerProcess
) -> None:
    put(broker, "PUT", f"{topic.replace('://', '/')}/partitions", 4)
    settings = Publishing(is_single_partition=True, is_batching=False, initial_sequence_id=41, properties={"a": "b"})
    producer = await open_message_producer(client, TopicName.parse(topic), settings)
    partitions = {(await producer.send(b"x")).partition for _ in range(8)}
    assert len(partitions) == 1
    assert len({(await producer.send(b"x", key=str(key))).partition for key in range(20)}) > 1
    stats = call(f"{broker.http_url}/admin/v2/{topic.replace('://', '/')}-partition-0/stats").json
    assert [each["metadata"] for each in stats["publishers"]] == [{"a": "b"}]
    reader = await client.reader(f"{topic}-partition-{min(partitions)}")
    assert (await reader.receive(TIMEOUT_S)).sequence_id == 42
