"""The official client publishes and consumes: the ground that everything else stands on."""

import threading
from collections.abc import Iterator

import pulsar
import pytest
from tests.clients.conftest import assert_nothing_arrives, new_client, receive_all
from tests.support.broker_process import BrokerProcess
from tests.support.metrics import until_metric

CODECS = [
    pulsar.CompressionType.NONE,
    pulsar.CompressionType.LZ4,
    pulsar.CompressionType.ZLib,
    pulsar.CompressionType.ZSTD,
    pulsar.CompressionType.SNAPPY,
]


def test_what_is_sent_is_received_in_order_with_key_and_properties(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, batching_enabled=False)
    ids = [producer.send(f"m-{i}".encode(), properties={"n": str(i)}, partition_key=f"k{i}") for i in range(20)]
    received = receive_all(consumer, 20)
    assert [message.data() for message in received] == [f"m-{i}".encode() for i in range(20)]
    assert [message.properties() for message in received] == [{"n": str(i)} for i in range(20)]
    assert [message.partition_key() for message in received] == [f"k{i}" for i in range(20)]
    assert [(message.message_id().ledger_id(), message.message_id().entry_id()) for message in received] == [
        (each.ledger_id(), each.entry_id()) for each in ids
    ]


@pytest.mark.parametrize("subscription_type", [pulsar.ConsumerType.Exclusive, pulsar.ConsumerType.KeyShared], ids=str)
def test_message_with_20000_properties_is_delivered_unchanged(
    client: pulsar.Client, topic: str, subscription_type: pulsar.ConsumerType
) -> None:
    name = f"{topic}-{subscription_type}"
    consumer = client.subscribe(name, "s", consumer_type=subscription_type)
    producer = client.create_producer(name, batching_enabled=False, send_timeout_millis=10_000)
    properties = {f"property-{index}": f"value-{index}" for index in range(20_000)}
    producer.send(b"m", properties=properties, partition_key="k")
    (message,) = receive_all(consumer, 1)
    assert message.properties() == properties
    assert message.partition_key() == "k"


@pytest.mark.parametrize("codec", CODECS, ids=str)
@pytest.mark.parametrize("batched", [False, True], ids=["single", "batched"])
def test_every_codec_goes_through(
    client: pulsar.Client, topic: str, codec: pulsar.CompressionType, batched: bool
) -> None:
    name = f"{topic}-{codec}-{batched}"
    consumer = client.subscribe(name, "s")
    producer = client.create_producer(
        name, compression_type=codec, batching_enabled=batched, batching_max_publish_delay_ms=5
    )
    bodies = [bytes([i]) * 2000 for i in range(30)]
    for body in bodies:
        producer.send_async(body, lambda result, message_id: None)
    producer.flush()
    assert [message.data() for message in receive_all(consumer, 30)] == bodies


@pytest.mark.parametrize("codec", CODECS, ids=str)
def test_a_large_batch_of_messages_without_anything_goes_through(
    client: pulsar.Client, topic: str, codec: pulsar.CompressionType
) -> None:
    """No batch says more messages for its size, before compression and after it."""
    name = f"{topic}-{codec}"
    consumer = client.subscribe(name, "s")
    producer = client.create_producer(
        name,
        compression_type=codec,
        batching_enabled=True,
        batching_max_messages=5000,
        batching_max_publish_delay_ms=60_000,
        max_pending_messages=5000,
    )
    results: list[pulsar.Result] = []
    for _ in range(5000):
        producer.send_async(b"", lambda result, message_id: results.append(result))
    producer.flush()
    assert set(results) == {pulsar.Result.Ok}
    ids = [message.message_id() for message in receive_all(consumer, 5000)]
    assert {each.batch_index() for each in ids} == set(range(5000))


def test_async_sends_are_all_receipted_in_order(client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic, batching_enabled=False, block_if_queue_full=True)
    receipts: list[tuple[int, int]] = []
    results = set()
    done = threading.Event()

    def sent(result: pulsar.Result, message_id: pulsar.MessageId) -> None:
        results.add(result)
        receipts.append((message_id.ledger_id(), message_id.entry_id()))
        if len(receipts) == 2000:
            done.set()

    for i in range(2000):
        producer.send_async(str(i).encode(), sent)
    assert done.wait(20)
    assert results == {pulsar.Result.Ok}
    assert receipts == sorted(set(receipts))


