"""Compaction as applications meet it: triggered by REST, read by consumers, readers and table views of the official client."""

import itertools
import threading
import time
from collections.abc import Iterator
from typing import Any

import pulsar
import pytest
from tests.clients.conftest import assert_nothing_arrives, receive_all, until
from tests.support.broker_process import BrokerProcess
from tests.support.metrics import until_metric
from tests.support.rest import Answer, call

SETTINGS = {
    "retentionCheckIntervalInSeconds": "1",
    "brokerServiceCompactionMonitorIntervalInSeconds": "1",
    "managedLedgerMaxEntriesPerLedger": "10",
    "managedLedgerMinLedgerRolloverTimeMinutes": "0",
}
_serial = itertools.count()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One with small ledgers that looks after its topics all the time."""
    with BrokerProcess(tmp_path_factory.mktemp("compaction"), SETTINGS).running() as process:
        yield process


def admin(broker: BrokerProcess, method: str, topic: str, path: str, body: object = None) -> Answer:
    return call(f"{broker.http_url}/admin/v2/{topic.replace('://', '/')}/{path}", method, body=body)


def compact(broker: BrokerProcess, topic: str) -> None:
    assert admin(broker, "PUT", topic, "compaction").status == 204
    until(lambda: admin(broker, "GET", topic, "compaction").json["status"] != "RUNNING")
    assert admin(broker, "GET", topic, "compaction").json == {"status": "SUCCESS", "lastError": ""}


def keep_everything(broker: BrokerProcess, topic: str, partitions: int = 0) -> None:
    """Make the topic and compact it while it is empty: from now on only what is compacted is trimmed."""
    if partitions:
        assert admin(broker, "PUT", topic, "partitions", partitions).status == 204
    else:
        assert call(f"{broker.http_url}/admin/v2/{topic.replace('://', '/')}", "PUT").status == 204
    names = [f"{topic}-partition-{index}" for index in range(partitions)] or [topic]
    for name in names:
        compact(broker, name)


def internal_stats(broker: BrokerProcess, topic: str) -> Any:
    return admin(broker, "GET", topic, "internalStats").json


def publish(client: pulsar.Client, topic: str, *messages: tuple[str | None, bytes], **options: Any) -> None:
    """One entry for each, unless `options` say otherwise."""
    options = {"batching_enabled": False, "max_pending_messages": 50_000, **options}
    producer = client.create_producer(topic, **options)
    results: list[pulsar.Result] = []
    for key, value in messages:
        kwargs = {} if key is None else {"partition_key": key}
        producer.send_async(value, lambda result, _id: results.append(result), **kwargs)
    producer.flush()
    producer.close()
    assert results == [pulsar.Result.Ok] * len(messages)


def read(client: pulsar.Client, topic: str, **options: Any) -> list[tuple[str, bytes]]:
    """What a reader from the beginning gets."""
    name = f"reader-{next(_serial)}"
    reader = client.create_reader(
        topic,
        **{"start_message_id": pulsar.MessageId.earliest, "is_read_compacted": True, "reader_name": name, **options},
    )
    found = []
    while reader.has_message_available():
        message = reader.read_next(10_000)
        found.append((message.partition_key(), message.data()))
    reader.close()
    return found


def numbered(count: int, keys: int) -> list[tuple[str, bytes]]:
    return [(f"k{index % keys}", b"%d" % index) for index in range(count)]


def test_compacted_read_returns_last_message_per_key_then_newer_messages(
    broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    publish(client, topic, ("a", b"1"), ("b", b"1"), ("a", b"2"), (None, b"no key"), ("c", b"1"), ("b", b""))
    compact(broker, topic)
    assert read(client, topic) == [("a", b"2"), ("c", b"1")]
    assert len(read(client, topic, is_read_compacted=False)) == 6
    publish(client, topic, ("a", b"3"))
    assert read(client, topic) == [("a", b"2"), ("c", b"1"), ("a", b"3")]
    compact(broker, topic)
    assert read(client, topic) == [("c", b"1"), ("a", b"3")]
    stats = admin(broker, "GET", topic, "stats").json
    assert stats["compaction"]["lastCompactionRemovedEventCount"] == 1
    assert stats["compaction"]["lastCompactionSucceedTimestamp"] > 0
    assert internal_stats(broker, topic)["compactedLedger"]["entries"] == 2
    until_metric(broker, lambda compactions: compactions == 2, "pulsar_compaction_succeed_count", topic=topic)


def test_compaction_keeps_message_ids(broker: BrokerProcess, client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic, batching_enabled=False)
    ids = [producer.send(b"%d" % index, partition_key=f"k{index % 2}") for index in range(6)]
    compact(broker, topic)
    reader = client.create_reader(topic, pulsar.MessageId.earliest, is_read_compacted=True)
    assert [reader.read_next(10_000).message_id() for _ in range(2)] == ids[4:]
    # From the middle: the first message that is left there or behind.
    reader.seek(ids[1])
    assert reader.read_next(10_000).message_id() == ids[4]
    reader.seek(ids[5])
    assert not reader.has_message_available() or reader.read_next(10_000).message_id() == ids[5]
    reader.close()


@pytest.mark.parametrize(
    "codec",
    [pulsar.CompressionType.NONE, pulsar.CompressionType.LZ4, pulsar.CompressionType.ZLib, pulsar.CompressionType.ZSTD],
)
def test_compacted_batch_keeps_last_message_of_each_key(
    broker: BrokerProcess, client: pulsar.Client, topic: str, codec: pulsar.CompressionType
) -> None:
    batching = {"batching_enabled": True, "batching_max_publish_delay_ms": 1000, "compression_type": codec}
    publish(client, topic, ("a", b"a1"), ("b", b"b1"), (None, b"none"), ("a", b"a2"), ("c", b"c1"), **batching)
    publish(client, topic, ("c", b"c2"), ("d", b"d1"), ("d", b""), **batching)
    compact(broker, topic)
    # This client shows a message that is gone from its batch as one without key and value.
    assert [each for each in read(client, topic) if each[1]] == [("b", b"b1"), ("a", b"a2"), ("c", b"c2")]


def test_table_view_equals_dictionary(broker: BrokerProcess, client: pulsar.Client, topic: str) -> None:
    keep_everything(broker, topic)
    publish(client, topic, *numbered(50, 7))
    compact(broker, topic)
    publish(client, topic, ("k0", b"new"), ("k1", b""), ("other", b"1"))
    table = client.create_table_view(topic)
    seen: dict[str, bytes] = {}
    table.for_each_and_listen(seen.__setitem__)
    until(lambda: len(table) == 7)
    assert table.get("k1") is None
    assert (table.get("k0"), table.get("k2"), table.get("other")) == (b"new", b"44", b"1")
    publish(client, topic, ("k3", b"live"))
    until(lambda: table.get("k3") == b"live")
    table.close()


def trimmed(broker: BrokerProcess, client: pulsar.Client, topic: str) -> list[bytes]:
    """A topic whose view has messages in ledgers that are gone; their values."""
    keep_everything(broker, topic)
    publish(client, topic, *[(f"k{index}", b"%d" % index) for index in range(25)])
    compact(broker, topic)
    until(lambda: len(internal_stats(broker, topic)["ledgers"]) == 1)
    return [b"%d" % index for index in range(25)]


def test_durable_subscription_resumes_in_compacted_view(
    broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    values = trimmed(broker, client, topic)

    def subscribe() -> pulsar.Consumer:
        return client.subscribe(topic, "s", is_read_compacted=True, initial_position=pulsar.InitialPosition.Earliest)

    consumer = subscribe()
    messages = receive_all(consumer, 25)
    assert [message.data() for message in messages] == values
    consumer.acknowledge_cumulative(messages[6])
    consumer.close()
    consumer = subscribe()
    messages = receive_all(consumer, 18)
    assert [message.data() for message in messages] == values[7:]
    for message in messages:
        consumer.acknowledge(message)
    assert_nothing_arrives(consumer)
    consumer.close()
    publish(client, topic, ("k0", b"tail"))
    consumer = subscribe()
    assert receive_all(consumer, 1)[0].data() == b"tail"
    consumer.close()


def test_reader_seeks_in_compacted_view(broker: BrokerProcess, client: pulsar.Client, topic: str) -> None:
    values = trimmed(broker, client, topic)
    reader = client.create_reader(topic, pulsar.MessageId.earliest, is_read_compacted=True)
    ids = [reader.read_next(10_000).message_id() for _ in values]
    assert not reader.has_message_available()
    reader.seek(ids[4])
    assert reader.read_next(10_000).data() in values[4:6]  # a reader starts behind what it sought, or at it
    reader.seek(pulsar.MessageId.earliest)
    assert [reader.read_next(10_000).data() for _ in values] == values
    reader.close()


def test_last_message_id_of_compacted_consumer_is_that_of_the_view(
    broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    publish(client, topic, ("a", b"1"), ("b", b"1"), ("b", b""))
    compact(broker, topic)
    for is_compacted, entry_id in ((True, 0), (False, 2)):
        consumer = client.subscribe(topic, f"s{entry_id}", is_read_compacted=is_compacted)
        assert consumer.get_last_message_id().entry_id() == entry_id
        consumer.close()
    publish(client, topic, ("a", b""))
    compact(broker, topic)
    assert read(client, topic) == []


def test_reader_sees_each_key_in_order_while_view_is_replaced(
    broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    keep_everything(broker, topic)
    publish(client, topic, *numbered(400, 40), batching_enabled=True, batching_max_messages=7)
    compact(broker, topic)
    reader = client.create_reader(topic, pulsar.MessageId.earliest, is_read_compacted=True, receiver_queue_size=1)
    stopped = threading.Event()

    def churn() -> None:
        for round_number in itertools.count():
            if stopped.is_set():
                return
            publish(client, topic, *[(f"k{key}", b"%d" % (1000 + round_number)) for key in range(0, 40, 3)])
            compact(broker, topic)

    other = threading.Thread(target=churn)
    other.start()
    try:
        last: dict[str, int] = {}
        ids = []
        for _ in range(300):
            message = reader.read_next(20_000)
            ids.append(message.message_id())
            if message.data():
                value = int(message.data())
                assert value > last.get(message.partition_key(), -1), "an older message of a key"
                last[message.partition_key()] = value
    finally:
        stopped.set()
        other.join()
    assert len(last) == 40
    assert all(before < after for before, after in itertools.pairwise(ids))
    publish(client, topic, ("end", b"1"))
    while (message := reader.read_next(20_000)).partition_key() != "end":
        last[message.partition_key()] = int(message.data() or b"0")
    assert {key: value for key, value in read(client, topic) if value}.items() >= {("end", b"1")}
    reader.close()


def test_compaction_of_large_topic_does_not_block_other_clients(
    broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    keep_everything(broker, topic)
    publish(client, topic, *numbered(30_000, 3_000), batching_enabled=True)
    quick = client.create_producer(f"{topic}-other", batching_enabled=False)
    assert admin(broker, "PUT", topic, "compaction").status == 204
    slowest_s = 0.0
    while admin(broker, "GET", topic, "compaction").json["status"] == "RUNNING":
        started_s = time.monotonic()
        quick.send(b"x")
        slowest_s = max(slowest_s, time.monotonic() - started_s)
    assert slowest_s < 1.0
    assert len(read(client, topic)) >= 3_000


def test_compaction_keeps_chunked_message_whole(broker: BrokerProcess, client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic, batching_enabled=False, chunking_enabled=True)
    large = b"x" * (6 * 1024 * 1024)
    for value in (large, b"small", large[::-1] + b"y"):
        producer.send(value, partition_key="small" if value == b"small" else "large")
    compact(broker, topic)
    assert [(key, len(value)) for key, value in read(client, topic)] == [("small", 5), ("large", len(large) + 1)]


def test_compaction_of_partitioned_topic_compacts_each_partition(
    broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    keep_everything(broker, topic, 2)
    publish(client, topic, *numbered(40, 8))
    assert admin(broker, "PUT", topic, "compaction").status == 204
    assert admin(broker, "GET", topic, "compaction").status == 404
    for index in range(2):
        partition = f"{topic}-partition-{index}"
        until(lambda name=partition: admin(broker, "GET", name, "compaction").json["status"] == "SUCCESS")  # type: ignore[misc]
    assert sorted(read(client, topic)) == sorted((f"k{index % 8}", b"%d" % index) for index in range(32, 40))


def test_deleting_compaction_subscription_deletes_the_view(
    broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    publish(client, topic, ("a", b"1"), ("a", b"2"))
    compact(broker, topic)
    assert admin(broker, "GET", topic, "subscriptions").json == ["__compaction"]
    assert admin(broker, "DELETE", topic, "subscription/__compaction").status == 204
    assert internal_stats(broker, topic)["compactedLedger"]["ledgerId"] == -1
    assert read(client, topic) == [("a", b"1"), ("a", b"2")]
