"""Partitioned topics as the official client uses them: producers, consumers of all types, readers, growth."""

import re
import threading
import time
from collections import defaultdict

import pulsar
import pytest
from tests.clients.conftest import assert_nothing_arrives, new_client, path_of, receive_all, until
from tests.support.broker_process import BrokerProcess
from tests.support.rest import Answer, call

PARTITIONS = 3
POLL_S = 60.0  # how often this client looks for new partitions; it cannot be told otherwise
KINDS = [
    pulsar.ConsumerType.Exclusive,
    pulsar.ConsumerType.Failover,
    pulsar.ConsumerType.Shared,
    pulsar.ConsumerType.KeyShared,
]


def rest(broker: BrokerProcess, method: str, path: str, body: object = None) -> Answer:
    answer = call(f"{broker.http_url}/admin/v2{path}", method, body=body)
    assert answer.status < 300, answer
    return answer


def partitions_of(topic: str, count: int = PARTITIONS) -> list[str]:
    return [f"{topic}-partition-{index}" for index in range(count)]


@pytest.fixture
def orders(broker: BrokerProcess, topic: str) -> str:
    """A partitioned topic."""
    rest(broker, "PUT", f"{path_of(topic)}/partitions", PARTITIONS)
    return topic


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_every_message_comes_once_and_each_key_in_order(
    client: pulsar.Client, orders: str, kind: pulsar.ConsumerType
) -> None:
    consumer = client.subscribe(orders, "s", kind)
    producer = client.create_producer(orders)
    for number in range(60):
        producer.send(str(number).encode(), partition_key=f"key-{number % 7}")
    by_key: dict[str, list[int]] = defaultdict(list)
    topics: dict[str, set[str]] = defaultdict(set)
    for message in receive_all(consumer, 60):
        by_key[message.partition_key()].append(int(message.data()))
        topics[message.partition_key()].add(message.topic_name())
        consumer.acknowledge(message)
    assert by_key == {f"key-{first}": list(range(first, 60, 7)) for first in range(7)}
    assert all(len(each) == 1 for each in topics.values())
    assert {name for each in topics.values() for name in each} <= set(partitions_of(orders))
    assert_nothing_arrives(consumer)
    consumer.close()
    producer.close()


def test_messages_without_a_key_go_to_all_partitions(client: pulsar.Client, orders: str) -> None:
    consumer = client.subscribe(orders, "s", pulsar.ConsumerType.Shared)
    producer = client.create_producer(orders, message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution)
    sent = {producer.send(str(number).encode()).partition() for number in range(9)}
    assert sent == set(range(PARTITIONS))
    received = receive_all(consumer, 9)
    assert {message.message_id().partition() for message in received} == sent
    for message in received:
        consumer.acknowledge(message)


def test_failover_spreads_the_partitions_over_the_consumers(client: pulsar.Client, orders: str) -> None:
    consumers = [
        client.subscribe(orders, "s", pulsar.ConsumerType.Failover, consumer_name=f"c-{index}") for index in range(3)
    ]
    producer = client.create_producer(orders)
    sent = [producer.send(str(number).encode()) for number in range(9)]
    assert {message_id.partition() for message_id in sent} == {0, 1, 2}
    seen: list[set[int]] = []
    for consumer in consumers:
        messages = receive_all(consumer, 3)
        seen.append({message.message_id().partition() for message in messages})
        assert_nothing_arrives(consumer, within_ms=100)
    assert sorted(map(sorted, seen)) == [[0], [1], [2]]


def test_what_was_not_acknowledged_comes_again_from_every_partition(client: pulsar.Client, orders: str) -> None:
    consumer = client.subscribe(orders, "s", pulsar.ConsumerType.Shared)
    producer = client.create_producer(orders)
    for number in range(12):
        producer.send(str(number).encode())
    for message in receive_all(consumer, 12):
        if int(message.data()) % 2:
            consumer.acknowledge(message)
    consumer.close()
    consumer = client.subscribe(orders, "s", pulsar.ConsumerType.Shared)
    assert sorted(int(message.data()) for message in receive_all(consumer, 6)) == list(range(0, 12, 2))


def test_a_reader_reads_one_partition_or_all(client: pulsar.Client, orders: str) -> None:
    producer = client.create_producer(orders)
    sent = [producer.send(str(number).encode()) for number in range(9)]
    one = client.create_reader(partitions_of(orders)[1], pulsar.MessageId.earliest)
    expected = [number for number, message_id in enumerate(sent) if message_id.partition() == 1]
    assert [int(one.read_next(5000).data()) for _ in expected] == expected
    assert not one.has_message_available()
    whole = client.create_reader(orders, pulsar.MessageId.earliest)
    assert sorted(int(whole.read_next(5000).data()) for _ in range(9)) == list(range(9))