def test_a_message_of_the_maximum_size_goes_through(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, batching_enabled=False)
    body = b"x" * (5 * 1024 * 1024 - 4096)
    producer.send(body)
    assert consumer.receive(30_000).data() == body


def test_a_second_exclusive_consumer_is_refused(client: pulsar.Client, topic: str) -> None:
    client.subscribe(topic, "s")
    with pytest.raises(pulsar.ConsumerBusy):
        client.subscribe(topic, "s")


def test_a_producer_name_is_taken_once(client: pulsar.Client, broker: BrokerProcess, topic: str) -> None:
    client.create_producer(topic, producer_name="p")
    with pytest.raises(pulsar.ProducerBusy):
        client.create_producer(topic, producer_name="p")
    other = new_client(broker.url)
    with pytest.raises(pulsar.ProducerBusy):
        other.create_producer(topic, producer_name="p")
    other.close()


def test_shared_consumers_divide_the_messages(client: pulsar.Client, topic: str) -> None:
    consumers = [client.subscribe(topic, "s", pulsar.ConsumerType.Shared, receiver_queue_size=10) for _ in range(2)]
    producer = client.create_producer(topic, batching_enabled=False)
    for i in range(40):
        producer.send(str(i).encode())
    received = [[message.data() for message in _drain(consumer)] for consumer in consumers]
    assert sorted(received[0] + received[1], key=int) == [str(i).encode() for i in range(40)]
    assert all(received)


def _drain(consumer: pulsar.Consumer) -> Iterator[pulsar.Message]:
    while True:
        try:
            message = consumer.receive(300)
        except pulsar.Timeout:
            return
        consumer.acknowledge(message)
        yield message


