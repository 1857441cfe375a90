"""The worst inputs of the binary protocol's commands, for `hostile.py`: valid frames that any client may send."""

import time
import urllib.request
import uuid
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from benchmarks import cases, frames, load
from benchmarks.brokers import Broker
from benchmarks.hostile import Attack, Fire
from pybroker.wire import pulsar_api_pb2 as pb

_Command = pb.BaseCommand
_PING = frames.encode_command(_Command(type=_Command.PING, ping=pb.CommandPing()))
_WORD_BYTES = 2  # shortest word of an ack set that is not packed, with its tag
_MESSAGE_ID_BYTES = 12


def _fire(link: load.Link, data: bytes) -> int:
    link.exchange(data + _PING, 1)
    return len(data)


@contextmanager
def _consumer(
    broker: Broker,
    tail: bytes | None = None,
    topic: str = "",
    kind: "pb.CommandSubscribe.SubType" = pb.CommandSubscribe.Shared,
) -> Iterator[tuple[load.Link, pb.MessageIdData]]:
    topic = topic or cases.new_topic()
    link = load.Link(broker.service_url)
    try:
        name = link.open_producer(topic, producer_id=1)
        send = _Command(type=_Command.SEND, send=pb.CommandSend(producer_id=1, sequence_id=1)).SerializeToString()
        tail = tail or frames.batch_tail(name, b"x" * 10, 100)
        sizes = (4 + len(send) + len(tail)).to_bytes(4, "big") + len(send).to_bytes(4, "big")
        answers = link.exchange(sizes + send + tail, 1)
        link.subscribe(topic, cases.SUBSCRIPTION, kind, consumer_id=1)
        yield link, answers[-1].send_receipt.message_id
    finally:
        link.close()


