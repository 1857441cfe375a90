"""Acknowledgements of the official client, and what it is delivered again."""

import pulsar
from tests.clients.conftest import assert_nothing_arrives, receive_all, send_batch, texts

EARLIEST = pulsar.InitialPosition.Earliest
SHARED = pulsar.ConsumerType.Shared


# --- parts of batches ------------------------------------------------------------------------------------------------------


def test_rest_of_partly_acknowledged_batch_is_redelivered(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", SHARED, initial_position=EARLIEST, batch_index_ack_enabled=True)
    send_batch(client, topic, 6)
    for message in receive_all(consumer, 6)[::2]:
        consumer.acknowledge(message)
    consumer.close()
    again = client.subscribe(topic, "s", SHARED, batch_index_ack_enabled=True)
    messages = receive_all(again, 3)
    assert texts(messages) == ["m1", "m3", "m5"]
    assert_nothing_arrives(again)
    for message in messages:
        again.acknowledge(message)
    again.close()
    assert_nothing_arrives(client.subscribe(topic, "s", SHARED))


def test_whole_batch_is_redelivered_without_batch_index_acks(client: pulsar.Client, topic: str) -> None:
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


def test_redelivery_count_survives_change_of_consumer_and_type(client: pulsar.Client, topic: str) -> None:
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
