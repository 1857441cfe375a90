"""One consumer on several topics: a list of them, or all that match a pattern."""

import re

import pulsar
from tests.clients.conftest import assert_nothing_arrives, receive_all

EARLIEST = pulsar.InitialPosition.Earliest


def test_a_consumer_of_several_topics_gets_what_is_sent_to_each_in_its_order(client: pulsar.Client, topic: str) -> None:
    topics = [f"{topic}-{name}" for name in "ab"]
    consumer = client.subscribe(topics, "s", initial_position=EARLIEST)
    _send(client, topics)
    _assert_all(receive_all(consumer, 10), topics)


def test_a_consumer_of_a_pattern_finds_the_topics_that_match(client: pulsar.Client, topic: str) -> None:
    topics = [f"{topic}-{name}" for name in "ab"]
    _send(client, topics)
    _send(client, [f"{topic}x"])
    consumer = client.subscribe(re.compile(f"{topic}-.*"), "s", initial_position=EARLIEST)
    _assert_all(receive_all(consumer, 10), topics)
    assert_nothing_arrives(consumer)


def _send(client: pulsar.Client, topics: list[str]) -> None:
    for topic in topics:
        producer = client.create_producer(topic)
        for index in range(5):
            producer.send(b"%d" % index)
        producer.close()


def _assert_all(messages: list[pulsar.Message], topics: list[str]) -> None:
    by_topic = {topic: [int(m.data()) for m in messages if m.topic_name() == topic] for topic in topics}
    assert by_topic == {each: [0, 1, 2, 3, 4] for each in topics}


def test_what_is_given_back_comes_again_from_its_topic(client: pulsar.Client, topic: str) -> None:
    topics = [f"{topic}-{name}" for name in "ab"]
    shared = pulsar.ConsumerType.Shared
    consumer = client.subscribe(topics, "s", shared, initial_position=EARLIEST, negative_ack_redelivery_delay_ms=10)
    _send(client, topics)
    for message in receive_all(consumer, 10):
        if message.data() == b"3":
            consumer.negative_acknowledge(message)
        else:
            consumer.acknowledge(message)
    again = receive_all(consumer, 2)
    assert sorted((message.topic_name(), message.data()) for message in again) == [(each, b"3") for each in topics]
    assert [message.redelivery_count() for message in again] == [1, 1]


def test_the_next_consumer_gets_what_is_unacknowledged_in_each_topic(client: pulsar.Client, topic: str) -> None:
    topics = [f"{topic}-{name}" for name in "ab"]
    first = client.subscribe(topics, "s", initial_position=EARLIEST)
    _send(client, topics)
    for message in receive_all(first, 10):
        if message.topic_name() == topics[0] or message.data() < b"2":
            first.acknowledge(message)
    first.close()
    second = client.subscribe(topics, "s")
    assert [(m.topic_name(), m.data()) for m in receive_all(second, 3)] == [(topics[1], b"%d" % n) for n in (2, 3, 4)]
    assert_nothing_arrives(second)


def test_seeking_by_time_moves_all_topics(client: pulsar.Client, topic: str) -> None:
    topics = [f"{topic}-{name}" for name in "ab"]
    consumer = client.subscribe(topics, "s", initial_position=EARLIEST)
    _send(client, topics)
    for message in receive_all(consumer, 10):
        consumer.acknowledge(message)
    consumer.seek(1)
    _assert_all(receive_all(consumer, 10), topics)


def test_unsubscribing_forgets_the_subscription_of_each_topic(client: pulsar.Client, topic: str) -> None:
    topics = [f"{topic}-{name}" for name in "ab"]
    consumer = client.subscribe(topics, "s", initial_position=EARLIEST)
    _send(client, topics)
    receive_all(consumer, 10)
    consumer.unsubscribe()
    again = client.subscribe(topics, "s", initial_position=EARLIEST)
    _assert_all(receive_all(again, 10), topics)


def test_a_pattern_gives_back_seeks_and_unsubscribes_too(client: pulsar.Client, topic: str) -> None:
    topics = [f"{topic}-{name}" for name in "ab"]
    _send(client, topics)
    pattern = re.compile(f"{topic}-.*")
    shared = pulsar.ConsumerType.Shared
    consumer = client.subscribe(pattern, "s", shared, initial_position=EARLIEST, negative_ack_redelivery_delay_ms=10)
    for message in receive_all(consumer, 10):
        consumer.negative_acknowledge(message)
    for message in receive_all(consumer, 10):
        assert message.redelivery_count() == 1
        consumer.acknowledge(message)
    consumer.seek(1)
    received = receive_all(consumer, 10)
    assert {message.topic_name() for message in received} == set(topics)
    consumer.unsubscribe()
    assert len(receive_all(client.subscribe(pattern, "s", initial_position=EARLIEST), 10)) == 10
