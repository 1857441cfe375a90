"""Dead letters and retries as clients send them; the broker counts deliveries."""

import pulsar
import pytest
from tests.clients.conftest import assert_nothing_arrives, receive_all
from tests.support.broker_process import BrokerProcess
from tests.support.rest import call

EARLIEST = pulsar.InitialPosition.Earliest
SHARED, KEY_SHARED = pulsar.ConsumerType.Shared, pulsar.ConsumerType.KeyShared
MAX_REDELIVERIES = 2


def subscribe(client: pulsar.Client, topic: str, kind: pulsar.ConsumerType = SHARED, **policy: str) -> pulsar.Consumer:
    return client.subscribe(
        topic,
        "s",
        kind,
        initial_position=EARLIEST,
        negative_ack_redelivery_delay_ms=50,
        dead_letter_policy=pulsar.ConsumerDeadLetterPolicy(MAX_REDELIVERIES, **policy),
    )


def fail_until_dead(consumer: pulsar.Consumer, poison: set[str], total: int) -> dict[str, int]:
    """Acknowledge all but `poison`, which fails every time; how often each was delivered."""
    deliveries: dict[str, int] = {}
    expected = total + len(poison) * MAX_REDELIVERIES
    for _ in range(expected):
        message = consumer.receive(20_000)
        text = message.data().decode()
        deliveries[text] = deliveries.get(text, 0) + 1
        assert message.redelivery_count() == deliveries[text] - 1
        if text in poison:
            consumer.negative_acknowledge(message)
        else:
            consumer.acknowledge(message)
    return deliveries


def topics(broker: BrokerProcess) -> set[str]:
    names: list[str] = call(f"{broker.http_url}/admin/v2/persistent/public/default").json
    return {name.rpartition("/")[2] for name in names}


@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED], ids=str)
def test_message_over_redelivery_limit_goes_to_dead_letter_topic(
    client: pulsar.Client, topic: str, kind: pulsar.ConsumerType
) -> None:
    name = f"{topic}-{kind}"
    producer = client.create_producer(name, batching_enabled=False)
    consumer = subscribe(client, name, kind, initial_subscription_name="keeper")
    for index in range(10):
        producer.send(b"m%d" % index, properties={"n": str(index)}, partition_key=f"k{index}")
    poison = {"m3", "m7"}
    deliveries = fail_until_dead(consumer, poison, 10)
    assert deliveries == {f"m{i}": 1 + (MAX_REDELIVERIES if f"m{i}" in poison else 0) for i in range(10)}
    dead = client.subscribe(f"{name}-s-DLQ", "keeper")
    letters = receive_all(dead, 2, 20_000)
    assert {letter.data().decode() for letter in letters} == poison
    assert {letter.properties()["n"] for letter in letters} == {"3", "7"}
    assert all("REAL_TOPIC" in letter.properties() for letter in letters)
    assert_nothing_arrives(consumer, 500)
    consumer.close()
    assert_nothing_arrives(client.subscribe(name, "s", kind))


def test_only_failing_message_of_batch_is_redelivered(client: pulsar.Client, topic: str) -> None:
    """This client then writes all of the batch to the dead-letter topic, whoever the broker is."""
    consumer = client.subscribe(
        topic,
        "s",
        SHARED,
        initial_position=EARLIEST,
        negative_ack_redelivery_delay_ms=50,
        batch_index_ack_enabled=True,
        dead_letter_policy=pulsar.ConsumerDeadLetterPolicy(MAX_REDELIVERIES, initial_subscription_name="keeper"),
    )
    producer = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=60_000)
    for index in range(5):
        producer.send_async(b"m%d" % index, lambda result, message_id: None)
    producer.flush()
    assert fail_until_dead(consumer, {"m2"}, 5)["m2"] == 1 + MAX_REDELIVERIES
    dead = client.subscribe(f"{topic}-s-DLQ", "keeper")
    assert b"m2" in {message.data() for message in receive_all(dead, 5, 20_000)}
    assert_nothing_arrives(consumer)


def test_chunked_message_is_redelivered_whole_with_its_count(client: pulsar.Client, topic: str) -> None:
    """This client cannot have it redelivered while it is connected: it asks for the last chunk only."""
    body = b"x" * (6 * 1024 * 1024)
    client.create_producer(topic, chunking_enabled=True).send(body)
    for expected in range(3):
        consumer = client.subscribe(topic, "s", SHARED, initial_position=EARLIEST)
        message = consumer.receive(30_000)
        assert message.data() == body
        assert message.redelivery_count() == expected
        consumer.close()


def test_dead_letter_topic_may_have_any_name(broker: BrokerProcess, client: pulsar.Client, topic: str) -> None:
    consumer = subscribe(client, topic, dead_letter_topic=f"{topic}-cemetery", initial_subscription_name="keeper")
    client.create_producer(topic).send(b"m")
    fail_until_dead(consumer, {"m"}, 1)
    assert client.subscribe(f"{topic}-cemetery", "keeper").receive(20_000).data() == b"m"
    assert f"{topic.rpartition('/')[2]}-s-DLQ" not in topics(broker)


def test_retry_letter_is_delayed_and_ends_in_dead_letter_topic(client: pulsar.Client, topic: str) -> None:
    """A retry letter as the Java client writes it: a delayed copy with properties, then the original acknowledged."""
    retry, dead = f"{topic}-s-RETRY", f"{topic}-s-DLQ"
    main = client.subscribe([topic, retry], "s", SHARED, initial_position=EARLIEST)
    retries = client.create_producer(retry)
    letters = client.create_producer(dead)
    keeper = client.subscribe(dead, "keeper", initial_position=EARLIEST)
    client.create_producer(topic).send(b"m", properties={"own": "1"})
    for attempt in range(3):
        message = main.receive(20_000)
        properties = message.properties()
        assert int(properties.get("RECONSUMETIMES", "0")) == attempt
        if attempt == 2:
            letters.send(message.data(), properties=properties)
        else:
            more = {"RECONSUMETIMES": str(attempt + 1), "REAL_TOPIC": topic, "DELAY_TIME": "200"}
            at_ms = message.publish_timestamp() + 200
            retries.send(message.data(), properties={**properties, **more}, deliver_at=at_ms)
        main.acknowledge(message)
    letter = keeper.receive(30_000)
    assert letter.properties() == {"own": "1", "RECONSUMETIMES": "2", "REAL_TOPIC": topic, "DELAY_TIME": "200"}
    assert_nothing_arrives(main)
