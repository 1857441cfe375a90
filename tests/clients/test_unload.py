"""Unloading a topic under the clients' hands: they come back by themselves, and what they have not acknowledged comes again.

An entry that a consumer has received and lost sight of is a hole in the acknowledgements that nothing fills while the consumer
stays connected. The documents name unloading as the cure: everything unacknowledged comes again, and nothing that was
acknowledged with a receipt does.
"""

import contextlib
import json
import time

import pulsar
import pytest
from tests.clients.conftest import assert_nothing_arrives, new_client, receive_all
from tests.support.broker_process import BrokerProcess
from tests.support.raw_client import Type, connected
from tests.support.rest import call

from pybroker.wire import pulsar_api_pb2 as pb

EARLIEST = pulsar.InitialPosition.Earliest
TYPES = {
    "Exclusive": pulsar.ConsumerType.Exclusive,
    "Failover": pulsar.ConsumerType.Failover,
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


def published(client: pulsar.Client, topic: str, batch: int) -> pulsar.Producer:
    """A producer that has sent the messages 0, 1, 2, ... in batches of that size, with keys."""
    producer = client.create_producer(
        topic,
        batching_enabled=batch > 1,
        batching_max_messages=max(2, batch),
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


@pytest.mark.parametrize("batch", [1, BATCH])
@pytest.mark.parametrize("kind", TYPES)
def test_what_was_not_acknowledged_comes_again_and_nothing_else(
    broker: BrokerProcess, client: pulsar.Client, topic: str, kind: str, batch: int
) -> None:
    name = f"{topic}-{kind}-{batch}"
    consumer = subscribed(client, name, kind)
    producer = published(client, name, batch)
    messages = receive_all(consumer, MESSAGES)
    assert sorted(numbers(messages)) == list(range(MESSAGES))
    for message in messages:
        if is_acknowledged(int(message.data())):
            consumer.acknowledge(message)
    missing = [number for number in range(MESSAGES) if not is_acknowledged(number)]
    # Acknowledgements of single messages in a batch do not show in the backlog, but they go out before this one.
    publish_one(producer, b"999")
    consumer.acknowledge(consumer.receive(30_000))
    wait_until_unread(broker, name, len({number // batch for number in missing}))

    unload(broker, name)

    again = received_until_quiet(consumer)
    assert sorted(set(numbers(again))) == missing
    assert len(again) == len(missing), "none comes twice"
    if kind != "Shared":
        for key in range(7):
            of_key = [number for number in numbers(again) if number % 7 == key]
            assert of_key == sorted(of_key), "in the order of publishing"
    for message in again:
        consumer.acknowledge(message)
    publish_one(producer, b"1000")
    assert numbers(receive_all(consumer, 1)) == [1000], "both ends of the topic work as before"
    wait_until_unread(broker, name, 1)
    unload(broker, name)
    last = received_until_quiet(consumer)
    assert numbers(last) == [1000]
    consumer.acknowledge(last[0])
    wait_until_unread(broker, name, 0)
    unload(broker, name)
    assert_nothing_arrives(consumer)


def test_publishing_goes_on_across_unloads_without_loss(
    broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
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


def test_all_partitions_are_unloaded_and_their_clients_come_back(
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


def test_an_unload_is_not_a_loss_when_the_broker_is_killed_after_it(own_broker: BrokerProcess) -> None:
    topic = "persistent://public/default/killed"
    client = new_client(own_broker.url)
    consumer = subscribed(client, topic, "Shared")
    published(client, topic, 1)
    messages = receive_all(consumer, MESSAGES)
    for message in messages[::3]:
        consumer.acknowledge(message)
    wait_until_unread(own_broker, topic, MESSAGES - len(messages[::3]))
    unload(own_broker, topic)
    own_broker.kill()
    client.close()
    own_broker.start()
    client = new_client(own_broker.url)
    again = received_until_quiet(subscribed(client, topic, "Shared"))
    acknowledged = set(numbers(messages[::3]))
    assert sorted(numbers(again)) == [number for number in range(MESSAGES) if number not in acknowledged]
    client.close()


def test_an_ack_with_a_receipt_is_never_undone(broker: BrokerProcess, topic: str) -> None:
    """Raw frames, so that an unload follows the receipt at once, with half of a batch acknowledged."""
    with connected(broker) as producing:
        producing.open_producer(topic, 1)
        producing.publish(1, 6)
        producing.publish_batches(1, 1, 4)
    with connected(broker) as raw:
        raw.subscribe(topic, sub_type="Shared", subscription="sub")
        raw.send(Type.FLOW, consumer_id=1, messagePermits=100)
        delivered = [each for each in raw.replies(0.5) if each["type"] == "MESSAGE"]
        ids = {int(each["message_id"]["entryId"]): each["message_id"] for each in delivered}
        hole = pb.MessageIdData(ledgerId=int(ids[4]["ledgerId"]), entryId=4)
        batch = pb.MessageIdData(ledgerId=int(ids[6]["ledgerId"]), entryId=6, ack_set=[0b0101])
        raw.send(Type.ACK, consumer_id=1, ack_type=pb.CommandAck.Individual, message_id=[hole, batch], request_id=7)
        assert raw.reply()["type"] == "ACK_RESPONSE"
        unload(broker, topic)
        assert raw.reply()["type"] == "CLOSE_CONSUMER"
        raw.subscribe(topic, sub_type="Shared", subscription="sub")
        raw.send(Type.FLOW, consumer_id=1, messagePermits=100)
        again = [each for each in raw.replies(0.5) if each["type"] == "MESSAGE"]
        assert [int(each["message_id"]["entryId"]) for each in again] == [0, 1, 2, 3, 5, 6]
        assert [int(word) for word in again[-1]["ack_set"]] == [0b0101]
