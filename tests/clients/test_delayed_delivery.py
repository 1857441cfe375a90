"""Delayed messages, as official clients send and receive them."""

import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pulsar
import pytest
from tests.clients.conftest import admin, assert_nothing_arrives, new_client, path_of, receive_all, texts
from tests.support.broker_process import BrokerProcess
from tests.support.metrics import until_metric

TICK_MS = 200
SETTINGS = {"delayedDeliveryTickTimeMillis": str(TICK_MS), "retentionCheckIntervalInSeconds": "1"}
SLOWNESS_MS = 700
"""How late a message may be on a machine that is busy with other things."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("delayed"), SETTINGS).running() as process:
        yield process


@pytest.fixture
def uncached_broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path, {**SETTINGS, "managedLedgerCacheSizeMB": "0"}).running() as process:
        yield process


def now_ms() -> int:
    return int(time.time() * 1000)


def until_delayed(broker: BrokerProcess, topic: str, count: int) -> None:
    """Wait until the metrics show that many delayed messages; the topics of this file have one subscription each."""
    until_metric(broker, lambda delayed: delayed == count, "pulsar_subscription_delayed", topic=topic)


def subscribe(client: pulsar.Client, topic: str, kind: pulsar.ConsumerType) -> pulsar.Consumer:
    return client.subscribe(
        topic, "sub", consumer_type=kind, initial_position=pulsar.InitialPosition.Earliest, receiver_queue_size=1000
    )


def test_delayed_message_arrives_when_due_and_delays_no_other(client: pulsar.Client, topic: str) -> None:
    consumer = subscribe(client, topic, pulsar.ConsumerType.Shared)
    producer = client.create_producer(topic)
    due_ms = now_ms() + 1500
    producer.send(b"later", partition_key="k", deliver_at=due_ms)
    producer.send(b"soonest", partition_key="k", deliver_after=timedelta(milliseconds=700))
    producer.send(b"now", partition_key="k")
    producer.send(b"past", partition_key="k", deliver_at=now_ms() - 5000)
    assert texts(receive_all(consumer, 3)) == ["now", "past", "soonest"]
    (late,) = receive_all(consumer, 1)
    assert late.data() == b"later"
    assert due_ms - TICK_MS <= now_ms() <= due_ms + SLOWNESS_MS
    assert late.redelivery_count() == 0


def test_large_index_is_restored_after_kill_nine_without_reading_topic(
    uncached_broker: BrokerProcess, topic: str
) -> None:
    """Delayed messages lie between acknowledged ones; after the restart nearly nothing of them is read."""
    broker = uncached_broker
    client = new_client(broker.url)
    consumer = subscribe(client, topic, pulsar.ConsumerType.Shared)
    producer = client.create_producer(
        topic, block_if_queue_full=True, max_pending_messages=1000, batching_enabled=False
    )
    for index in range(10_000):
        producer.send_async(b"late %d" % index, lambda *_: None, deliver_after=timedelta(hours=1))
    producer.send_async(b"now", lambda *_: None)
    producer.flush()
    receive_all(consumer, 1)
    until_delayed(broker, topic, 10_000)
    client.close()
    broker.restart_after_kill()
    client = new_client(broker.url)
    consumer = subscribe(client, topic, pulsar.ConsumerType.Shared)
    (message,) = receive_all(consumer, 1)  # which was not acknowledged
    assert message.data() == b"now"
    consumer.acknowledge(message)
    until_delayed(broker, topic, 10_000)
    assert "delayed.restored" in broker.log.read_text()
    # Another clean stop leaves the index as it was.
    client.close()
    assert broker.stop() == 0
    broker.start()
    client = new_client(broker.url)
    consumer = subscribe(client, topic, pulsar.ConsumerType.Shared)
    until_delayed(broker, topic, 10_000)
    assert_nothing_arrives(consumer)
    # Without delay all of them come.
    admin(broker, "POST", f"{path_of(topic)}/delayedDelivery", {"active": False, "tickTime": 1000})
    received = {message.data() for message in receive_all(consumer, 10_000)}
    assert len(received) == 10_000
    client.close()
