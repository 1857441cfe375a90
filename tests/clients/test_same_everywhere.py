"""What a message says is the same to a consumer and over REST, field by field: peeked, examined, by id."""

from __future__ import annotations

import json
import struct
import urllib.request
from datetime import UTC, datetime
from email.message import Message
from typing import Any

import pulsar
from tests.clients.conftest import receive_all
from tests.clients.test_seek import send
from tests.support.broker_process import BrokerProcess
from tests.support.raw_client import Type, connected
from tests.support.rest import call

from pybroker.wire import pulsar_api_pb2 as pb

EARLIEST = pulsar.InitialPosition.Earliest


def get(broker: BrokerProcess, topic: str, path: str) -> tuple[Message, bytes]:
    url = f"{broker.http_url}/admin/v2/{topic.replace('://', '/')}/{path}"
    with urllib.request.urlopen(url, timeout=10) as answer:
        return answer.headers, answer.read()


def views(broker: BrokerProcess, topic: str, number: int, position: tuple[int, int]) -> list[tuple[Message, bytes]]:
    """The n-th message in each way that there is, which must all say the same."""
    found = [
        get(broker, topic, path)
        for path in (
            f"subscription/peeked/position/{number}",
            f"examinemessage?initialPosition=earliest&messagePosition={number}",
            f"ledger/{position[0]}/entry/{position[1]}",
        )
    ]
    shown = [(sorted((k, v) for k, v in headers.items() if k.startswith("X-Pulsar")), body) for headers, body in found]
    assert shown[0] == shown[1] == shown[2]
    return found


def milliseconds(text: str) -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


def messages_of_batch(body: bytes) -> list[tuple[pb.SingleMessageMetadata, bytes]]:
    """As a client opens a batch that REST gave it."""
    found = []
    while body:
        (size,) = struct.unpack_from(">I", body)
        metadata = pb.SingleMessageMetadata.FromString(body[4 : 4 + size])
        start = 4 + size
        found.append((metadata, body[start : start + metadata.payload_size]))
        body = body[start + metadata.payload_size :]
    return found


