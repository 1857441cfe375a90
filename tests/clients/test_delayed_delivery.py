"""Delayed messages, as official clients send and receive them."""

import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pulsar
import pytest
from tests.clients.conftest import admin, assert_nothing_arrives, new_client, path_of, receive_all, texts, until
from tests.support.broker_process import BrokerProcess
from tests.support.metrics import until_metric

TICK_MS = 200
SETTINGS = {"delayedDeliveryTickTimeMillis": str(TICK_MS), "retentionCheckIntervalInSeconds": "1"}
SLOWNESS_MS = 700
"""How late a message may be on a machine that is busy with other things."""
SHARED_TYPES = (pulsar.ConsumerType.Shared, pulsar.ConsumerType.KeyShared)
ONE_CONSUMER_TYPES = (pulsar.ConsumerType.Exclusive, pulsar.ConsumerType.Failover)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("delayed"), SETTINGS).running() as process:
        yield process


@pytest.fixture(scope="module")
def strict_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    settings = {**SETTINGS, "isDelayedDeliveryDeliverAtTimeStrict": "true"}
    with BrokerProcess(tmp_path_factory.mktemp("strict"), settings).running() as process:
        yield process


@pytest.fixture
def uncached_broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path, {**SETTINGS, "managedLedgerCacheSizeMB": "0"}).running() as process:
        yield process


def now_ms() -> int:
    return int(time.time() * 1000)


def unacked_count(broker: BrokerProcess, topic: str) -> int:
    stats = admin(broker, "GET", f"{path_of(topic)}/stats").json
    return int(stats["subscriptions"]["sub"]["unackedMessages"])


def until_delayed(broker: BrokerProcess, topic: str, count: int) -> None:
    """Wait until the metrics show that many delayed messages; the topics of this file have one subscription each."""
    until_metric(broker, lambda delayed: delayed == count, "pulsar_subscription_delayed", topic=topic)


def subscribe(client: pulsar.Client, topic: str, kind: pulsar.ConsumerType) -> pulsar.Consumer:
    return client.subscribe(
        topic, "sub", consumer_type=kind, initial_position=pulsar.InitialPosition.Earliest, receiver_queue_size=1000
    )


@pytest.mark.parametrize("kind", SHARED_TYPES)
def test_a_delayed_message_arrives_when_it_is_due_and_holds_up_nobody(
    client: pulsar.Client, topic: str, kind: pulsar.ConsumerType
) -> None:
    consumer = subscribe(client, topic, kind)
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


@pytest.mark.parametrize("kind", ONE_CONSUMER_TYPES)
def test_with_one_active_consumer_delayed_messages_arrive_at_once(
    client: pulsar.Client, topic: str, kind: pulsar.ConsumerType
) -> None:
    consumer = subscribe(client, topic, kind)
    producer = client.create_producer(topic)
    producer.send(b"delayed", deliver_after=timedelta(hours=1))
    producer.send(b"now")
    assert texts(receive_all(consumer, 2)) == ["delayed", "now"]


def test_strict_times_are_never_early(strict_broker: BrokerProcess, topic: str) -> None:
    client = new_client(strict_broker.url)
    consumer = subscribe(client, topic, pulsar.ConsumerType.Shared)
    producer = client.create_producer(topic)
    start_ms = now_ms() + 2000  # All are sent before the first one is due.
    due_times_ms = [start_ms + 70 * index for index in range(20)]
    for due_ms in reversed(due_times_ms):
        producer.send(str(due_ms).encode(), deliver_at=due_ms)
    for due_ms in due_times_ms:
        (message,) = receive_all(consumer, 1)
        assert int(message.data()) == due_ms, "not in the order of due times"
        assert due_ms <= now_ms() <= due_ms + TICK_MS + SLOWNESS_MS
    client.close()


def test_many_messages_due_together_all_arrive_in_order(client: pulsar.Client, topic: str) -> None:
    consumer = subscribe(client, topic, pulsar.ConsumerType.Shared)
    producer = client.create_producer(topic)
    due_ms = now_ms() + 1500
    for index in range(500):
        producer.send_async(f"{index}".encode(), lambda *_: None, deliver_at=due_ms)
    producer.flush()
    assert texts(receive_all(consumer, 500)) == [str(index) for index in range(500)]
    assert now_ms() >= due_ms - TICK_MS


@pytest.mark.parametrize("kind", SHARED_TYPES)
def test_a_due_message_that_is_refused_comes_again(
    client: pulsar.Client, topic: str, kind: pulsar.ConsumerType
) -> None:
    consumer = client.subscribe(topic, "sub", consumer_type=kind, negative_ack_redelivery_delay_ms=200)
    client.create_producer(topic).send(b"x", deliver_after=timedelta(milliseconds=500))
    (first,) = receive_all(consumer, 1)
    consumer.negative_acknowledge(first)
    (second,) = receive_all(consumer, 1)
    assert second.message_id() == first.message_id()
    assert second.redelivery_count() == 1