@contextmanager
def metadata_of_many_fields(broker: Broker, size_bytes: int) -> Iterator[Fire]:
    """Attack with a message whose metadata has many fields; the message is dispatched by key, and acknowledged."""
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1, num_messages_in_batch=1)
    fields = pb.MessageMetadata(properties=[pb.KeyValue(key="", value="")]).SerializePartialToString()
    metadata.MergeFromString(fields * (size_bytes // len(fields)))
    with _consumer(broker, kind=pb.CommandSubscribe.Key_Shared) as (link, _):
        send = _Command(type=_Command.SEND, send=pb.CommandSend(producer_id=1, sequence_id=9)).SerializeToString()
        tail = frames.encode_tail(metadata, b"")
        data = (4 + len(send) + len(tail)).to_bytes(4, "big") + len(send).to_bytes(4, "big") + send + tail
        link.exchange(frames.encode_flow(1, 100_000), 1)  # already stored messages

        def fire() -> int:
            answers = link.exchange(data, 1)
            if answers[0].type != _Command.SEND_ERROR and len(answers) < 2:
                link.exchange(b"", 1)  # receipt and message, in any order
            return len(data)

        yield fire


def _schema(topic: str, size_bytes: int) -> dict[str, Any]:
    fields = ",".join(f'{{"name":"a{index}","type":["null","int"]}}' for index in range(size_bytes // 36))
    data = f'{{"type":"record","name":"R{uuid.uuid4().hex}","fields":[{fields}]}}'.encode()
    return {"topic": topic, "schema": pb.Schema(name="s", type=pb.Schema.Avro, schema_data=data)}


@contextmanager
def ack_of_an_ack_set(broker: Broker, size_bytes: int) -> Iterator[Fire]:
    """Attack with one ACK of a batch, whose ack set fills the frame."""
    with _consumer(broker) as (link, at):
        words = [1] * (size_bytes // _WORD_BYTES)
        message_id = pb.MessageIdData(ledgerId=at.ledgerId, entryId=at.entryId, ack_set=words, batch_size=100)
        ack = pb.CommandAck(consumer_id=1, ack_type=pb.CommandAck.Individual, message_id=[message_id])
        data = frames.encode_command(_Command(type=_Command.ACK, ack=ack))
        yield lambda: _fire(link, data)


@contextmanager
def seek_to_an_ack_set(broker: Broker, size_bytes: int) -> Iterator[Fire]:
    """Attack with a SEEK into a batch, whose ack set fills the frame."""
    topic = cases.new_topic()
    with _consumer(broker, topic=topic) as (link, at):
        words = [1] * (size_bytes // _WORD_BYTES)
        message_id = pb.MessageIdData(ledgerId=at.ledgerId, entryId=at.entryId, ack_set=words)
        seek = _Command(type=_Command.SEEK, seek=pb.CommandSeek(consumer_id=1, request_id=1, message_id=message_id))

        def fire() -> int:
            seek.seek.request_id = link.next_request_id()
            data = frames.encode_command(seek)
            link.exchange(data, 2)  # CLOSE_CONSUMER and the response to the seek
            link.subscribe(topic, cases.SUBSCRIPTION, pb.CommandSubscribe.Shared, consumer_id=1)
            return len(data)

        yield fire


def _ids(at: pb.MessageIdData, size_bytes: int) -> list[pb.MessageIdData]:
    """Return ids of entries that do not exist, in alternating ledgers, so that no two are adjacent."""
    count = size_bytes // _MESSAGE_ID_BYTES
    return [pb.MessageIdData(ledgerId=at.ledgerId + index % 1000, entryId=1 + index // 2) for index in range(count)]


@contextmanager
def ack_of_many_ids(broker: Broker, size_bytes: int) -> Iterator[Fire]:
    """Attack with one ACK with the maximum number of ids."""
    with _consumer(broker) as (link, at):
        ack = pb.CommandAck(consumer_id=1, ack_type=pb.CommandAck.Individual, message_id=_ids(at, size_bytes))
        data = frames.encode_command(_Command(type=_Command.ACK, ack=ack))
        yield lambda: _fire(link, data)


@contextmanager
def redelivery_of_many_ids(broker: Broker, size_bytes: int) -> Iterator[Fire]:
    """Attack with one REDELIVER with the maximum number of ids."""
    with _consumer(broker) as (link, at):
        asked = pb.CommandRedeliverUnacknowledgedMessages(consumer_id=1, message_ids=_ids(at, size_bytes))
        command = _Command(type=_Command.REDELIVER_UNACKNOWLEDGED_MESSAGES, redeliverUnacknowledgedMessages=asked)
        data = frames.encode_command(command)
        yield lambda: _fire(link, data)


@contextmanager
def compaction_of_a_bomb(broker: Broker, size_bytes: int) -> Iterator[Fire]:
    """Attack with a compaction of a highly compressed batch of empty messages, which has `size_bytes` uncompressed."""
    assert broker.http_url is not None
    topic = cases.new_topic()
    count = size_bytes // 6
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1, num_messages_in_batch=count)
    metadata.compression = pb.ZLIB
    metadata.uncompressed_size = count * 6
    tail = frames.encode_tail(metadata, zlib.compress(b"\0\0\0\2\x18\0" * count))
    url = f"{broker.http_url}/admin/v2/{topic.replace('://', '/')}/compaction"

    def fire() -> int:
        with _consumer(broker, tail, topic=topic):
            with urllib.request.urlopen(urllib.request.Request(url, method="PUT")):
                pass
            while b"RUNNING" in urllib.request.urlopen(url).read():
                time.sleep(0.01)
        return count * 6

    yield fire


def _requests(
    make: Callable[[str, int], dict[str, Any]], name: str
) -> Callable[[Broker, int], AbstractContextManager[Fire]]:
    """Return an attack by one request on a new topic; `make` returns its fields for a topic and a size."""

    @contextmanager
    def ready(broker: Broker, size_bytes: int) -> Iterator[Fire]:
        link = load.Link(broker.service_url)
        topic = cases.new_topic()
        link.open_producer(topic, producer_id=1)
        number = next(field.number for field in _Command.DESCRIPTOR.fields if field.name == name)
        command = _Command.FromString(b"\x08" + bytes((number,)))
        message = getattr(command, name)
        message.CopyFrom(type(message)(request_id=0, **make(topic, size_bytes)))

        def fire() -> int:
            nonlocal link
            message.request_id = link.next_request_id()
            data = frames.encode_command(command)
            if not link.exchange(data, 1):  # refused by closing the connection
                link.close()
                link = load.Link(broker.service_url)
            return len(data)

        try:
            yield fire
        finally:
            link.close()

    return ready


def _hash_ranges(topic: str, size_bytes: int) -> dict[str, Any]:
    ranges = [pb.IntRange(start=0, end=index % 100) for index in range(size_bytes // 6)]
    meta = pb.KeySharedMeta(keySharedMode=pb.KeySharedMode.STICKY, hashRanges=ranges)
    return {"topic": topic, "subscription": "s", "subType": 3, "consumer_id": 9, "keySharedMeta": meta}


def _pairs(size_bytes: int) -> list[pb.KeyValue]:
    return [pb.KeyValue(key=f"{index:06d}", value="") for index in range(size_bytes // 12)]


ATTACKS = {
    "hostile_ack_set": Attack(50_000, 400_000, ack_of_an_ack_set),
    "hostile_seek_ack_set": Attack(50_000, 400_000, seek_to_an_ack_set),
    "hostile_ack_ids": Attack(50_000, 1_000_000, ack_of_many_ids),
    "hostile_redeliver_ids": Attack(50_000, 1_000_000, redelivery_of_many_ids),
    "hostile_compaction": Attack(100_000, 1_500_000, compaction_of_a_bomb),
    "hostile_send_metadata": Attack(16_000, 2_000_000, metadata_of_many_fields),
    "hostile_schema": Attack(50_000, 900_000, _requests(_schema, "getOrCreateSchema")),
    "hostile_topics_pattern": Attack(
        50,
        4_000_000,
        _requests(
            lambda _, size: {"namespace": "public/default", "topics_pattern": "(a*)*" * (size // 5)},
            "getTopicsOfNamespace",
        ),
    ),
    "hostile_topic_name": Attack(
        8_000, 4_000_000, _requests(lambda topic, size: {"topic": topic + "/" * size}, "lookupTopic")
    ),
    "hostile_lookup_properties": Attack(
        50_000,
        4_000_000,
        _requests(lambda topic, size: {"topic": topic, "properties": _pairs(size)}, "lookupTopic"),
    ),
    "hostile_hash_ranges": Attack(100_000, 1_800_000, _requests(_hash_ranges, "subscribe")),
    "hostile_producer_metadata": Attack(
        50_000,
        4_500_000,
        _requests(lambda topic, size: {"topic": topic, "producer_id": 9, "metadata": _pairs(size)}, "producer"),
    ),
    "hostile_consumer_metadata": Attack(
        50_000,
        4_500_000,
        _requests(
            lambda topic, size: {
                "topic": topic,
                "subscription": "s",
                "subType": 1,
                "consumer_id": 9,
                "metadata": _pairs(size),
            },
            "subscribe",
        ),
    ),
    "hostile_partition_digits": Attack(
        4_000,
        100_000,
        _requests(lambda topic, size: {"topic": f"{topic}-partition-{'1' * size}"}, "partitionMetadata"),
    ),
}
