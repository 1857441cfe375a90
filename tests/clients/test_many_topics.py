"""One consumer on several topics: a list of them, or all that match a pattern."""

import re

import pulsar
from tests.clients.conftest import assert_nothing_arrives, receive_all


def test_a_consumer_of_several_topics_gets_what_is_sent_to_each_in_its_order(client: pulsar.Client, topic: str) -> None:
    topics = [f"{topic}-{name}" for name in "ab"]
    consumer = client.subscribe(topics, "s", initial_position=pulsar.InitialPosition.Earliest)
    _send(client, topics)
    _assert_all(receive_all(consumer, 10), topics)


def test_a_consumer_of_a_pattern_finds_the_topics_that_match(client: pulsar.Client, topic: str) -> None:
    topics = [f"{topic}-{name}" for name in "ab"]
    _send(client, topics)
    _send(client, [f"{topic}x"])
    consumer = client.subscribe(re.compile(f"{topic}-.*"), "s", initial_position=pulsar.InitialPosition.Earliest)
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
