"""The worst that a command can carry costs no more than its bytes, and is answered; whoever else is there goes on."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.protocol.conftest import running
from tests.support.broker_process import BrokerProcess
from tests.support.raw_client import RawClient, Type, connected

from pybroker.wire import pulsar_api_pb2 as pb

TOPIC = "persistent://public/default/hostile-"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with running(tmp_path_factory.mktemp("hostile")) as process:
        yield process


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return TOPIC + "".join(letter if letter.isalnum() else "-" for letter in request.node.name)


def position(answer: dict[str, Any], **fields: Any) -> pb.MessageIdData:
    message_id = answer["message_id"]
    return pb.MessageIdData(ledgerId=int(message_id["ledgerId"]), entryId=int(message_id.get("entryId", 0)), **fields)


def pairs(count: int, size: int = 0) -> list[pb.KeyValue]:
    return [pb.KeyValue(key=f"{index:06d}", value="v" * size) for index in range(count)]


def test_an_ack_set_as_long_as_a_frame_is_taken_as_what_it_says(client: RawClient, topic: str) -> None:
    client.open_producer(topic)
    (receipt,) = client.publish_batches(1, 1, 10)
    client.subscribe(topic, sub_type="Shared")
    words = [0b11, *[-1] * 200_000]  # of ten messages two are left; what is behind the batch means nothing
    answer = client.request(Type.ACK, consumer_id=1, ack_type=0, message_id=[position(receipt, ack_set=words)])
    assert answer["type"] == "ACK_RESPONSE"
    assert "error" not in answer
    client.send(Type.FLOW, consumer_id=1, messagePermits=10)
    message = client.reply()
    assert message["ack_set"] == ["3"]


def test_a_seek_into_a_batch_takes_an_ack_set_as_long_as_a_frame(client: RawClient, topic: str) -> None:
    client.open_producer(topic)
    (receipt,) = client.publish_batches(1, 1, 10)
    client.subscribe(topic, sub_type="Shared")
    words = [0b101, *[-1] * 200_000]
    client.send(Type.SEEK, consumer_id=1, request_id=77, message_id=position(receipt, ack_set=words))
    assert {client.reply()["type"], client.reply()["type"]} == {"CLOSE_CONSUMER", "SUCCESS"}
    assert client.subscribe(topic, sub_type="Shared")["type"] == "SUCCESS"
    client.send(Type.FLOW, consumer_id=1, messagePermits=10)
    assert client.reply()["ack_set"] == ["5"]


def test_a_batch_that_says_more_than_it_can_hold_is_refused_and_the_producer_goes_on(
    client: RawClient, topic: str
) -> None:
    client.open_producer(topic)
    for sequence_id, fields in enumerate(
        [
            {"num_messages_in_batch": (1 << 31) - 1},
            {"num_messages_in_batch": 3},
            {"num_messages_in_batch": 250_001, "compression": pb.ZSTD, "uncompressed_size": (1 << 32) - 1},
            {"num_messages_in_batch": 200_000, "compression": pb.ZLIB, "uncompressed_size": (1 << 32) - 1},
        ]
    ):
        client.send_message(1, sequence_id, b"x" * 17, metadata=fields)
        refused = client.reply()
        assert (refused["type"], refused["error"]) == ("SEND_ERROR", "NotAllowedError")
        assert int(refused.get("sequence_id", 0)) == sequence_id
    payload = zlib.compress(b"\0\0\0\2\x18\0" * 1000)
    fields = {"num_messages_in_batch": 1000, "compression": pb.ZLIB, "uncompressed_size": 6000}
    client.send_message(1, 9, payload, metadata=fields)
    assert client.reply()["type"] == "SEND_RECEIPT"


def test_properties_are_bounded_for_producers_consumers_and_subscriptions(client: RawClient, topic: str) -> None:
    for count, size in ((2, 9000), (60_000, 0), (17_000, 0)):
        refused = client.open_producer(topic, 5, metadata=pairs(count, size))
        assert (refused["type"], refused["error"]) == ("ERROR", "MetadataError")
        assert "maxProducerMetadataSize" in refused["message"] or "maxFieldsInCommand" in refused["message"]
    assert client.open_producer(topic, 5, metadata=pairs(100, 100))["type"] == "PRODUCER_SUCCESS"
    refused = client.subscribe(topic, 6, metadata=pairs(30_000))
    assert (refused["type"], refused["error"]) == ("ERROR", "MetadataError")
    refused = client.subscribe(topic, 6, subscription_properties=pairs(10, 7000))
    assert (refused["type"], refused["error"]) == ("ERROR", "NotAllowedError")
    assert "maxSubscriptionPropertiesSize" in refused["message"]
    assert client.subscribe(topic, 6, subscription_properties=pairs(10, 100))["type"] == "SUCCESS"


def test_names_are_bounded(client: RawClient, topic: str) -> None:
    long = "n" * 9000
    refusals = [
        client.open_producer(topic, producer_name=long),
        client.open_producer(topic, initial_subscription_name=long),
        client.subscribe(topic, subscription=long),
        client.subscribe(topic, consumer_name=long),
    ]
    assert [(each["type"], each["error"]) for each in refusals] == [("ERROR", "NotAllowedError")] * 4


def test_overlapping_hash_ranges_are_refused_before_they_are_compared(client: RawClient, topic: str) -> None:
    for count, key in ((1500, "maxHashRangesPerConsumer"), (100_000, "maxFieldsInCommand")):
        ranges = [pb.IntRange(start=0, end=index % 100) for index in range(count)]
        sticky = pb.KeySharedMeta(keySharedMode=pb.KeySharedMode.STICKY, hashRanges=ranges)
        refused = client.subscribe(topic, sub_type="Key_Shared", keySharedMeta=sticky)
        assert (refused["type"], refused["error"]) == ("ERROR", "ConsumerAssignError")
        assert key in refused["message"]


def test_a_partition_number_of_thousands_of_digits_is_a_topic_of_that_name(client: RawClient, topic: str) -> None:
    name = f"{topic}-partition-{'1' * 5000}"
    answer = client.request(Type.PARTITIONED_METADATA, topic=name)
    assert answer["response"] == "Success"
    assert client.open_producer(name)["type"] == "PRODUCER_SUCCESS"


def test_an_acknowledgement_of_thousands_is_whole_and_in_its_place(client: RawClient, topic: str) -> None:
    """It is worked off in slices: what is sent behind it waits for it, and whoever else is there is served in between."""
    client.open_producer(topic)
    receipts = client.publish(1, 3000)
    client.subscribe(topic, sub_type="Shared")
    client.send(Type.FLOW, consumer_id=1, messagePermits=3000)
    assert len({client.reply()["message_id"].get("entryId", 0) for _ in receipts}) == 3000
    ids = [position(receipt) for receipt in receipts[:2999]]
    client.send(Type.ACK, consumer_id=1, ack_type=0, message_id=ids, request_id=5)
    client.send(Type.CLOSE_CONSUMER, consumer_id=1, request_id=6)
    answers = [client.reply(), client.reply()]
    assert {each["type"] for each in answers} == {"ACK_RESPONSE", "SUCCESS"}
    assert not any("error" in each for each in answers)
    client.subscribe(topic, sub_type="Shared")
    client.send(Type.FLOW, consumer_id=1, messagePermits=3000)
    left = client.reply()
    assert left["message_id"] == receipts[2999]["message_id"]
    assert [each["type"] for each in client.replies()] == []


@pytest.mark.parametrize("sub_type", ["Shared", "Exclusive"])
def test_thousands_of_messages_that_are_asked_for_again_come_once(client: RawClient, topic: str, sub_type: str) -> None:
    client.open_producer(topic)
    receipts = client.publish(1, 3000)
    client.subscribe(topic, sub_type=sub_type)
    client.send(Type.FLOW, consumer_id=1, messagePermits=3000)
    assert len([client.reply() for _ in receipts]) == 3000
    ids = [position(receipt) for receipt in receipts]
    client.send(Type.REDELIVER_UNACKNOWLEDGED_MESSAGES, consumer_id=1, message_ids=ids)
    client.send(Type.FLOW, consumer_id=1, messagePermits=4000)
    again = client.replies()
    assert len(again) == 3000
    assert len({each["message_id"].get("entryId", 0) for each in again}) == 3000


def test_a_client_that_leaves_in_the_middle_of_its_acknowledgement_leaves_a_sound_subscription(
    broker: BrokerProcess, topic: str
) -> None:
    with connected(broker) as leaving:
        leaving.open_producer(topic)
        receipts = leaving.publish(1, 3000)
        leaving.subscribe(topic, sub_type="Shared")
        ids = [position(receipt) for receipt in receipts]
        leaving.send(Type.ACK, consumer_id=1, ack_type=0, message_id=ids)
    with connected(broker) as coming:
        assert coming.subscribe(topic, sub_type="Shared")["type"] == "SUCCESS"
        coming.send(Type.FLOW, consumer_id=1, messagePermits=4000)
        left = [each["message_id"] for each in coming.replies(quiet_s=2.0)]
        assert left == [receipt["message_id"] for receipt in receipts[len(receipts) - len(left) :]]
        assert coming.request(Type.ACK, consumer_id=1, ack_type=0, message_id=ids)["type"] == "ACK_RESPONSE"


def test_large_requests_count_for_more_and_are_all_answered(tmp_path: Path) -> None:
    """Those that wait for an answer are memory: only so many are read, and the others when there is room again."""
    data = b'{"type":"record","name":"R","doc":"%s","fields":[]}' % (b"d" * 30_000)
    schema = pb.Schema(name="s", type=pb.Schema.Avro, schema_data=data)
    with running(tmp_path, maxConcurrentRequestsPerConnection=2) as broker, connected(broker) as client:
        client.open_producer(TOPIC + "large")
        for request_id in range(100, 130):
            client.send(Type.GET_OR_CREATE_SCHEMA, topic=TOPIC + "large", request_id=request_id, schema=schema)
        answers = [client.reply() for _ in range(30)]
        assert {int(each["request_id"]) for each in answers} == set(range(100, 130))
        assert not any("error_code" in each for each in answers)
