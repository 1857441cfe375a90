"""Every way to acknowledge, and what is delivered again: by the official client where it can say it, else by raw frames."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pulsar
import pytest
from tests.clients.conftest import assert_nothing_arrives, new_client, receive_all, send_batch
from tests.support.broker_process import BrokerProcess
from tests.support.raw_client import NOTHING, RawClient, Type, connected

from pybroker.wire import pulsar_api_pb2 as pb

EARLIEST = pulsar.InitialPosition.Earliest
SHARED = pulsar.ConsumerType.Shared
INDIVIDUAL, CUMULATIVE = pb.CommandAck.Individual, pb.CommandAck.Cumulative
QUIET_S = 0.2


@pytest.fixture
def raw(broker: BrokerProcess) -> Iterator[RawClient]:
    with connected(broker) as client:
        yield client


@contextmanager
def running(directory: Path, **settings: str) -> Iterator[BrokerProcess]:
    with BrokerProcess(directory, settings).running() as process:
        yield process


def delivered(raw: RawClient, topic: str, count: int, sub_type: str = "Shared", **fields: Any) -> list[Any]:
    """Publish, subscribe, and the ids of what comes; one message after the other is published."""
    raw.open_producer(topic, 90)
    raw.publish(90, count)
    raw.subscribe(topic, sub_type=sub_type, **fields)
    raw.send(Type.FLOW, consumer_id=1, messagePermits=100)
    return ids_of([raw.reply() for _ in range(count)])


def ids_of(replies: list[dict[str, Any]]) -> list[Any]:
    ids = (reply["message_id"] for reply in replies)
    return [pb.MessageIdData(ledgerId=int(each["ledgerId"]), entryId=int(each["entryId"])) for each in ids]


def ack(raw: RawClient, ids: list[Any], ack_type: Any = INDIVIDUAL, consumer_id: int = 1, **fields: Any) -> Any:
    """An ACK with a request id, and its answer."""
    fields = {"request_id": 100, "consumer_id": consumer_id, **fields}
    raw.send(Type.ACK, ack_type=ack_type, message_id=ids, **fields)
    return raw.reply()


def left(raw: RawClient) -> list[str]:
    """The payloads of what the consumer is sent when it asks for everything again."""
    raw.send(Type.REDELIVER_UNACKNOWLEDGED_MESSAGES, consumer_id=1)
    return sorted(each["payload"] for each in raw.replies(QUIET_S))


# --- who may acknowledge what, and what the answer is ----------------------------------------------------------------------


@pytest.mark.parametrize("sub_type", ["Shared", "Key_Shared"])
def test_a_cumulative_ack_has_no_effect_where_messages_are_shared_out(
    raw: RawClient, topic: str, sub_type: str
) -> None:
    name = f"{topic}-{sub_type}"
    ids = delivered(raw, name, 3, sub_type)
    answer = ack(raw, ids[2:], CUMULATIVE)
    assert (answer["type"], answer["error"]) == ("ACK_RESPONSE", "NotAllowedError")
    raw.send(Type.ACK, consumer_id=1, ack_type=CUMULATIVE, message_id=ids[2:])
    assert raw.reply(QUIET_S) == NOTHING
    assert left(raw) == ["m0", "m1", "m2"]


def test_one_ack_takes_many_ids(raw: RawClient, topic: str) -> None:
    ids = delivered(raw, topic, 6)
    assert "error" not in ack(raw, [ids[1], ids[4], ids[2]])
    assert left(raw) == ["m0", "m3", "m5"]


def test_an_entry_may_be_acknowledged_by_whoever_likes_to(raw: RawClient, topic: str) -> None:
    """Delivered to another consumer, not delivered at all, acknowledged before, not there: all of it is success."""
    ids = delivered(raw, topic, 3)
    raw.subscribe(topic, 2, "Shared")
    assert "error" not in ack(raw, ids[:1], consumer_id=2)
    assert "error" not in ack(raw, ids[:1])
    missing = pb.MessageIdData(ledgerId=ids[0].ledgerId + 1000, entryId=0)
    beyond = pb.MessageIdData(ledgerId=ids[0].ledgerId, entryId=50)
    assert "error" not in ack(raw, [missing, beyond])
    assert left(raw) == ["m1", "m2"]


def test_what_was_acknowledged_before_it_was_delivered_is_not_delivered(raw: RawClient, topic: str) -> None:
    raw.open_producer(topic, 90)
    receipts = raw.publish(90, 3)
    raw.subscribe(topic, sub_type="Shared")
    assert "error" not in ack(raw, ids_of(receipts)[1:2])
    raw.send(Type.FLOW, consumer_id=1, messagePermits=100)
    assert [each["payload"] for each in raw.replies(QUIET_S)] == ["m0", "m2"]


def test_an_ack_by_nobody_is_answered_if_it_asks_to_be(raw: RawClient) -> None:
    some_id = pb.MessageIdData(ledgerId=1, entryId=1)
    answer = ack(raw, [some_id], consumer_id=77)
    assert (answer["type"], answer["consumer_id"], answer["error"]) == ("ACK_RESPONSE", "77", "ConsumerNotFound")
    raw.send(Type.ACK, consumer_id=77, ack_type=INDIVIDUAL, message_id=[some_id])
    assert raw.reply(QUIET_S) == NOTHING


def test_a_message_that_the_client_cannot_read_is_acknowledged_and_named_in_the_log(
    broker: BrokerProcess, raw: RawClient, topic: str
) -> None:
    ids = delivered(raw, topic, 3, consumer_name="picky")
    properties = [pb.KeyLongValue(key="k", value=1)]
    error = pb.CommandAck.DecryptionError
    assert "error" not in ack(raw, ids[:1], validation_error=error, properties=properties)
    raw.send(Type.ACK, consumer_id=1, ack_type=INDIVIDUAL, message_id=ids[1:2], validation_error=error)
    assert left(raw) == ["m2"]
    lines = [line for line in broker.log.read_text().splitlines() if "messages.unreadable" in line and topic in line]
    assert len(lines) == 1, "once for each consumer"
    assert "DecryptionError" in lines[0]
    assert "picky" in lines[0]


def test_an_acks_receipt_holds_over_a_crash(own_broker: BrokerProcess, topic: str) -> None:
    with connected(own_broker) as raw:
        ids = delivered(raw, topic, 5)
        assert "error" not in ack(raw, [ids[0], ids[3]])
    own_broker.restart_after_kill()
    with connected(own_broker) as raw:
        raw.subscribe(topic, sub_type="Shared")
        raw.send(Type.FLOW, consumer_id=1, messagePermits=100)
        assert [each["payload"] for each in raw.replies(0.5)] == ["m1", "m2", "m4"]


# --- parts of batches ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("is_kept", "expected"), [("true", ["m1", "m3", "m5"]), ("false", [f"m{i}" for i in range(6)])]
)
def test_of_a_batch_acknowledged_in_part_the_rest_comes_again_or_all_of_it(
    tmp_path: Path, topic: str, is_kept: str, expected: list[str]
) -> None:
    with running(tmp_path, acknowledgmentAtBatchIndexLevelEnabled=is_kept) as broker:
        client = new_client(broker.url)
        consumer = client.subscribe(topic, "s", SHARED, initial_position=EARLIEST, batch_index_ack_enabled=True)
        send_batch(client, topic, 6)
        for message in receive_all(consumer, 6)[::2]:
            consumer.acknowledge(message)
        consumer.close()
        again = client.subscribe(topic, "s", SHARED, batch_index_ack_enabled=True)
        messages = receive_all(again, len(expected))
        assert [message.data().decode() for message in messages] == expected
        assert_nothing_arrives(again)
        for message in messages:
            again.acknowledge(message)
        again.close()
        assert_nothing_arrives(client.subscribe(topic, "s", SHARED))
        client.close()


def test_a_client_that_does_not_acknowledge_parts_gets_the_whole_batch_again(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", SHARED, initial_position=EARLIEST)
    send_batch(client, topic, 4)
    for message in receive_all(consumer, 4)[:3]:
        consumer.acknowledge(message)
    consumer.close()
    again = client.subscribe(topic, "s", SHARED)
    messages = receive_all(again, 4)
    for message in messages:
        again.acknowledge(message)
    again.close()
    assert_nothing_arrives(client.subscribe(topic, "s", SHARED))


# --- delivered again -------------------------------------------------------------------------------------------------------


def test_redelivery_counts_outlive_the_consumers_and_the_type(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", SHARED, initial_position=EARLIEST, negative_ack_redelivery_delay_ms=10)
    client.create_producer(topic, batching_enabled=False).send(b"m")
    for expected in (0, 1):
        message = consumer.receive(30_000)
        assert message.redelivery_count() == expected
        consumer.negative_acknowledge(message)
    assert consumer.receive(30_000).redelivery_count() == 2
    consumer.close()
    by_key = client.subscribe(topic, "s", pulsar.ConsumerType.KeyShared)
    assert by_key.receive(30_000).redelivery_count() == 3
    by_key.close()
    alone = client.subscribe(topic, "s")
    alone.acknowledge(alone.receive(30_000))
    alone.close()
    assert_nothing_arrives(client.subscribe(topic, "s", SHARED))


def test_messages_carry_the_newest_epoch_that_the_consumer_named(raw: RawClient, topic: str) -> None:
    delivered(raw, topic, 1, "Exclusive", consumer_epoch=3)
    for asked, carried in ((5, "5"), (4, "5"), (6, "6")):
        raw.send(Type.REDELIVER_UNACKNOWLEDGED_MESSAGES, consumer_id=1, consumer_epoch=asked)
        assert raw.reply()["consumer_epoch"] == carried


# --- limits and permits ----------------------------------------------------------------------------------------------------


def test_a_consumer_at_its_limit_stops_and_goes_on_at_half_of_it(tmp_path: Path, topic: str) -> None:
    with running(tmp_path, maxUnackedMessagesPerConsumer="10") as broker, connected(broker) as raw:
        raw.open_producer(topic, 90)
        raw.publish(90, 30)
        raw.subscribe(topic, sub_type="Shared")
        raw.send(Type.FLOW, consumer_id=1, messagePermits=100)
        ids = ids_of(raw.replies(QUIET_S))
        assert len(ids) == 10
        ack(raw, ids[:4])
        assert raw.reply(QUIET_S) == NOTHING
        ack(raw, ids[4:5])
        assert len(raw.replies(QUIET_S)) == 5


def test_a_subscription_at_its_limit_stops_and_goes_on_at_half_of_it(tmp_path: Path, topic: str) -> None:
    with running(tmp_path, maxUnackedMessagesPerSubscription="10") as broker, connected(broker) as raw:
        raw.open_producer(topic, 90)
        raw.publish(90, 30)
        for consumer_id in (1, 2):
            raw.subscribe(topic, consumer_id, "Shared")
        for consumer_id in (1, 2):
            raw.send(Type.FLOW, consumer_id=consumer_id, messagePermits=100)
        replies = raw.replies(QUIET_S)
        assert len(replies) == 10
        ack(raw, ids_of(replies)[:5])
        assert len(raw.replies(QUIET_S)) == 5


def test_at_the_brokers_limit_those_above_their_share_stop_and_the_others_go_on(tmp_path: Path, topic: str) -> None:
    settings = {"maxUnackedMessagesPerBroker": "20", "maxUnackedMessagesPerSubscriptionOnBrokerBlocked": "0.25"}
    with running(tmp_path, **settings) as broker, connected(broker) as raw, connected(broker) as other:
        raw.open_producer(topic, 90)
        raw.publish(90, 30)
        raw.subscribe(topic, sub_type="Shared")
        raw.send(Type.FLOW, consumer_id=1, messagePermits=20)
        ids = ids_of(raw.replies(QUIET_S))
        assert len(ids) == 20
        raw.send(Type.FLOW, consumer_id=1, messagePermits=100)
        assert raw.reply(QUIET_S) == NOTHING
        other.subscribe(topic, sub_type="Shared", subscription="small")
        other.send(Type.FLOW, consumer_id=1, messagePermits=3)
        small = ids_of([other.reply() for _ in range(3)])
        ack(raw, ids[:12])
        assert raw.reply(QUIET_S) == NOTHING, "11 are left, more than half of 20, and 8 more than half of its share"
        ack(other, small)
        assert len(raw.replies(QUIET_S)) == 10, "8 are left: everybody goes on"


def test_permits_are_turned_into_entries_by_the_average_batch(tmp_path: Path, topic: str) -> None:
    """Exclusive reads an entry for each permit, so that batches take them far below zero; not with precise flow control."""
    for is_precise, expected in (("false", 8), ("true", 2)):
        directory = tmp_path / is_precise
        directory.mkdir()
        with running(directory, preciseDispatcherFlowControl=is_precise) as broker, connected(broker) as raw:
            raw.open_producer(topic, 90)
            raw.publish_batches(90, 12, 5)
            raw.subscribe(topic)
            raw.send(Type.FLOW, consumer_id=1, messagePermits=1)
            assert len(raw.replies(QUIET_S)) == 1
            raw.send(Type.FLOW, consumer_id=1, messagePermits=12)
            assert len(raw.replies(QUIET_S)) == expected, "8 permits are left of 13"
