"""Producers of the official client: access modes and hand-over, names, sequence ids, encryption, partitions, refusals."""

import base64
import json
import subprocess
import threading
from pathlib import Path
from typing import Any

import pulsar
import pytest
from tests.clients.conftest import assert_nothing_arrives, new_client, receive_all, until
from tests.support.broker_process import BrokerProcess
from tests.support.raw_client import Type, connected
from tests.support.rest import call

EXCLUSIVE = pulsar.ProducerAccessMode.Exclusive
FENCING = pulsar.ProducerAccessMode.ExclusiveWithFencing
WAIT = pulsar.ProducerAccessMode.WaitForExclusive
EARLIEST = pulsar.InitialPosition.Earliest


def rest(broker: BrokerProcess, method: str, topic: str, suffix: str = "", body: object = None) -> Any:
    answer = call(f"{broker.http_url}/admin/v2/{topic.replace('://', '/')}{suffix}", method, body=body)
    assert answer.status < 300, answer
    return answer.json if answer.text else None


def stats(broker: BrokerProcess, topic: str) -> Any:
    return rest(broker, "GET", topic, "/stats")


# --- access modes ----------------------------------------------------------------------------------------------------------


def test_exclusive_producer_refuses_others(broker: BrokerProcess, client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic, access_mode=EXCLUSIVE)
    with pytest.raises(pulsar.ProducerFenced):
        client.create_producer(topic, access_mode=EXCLUSIVE)
    with pytest.raises(pulsar.ProducerBusy):
        client.create_producer(topic)
    producer.send(b"x")
    assert [each["accessMode"] for each in stats(broker, topic)["publishers"]] == ["Exclusive"]
    producer.close()
    client.create_producer(topic).send(b"y")


def test_exclusive_producer_is_refused_beside_shared_producers(client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic)
    with pytest.raises(pulsar.ProducerFenced):
        client.create_producer(topic, access_mode=EXCLUSIVE)
    producer.send(b"x")


