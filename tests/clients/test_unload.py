"""Unloading a topic under the clients' hands: they come back by themselves, and what they have not acknowledged comes again.

An entry that a consumer has received and lost sight of is a hole in the acknowledgements that nothing fills while the consumer
stays connected. The documents name unloading as the cure: everything unacknowledged comes again, and nothing that was
acknowledged with a receipt does.
"""

import contextlib
import json
import time

import pulsar
from tests.clients.conftest import assert_nothing_arrives, receive_all
from tests.support.broker_process import BrokerProcess
from tests.support.rest import call

EARLIEST = pulsar.InitialPosition.Earliest
TYPES = {
    "Exclusive": pulsar.ConsumerType.Exclusive,
    "Shared": pulsar.ConsumerType.Shared,
    "Key_Shared": pulsar.ConsumerType.KeyShared,
}
MESSAGES = 40
BATCH = 5


def unload(broker: BrokerProcess, topic: str) -> None:
    path = topic.replace("://", "/")
    assert call(f"{broker.http_url}/admin/v2/{path}/unload", "PUT").status == 204


def wait_until_unread(broker: BrokerProcess, topic: str, count: int) -> None:
    """The client sends acknowledgements a little later, without asking for receipts: wait until so many entries are left."""
    deadline_s = time.monotonic() + 10
    unread = -1
    while unread != count:
        assert time.monotonic() < deadline_s, f"{unread} messages are unread, not {count}"
        stats = json.loads(broker.get(f"/admin/v2/{topic.replace('://', '/')}/stats"))
        unread = stats["subscriptions"]["sub"]["msgBacklog"]


def published(client: pulsar.Client, topic: str) -> pulsar.Producer:
    """A producer that has sent the messages 0, 1, 2, ... in batches, with keys."""
    producer = client.create_producer(
        topic,
        batching_enabled=True,
        batching_max_messages=BATCH,
        batching_max_publish_delay_ms=60_000,
        batching_type=pulsar.BatchingType.Default,
    )
    for number in range(MESSAGES):
        producer.send_async(str(number).encode(), None, partition_key=f"key-{number % 7}")
    producer.flush()
    return producer


def publish_one(producer: pulsar.Producer, payload: bytes) -> None:
    """Without waiting for a batch to fill."""
    producer.send_async(payload, None, partition_key="k")
    producer.flush()


def subscribed(client: pulsar.Client, topic: str, kind: str) -> pulsar.Consumer:
    return client.subscribe(
        topic,
        "sub",
        consumer_type=TYPES[kind],
        initial_position=EARLIEST,
        batch_index_ack_enabled=True,
    )


def numbers(messages: list[pulsar.Message]) -> list[int]:
    return [int(message.data()) for message in messages]


def received_until_quiet(consumer: pulsar.Consumer, quiet_ms: int = 400) -> list[pulsar.Message]:
    found: list[pulsar.Message] = []
    with contextlib.suppress(pulsar.Timeout):
        while True:
            found.append(consumer.receive(quiet_ms if found else 10_000))
    return found


def is_acknowledged(number: int) -> bool:
    """All but a single one, every second one for a while, and a run across batches."""
    return number != 3 and not (10 <= number < 20 and number % 2) and not 23 <= number < 31


def test_after_unload_unacknowledged_messages_are_redelivered_in_key_order(
    broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    consumer = subscribed(client, topic, "Key_Shared")
    producer = published(client, topic)
    messages = receive_all(consumer, MESSAGES)
    assert sorted(numbers(messages)) == list(range(MESSAGES))
    for message in messages:
        if is_acknowledged(int(message.data())):
            consumer.acknowledge(message)
    missing = [number for number in range(MESSAGES) if not is_acknowledged(number)]
    # Acknowledgements of single messages in a batch do not show in the backlog, but they go out before this one.
    publish_one(producer, b"999")
    consumer.acknowledge(consumer.receive(30_000))
    wait_until_unread(broker, topic, len({number // BATCH for number in missing}))

    unload(broker, topic)

    again = received_until_quiet(consumer)
    assert sorted(set(numbers(again))) == missing
    assert len(again) == len(missing), "none comes twice"
    for key in range(7):
        of_key = [number for number in numbers(again) if number % 7 == key]
        assert of_key == sorted(of_key), "in the order of publishing"
    for message in again:
        consumer.acknowledge(message)
    publish_one(producer, b"1000")
    assert numbers(receive_all(consumer, 1)) == [1000], "both ends of the topic work as before"
    wait_until_unread(broker, topic, 1)
    unload(broker, topic)
    last = received_until_quiet(consumer)
    assert numbers(last) == [1000]
    consumer.acknowledge(last[0])
    wait_until_unread(broker, topic, 0)
    unload(broker, topic)
    assert_nothing_arrives(consumer)


def test_publishing_across_unloads_loses_no_message(broker: BrokerProcess, client: pulsar.Client, topic: str) -> None:
    consumer = subscribed(client, topic, "Exclusive")
    producer = client.create_producer(topic, batching_enabled=False, block_if_queue_full=True)
    results: list[pulsar.Result] = []
    for number in range(300):
        producer.send_async(str(number).encode(), lambda result, _: results.append(result))
        if number % 60 == 30:
            unload(broker, topic)
    producer.flush()
    assert results == [pulsar.Result.Ok] * 300
    seen: list[int] = []
    while not seen or seen[-1] != 299:
        message = consumer.receive(30_000)
        seen.append(int(message.data()))
        consumer.acknowledge_cumulative(message)
    # What was received before an unload may come again; nothing is passed over.
    assert sorted(set(seen)) == list(range(300))


def test_clients_reconnect_after_unload_of_all_partitions(
    broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    path = topic.replace("://", "/")
    assert call(f"{broker.http_url}/admin/v2/{path}/partitions", "PUT", body=3).status == 204
    consumer = subscribed(client, topic, "Shared")
    producer = client.create_producer(topic, batching_enabled=False)
    for number in range(9):
        producer.send(str(number).encode())
    messages = receive_all(consumer, 9)
    for message in messages[:4]:
        consumer.acknowledge(message)
    for index in range(3):
        acknowledged = sum(f"-partition-{index}" in message.topic_name() for message in messages[:4])
        wait_until_unread(broker, f"{topic}-partition-{index}", 3 - acknowledged)
    unload(broker, topic)
    assert sorted(numbers(received_until_quiet(consumer))) == sorted(numbers(messages[4:]))
