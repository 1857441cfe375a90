"""Readers beyond `test_seek`: many topics, restarts and names. Hash ranges: `tests/protocol/test_hash_range_readers.py`."""

import pulsar
from tests.clients.conftest import new_client, send_batch, texts
from tests.clients.test_seek import admin, numbers, send
from tests.support.broker_process import BrokerProcess
from tests.support.raw_client import connected
from tests.support.rest import call

EARLIEST, LATEST = pulsar.MessageId.earliest, pulsar.MessageId.latest


def subscriptions(broker: BrokerProcess, topic: str) -> list[str]:
    answer = call(f"{broker.http_url}/admin/v2/{topic.replace('://', '/')}/stats")
    return sorted(answer.json["subscriptions"])


def read_all(reader: pulsar.Reader) -> list[str]:
    """Everything that it says is there."""
    found: list[str] = []
    while reader.has_message_available():
        found.append(reader.read_next(10_000).data().decode())
    return found


def test_reader_reports_available_messages_from_any_start(client: pulsar.Client, topic: str) -> None:
    ids = send(client, topic, 4)
    for start, is_inclusive, expected in (
        (EARLIEST, False, numbers(0, 4)),
        (EARLIEST, True, numbers(0, 4)),
        (LATEST, False, []),
        (LATEST, True, ["m3"]),
        (ids[1], False, numbers(2, 4)),
        (ids[1], True, numbers(1, 4)),
        (ids[3], False, []),
        (ids[3], True, ["m3"]),
    ):
        reader = client.create_reader(topic, start, start_message_id_inclusive=is_inclusive)
        assert read_all(reader) == expected, (start, is_inclusive)
        reader.close()


def test_last_batch_is_read_to_its_end(client: pulsar.Client, topic: str) -> None:
    send_batch(client, topic, 3)
    reader = client.create_reader(topic, EARLIEST)
    assert read_all(reader) == numbers(0, 3)
    last = client.create_reader(topic, LATEST, start_message_id_inclusive=True)
    assert read_all(last) == ["m2"]
    send_batch(client, topic, 2)
    assert read_all(reader) == read_all(last) == numbers(0, 2)


def test_reader_continues_after_broker_is_killed(own_broker: BrokerProcess, topic: str) -> None:
    client = new_client(own_broker.url)
    send(client, topic, 3)
    reader = client.create_reader(topic, EARLIEST)
    assert texts([reader.read_next(10_000) for _ in range(2)]) == numbers(0, 2)
    own_broker.restart_after_kill()
    assert reader.read_next(20_000).data() == b"m2"
    assert not reader.has_message_available()
    send(client, topic, 1, first=3)
    assert read_all(reader) == ["m3"]
    new = client.create_reader(topic, EARLIEST)
    assert read_all(new) == numbers(0, 4)
    client.close()


def test_reader_seeks_by_message_time_earliest_and_latest(
    broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    with connected(broker) as raw:
        raw.open_producer(topic)
        for index in range(4):
            raw.send_message(1, index, b"m%d" % index, metadata={"publish_time": 1000 + 10 * index})
            raw.reply()
    reader = client.create_reader(topic, EARLIEST)
    third = [reader.read_next(10_000).message_id() for _ in range(3)][-1]
    for target, expected in (
        (1015, numbers(2, 4)),
        (third, ["m3"]),
        (EARLIEST, numbers(0, 4)),
        (LATEST, []),
        (1031, []),
        (1030, ["m3"]),
        (1, numbers(0, 4)),
    ):
        reader.seek(target)
        assert read_all(reader) == expected, target


def test_reader_reads_all_partitions_each_in_order(broker: BrokerProcess, client: pulsar.Client, topic: str) -> None:
    admin(broker, "PUT", topic, "partitions", 3)
    producer = client.create_producer(
        topic, message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution, batching_enabled=False
    )
    for index in range(12):
        producer.send(b"m%d" % index)
    reader = client.create_reader(topic, EARLIEST)
    by_partition: dict[str, list[int]] = {}
    while reader.has_message_available():
        message = reader.read_next(10_000)
        by_partition.setdefault(message.topic_name(), []).append(int(message.data()[1:]))
    assert sorted(number for each in by_partition.values() for number in each) == list(range(12))
    assert len(by_partition) == 3
    assert all(each == sorted(each) for each in by_partition.values())
    at_the_end = client.create_reader(topic, LATEST)
    assert not at_the_end.has_message_available()
    reader.seek(1)
    assert len(read_all(reader)) == 12


def test_reader_has_its_own_subscription_until_closed(broker: BrokerProcess, client: pulsar.Client, topic: str) -> None:
    send(client, topic, 2)
    plain = client.create_reader(topic, EARLIEST)
    prefixed = client.create_reader(topic, EARLIEST, subscription_role_prefix="role", reader_name="named")
    names = subscriptions(broker, topic)
    assert len(names) == 2
    assert sum(name.startswith("reader-") for name in names) == 1
    assert sum(name.startswith("role-reader") for name in names) == 1
    assert read_all(plain) == read_all(prefixed) == numbers(0, 2), "readers do not share messages"
    stats = call(f"{broker.http_url}/admin/v2/{topic.replace('://', '/')}/stats").json["subscriptions"]
    assert all(not each["isDurable"] and each["type"] == "Exclusive" for each in stats.values())
    plain.close()
    prefixed.close()
    assert subscriptions(broker, topic) == []


def test_marker_at_end_is_no_available_message(broker: BrokerProcess, client: pulsar.Client, topic: str) -> None:
    with connected(broker) as raw:
        raw.open_producer(topic)
        raw.publish(1, 1)
        reader = client.create_reader(topic, EARLIEST)
        raw.send_message(1, 1, b"marker", metadata={"marker_type": 10})
        raw.reply()
        assert read_all(reader) == ["m0"]
        empty = f"{topic}-only"
        raw.open_producer(empty, 2)
        raw.send_message(2, 0, b"marker", metadata={"marker_type": 10})
        raw.reply()
        assert read_all(client.create_reader(empty, EARLIEST)) == []