def test_waiting_producer_is_created_when_holder_leaves(
    broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    leader = client.create_producer(topic, access_mode=EXCLUSIVE)
    leader.send(b"first")
    made: list[pulsar.Producer] = []
    other = new_client(broker.url)
    waiting = threading.Thread(target=lambda: made.append(other.create_producer(topic, access_mode=WAIT)))
    waiting.start()
    until(lambda: stats(broker, topic)["waitingPublishers"] == 1)
    assert not made
    leader.send(b"second")
    leader.close()
    waiting.join(10)
    made[0].send(b"third")
    found = stats(broker, topic)
    assert (found["topicEpoch"], found["waitingPublishers"]) == (1, 0)
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    assert [each.data() for each in receive_all(consumer, 3)] == [b"first", b"second", b"third"]
    other.close()


def test_client_that_stops_waiting_leaves_the_queue(broker: BrokerProcess, client: pulsar.Client, topic: str) -> None:
    leader = client.create_producer(topic, access_mode=EXCLUSIVE)
    hasty = pulsar.Client(
        broker.url, operation_timeout_seconds=1, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    )
    with pytest.raises(pulsar.Timeout):
        hasty.create_producer(topic, access_mode=WAIT)
    hasty.close()
    until(lambda: stats(broker, topic)["waitingPublishers"] == 0)
    leader.close()
    assert stats(broker, topic)["topicEpoch"] == 0
    client.create_producer(topic).send(b"x")


def test_fencing_producer_invalidates_previous_producer(broker: BrokerProcess, topic: str) -> None:
    quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    one = pulsar.Client(broker.url, logger=quiet)
    two = pulsar.Client(broker.url, logger=quiet)
    old = one.create_producer(topic, access_mode=EXCLUSIVE, send_timeout_millis=5000)
    old.send(b"of the old one")
    new = two.create_producer(topic, access_mode=FENCING)
    new.send(b"of the new one")
    with pytest.raises(pulsar.PulsarException):
        old.send(b"too late")
    consumer = two.subscribe(topic, "s", initial_position=EARLIEST)
    assert [each.data() for each in receive_all(consumer, 2)] == [b"of the old one", b"of the new one"]
    assert_nothing_arrives(consumer)
    one.close()
    two.close()


def test_exclusive_producer_keeps_epoch_across_unloads(
    broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    producer = client.create_producer(topic, access_mode=EXCLUSIVE)
    for number in range(3):
        producer.send(b"%d" % number)
        rest(broker, "PUT", topic, "/unload")
    producer.send(b"3")
    assert stats(broker, topic)["topicEpoch"] == 0


def test_exclusive_producer_reconnects_after_broker_is_killed(own_broker: BrokerProcess, topic: str) -> None:
    client = new_client(own_broker.url)
    producer = client.create_producer(topic, access_mode=EXCLUSIVE)
    producer.send(b"before")
    own_broker.kill()
    own_broker.start()
    producer.send(b"after")
    assert stats(own_broker, topic)["topicEpoch"] == 0
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    assert [each.data() for each in receive_all(consumer, 2)] == [b"before", b"after"]
    client.close()


# --- names and sequence ids --------------------------------------------------------------------------------------------------


def test_generated_names_differ_and_a_name_has_one_producer(client: pulsar.Client, topic: str) -> None:
    names = {client.create_producer(topic).producer_name() for _ in range(3)}
    assert len(names) == 3
    named = client.create_producer(topic, producer_name="named")
    with pytest.raises(pulsar.ProducerBusy):
        client.create_producer(topic, producer_name="named")
    named.close()
    assert client.create_producer(topic, producer_name="named").producer_name() == "named"


def test_producers_reconnect_with_their_names(broker: BrokerProcess, client: pulsar.Client, topic: str) -> None:
    producers = [client.create_producer(topic), client.create_producer(topic, producer_name="named")]
    names = [each.producer_name() for each in producers]
    rest(broker, "PUT", topic, "/unload")
    for producer in producers:
        producer.send(b"x")
    assert [each.producer_name() for each in producers] == names
    assert sorted(each["producerName"] for each in stats(broker, topic)["publishers"]) == sorted(names)


def test_sequence_ids_continue_across_batches_and_reconnects(
    broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    producer = client.create_producer(
        topic, initial_sequence_id=10, batching_enabled=True, batching_max_messages=5, batching_max_publish_delay_ms=5
    )
    assert producer.last_sequence_id() == 10
    for number in range(10):
        producer.send_async(b"%d" % number, None)
    producer.flush()
    assert producer.last_sequence_id() == 20
    rest(broker, "PUT", topic, "/unload")
    producer.send(b"one more")
    assert producer.last_sequence_id() == 21


# --- partitions --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_lazy", [False, True], ids=["at once", "lazy"])
def test_lazy_partition_producers_are_created_on_demand(
    broker: BrokerProcess, client: pulsar.Client, topic: str, is_lazy: bool
) -> None:
    rest(broker, "PUT", topic, "/partitions", 4)
    producer = client.create_producer(
        topic,
        lazy_start_partitioned_producers=is_lazy,
        message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution,
        batching_enabled=False,
    )

    def producers() -> list[int]:
        return [len(stats(broker, f"{topic}-partition-{index}")["publishers"]) for index in range(4)]

    if not is_lazy:
        assert producers() == [1, 1, 1, 1]
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    opened = sum(producers())
    assert opened == (1 if is_lazy else 4)
    for number in range(8):
        producer.send(b"%d" % number)
    assert sorted(each.data() for each in receive_all(consumer, 8)) == [b"%d" % number for number in range(8)]
    assert producers() == [1, 1, 1, 1]


def test_exclusive_access_to_partitioned_topic_covers_each_partition(
    broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    rest(broker, "PUT", topic, "/partitions", 3)
    producer = client.create_producer(topic, access_mode=EXCLUSIVE)
    with pytest.raises(pulsar.ProducerFenced):
        client.create_producer(topic, access_mode=EXCLUSIVE)
    for index in range(3):
        assert stats(broker, f"{topic}-partition-{index}")["topicEpoch"] == 0
    producer.close()
    client.create_producer(topic, access_mode=EXCLUSIVE).close()


# --- encryption ----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def keys(tmp_path: Path) -> pulsar.CryptoKeyReader:
    """A new pair of keys in files, as applications keep them."""
    private, public = tmp_path / "private.pem", tmp_path / "public.pem"
    subprocess.run(["openssl", "genrsa", "-out", str(private), "2048"], check=True, capture_output=True)
    subprocess.run(
        ["openssl", "rsa", "-in", str(private), "-pubout", "-out", str(public)], check=True, capture_output=True
    )
    return pulsar.CryptoKeyReader(str(public), str(private))


@pytest.mark.parametrize("is_batched", [False, True], ids=["single", "batched"])
def test_encrypted_messages_pass_through_unread(
    broker: BrokerProcess, client: pulsar.Client, topic: str, keys: pulsar.CryptoKeyReader, is_batched: bool
) -> None:
    consumer = client.subscribe(topic, "s", crypto_key_reader=keys)
    producer = client.create_producer(
        topic, encryption_key="key", crypto_key_reader=keys, batching_enabled=is_batched, batching_max_messages=4
    )
    for number in range(8):
        producer.send_async(b"secret %d" % number, None, partition_key="k")
    producer.flush()
    assert [each.data() for each in receive_all(consumer, 8)] == [b"secret %d" % number for number in range(8)]
    with connected(broker) as raw:
        raw.subscribe(topic, subscription="raw")
        raw.send(Type.FLOW, consumer_id=1, messagePermits=10)
        seen = raw.replies()
    assert len(seen) == (2 if is_batched else 8)
    for message in seen:
        (key,) = message["metadata"]["encryption_keys"]
        assert key["key"] == "key"
        assert len(base64.b64decode(key["value"])) == 256
        assert b"secret" not in json.dumps(message).encode()


# --- what is not taken -----------------------------------------------------------------------------------------------------------


def test_terminated_topic_refuses_messages_and_producers(
    broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    producer = client.create_producer(topic, access_mode=EXCLUSIVE, send_timeout_millis=3000)
    producer.send(b"last")
    rest(broker, "POST", topic, "/terminate")
    with pytest.raises(pulsar.PulsarException):
        producer.send(b"too late")
    with pytest.raises(pulsar.TopicTerminated):
        client.create_producer(topic)
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    assert receive_all(consumer, 1)[0].data() == b"last"
    assert_nothing_arrives(consumer)


def test_client_refuses_message_above_maximum_size(client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic)
    with pytest.raises(pulsar.MessageTooBig):
        producer.send(b"x" * (5 * 1024 * 1024 + 1))
    producer.send(b"x")
