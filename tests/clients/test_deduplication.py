"""Deduplication with the official client: sequence ids of the application and of the client, batches, chunks, and the switch."""

from collections.abc import Iterator

import pulsar
import pytest
from tests.clients.conftest import assert_nothing_arrives, receive_all, until
from tests.support.broker_process import BrokerProcess
from tests.support.raw_client import connected
from tests.support.rest import call

NOWHERE = (-1, -1)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """With deduplication, of which some tests make an exception."""
    settings = {"brokerDeduplicationEnabled": "true"}
    with BrokerProcess(tmp_path_factory.mktemp("broker"), settings).running() as process:
        yield process


def position(message_id: pulsar.MessageId) -> tuple[int, int]:
    return message_id.ledger_id(), message_id.entry_id()


def path_of(broker: BrokerProcess, topic: str) -> str:
    return f"{broker.http_url}/admin/v2/{topic.replace('://', '/')}"


def test_repeated_sequence_id_gets_receipt_without_position(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, "fixed", batching_enabled=False)
    assert producer.last_sequence_id() == -1
    assert position(producer.send(b"first", sequence_id=10)) != NOWHERE
    assert position(producer.send(b"again", sequence_id=10)) == NOWHERE
    assert position(producer.send(b"below", sequence_id=3)) == NOWHERE
    assert position(producer.send(b"next", sequence_id=11)) != NOWHERE
    assert [message.data() for message in receive_all(consumer, 2)] == [b"first", b"next"]
    assert_nothing_arrives(consumer)


def test_producer_of_same_name_continues_sequence_ids(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, "fixed", initial_sequence_id=99)
    for index in range(5):
        producer.send(b"%d" % index)
    assert producer.last_sequence_id() == 104
    producer.close()
    producer = client.create_producer(topic, "fixed")
    assert producer.last_sequence_id() == 104
    producer.send(b"5")
    producer.close()
    producer = client.create_producer(topic, "fixed", initial_sequence_id=101)
    assert [position(producer.send(b"again")) for _ in range(4)] == [NOWHERE] * 4
    producer.send(b"6")
    assert [message.data() for message in receive_all(consumer, 7)] == [b"%d" % index for index in range(7)]
    assert_nothing_arrives(consumer)


def test_generated_producer_names_are_unique(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    for _ in range(3):
        producer = client.create_producer(topic)
        assert producer.last_sequence_id() == -1
        producer.send(b"x")
        producer.close()
    receive_all(consumer, 3)


def test_repeated_batches_are_not_stored(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    for attempt in range(2):
        producer = client.create_producer(
            topic,
            "fixed",
            batching_enabled=True,
            batching_max_messages=10,
            batching_max_publish_delay_ms=10_000,
            initial_sequence_id=9,  # The client takes 0 for none.
        )
        for index in range(30):
            producer.send_async(b"%d" % index, lambda result, message_id: None)
        producer.flush()
        assert producer.last_sequence_id() == 39, attempt
        producer.close()
    assert [message.data() for message in receive_all(consumer, 30)] == [b"%d" % index for index in range(30)]
    assert_nothing_arrives(consumer)


def test_repeated_chunked_message_is_not_stored(broker: BrokerProcess, client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    large = bytes(12 * 1024 * 1024)
    for _ in range(2):
        producer = client.create_producer(
            topic, "fixed", batching_enabled=False, chunking_enabled=True, initial_sequence_id=4
        )
        producer.send(large)
        producer.send(b"small")
        assert producer.last_sequence_id() == 6
        producer.close()
    assert [message.data() for message in receive_all(consumer, 2)] == [large, b"small"]
    assert_nothing_arrives(consumer)
    stats = call(f"{path_of(broker, topic)}/internalStats", "GET").json
    assert stats["numberOfEntries"] == 4


def test_each_partition_has_its_own_sequence_ids(broker: BrokerProcess, client: pulsar.Client, topic: str) -> None:
    assert call(f"{path_of(broker, topic)}/partitions", "PUT", body=2).status == 204
    consumer = client.subscribe(topic, "s")
    for _ in range(2):
        producer = client.create_producer(topic, "fixed", batching_enabled=False)
        for index in range(1, 9):
            producer.send(b"%d" % index, sequence_id=index, partition_key=str(index))
        producer.close()
    assert sorted(int(message.data()) for message in receive_all(consumer, 8)) == list(range(1, 9))
    assert_nothing_arrives(consumer)


def status(broker: BrokerProcess, topic: str) -> str:
    return str(call(f"{path_of(broker, topic)}/stats", "GET").json["deduplicationStatus"])


def test_deduplication_policy_applies_to_connected_producer(
    broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    producer = client.create_producer(topic, "fixed", batching_enabled=False)
    policy = f"{path_of(broker, topic)}/deduplicationEnabled"
    producer.send(b"x", sequence_id=5)
    for is_on in (False, True, False):
        assert call(policy, "POST", body=is_on).status == 204
        until(lambda wanted="Enabled" if is_on else "Disabled": status(broker, topic) == wanted)  # type: ignore[misc]
        assert position(producer.send(b"x", sequence_id=5)) != NOWHERE  # Nothing is known of what came before.
        assert (position(producer.send(b"x", sequence_id=5)) == NOWHERE) is is_on


def test_last_sequence_id_includes_messages_of_lost_connection(broker: BrokerProcess, topic: str) -> None:
    with connected(broker) as raw:
        raw.open_producer(topic, 1, producer_name="raw", user_provided_producer_name=True)
        for sequence_id in range(500):
            raw.send_message(1, sequence_id)
        raw.reply()  # One is stored: the others are on their way.
    with connected(broker) as raw:
        reply = raw.open_producer(topic, 1, producer_name="raw", user_provided_producer_name=True)
        last = int(reply["last_sequence_id"])
        raw.send_message(1, last)
        assert raw.reply()["message_id"]["entryId"] == str(2**64 - 1)
        raw.send_message(1, last + 1)
        assert raw.reply()["message_id"]["entryId"] == str(last + 1)
