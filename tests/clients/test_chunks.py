"""Messages in chunks: several producers at once, as a whole or not at all, and what the statistics say of them."""

import threading
import time
from typing import Any

import pulsar
import pytest
from tests.clients.conftest import assert_nothing_arrives, new_client, receive_all
from tests.clients.test_seek import admin
from tests.support.broker_process import BrokerProcess
from tests.support.raw_client import RawClient, connected
from tests.support.rest import call

EARLIEST = pulsar.InitialPosition.Earliest
Shared = pulsar.ConsumerType.Shared
LARGE = 6 * 1024 * 1024  # two chunks


def chunk(raw: RawClient, producer_id: int, uuid: str, index: int, parts: list[bytes], **more: int) -> None:
    """One chunk of a message, stored when this returns."""
    fields: dict[str, Any] = {
        "uuid": uuid,
        "chunk_id": index,
        "num_chunks_from_msg": len(parts),
        "total_chunk_msg_size": sum(map(len, parts)),
        "uncompressed_size": sum(map(len, parts)),
        **more,
    }
    raw.send_message(producer_id, 7, parts[index], metadata=fields, is_chunk=True)
    assert raw.reply()["type"] == "SEND_RECEIPT"


def stats(broker: BrokerProcess, topic: str) -> dict[str, Any]:
    found: dict[str, Any] = call(f"{broker.http_url}/admin/v2/{topic.replace('://', '/')}/stats").json
    return found


@pytest.mark.parametrize("kind", [pulsar.ConsumerType.Exclusive, pulsar.ConsumerType.Failover, Shared])
def test_messages_whose_chunks_are_interwoven_arrive_whole(
    broker: BrokerProcess, client: pulsar.Client, topic: str, kind: pulsar.ConsumerType
) -> None:
    name = f"{topic}-{kind.name}"
    messages = {f"u{number}": [b"%d-%d " % (number, part) for part in range(3)] for number in range(4)}
    with connected(broker) as raw:
        for producer_id in range(4):
            raw.open_producer(name, producer_id, producer_name=f"p{producer_id}")
        for index in range(3):
            for producer_id, uuid in enumerate(messages):
                chunk(raw, producer_id, uuid, index, messages[uuid])
            raw.send_message(0, 50 + index, b"whole %d" % index)
            raw.reply()
    consumer = client.subscribe(name, "s", kind, initial_position=EARLIEST)
    received = receive_all(consumer, 7)
    whole = [b"".join(parts) for parts in messages.values()]
    assert [m.data() for m in received] == [b"whole 0", b"whole 1", *whole, b"whole 2"]
    for message in received:
        consumer.acknowledge(message)
    consumer.close()
    again = client.subscribe(name, "s", kind, initial_position=EARLIEST)
    assert_nothing_arrives(again)
    assert stats(broker, name)["subscriptions"]["s"]["msgBacklog"] == 0, (
        "all chunks are acknowledged with their message"
    )


def test_several_producers_of_large_messages_share_a_topic(
    broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    ready = threading.Barrier(3)

    def produce(letter: bytes) -> None:
        own = new_client(broker.url)
        producer = own.create_producer(topic, chunking_enabled=True, batching_enabled=False)
        ready.wait(20)
        for number in range(3):
            producer.send(letter + b"%d" % number + letter * LARGE)
        own.close()

    threads = [threading.Thread(target=produce, args=(letter,)) for letter in (b"a", b"b", b"c")]
    for thread in threads:
        thread.start()
    orders: dict[bytes, list[bytes]] = {}
    for _ in range(9):
        message = consumer.receive(30_000)
        data = message.data()
        assert data[2:] == data[:1] * LARGE
        orders.setdefault(data[:1], []).append(data[1:2])
        consumer.acknowledge(message)
    for thread in threads:
        thread.join()
    assert orders == {letter: [b"0", b"1", b"2"] for letter in (b"a", b"b", b"c")}


def test_a_message_that_is_given_back_comes_again_whole(client: pulsar.Client, topic: str) -> None:
    """Where messages have an order, all since the first unacknowledged one comes again; elsewhere this client asks for the last
    chunk only, which is of no use."""
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST, negative_ack_redelivery_delay_ms=10)
    producer = client.create_producer(topic, chunking_enabled=True, batching_enabled=False)
    message_id = producer.send(b"x" * LARGE)
    first = consumer.receive(20_000)
    consumer.negative_acknowledge(first)
    second = consumer.receive(20_000)
    assert second.data() == b"x" * LARGE
    assert first.message_id() == second.message_id() == message_id
    consumer.acknowledge(second)
    assert_nothing_arrives(consumer)


def test_what_is_incomplete_is_not_shown_and_holds_up_nothing(
    broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    with connected(broker) as raw:
        raw.open_producer(topic)
        chunk(raw, 1, "never", 0, [b"a", b"b"], publish_time=1)
        raw.publish(1, 2, first=10)
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    received = receive_all(consumer, 2)
    assert [message.data() for message in received] == [b"m10", b"m11"]
    for message in received:
        consumer.acknowledge(message)
    consumer.close()
    assert stats(broker, topic)["subscriptions"]["s"]["msgBacklog"] == 1, "to the broker it is a message like others"
    # As any other it expires.
    admin(broker, "POST", topic, "subscription/s/expireMessages/1")
    deadline = time.monotonic() + 10
    while stats(broker, topic)["subscriptions"]["s"]["msgBacklog"]:
        assert time.monotonic() < deadline


def test_chunks_survive_the_broker(own_broker: BrokerProcess, topic: str) -> None:
    """The first half is stored before a kill, the second after it."""
    parts = [b"first ", b"second"]
    with connected(own_broker) as raw:
        raw.open_producer(topic)
        raw.subscribe(topic, subscription="s")
        chunk(raw, 1, "u", 0, parts)
    own_broker.restart_after_kill()
    with connected(own_broker) as raw:
        raw.open_producer(topic)
        chunk(raw, 1, "u", 1, parts)
    client = new_client(own_broker.url)
    assert client.subscribe(topic, "s", Shared).receive(30_000).data() == b"first second"
    client.close()


def test_statistics_say_that_there_were_chunks(broker: BrokerProcess, client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic, chunking_enabled=True, batching_enabled=False)
    producer.send(b"small")
    assert stats(broker, topic)["msgChunkPublished"] is False
    producer.send(b"x" * LARGE)
    found = stats(broker, topic)
    assert found["msgChunkPublished"] is True
    assert found["msgInCounter"] == 3, "each chunk counts"
    assert "chunkedMessageRate" in found["publishers"][0]
