"""Failover with the official client: one consumer gets everything in order, the next goes on where it stopped."""

import itertools
from collections.abc import Iterator

import pulsar
import pytest
from tests.clients.conftest import assert_nothing_arrives, new_client, receive_all
from tests.support.broker_process import BrokerProcess
from tests.support.rest import call

FAILOVER = pulsar.ConsumerType.Failover
SETTINGS = {"activeConsumerFailoverDelayTimeMillis": "100"}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Takes over sooner than the default of a second."""
    process = BrokerProcess(tmp_path_factory.mktemp("failover"), SETTINGS)
    with process.running():
        yield process


def publish(client: pulsar.Client, topic: str, count: int, first: int = 0) -> None:
    producer = client.create_producer(topic)
    for index in range(first, first + count):
        producer.send(str(index).encode())
    producer.close()


def join(client: pulsar.Client, topic: str, names: str) -> dict[str, pulsar.Consumer]:
    return {name: client.subscribe(topic, "s", FAILOVER, consumer_name=name) for name in names}


def numbers(messages: list[pulsar.Message]) -> list[int]:
    return [int(message.data()) for message in messages]


def active_of(consumers: dict[str, pulsar.Consumer]) -> tuple[str, pulsar.Message]:
    """Who gets the next message, and that."""
    for _ in range(50):
        for name, consumer in consumers.items():
            try:
                return name, consumer.receive(100)
            except pulsar.Timeout:
                continue
    raise AssertionError("nobody gets anything")


def test_only_active_consumer_receives_messages(client: pulsar.Client, topic: str) -> None:
    consumers = join(client, topic, "abc")
    publish(client, topic, 50)
    name, first = active_of(consumers)
    assert numbers([first]) == [0]
    assert numbers(receive_all(consumers.pop(name), 49)) == list(range(1, 50))
    for consumer in consumers.values():
        assert_nothing_arrives(consumer, 100)


def test_next_consumer_starts_at_first_unacknowledged_message(client: pulsar.Client, topic: str) -> None:
    consumers = join(client, topic, "abc")
    publish(client, topic, 10)
    expected = 0
    while consumers:
        name, first = active_of(consumers)
        active = consumers.pop(name)
        messages = [first, *receive_all(active, 9 - expected)]
        assert numbers(messages) == list(range(expected, 10))
        active.acknowledge(messages[0])
        active.acknowledge_cumulative(messages[2])
        expected += 3
        active.close()
    assert expected == 9


@pytest.mark.parametrize("partition", [0, 1, 2, 5])
def test_partition_number_determines_active_consumer(
    broker: BrokerProcess, client: pulsar.Client, topic: str, partition: int
) -> None:
    path = topic.replace("://", "/")
    assert call(f"{broker.http_url}/admin/v2/{path}/partitions", "PUT", body=6).status == 204
    name = f"{topic}-partition-{partition}"
    consumers = join(client, name, "cab")
    publish(client, name, 1)
    assert active_of(consumers)[0] == "abc"[partition % 3]


def test_topics_spread_over_consumers(client: pulsar.Client, topic: str) -> None:
    active: set[str] = set()
    for number in itertools.count():
        name = f"{topic}-{number}"
        consumers = join(client, name, "abc")
        publish(client, name, 1)
        active.add(active_of(consumers)[0])
        if active == {"a", "b", "c"}:
            return
        assert number < 30


def test_broken_connection_activates_next_consumer(broker: BrokerProcess, topic: str) -> None:
    clients = {name: new_client(broker.url) for name in "ab"}
    consumers = {name: client.subscribe(topic, "s", FAILOVER, consumer_name=name) for name, client in clients.items()}
    publish(clients["a"], topic, 3)
    name, _ = active_of(consumers)
    clients[name].shutdown()
    (other,) = set(clients) - {name}
    publish(clients[other], topic, 2, first=3)
    assert numbers(receive_all(consumers[other], 5)) == [0, 1, 2, 3, 4]
    clients[other].close()
