"""The official client moves its subscriptions and starts its readers wherever it likes."""

import time
from pathlib import Path

import pulsar
import pytest
from tests.clients.conftest import assert_nothing_arrives, new_client, receive_all, send_batch, texts
from tests.support.broker_process import BrokerProcess
from tests.support.raw_client import Type, connected, encode, frame
from tests.support.rest import call

from pybroker.wire import pulsar_api_pb2 as pb

EARLIEST = pulsar.InitialPosition.Earliest


def send(client: pulsar.Client, topic: str, count: int, first: int = 0) -> list[pulsar.MessageId]:
    producer = client.create_producer(topic, batching_enabled=False)
    ids = [producer.send(b"m%d" % index) for index in range(first, first + count)]
    producer.close()
    return ids


def numbers(first: int, end: int) -> list[str]:
    return [f"m{index}" for index in range(first, end)]


def admin(broker: BrokerProcess, method: str, topic: str, path: str, body: object = None) -> None:
    answer = call(f"{broker.http_url}/admin/v2/{topic.replace('://', '/')}/{path}", method, body=body)
    assert answer.status < 300, answer


# --- consumers ----------------------------------------------------------------------------------------------------------


def test_seek_to_acknowledged_message_redelivers_messages_behind_it(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    ids = send(client, topic, 10)
    for message in receive_all(consumer, 10):
        consumer.acknowledge(message)
    consumer.seek(ids[3])
    assert texts(receive_all(consumer, 6)) == numbers(4, 10)
    assert_nothing_arrives(consumer)


def test_inclusive_seek_redelivers_named_message(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST, start_message_id_inclusive=True)
    ids = send(client, topic, 5)
    receive_all(consumer, 5)
    consumer.seek(ids[3])
    assert texts(receive_all(consumer, 2)) == numbers(3, 5)


def test_seek_to_earliest_and_latest(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    send(client, topic, 5)
    receive_all(consumer, 5)
    consumer.seek(pulsar.MessageId.earliest)
    assert texts(receive_all(consumer, 5)) == numbers(0, 5)
    consumer.seek(pulsar.MessageId.latest)
    assert_nothing_arrives(consumer)
    send(client, topic, 1, first=5)
    assert texts(receive_all(consumer, 1)) == numbers(5, 6)


def test_seek_to_publish_time(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    producer = client.create_producer(topic, batching_enabled=False)
    for index in range(5):
        producer.send(b"m%d" % index)
    times = [message.publish_timestamp() for message in receive_all(consumer, 5)]
    while time.time() * 1000 <= times[-1] + 1:
        pass  # so that the next message has a later time
    producer.send(b"m5")
    later = consumer.receive(30_000).publish_timestamp()
    for time_ms, expected in ((later, numbers(5, 6)), (times[0], numbers(0, 6)), (later + 3_600_000, [])):
        consumer.seek(time_ms)
        assert texts(receive_all(consumer, len(expected))) == expected
        assert_nothing_arrives(consumer)


@pytest.mark.parametrize("batch_index_acks", [True, False])
def test_seek_into_batch(client: pulsar.Client, topic: str, batch_index_acks: bool) -> None:
    name = f"{topic}-{batch_index_acks}"
    consumer = client.subscribe(name, "s", initial_position=EARLIEST, batch_index_ack_enabled=batch_index_acks)
    send_batch(client, name, 10)
    messages = receive_all(consumer, 10)
    assert len({message.message_id().entry_id() for message in messages}) == 1
    consumer.seek(messages[5].message_id())
    assert texts(receive_all(consumer, 4)) == numbers(6, 10)
    assert_nothing_arrives(consumer)


def test_one_of_two_concurrent_seeks_fails(broker: BrokerProcess, topic: str) -> None:
    with connected(broker) as raw:
        raw.open_producer(topic)
        raw.publish(1, 4)
        raw.subscribe(topic)
        commands = [encode(Type.SEEK, consumer_id=1, request_id=each, message_publish_time=1) for each in (50, 51)]
        raw.send_bytes(b"".join(frame(command) for command in commands))
        replies = [raw.reply() for _ in range(3)]
        assert sorted(str(reply["type"]) for reply in replies) == ["CLOSE_CONSUMER", "ERROR", "SUCCESS"]
        assert raw.subscribe(topic)["type"] == "SUCCESS"


def test_subscribe_during_seek_is_answered(broker: BrokerProcess, topic: str) -> None:
    """SUBSCRIBE follows SEEK in the same bytes: it is served, or told to try again."""
    with connected(broker) as raw:
        raw.open_producer(topic)
        raw.publish(1, 4)
        raw.subscribe(topic)
        target = pb.MessageIdData(ledgerId=2**64 - 1, entryId=2**64 - 1)
        again = {"topic": topic, "subscription": "sub", "subType": 0, "consumer_id": 2, "request_id": 61}
        seek = encode(Type.SEEK, consumer_id=1, request_id=60, message_id=target)
        raw.send_bytes(frame(seek) + frame(encode(Type.SUBSCRIBE, **again)))
        replies = {reply.get("request_id"): reply for reply in (raw.reply() for _ in range(3))}
        assert replies["60"]["type"] == "SUCCESS"
        assert replies["61"]["type"] == "SUCCESS" or replies["61"]["error"] == "ServiceNotReady"


# --- readers ------------------------------------------------------------------------------------------------------------


def test_reader_seeks_and_reports_available_messages(client: pulsar.Client, topic: str) -> None:
    ids = send(client, topic, 5)
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    assert texts([reader.read_next(10_000) for _ in range(5)]) == numbers(0, 5)
    assert not reader.has_message_available()
    reader.seek(ids[2])
    assert reader.has_message_available()
    assert texts([reader.read_next(10_000) for _ in range(2)]) == numbers(3, 5)
    assert not reader.has_message_available()
    reader.seek(pulsar.MessageId.latest)
    assert not reader.has_message_available()
    reader.seek(1)
    assert reader.has_message_available()
    assert reader.read_next(10_000).data() == b"m0"


def test_reader_starts_at_message_inclusive_or_exclusive(client: pulsar.Client, topic: str) -> None:
    ids = send(client, topic, 4)
    assert client.create_reader(topic, ids[1]).read_next(10_000).data() == b"m2"
    inclusive = client.create_reader(topic, ids[1], start_message_id_inclusive=True)
    assert inclusive.read_next(10_000).data() == b"m1"
    at_the_end = client.create_reader(topic, ids[3])
    assert not at_the_end.has_message_available()


def test_reader_starts_within_batch(client: pulsar.Client, topic: str) -> None:
    send_batch(client, topic, 6)
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    ids = [reader.read_next(10_000).message_id() for _ in range(6)]
    assert client.create_reader(topic, ids[2]).read_next(10_000).data() == b"m3"
    inclusive = client.create_reader(topic, ids[2], start_message_id_inclusive=True)
    assert inclusive.read_next(10_000).data() == b"m2"


def test_reader_of_empty_topic_has_no_message_available(client: pulsar.Client, topic: str) -> None:
    for start in (pulsar.MessageId.earliest, pulsar.MessageId.latest):
        assert not client.create_reader(topic, start).has_message_available()


def test_topic_with_all_messages_trimmed_has_no_last_message(tmp_path: Path, topic: str) -> None:
    settings = {
        "managedLedgerMaxEntriesPerLedger": "5",
        "managedLedgerMinLedgerRolloverTimeMinutes": "0",
        # Else the full ledger, which no durable subscription holds, is trimmed before it is looked at.
        "defaultRetentionTimeInMinutes": "-1",
        "defaultRetentionSizeInMB": "-1",
    }
    with BrokerProcess(tmp_path, settings).running() as broker:
        client = new_client(broker.url)
        with connected(broker) as raw:
            raw.subscribe(topic, 2, subscription="late", durable=False)
            nothing = raw.request(Type.GET_LAST_MESSAGE_ID, consumer_id=2)["last_message_id"]
            assert (nothing["ledgerId"], nothing["entryId"]) == (str(2**64 - 1),) * 2
            send(client, topic, 5)
            last = raw.request(Type.GET_LAST_MESSAGE_ID, consumer_id=2)["last_message_id"]
            assert last["entryId"] == "4"
            deadline = time.monotonic() + 20
            while last != nothing:
                assert time.monotonic() < deadline
                admin(broker, "DELETE", topic, "truncate")
                last = raw.request(Type.GET_LAST_MESSAGE_ID, consumer_id=2)["last_message_id"]
        reader = client.create_reader(topic, pulsar.MessageId.earliest)
        assert not reader.has_message_available()
        send(client, topic, 1, first=5)
        assert reader.has_message_available()
        assert reader.read_next(10_000).data() == b"m5"
        client.close()


def test_reader_reads_terminated_topic_to_its_end(broker: BrokerProcess, client: pulsar.Client, topic: str) -> None:
    send(client, topic, 3)
    admin(broker, "POST", topic, "terminate")
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    assert texts([reader.read_next(10_000) for _ in range(3)]) == numbers(0, 3)
    assert not reader.has_message_available()


def test_reader_starts_by_message_age(broker: BrokerProcess, topic: str) -> None:
    with connected(broker) as raw:
        raw.open_producer(topic)
        now_ms = int(time.time() * 1000)
        for index, age_s in enumerate((7200, 3000, 10)):
            raw.send_message(1, index, b"m%d" % index, metadata={"publish_time": now_ms - age_s * 1000})
            raw.reply()
        raw.subscribe(topic, durable=False, start_message_rollback_duration_sec=3600)
        raw.send(Type.FLOW, consumer_id=1, messagePermits=10)
        assert [raw.reply()["payload"] for _ in range(2)] == ["m1", "m2"]


def test_closed_reader_leaves_no_subscription_after_seek(broker: BrokerProcess, topic: str) -> None:
    """What it was on is for itself to come back to: another kind of subscription may have the name once it is gone."""
    with connected(broker) as raw:
        raw.open_producer(topic)
        raw.subscribe(topic, durable=False, subscription="r")
        raw.send(Type.SEEK, consumer_id=1, request_id=70, message_publish_time=1)
        assert [raw.reply()["type"] for _ in range(2)] == ["CLOSE_CONSUMER", "SUCCESS"]
        assert raw.subscribe(topic, 2, durable=False, subscription="r")["type"] == "SUCCESS"
        raw.request(Type.CLOSE_CONSUMER, consumer_id=2)
        assert raw.subscribe(topic, 3, subscription="r")["type"] == "SUCCESS"
