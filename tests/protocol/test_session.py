"""What a session is made of, said byte by byte to a running broker: the order of commands, what closes a connection, and what
keeps it.

A fault closes the connection that it came from. `bystander` is another connection that must not notice.
"""

import re
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.raw_client import CLOSED, DeadClient, RawClient, Type, connected, encode, frame, opened

from pybroker.wire import pulsar_api_pb2 as pb

MAX_MESSAGE_BYTES = 5 * 1024 * 1024
MAX_FRAME_BYTES = MAX_MESSAGE_BYTES + 10240 - 4  # the size field itself counts
TOPIC = "persistent://public/default/"
ID = pb.MessageIdData(ledgerId=1, entryId=1)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    settings = {"connectionLivenessCheckTimeoutMillis": "300"}
    process = BrokerProcess(tmp_path_factory.mktemp("session"), settings)
    with process.running_well():
        yield process


@pytest.fixture(scope="module")
def hasty_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One with the shortest keep-alive interval."""
    process = BrokerProcess(tmp_path_factory.mktemp("hasty"), {"keepAliveIntervalSeconds": "1"})
    with process.running():
        yield process


@pytest.fixture
def bystander(broker: BrokerProcess, request: pytest.FixtureRequest) -> Iterator[RawClient]:
    """Publishes before and after the test."""
    with connected(broker) as found:
        found.open_producer(topic_of(request))
        assert found.publish(1, 1)[0]["type"] == "SEND_RECEIPT"
        yield found
        assert found.publish(1, 1, first=1)[0]["type"] == "SEND_RECEIPT"


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return topic_of(request)


def topic_of(request: pytest.FixtureRequest) -> str:
    return TOPIC + "".join(letter if letter.isalnum() else "-" for letter in request.node.name)


def assert_answers(client: RawClient) -> None:
    """The connection is open, and nothing came before the answer."""
    client.send(Type.PING)
    assert client.reply()["type"] == "PONG"


# --- the order of commands ---------------------------------------------------------------------------------------------

COMMANDS: list[tuple["pb.BaseCommand.Type", dict[str, Any]]] = [
    (Type.LOOKUP, {"topic": "t", "request_id": 1}),
    (Type.PARTITIONED_METADATA, {"topic": "t", "request_id": 1}),
    (Type.PRODUCER, {"topic": "t", "producer_id": 1, "request_id": 1}),
    (Type.SUBSCRIBE, {"topic": "t", "subscription": "s", "subType": 0, "consumer_id": 1, "request_id": 1}),
    (Type.FLOW, {"consumer_id": 1, "messagePermits": 1}),
    (Type.ACK, {"consumer_id": 1, "ack_type": 0, "message_id": [ID]}),
    (Type.GET_TOPICS_OF_NAMESPACE, {"namespace": "public/default", "request_id": 1}),
    (Type.AUTH_RESPONSE, {}),
]
BROKER_COMMANDS: list[tuple["pb.BaseCommand.Type", dict[str, Any]]] = [
    (Type.CONNECTED, {"server_version": "raw"}),
    (Type.SUCCESS, {"request_id": 1}),
    (Type.ERROR, {"request_id": 1, "error": 0, "message": ""}),
    (Type.SEND_RECEIPT, {"producer_id": 1, "sequence_id": 1}),
    (Type.MESSAGE, {"consumer_id": 1, "message_id": ID}),
    (Type.AUTH_CHALLENGE, {}),
]


def name_of(value: object) -> str | None:
    return pb.BaseCommand.Type.Name(value) if isinstance(value, int) else ""


@pytest.mark.parametrize(("command", "fields"), COMMANDS, ids=name_of)
def test_a_command_before_connect_closes(
    broker: BrokerProcess, command: "pb.BaseCommand.Type", fields: dict[str, Any]
) -> None:
    with opened(broker) as stranger:
        stranger.send(command, **fields)
        assert stranger.reply() == CLOSED


def test_a_message_before_connect_closes(broker: BrokerProcess) -> None:
    with opened(broker) as stranger:
        stranger.send_message(1, 0)
        assert stranger.reply() == CLOSED


def test_a_second_connect_closes(client: RawClient, bystander: RawClient) -> None:
    assert client.connect() == CLOSED


@pytest.mark.parametrize(("command", "fields"), BROKER_COMMANDS, ids=name_of)
def test_a_command_that_only_brokers_send_closes(
    client: RawClient, command: "pb.BaseCommand.Type", fields: dict[str, Any]
) -> None:
    client.send(command, **fields)
    assert client.reply() == CLOSED


def test_ping_is_answered_before_and_after_connect(broker: BrokerProcess) -> None:
    with opened(broker) as found:
        assert_answers(found)
        found.connect()
        assert_answers(found)


@pytest.mark.parametrize(("spoken", "answered"), [(0, 0), (15, 15), (21, 21), (99, 21)])
def test_connected_has_the_lower_version_the_size_limit_and_what_works(
    broker: BrokerProcess, spoken: int, answered: int
) -> None:
    with opened(broker) as found:
        reply = found.connect(protocol_version=spoken)
    assert reply.pop("server_version").startswith("pybroker-")
    assert reply == {
        "type": "CONNECTED",
        "protocol_version": answered,
        "max_message_size": MAX_MESSAGE_BYTES,
        "feature_flags": {
            "supports_topic_watchers": True,
            "supports_get_partitioned_metadata_without_auto_creation": True,
            "supports_topic_watcher_reconcile": True,
        },
    }


def test_partition_metadata_without_auto_creation_is_told_apart(client: RawClient, topic: str) -> None:
    missing = client.request(Type.PARTITIONED_METADATA, topic=topic, metadata_auto_creation_enabled=False)
    assert (missing["response"], missing["error"]) == ("Failed", "TopicNotFound")
    found = client.request(Type.PARTITIONED_METADATA, topic=topic, metadata_auto_creation_enabled=True)
    assert (found["response"], found["partitions"]) == ("Success", 0)


def test_what_names_an_unknown_consumer_is_ignored(client: RawClient) -> None:
    client.send(Type.FLOW, consumer_id=9, messagePermits=1)
    client.send(Type.ACK, consumer_id=9, ack_type=0, message_id=[ID])
    client.send(Type.REDELIVER_UNACKNOWLEDGED_MESSAGES, consumer_id=9)
    assert_answers(client)


@pytest.mark.parametrize(
    ("command", "fields"),
    [(Type.CLOSE_PRODUCER, {"producer_id": 9}), (Type.CLOSE_CONSUMER, {"consumer_id": 9})],
    ids=name_of,
)
def test_closing_what_is_not_there_is_a_success(
    client: RawClient, command: "pb.BaseCommand.Type", fields: dict[str, Any]
) -> None:
    assert client.request(command, **fields)["type"] == "SUCCESS"


def test_a_malformed_namespace_closes(client: RawClient, bystander: RawClient) -> None:
    assert client.request(Type.GET_TOPICS_OF_NAMESPACE, namespace="a/b/c/d") == CLOSED


# --- messages and frames -----------------------------------------------------------------------------------------------


def test_a_message_of_an_unknown_producer_closes(client: RawClient, bystander: RawClient) -> None:
    client.send_message(9, 0)
    assert client.reply() == CLOSED


def test_messages_on_the_way_to_a_producer_that_the_broker_closed_are_dropped(client: RawClient, topic: str) -> None:
    client.open_producer(topic, 1, producer_name="p", user_provided_producer_name=True)
    successor = client.request(
        Type.PRODUCER, topic=topic, producer_id=2, producer_name="p", user_provided_producer_name=True, epoch=1
    )
    closed, opened_again = sorted((successor, client.reply()), key=lambda reply: reply["type"])
    assert (closed["type"], closed["producer_id"]) == ("CLOSE_PRODUCER", "1")
    assert opened_again["type"] == "PRODUCER_SUCCESS"
    client.send_message(1, 0)
    assert client.publish(2, 1)[0]["producer_id"] == "2"


def test_a_wrong_checksum_refuses_the_message_and_keeps_the_connection(client: RawClient, topic: str) -> None:
    client.open_producer(topic)
    client.send_message(1, 0)
    client.send_message(1, 1, checksum="bad")
    client.send_message(1, 2, checksum="none")
    # Receipts wait for the disk, a refusal does not: their order says nothing.
    replies = sorted((client.reply() for _ in range(3)), key=lambda reply: int(reply["sequence_id"]))
    assert [reply["type"] for reply in replies] == ["SEND_RECEIPT", "SEND_ERROR", "SEND_RECEIPT"]
    assert replies[1]["error"] == "ChecksumError"
    assert_answers(client)


def send_of_size(total_bytes: int) -> bytes:
    """A SEND frame of which `total_bytes` follow its first size field."""
    command = encode(Type.SEND, producer_id=1, sequence_id=0)
    metadata = pb.MessageMetadata(producer_name="raw", sequence_id=0, publish_time=1).SerializeToString()
    head = struct.pack(">I", len(metadata)) + metadata
    return frame(command, head + bytes(total_bytes - 4 - len(command) - len(head)))


def test_the_longest_frame_is_taken(client: RawClient, topic: str) -> None:
    client.open_producer(topic)
    client.send_bytes(send_of_size(MAX_FRAME_BYTES))
    assert client.reply()["type"] == "SEND_RECEIPT"


def test_a_longer_frame_closes_its_connection_only(client: RawClient, bystander: RawClient, topic: str) -> None:
    client.open_producer(topic)
    client.send_bytes(send_of_size(MAX_FRAME_BYTES + 1))
    assert client.reply() == CLOSED


def test_a_stranger_may_not_send_long_frames(broker: BrokerProcess, bystander: RawClient) -> None:
    with opened(broker) as stranger:
        stranger.send_bytes(struct.pack(">I", 1024 * 1024) + bytes(1024))
        assert stranger.reply() == CLOSED


PING = encode(Type.PING)
BROKEN = {
    "no-command": struct.pack(">II", 4, 0),
    "no-protobuf": frame(b"\xff" * 20),
    "cut-protobuf": frame(encode(Type.LOOKUP, topic="topic", request_id=1)[:-3]),
    "without-its-message": frame(pb.BaseCommand(type=Type.LOOKUP).SerializePartialToString()),
    "without-required-fields": frame(b"\x08" + bytes([Type.LOOKUP]) + b"\xba\x01\x00"),
    "unknown-type": frame(b"\x08\x7f" + bytes(20)),
    "longer-than-its-frame": struct.pack(">II", 4 + len(PING), 1000) + PING + bytes(1000),
    "no-room-for-a-size": struct.pack(">I", 1) + bytes(40),
    "negative": struct.pack(">i", -1) + bytes(40),
    "text": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "message-without-metadata": frame(encode(Type.SEND, producer_id=1, sequence_id=0)),
    "message-with-cut-metadata": frame(
        encode(Type.SEND, producer_id=1, sequence_id=0), struct.pack(">I", 999) + bytes(20)
    ),
    "zeros": bytes(64),
}


@pytest.mark.parametrize("data", BROKEN.values(), ids=BROKEN.keys())
def test_what_is_no_frame_closes_its_connection_only(
    client: RawClient, bystander: RawClient, topic: str, data: bytes
) -> None:
    client.open_producer(topic)
    client.send_bytes(data)
    assert client.reply() == CLOSED


def test_where_frames_are_cut_does_not_matter(broker: BrokerProcess, topic: str) -> None:
    with opened(broker) as found:
        connect = frame(encode(Type.CONNECT, client_version="raw", protocol_version=21))
        for index in range(len(connect)):
            found.send_bytes(connect[index : index + 1])
        assert found.reply()["type"] == "CONNECTED"
        found.open_producer(topic)
        message = send_of_size(200)
        stream = message * 5
        for start in range(0, len(stream), 7):
            found.send_bytes(stream[start : start + 7])
        assert [found.reply()["type"] for _ in range(5)] == ["SEND_RECEIPT"] * 5


# --- who is still there ------------------------------------------------------------------------------------------------


def test_the_name_of_a_dead_producer_goes_to_the_newcomer(broker: BrokerProcess, client: RawClient, topic: str) -> None:
    with connected(broker, DeadClient) as owner:
        assert owner.open_producer(topic, producer_name="p")["type"] == "PRODUCER_SUCCESS"
        assert client.open_producer(topic, producer_name="p")["type"] == "PRODUCER_SUCCESS"
        assert [owner.reply()["type"], owner.reply()] == ["PING", CLOSED]
    assert client.publish(1, 1)[0]["type"] == "SEND_RECEIPT"


def test_a_living_producer_keeps_its_name(broker: BrokerProcess, client: RawClient, topic: str) -> None:
    with connected(broker) as owner:
        owner.open_producer(topic, producer_name="p")
        assert client.open_producer(topic, producer_name="p")["error"] == "ProducerBusy"
        assert owner.publish(1, 1)[0]["type"] == "SEND_RECEIPT"
    assert_answers(client)


def test_an_exclusive_subscription_of_a_dead_consumer_goes_to_the_newcomer(
    broker: BrokerProcess, client: RawClient, topic: str
) -> None:
    with connected(broker, DeadClient) as owner:
        assert owner.subscribe(topic)["type"] == "SUCCESS"
        assert client.subscribe(topic)["type"] == "SUCCESS"
        assert [owner.reply()["type"], owner.reply()] == ["PING", CLOSED]


def test_a_living_exclusive_consumer_keeps_its_subscription(
    broker: BrokerProcess, client: RawClient, topic: str
) -> None:
    with connected(broker) as owner:
        owner.subscribe(topic)
        assert client.subscribe(topic)["error"] == "ConsumerBusy"
        assert_answers(owner)


def test_a_silent_client_is_pinged_and_then_closed_while_others_stay(hasty_broker: BrokerProcess) -> None:
    with ExitStack() as stack:
        alive = stack.enter_context(connected(hasty_broker))
        dead = stack.enter_context(connected(hasty_broker, DeadClient))
        assert [dead.reply()["type"], dead.reply()] == ["PING", CLOSED]
        assert_answers(alive)


def test_a_connection_that_never_says_connect_is_closed(hasty_broker: BrokerProcess) -> None:
    with opened(hasty_broker) as stranger:
        assert stranger.reply() == CLOSED


def test_a_stranger_has_a_whole_interval_to_say_connect(hasty_broker: BrokerProcess) -> None:
    with ExitStack() as stack:
        opened_s = time.monotonic()
        unauthenticated = [stack.enter_context(opened(hasty_broker)) for _ in range(10)]
        assert unauthenticated[0].reply() == CLOSED
        assert time.monotonic() - opened_s > 0.9
        assert all(stranger.reply() == CLOSED for stranger in unauthenticated)


def test_pings_of_the_client_keep_no_stranger_connected(hasty_broker: BrokerProcess) -> None:
    with opened(hasty_broker) as stranger:
        reply: dict[str, Any] = {}
        while reply != CLOSED:
            stranger.send(Type.PING)
            reply = stranger.reply()


def test_a_producer_without_a_name_gets_one_of_pulsars_kind(client: RawClient, topic: str) -> None:
    names = [client.open_producer(topic, producer_id)["producer_name"] for producer_id in (1, 2)]
    # The count of starts and that of producers: they stand in the metadata of each message.
    assert all(re.fullmatch(r"standalone-0-\d{1,4}", name) for name in names)
    assert len(set(names)) == 2
