"""Non-persistent topics with the official client: every type, partitions, readers, and what is missed."""

import itertools
import time

import pulsar
import pytest
from tests.clients.conftest import assert_nothing_arrives, new_client, receive_all
from tests.support.broker_process import BrokerProcess
from tests.support.rest import call

EVERY_TYPE = [
    pulsar.ConsumerType.Exclusive,
    pulsar.ConsumerType.Failover,
    pulsar.ConsumerType.Shared,
    pulsar.ConsumerType.KeyShared,
]
_serial = itertools.count(1)


@pytest.fixture
def topic() -> str:
    return f"non-persistent://public/default/topic-{next(_serial)}"


def texts(messages: list[pulsar.Message]) -> list[str]:
    return [each.data().decode() for each in messages]


@pytest.mark.parametrize("consumer_type", EVERY_TYPE, ids=lambda each: each.name)
def test_connected_consumer_of_every_type_receives_messages(
    client: pulsar.Client, topic: str, consumer_type: pulsar.ConsumerType
) -> None:
    producer = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=20)
    producer.send(b"before anybody came")
    consumer = client.subscribe(topic, "sub", consumer_type)
    for index in range(50):
        producer.send_async(b"%d" % index, lambda result, _: None, partition_key=f"k{index % 7}")
    producer.flush()
    messages = receive_all(consumer, 50)
    assert texts(messages) == [str(index) for index in range(50)]
    for each in messages:
        consumer.acknowledge(each)
    assert_nothing_arrives(consumer)


def test_messages_sent_without_consumer_are_lost(client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic)
    consumer = client.subscribe(topic, "sub", pulsar.ConsumerType.Shared)
    producer.send(b"first")
    assert texts(receive_all(consumer, 1)) == ["first"]
    consumer.close()
    producer.send(b"missed")
    consumer = client.subscribe(
        topic, "sub", pulsar.ConsumerType.Shared, initial_position=pulsar.InitialPosition.Earliest
    )
    producer.send(b"second")
    assert texts(receive_all(consumer, 1)) == ["second"]
    assert_nothing_arrives(consumer)


def test_messages_over_receiver_queue_are_dropped(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "sub", receiver_queue_size=5)
    producer = client.create_producer(topic, batching_enabled=False)
    for index in range(20):
        producer.send(b"%d" % index)
    assert texts(receive_all(consumer, 5)) == ["0", "1", "2", "3", "4"]
    assert_nothing_arrives(consumer)
    producer.send(b"later")
    assert texts(receive_all(consumer, 1)) == ["later"]


def test_shared_consumers_receive_each_message_once(client: pulsar.Client, topic: str) -> None:
    consumers = [client.subscribe(topic, "sub", pulsar.ConsumerType.Shared) for _ in range(3)]
    producer = client.create_producer(topic, batching_enabled=False)
    for index in range(30):
        producer.send(b"%d" % index)
    got = [texts(receive_all(each, 10)) for each in consumers]
    assert sorted(itertools.chain(*got), key=int) == [str(index) for index in range(30)]


def test_each_key_stays_with_one_consumer(client: pulsar.Client, topic: str) -> None:
    consumers = [client.subscribe(topic, "sub", pulsar.ConsumerType.KeyShared) for _ in range(3)]
    producer = client.create_producer(topic, batching_enabled=False)
    for index in range(60):
        producer.send(b"%d" % index, partition_key=f"k{index % 10}")
    owners: dict[str, set[int]] = {}
    count = 0
    for number, consumer in enumerate(consumers):
        last = -1
        while True:
            try:
                message = consumer.receive(300)
            except pulsar.Timeout:
                break
            assert int(message.data()) > last, "out of order"
            last = int(message.data())
            owners.setdefault(message.partition_key(), set()).add(number)
            count += 1
    assert count == 60
    assert all(len(each) == 1 for each in owners.values())


def test_standby_consumer_takes_over(client: pulsar.Client, topic: str) -> None:
    consumers = [client.subscribe(topic, "sub", pulsar.ConsumerType.Failover, consumer_name=name) for name in "ab"]
    producer = client.create_producer(topic)
    producer.send(b"first")
    active = None
    for each in consumers:
        try:
            assert texts([each.receive(500)]) == ["first"]
            active = each
        except pulsar.Timeout:
            continue
    assert active is not None
    active.close()
    producer.send(b"second")
    (other,) = (each for each in consumers if each is not active)
    assert texts(receive_all(other, 1)) == ["second"]


def test_reader_and_consumer_of_several_topics(client: pulsar.Client, topic: str) -> None:
    names = [f"{topic}-{index}" for index in range(3)]
    consumer = client.subscribe(names, "sub")
    reader = client.create_reader(names[0], pulsar.MessageId.latest)
    for name in names:
        client.create_producer(name).send(name.encode())
    assert sorted(texts(receive_all(consumer, 3))) == names
    assert reader.read_next(5000).data().decode() == names[0]


def test_negative_acknowledgement_redelivers_nothing(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "sub", pulsar.ConsumerType.Shared, negative_ack_redelivery_delay_ms=100)
    client.create_producer(topic).send(b"once")
    consumer.negative_acknowledge(consumer.receive(30_000))
    assert_nothing_arrives(consumer, 600)


def test_partitioned_non_persistent_topic_delivers_all_partitions(
    client: pulsar.Client, broker: BrokerProcess, topic: str
) -> None:
    path = topic.replace("non-persistent://", "non-persistent/")
    assert call(f"{broker.http_url}/admin/v2/{path}/partitions", "PUT", body=3).status == 204
    consumer = client.subscribe(topic, "sub")
    producer = client.create_producer(
        topic, message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution, batching_enabled=False
    )
    for index in range(9):
        producer.send(b"%d" % index)
    messages = receive_all(consumer, 9)
    assert sorted(texts(messages), key=int) == [str(index) for index in range(9)]
    assert len({each.topic_name() for each in messages}) == 3


def test_largest_message_is_delivered(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "sub")
    producer = client.create_producer(topic)
    payload = bytes(range(256)) * 20_000  # just below the largest one; the client sends no chunks to these topics
    producer.send(payload)
    assert consumer.receive(20_000).data() == payload


def test_clients_continue_after_restart_without_earlier_messages(own_broker: BrokerProcess, topic: str) -> None:
    client = new_client(own_broker.url)
    try:
        consumer = client.subscribe(topic, "sub")
        producer = client.create_producer(topic)
        producer.send(b"first")
        own_broker.kill()
        own_broker.start()
        # The consumer comes back by itself; until it has, what is sent is lost.
        received: list[str] = []
        deadline_s = time.monotonic() + 30
        for index in itertools.count():
            producer.send(b"after-%d" % index)
            try:
                received.append(consumer.receive(200).data().decode())
            except pulsar.Timeout:
                assert time.monotonic() < deadline_s, "the consumer never came back"
                continue
            if received[-1] != "first":
                break
        assert received[-1].startswith("after-")
    finally:
        client.close()