def test_delayed_messages_survive_kill_nine(own_broker: BrokerProcess, topic: str) -> None:
    client = new_client(own_broker.url)
    consumer = subscribe(client, topic, pulsar.ConsumerType.Shared)
    producer = client.create_producer(topic)
    due_ms = now_ms() + 4000
    for index in range(50):
        producer.send(f"late {index}".encode(), deliver_at=due_ms)
        producer.send(f"now {index}".encode())
    for message in receive_all(consumer, 50):
        consumer.acknowledge(message)
    client.close()
    own_broker.restart_after_kill()
    client = new_client(own_broker.url)
    consumer = subscribe(client, topic, pulsar.ConsumerType.Shared)
    seen: list[Any] = []
    while len(seen) < 50:
        (message,) = receive_all(consumer, 1)
        consumer.acknowledge(message)
        if message.data().startswith(b"late"):  # An acknowledgement without receipt may be lost.
            seen.append(message.data().decode())
            assert now_ms() >= due_ms - 1000
    assert seen == [f"late {index}" for index in range(50)]
    client.close()


def test_after_kill_nine_a_large_index_is_read_back_instead_of_the_topic(
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


def test_a_message_that_waits_for_an_hour_keeps_its_own_ledger_and_no_other(tmp_path: Path, topic: str) -> None:
    """The ledgers around it go while it waits; kill -9 brings nothing back and loses nothing."""
    small = {
        "managedLedgerMaxEntriesPerLedger": "100",
        "managedLedgerMinLedgerRolloverTimeMinutes": "0",
        "cursorFlushIntervalMs": "1",
    }
    with BrokerProcess(tmp_path, {**SETTINGS, **small}).running() as broker:
        client = new_client(broker.url)
        consumer = subscribe(client, topic, pulsar.ConsumerType.Shared)
        producer = client.create_producer(topic, batching_enabled=False)
        producer.send(b"late", deliver_after=timedelta(hours=1))
        ledgers = ledgers_of(broker, topic)
        # How many entries a ledger has in the end depends on how long the next one takes to be made.
        while ledgers[-1]["ledgerId"] - ledgers[0]["ledgerId"] < 10:
            for _ in range(100):
                producer.send_async(b"now", lambda *_: None)
            for message in receive_all(consumer, 100):
                consumer.acknowledge(message)
            ledgers = ledgers_of(broker, topic)
        until(lambda: len(ledgers_of(broker, topic)) <= 3)
        first = ledgers_of(broker, topic)[0]
        assert first["ledgerId"] == ledgers[0]["ledgerId"], "the one that holds the delayed message"
        assert first["entries"] >= 100
        assert_nothing_arrives(consumer)
        client.close()

        broker.restart_after_kill()
        client = new_client(broker.url)
        consumer = subscribe(client, topic, pulsar.ConsumerType.Shared)
        assert ledgers_of(broker, topic)[0] == first
        assert_nothing_arrives(consumer, 1000)
        until_delayed(broker, topic, 1)
        admin(broker, "POST", f"{path_of(topic)}/delayedDelivery", {"active": False, "tickTime": 1000})
        assert texts(receive_all(consumer, 1)) == ["late"]
        assert_nothing_arrives(consumer)
        client.close()
    verified = subprocess.run([sys.executable, "-m", "pybroker", "ledger", "verify", str(broker.data)], check=False)
    assert verified.returncode == 0


def ledgers_of(broker: BrokerProcess, topic: str) -> list[dict[str, int]]:
    ledgers = admin(broker, "GET", f"{path_of(topic)}/internalStats").json["ledgers"]
    assert isinstance(ledgers, list)
    return ledgers


def test_messages_are_not_delayed_where_delayed_delivery_is_off(
    broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    consumer = subscribe(client, topic, pulsar.ConsumerType.Shared)
    producer = client.create_producer(topic)
    producer.send(b"a", deliver_after=timedelta(hours=1))
    until_delayed(broker, topic, 1)
    admin(broker, "POST", f"{path_of(topic)}/delayedDelivery", {"active": False, "tickTime": 1000})
    assert texts(receive_all(consumer, 1)) == ["a"]
    producer.send(b"b", deliver_after=timedelta(hours=1))
    assert texts(receive_all(consumer, 1)) == ["b"]
    until_delayed(broker, topic, 0)


def test_skipped_messages_are_not_delivered_when_they_are_due(
    broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    consumer = subscribe(client, topic, pulsar.ConsumerType.Shared)
    producer = client.create_producer(topic)
    producer.send(b"a", deliver_after=timedelta(milliseconds=1000))
    until_delayed(broker, topic, 1)
    admin(broker, "POST", f"{path_of(topic)}/subscription/sub/skip_all")
    until_delayed(broker, topic, 0)
    assert_nothing_arrives(consumer, 1500)


def test_due_messages_wait_for_permits_and_for_consumers(
    broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    consumer = client.subscribe(topic, "sub", consumer_type=pulsar.ConsumerType.Shared, receiver_queue_size=1)
    producer = client.create_producer(topic)
    for index in range(5):
        producer.send(f"{index}".encode(), deliver_after=timedelta(milliseconds=600))
    due_ms = now_ms() + 600
    consumer.close()
    until(lambda: now_ms() > due_ms)
    consumer = client.subscribe(topic, "sub", consumer_type=pulsar.ConsumerType.Shared, receiver_queue_size=1)
    until(lambda: unacked_count(broker, topic) > 0)
    assert texts(receive_all(consumer, 5)) == ["0", "1", "2", "3", "4"]