def test_a_client_learns_which_partitions_there_are(client: pulsar.Client, orders: str, topic: str) -> None:
    assert client.get_topic_partitions(orders) == partitions_of(orders)
    plain = f"{topic}-plain"
    client.create_producer(plain).close()
    assert client.get_topic_partitions(plain) == [plain]


def test_several_topics_and_patterns_are_consumed_as_one(
    broker: BrokerProcess, client: pulsar.Client, orders: str
) -> None:
    plain = f"{orders}-plain"
    rest(broker, "PUT", path_of(plain))
    by_list = client.subscribe([orders, plain], "list", pulsar.ConsumerType.Shared)
    by_pattern = client.subscribe(re.compile(f"{orders}.*"), "pattern", pulsar.ConsumerType.Shared)
    for name in (orders, plain):
        producer = client.create_producer(name)
        for number in range(6):
            producer.send(f"{name} {number}".encode())
    expected = sorted(f"{name} {number}" for name in (orders, plain) for number in range(6))
    for consumer in (by_list, by_pattern):
        assert sorted(message.data().decode() for message in receive_all(consumer, 12)) == expected


def test_the_name_of_the_whole_topic_is_no_topic(broker: BrokerProcess, client: pulsar.Client, orders: str) -> None:
    with pytest.raises(pulsar.PulsarException):
        client.create_reader(f"{orders}-partition-{PARTITIONS}", pulsar.MessageId.earliest)
    assert call(f"{broker.http_url}/admin/v2{path_of(orders)}/properties").text == "{}"


def test_a_deleted_partition_comes_back_with_the_client_that_wants_it(
    broker: BrokerProcess, client: pulsar.Client, orders: str
) -> None:
    rest(broker, "DELETE", f"{path_of(orders)}-partition-1")
    consumer = client.subscribe(orders, "s", pulsar.ConsumerType.Shared)
    producer = client.create_producer(orders)
    sent = {producer.send(b"x").partition() for _ in range(PARTITIONS)}
    assert sent == set(range(PARTITIONS))
    assert len(receive_all(consumer, PARTITIONS)) == PARTITIONS


def test_a_namespace_may_make_topics_partitioned_by_themselves(broker: BrokerProcess, client: pulsar.Client) -> None:
    rest(
        broker,
        "PUT",
        "/namespaces/public/auto",
        {
            "autoTopicCreationOverride": {
                "allowAutoTopicCreation": True,
                "topicType": "partitioned",
                "defaultNumPartitions": 2,
            }
        },
    )
    topic = "persistent://public/auto/t"
    producer = client.create_producer(topic)
    assert client.get_topic_partitions(topic) == partitions_of(topic, 2)
    assert {producer.send(b"x").partition() for _ in range(4)} == {0, 1}
    assert rest(broker, "GET", "/persistent/public/auto").json == partitions_of(topic, 2)


def test_a_topic_deleted_by_force_begins_anew_for_its_clients(
    broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    consumer = client.subscribe(topic, "s", pulsar.ConsumerType.Shared)
    producer = client.create_producer(topic)
    producer.send(b"before")
    rest(broker, "DELETE", f"{path_of(topic)}?force=true")
    path = f"{path_of(topic)}/subscriptions"
    until(lambda: call(f"{broker.http_url}/admin/v2{path}").text == '["s"]')
    producer.send(b"after")
    received = [consumer.receive(30_000).data()]
    if received == [b"before"]:  # it was on the way to the consumer already
        received.append(consumer.receive(30_000).data())
    assert received[-1] == b"after"
    assert_nothing_arrives(consumer)


@pytest.mark.long
def test_running_clients_find_new_partitions_by_themselves_and_miss_nothing(broker: BrokerProcess, orders: str) -> None:
    client = new_client(broker.url)
    consumer = client.subscribe(orders, "s", pulsar.ConsumerType.Shared)
    producer = client.create_producer(orders)
    rest(broker, "POST", f"{path_of(orders)}/partitions", PARTITIONS + 2)
    added = partitions_of(orders, PARTITIONS + 2)[PARTITIONS:]
    for name in added:
        assert rest(broker, "GET", f"{path_of(name)}/subscriptions").json == ["s"]
    # One that comes now knows all of them, and what it sends waits for the consumer to find out.
    newcomer = client.create_producer(orders)
    sent = [newcomer.send(str(number).encode()).partition() for number in range(10)]
    assert set(sent) == set(range(PARTITIONS + 2))
    stop, used = threading.Event(), set()  # type: ignore[var-annotated]
    deadline = time.monotonic() + 2 * POLL_S
    while len(used) < PARTITIONS + 2 and time.monotonic() < deadline:
        used.add(producer.send(b"late").partition())
        stop.wait(0.2)
    assert used == set(range(PARTITIONS + 2))
    numbers: set[int] = set()
    while len(numbers) < 10:
        message = consumer.receive(int(2 * POLL_S * 1000))
        consumer.acknowledge(message)
        if message.data() != b"late":
            numbers.add(int(message.data()))
    assert numbers == set(range(10))
    client.close()