def test_single_messages_are_the_same_everywhere(broker: BrokerProcess, client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    client.subscribe(topic, "peeked", initial_position=EARLIEST).close()
    producer = client.create_producer(topic, "named", batching_enabled=False, initial_sequence_id=40)
    options: list[dict[str, Any]] = [
        {},
        {"properties": {"a": "1", "ü": "€"}, "partition_key": "key", "ordering_key": "order"},
        {"event_timestamp": 1_234_567_890_123, "replication_clusters": ["elsewhere"]},
    ]
    sent_ids = [producer.send(b"m%d" % number, **each) for number, each in enumerate(options)]
    for number, (message, sent_id) in enumerate(zip(receive_all(consumer, 3), sent_ids, strict=True), 1):
        message_id = message.message_id()
        assert message_id == sent_id
        for headers, body in views(broker, topic, number, (message_id.ledger_id(), message_id.entry_id())):
            assert headers["X-Pulsar-Message-ID"] == f"{message_id.ledger_id()}:{message_id.entry_id()}"
            assert body == message.data()
            assert json.loads(headers["X-Pulsar-PROPERTY"]) == message.properties()
            assert milliseconds(headers["X-Pulsar-publish-time"]) == message.publish_timestamp()
            shown_event = headers.get("X-Pulsar-event-time")
            assert (milliseconds(shown_event) if shown_event else 0) == message.event_timestamp()
            assert headers.get("X-Pulsar-partition-key", "") == message.partition_key()
            assert headers["X-Pulsar-producer-name"] == message.producer_name() == "named"
            assert headers["X-Pulsar-sequence-id"] == str(40 + number)
    assert headers.get_all("X-Pulsar-replicated-to") == ["elsewhere"]


def test_batches_are_the_same_everywhere(broker: BrokerProcess, client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    client.subscribe(topic, "peeked", initial_position=EARLIEST).close()
    producer = client.create_producer(
        topic,
        batching_enabled=True,
        batching_max_publish_delay_ms=60_000,
        compression_type=pulsar.CompressionType.LZ4,
    )
    for number in range(3):
        producer.send_async(
            b"m%d" % number,
            None,
            properties={"n": str(number)},
            partition_key=f"k{number}",
            ordering_key=f"o{number}",
            event_timestamp=1000 + number,
        )
    producer.flush()
    received = receive_all(consumer, 3)
    first_id = received[0].message_id()
    for headers, body in views(broker, topic, 1, (first_id.ledger_id(), first_id.entry_id())):
        assert headers["X-Pulsar-num-batch-message"] == "3"
        for message, (metadata, payload) in zip(received, messages_of_batch(body), strict=True):
            assert message.data() == payload
            assert message.properties() == {pair.key: pair.value for pair in metadata.properties}
            assert message.partition_key() == metadata.partition_key
            assert message.ordering_key() == metadata.ordering_key.decode()
            assert message.event_timestamp() == metadata.event_time
            assert milliseconds(headers["X-Pulsar-publish-time"]) == message.publish_timestamp()
            message_id = message.message_id()
            assert (message_id.ledger_id(), message_id.entry_id()) == (first_id.ledger_id(), first_id.entry_id())
    assert [message.message_id().batch_index() for message in received] == [0, 1, 2]


def test_a_message_without_value_is_not_an_empty_one(broker: BrokerProcess, client: pulsar.Client, topic: str) -> None:
    """This client cannot send one, only tell one."""
    with connected(broker) as raw:
        raw.open_producer(topic)
        raw.subscribe(topic, subscription="peeked")
        raw.send_message(1, 0, b"", metadata={"null_value": True, "partition_key": "k"})
        raw.send_message(1, 1, b"")
        first, second = (raw.reply()["message_id"] for _ in range(2))
    received = receive_all(client.subscribe(topic, "s", initial_position=EARLIEST), 2)
    assert [message.has_null_value() for message in received] == [True, False]
    for number, (place, is_null) in enumerate(((first, "true"), (second, None)), 1):
        position = (int(place["ledgerId"]), int(place["entryId"]))
        for headers, body in views(broker, topic, number, position):
            assert headers["X-Pulsar-null-value"] == is_null
            assert body == b""


def test_the_last_message_is_the_same_for_readers_and_rest(
    broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    last = send(client, topic, 3)[-1]
    with connected(broker) as raw:
        raw.subscribe(topic)
        said = raw.request(Type.GET_LAST_MESSAGE_ID, consumer_id=1)["last_message_id"]
    shown = call(f"{broker.http_url}/admin/v2/{topic.replace('://', '/')}/lastMessageId").json
    assert (int(said["ledgerId"]), int(said["entryId"])) == (shown["ledgerId"], shown["entryId"])
    assert (shown["ledgerId"], shown["entryId"]) == (last.ledger_id(), last.entry_id())


def test_a_message_has_its_id_and_its_times_for_ever(own_broker: BrokerProcess, topic: str) -> None:
    with connected(own_broker) as raw:
        raw.open_producer(topic)
        raw.subscribe(topic, subscription="peeked")
        raw.send_message(1, 0, b"m", metadata={"event_time": 5, "publish_time": 1_700_000_000_123})
        place = raw.reply()["message_id"]
    position = (int(place["ledgerId"]), int(place["entryId"]))
    before = views(own_broker, topic, 1, position)
    own_broker.restart_after_kill()
    after = views(own_broker, topic, 1, position)
    assert milliseconds(after[0][0]["X-Pulsar-publish-time"]) == 1_700_000_000_123
    for (headers, body), (headers_after, body_after) in zip(before, after, strict=True):
        assert body == body_after
        assert [pair for pair in headers.items() if pair[0].startswith("X-")] == [
            pair for pair in headers_after.items() if pair[0].startswith("X-")
        ]
