"""Retention, expiry, backlog quotas and termination, as connected clients meet them."""

from collections.abc import Iterator
from typing import Any

import pulsar
import pytest
from tests.clients.conftest import admin, new_client, path_of, receive_all, texts, until
from tests.support.broker_process import BrokerProcess
from tests.support.metrics import metric_values, until_metric

SETTINGS = {
    "retentionCheckIntervalInSeconds": "1",
    "messageExpiryCheckIntervalInMinutes": "0.005",
    "backlogQuotaCheckIntervalInSeconds": "1",
    "preciseTimeBasedBacklogQuotaCheck": "true",
    "managedLedgerMaxEntriesPerLedger": "10",
    "managedLedgerMinLedgerRolloverTimeMinutes": "0",
}
HOLD, FAIL, EVICT = "producer_request_hold", "producer_exception", "consumer_backlog_eviction"
FOR_EVER = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One with small ledgers that looks after its topics all the time."""
    with BrokerProcess(tmp_path_factory.mktemp("retention"), SETTINGS).running() as process:
        yield process


def internal_stats(broker: BrokerProcess, topic: str) -> Any:
    return admin(broker, "GET", f"{path_of(topic)}/internalStats").json


def connections_created(broker: BrokerProcess) -> list[float]:
    return metric_values(broker.get("/metrics"), "pulsar_connection_created_total_count")


def send(client: pulsar.Client, topic: str, count: int, first: int = 0) -> None:
    producer = client.create_producer(topic, batching_enabled=False)
    for index in range(first, first + count):
        producer.send(b"m-%d" % index)
    producer.close()


# --- retention -----------------------------------------------------------------------------------------------------------


def test_retention_keeps_acknowledged_messages_until_it_is_unset(
    broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    consumer = client.subscribe(topic, "s")
    admin(broker, "POST", f"{path_of(topic)}/retention", FOR_EVER)
    send(client, topic, 35)
    consumer.acknowledge_cumulative(receive_all(consumer, 35)[-1])
    other = f"{topic}-other"  # Shows that the check has passed meanwhile.
    other_consumer = client.subscribe(other, "s")
    send(client, other, 35)
    other_consumer.acknowledge_cumulative(receive_all(other_consumer, 35)[-1])
    until(lambda: internal_stats(broker, other)["numberOfEntries"] <= 10)
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    assert texts([reader.read_next(10_000) for _ in range(35)]) == [f"m-{index}" for index in range(35)]
    reader.close()
    admin(broker, "DELETE", f"{path_of(topic)}/retention")
    until(lambda: internal_stats(broker, topic)["numberOfEntries"] <= 10)
    left = internal_stats(broker, topic)["numberOfEntries"]
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    first = int(reader.read_next(10_000).data().removeprefix(b"m-")) if left else 35
    assert first == 35 - left


# --- expiry --------------------------------------------------------------------------------------------------------------


def test_unread_messages_expire_and_later_messages_are_delivered(
    broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    client.subscribe(topic, "s").close()
    send(client, topic, 5)
    admin(broker, "POST", f"{path_of(topic)}/messageTTL?messageTTL=1")
    until(lambda: internal_stats(broker, topic)["cursors"]["s"]["messagesConsumedCounter"] == 5)
    admin(broker, "DELETE", f"{path_of(topic)}/messageTTL")
    send(client, topic, 2, first=5)
    assert texts(receive_all(client.subscribe(topic, "s"), 2)) == ["m-5", "m-6"]


# --- backlog quotas ------------------------------------------------------------------------------------------------------


def fill_up(broker: BrokerProcess, client: pulsar.Client, topic: str, policy: str) -> pulsar.Producer:
    """A connected producer on a topic whose backlog has just become too large."""
    client.subscribe(topic, "s").close()
    producer = client.create_producer(topic, batching_enabled=False, send_timeout_millis=0)
    for _ in range(10):
        producer.send(b"x" * 100)
    admin(broker, "POST", f"{path_of(topic)}/backlogQuota", {"policy": policy, "limitSize": 500})
    return producer


def test_held_producer_resumes_when_backlog_is_read(broker: BrokerProcess, client: pulsar.Client, topic: str) -> None:
    producer = fill_up(broker, client, topic, HOLD)
    until(lambda: not producer.is_connected())
    sent: list[pulsar.Result] = []
    producer.send_async(b"late", lambda result, _: sent.append(result))
    consumer = client.subscribe(topic, "s")
    messages = receive_all(consumer, 10)
    assert not sent
    for message in messages:
        consumer.acknowledge(message)
    assert consumer.receive(30_000).data() == b"late"
    until(lambda: sent == [pulsar.Result.Ok])


def test_producer_over_quota_receives_quota_exception(broker: BrokerProcess, topic: str) -> None:
    client = new_client(broker.url)
    producer = fill_up(broker, client, topic, FAIL)
    until(lambda: not producer.is_connected())
    with pytest.raises(pulsar.ProducerBlockedQuotaExceededException):
        client.create_producer(topic)
    admin(broker, "POST", f"{path_of(topic)}/subscription/s/skip_all")
    client.create_producer(topic).send(b"again")
    client.close()


def test_eviction_drops_oldest_messages_and_keeps_producers(
    broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    producer = fill_up(broker, client, topic, EVICT)
    until(lambda: internal_stats(broker, topic)["cursors"]["s"]["messagesConsumedCounter"] > 0)
    read = internal_stats(broker, topic)["cursors"]["s"]["messagesConsumedCounter"]
    producer.send(b"after")
    consumer = client.subscribe(topic, "s")
    received = texts(receive_all(consumer, 1))
    while received[-1] != "after":  # the quota may be looked at once more before it is read
        received += texts(receive_all(consumer, 1))
    assert received[:-1] == ["x" * 100] * (len(received) - 1)
    assert len(received) <= min(5, 11 - read)
    name = "pulsar_storage_backlog_quota_exceeded_evictions_total"
    until_metric(broker, lambda evictions: evictions >= 1, name, topic=topic, quota_type="size")


# --- cursors and ends ----------------------------------------------------------------------------------------------------


def test_cursor_reset_redelivers_all_to_connected_consumer(
    broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    consumer = client.subscribe(topic, "s")
    send(client, topic, 3)
    for message in receive_all(consumer, 3):
        consumer.acknowledge(message)
    admin(broker, "POST", f"{path_of(topic)}/subscription/s/resetcursor/0")
    assert texts(receive_all(consumer, 3)) == ["m-0", "m-1", "m-2"]


def test_terminated_topic_refuses_producers_and_is_read_to_its_end(
    broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    last = producer.send(b"last")
    answer = admin(broker, "POST", f"{path_of(topic)}/terminate").json
    assert (answer["ledgerId"], answer["entryId"]) == (last.ledger_id(), last.entry_id())
    with pytest.raises(pulsar.TopicTerminated):
        producer.send(b"too late")
    with pytest.raises(pulsar.TopicTerminated):
        client.create_producer(topic)
    assert consumer.receive(30_000).data() == b"last"


def test_end_of_topic_keeps_connection_of_official_client(
    broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    consumer = client.subscribe(topic, "s")
    send(client, topic, 1)
    admin(broker, "POST", f"{path_of(topic)}/terminate")
    connections = connections_created(broker)
    consumer.acknowledge(consumer.receive(30_000))
    until(lambda: internal_stats(broker, topic)["cursors"]["s"]["numberOfEntriesSinceFirstNotAckedMessage"] == 0)
    consumer.get_last_message_id()  # behind what the broker said of the end, on the same connection or a new one
    assert connections_created(broker) == connections