def test_individual_acknowledgements_leave_holes_that_come_again(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", pulsar.ConsumerType.Shared)
    producer = client.create_producer(topic, batching_enabled=False)
    for i in range(10):
        producer.send(str(i).encode())
    for message in receive_all(consumer, 10):
        if int(message.data()) % 2:
            consumer.acknowledge(message)
    consumer.close()
    again = client.subscribe(topic, "s", pulsar.ConsumerType.Shared)
    assert [message.data() for message in receive_all(again, 5)] == [b"0", b"2", b"4", b"6", b"8"]
    assert_nothing_arrives(again)


def test_a_cumulative_acknowledgement_covers_everything_before(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, batching_enabled=False)
    for i in range(10):
        producer.send(str(i).encode())
    consumer.acknowledge_cumulative(receive_all(consumer, 10)[6])
    consumer.close()
    again = client.subscribe(topic, "s")
    assert [message.data() for message in receive_all(again, 3)] == [b"7", b"8", b"9"]
    assert_nothing_arrives(again)


def test_a_negatively_acknowledged_message_comes_again_with_its_count(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", pulsar.ConsumerType.Shared, negative_ack_redelivery_delay_ms=100)
    producer = client.create_producer(topic, batching_enabled=False)
    for i in range(3):
        producer.send(str(i).encode())
    for message in receive_all(consumer, 3):
        if message.data() == b"1":
            consumer.negative_acknowledge(message)
        else:
            consumer.acknowledge(message)
    again = consumer.receive(30_000)
    assert (again.data(), again.redelivery_count()) == (b"1", 1)
    consumer.acknowledge(again)
    assert_nothing_arrives(consumer)


def test_part_of_a_batch_may_be_acknowledged(broker: BrokerProcess, topic: str) -> None:
    client = new_client(broker.url)
    consumer = client.subscribe(topic, "s", pulsar.ConsumerType.Shared, batch_index_ack_enabled=True)
    producer = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=100)
    for i in range(10):
        producer.send_async(str(i).encode(), lambda result, message_id: None)
    producer.flush()
    for message in receive_all(consumer, 10):
        if int(message.data()) % 2:
            consumer.acknowledge(message)
    consumer.close()
    again = client.subscribe(topic, "s", pulsar.ConsumerType.Shared, batch_index_ack_enabled=True)
    assert [message.data() for message in receive_all(again, 5)] == [b"0", b"2", b"4", b"6", b"8"]
    client.close()


def test_many_topics_producers_and_consumers_share_a_connection(client: pulsar.Client, topic: str) -> None:
    topics = [f"{topic}-{i}" for i in range(10)]
    consumers = [client.subscribe(name, "s") for name in topics]
    producers = [client.create_producer(name) for name in topics for _ in range(2)]
    for i, producer in enumerate(producers):
        producer.send(str(i).encode())
    for i, consumer in enumerate(consumers):
        assert sorted(int(message.data()) for message in receive_all(consumer, 2)) == [2 * i, 2 * i + 1]


def test_many_connections_work_at_once(broker: BrokerProcess, topic: str) -> None:
    clients = [new_client(broker.url) for _ in range(20)]
    consumer = clients[0].subscribe(topic, "s")
    for i, each in enumerate(clients):
        each.create_producer(topic).send(str(i).encode())
    assert sorted(int(message.data()) for message in receive_all(consumer, 20)) == list(range(20))
    for each in clients:
        each.close()


def test_a_service_url_may_be_http(broker: BrokerProcess, topic: str) -> None:
    client = new_client(broker.http_url)
    consumer = client.subscribe(topic, "s")
    client.create_producer(topic).send(b"by http")
    assert consumer.receive(30_000).data() == b"by http"
    client.close()


def test_a_short_name_is_in_public_default(client: pulsar.Client, topic: str) -> None:
    short = topic.rpartition("/")[2]
    consumer = client.subscribe(topic, "s")
    client.create_producer(short).send(b"short")
    assert consumer.receive(30_000).topic_name() == topic


def test_a_reader_starts_where_it_is_told(client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic, batching_enabled=False)
    ids = [producer.send(str(i).encode()) for i in range(5)]
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    assert [reader.read_next(10_000).data() for _ in range(5)] == [b"0", b"1", b"2", b"3", b"4"]
    assert not reader.has_message_available()
    later = client.create_reader(topic, ids[2])
    assert later.read_next(10_000).data() == b"3"
    latest = client.create_reader(topic, pulsar.MessageId.latest)
    producer.send(b"5")
    assert latest.read_next(10_000).data() == b"5"


def test_an_initial_position_holds_for_a_new_subscription_only(client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic, batching_enabled=False)
    producer.send(b"before")
    latest = client.subscribe(topic, "latest")
    earliest = client.subscribe(topic, "earliest", initial_position=pulsar.InitialPosition.Earliest)
    producer.send(b"after")
    assert latest.receive(30_000).data() == b"after"
    assert [message.data() for message in receive_all(earliest, 2)] == [b"before", b"after"]


def test_unsubscribe_forgets_the_subscription(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    producer.send(b"lost")
    consumer.unsubscribe()
    again = client.subscribe(topic, "s")
    assert_nothing_arrives(again)
    producer.send(b"seen")
    assert again.receive(30_000).data() == b"seen"


def test_a_missing_namespace_is_told(client: pulsar.Client) -> None:
    with pytest.raises(pulsar.TopicNotFound):
        client.create_producer("persistent://public/nowhere/t")


def test_health_and_metrics_answer(broker: BrokerProcess, client: pulsar.Client, topic: str) -> None:
    client.subscribe(topic, "s")
    client.create_producer(topic).send(b"counted")
    assert broker.get("/admin/v2/brokers/health") == "ok"
    until_metric(broker, lambda messages: messages == 1, "pulsar_in_messages_total", topic=topic)
    until_metric(broker, lambda backlog: backlog == 1, "pulsar_subscription_back_log", topic=topic, subscription="s")


def test_clients_reconnect_to_a_restarted_broker(own_broker: BrokerProcess, topic: str) -> None:
    client = new_client(own_broker.url)
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, batching_enabled=False)
    producer.send(b"before")
    assert own_broker.stop() == 0
    own_broker.start()
    producer.send(b"after")
    received = {consumer.receive(30_000).data()}
    while received != {b"before", b"after"}:
        received.add(consumer.receive(30_000).data())
    client.close()


def test_the_metrics_page_shows_the_journal(broker: BrokerProcess, client: pulsar.Client, topic: str) -> None:
    client.create_producer(topic).send(b"one")
    until_metric(broker, lambda entries: entries >= 1, "pybroker_store_journal_entries")
    until_metric(broker, lambda seconds: seconds > 0, "pybroker_store_journal_sync_seconds")
