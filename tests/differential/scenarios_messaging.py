"""Publishing and consuming through the official client."""

import contextlib
from functools import partial
from typing import Any

import pulsar
from tests.differential.harness import QUIET_MS, Run, scenario

EARLIEST = pulsar.InitialPosition.Earliest
LATEST = pulsar.InitialPosition.Latest
EXCLUSIVE = pulsar.ConsumerType.Exclusive
SHARED = pulsar.ConsumerType.Shared


def send_numbered(producer: Any, count: int, prefix: str = "m") -> None:
    for index in range(count):
        producer.send(f"{prefix}{index}".encode())


def subscribe(client: Any, topic: str, subscription: str = "sub", **options: Any) -> Any:
    options = {"consumer_type": EXCLUSIVE, "initial_position": EARLIEST, **options}
    return client.subscribe(topic, subscription, **options)


@scenario
def publish_consume_exclusive(run: Run) -> None:
    """Keys, properties and event times arrive as they were sent, in order, once."""
    client = run.client()
    consumer = subscribe(client, run.topic())
    producer = client.create_producer(run.topic(), batching_enabled=False)
    run.step("producer name", producer.producer_name())
    run.step("last sequence id before", producer.last_sequence_id())
    for index in range(10):
        producer.send(
            f"m{index}".encode(),
            properties={"index": str(index), "empty": ""},
            partition_key=f"key-{index % 3}",
            ordering_key=f"order-{index % 2}",
            event_timestamp=1_700_000_000_000 + index,
        )
    producer.send(b"")
    run.step("last sequence id after", producer.last_sequence_id())
    messages = run.receive(consumer, 11)
    run.record_messages("received", messages)
    for message in messages:
        consumer.acknowledge(message)
    run.record_messages("rest", run.receive_rest(consumer))
    consumer.close()
    run.record_messages("after reconnect", run.receive_rest(subscribe(client, run.topic())))


@scenario
def publish_consume_batched(run: Run) -> None:
    """Messages of batches come one by one with their index in the batch."""
    client = run.client()
    consumer = subscribe(client, run.topic())
    send_one_batch(run, client, 10)
    messages = run.receive(consumer, 10)
    run.record_messages("received", messages)
    for message in messages[:5]:
        consumer.acknowledge(message)
    consumer.close()
    consumer = subscribe(client, run.topic())
    messages = run.receive(consumer, 10)
    run.record_messages("after half of the batch was acknowledged", messages)
    for message in messages:
        consumer.acknowledge(message)
    consumer.close()
    run.record_messages("after all was acknowledged", run.receive_rest(subscribe(client, run.topic())))


def send_one_batch(run: Run, client: Any, count: int, **options: Any) -> None:
    producer = client.create_producer(
        run.topic(),
        batching_enabled=True,
        batching_max_messages=count,
        batching_max_publish_delay_ms=10_000,
        **options,
    )
    for index in range(count):
        producer.send_async(
            f"b{index}".encode() * 20, callback=None, properties={"index": str(index)}, partition_key="k"
        )
    producer.flush()
    producer.close()


def compressed(run: Run, codec: pulsar.CompressionType) -> None:
    client = run.client()
    consumer = subscribe(client, run.topic())
    producer = client.create_producer(run.topic(), compression_type=codec, batching_enabled=False)
    for size in (1, 100, 100_000):  # the client gives up on an empty one with ZLIB
        producer.send(bytes(i % 7 + 65 for i in range(size)), properties={"size": str(size)})
    send_one_batch(run, client, 10, compression_type=codec)
    run.record_messages("received", run.receive(consumer, 13))


@scenario
def compression_lz4(run: Run) -> None:
    """LZ4, single and batched."""
    compressed(run, pulsar.CompressionType.LZ4)


@scenario
def compression_zlib(run: Run) -> None:
    """ZLIB, single and batched."""
    compressed(run, pulsar.CompressionType.ZLib)


@scenario
def compression_zstd(run: Run) -> None:
    """ZSTD, single and batched."""
    compressed(run, pulsar.CompressionType.ZSTD)


@scenario
def compression_snappy(run: Run) -> None:
    """SNAPPY, single and batched."""
    compressed(run, pulsar.CompressionType.SNAPPY)


@scenario
def large_messages(run: Run) -> None:
    """Up to the limit a message arrives whole; above it the client refuses."""
    client = run.client()
    consumer = subscribe(client, run.topic())
    producer = client.create_producer(run.topic(), batching_enabled=False)
    for size in (1_000_000, 5_242_000):
        run.attempt(f"send {size}", partial(producer.send, b"x" * size))
    run.attempt("send too much", lambda: producer.send(b"x" * 5_300_000))
    run.record_messages("received", run.receive(consumer, 2))


@scenario
def shared_every_message_once(run: Run) -> None:
    """Two Shared consumers get every message between them, none twice, and both get some."""
    client = run.client()
    consumers = [
        subscribe(client, run.topic(), consumer_type=SHARED, receiver_queue_size=10, consumer_name=f"c{each}")
        for each in range(2)
    ]
    producer = client.create_producer(run.topic(), batching_enabled=False)
    send_numbered(producer, 100)
    shares: list[list[tuple[int, Any]]] = []
    while not shares or shares[-1]:
        shares.append([(each, message) for each in range(2) for message in some(run, consumers[each])])
    received = [pair for share in shares for pair in share]
    run.step("payloads", sorted(message.data().decode() for _, message in received))
    run.step("redelivery counts", sorted({message.redelivery_count() for _, message in received}))
    run.step("both got some", len({each for each, _ in received}))


def some(run: Run, consumer: Any) -> list[Any]:
    messages = run.receive_rest(consumer)
    for message in messages:
        consumer.acknowledge(message)
    return messages


@scenario
def shared_negative_ack_counts(run: Run) -> None:
    """Each negative acknowledgement raises the redelivery count of that message only."""
    client = run.client()
    consumer = subscribe(client, run.topic(), consumer_type=SHARED, negative_ack_redelivery_delay_ms=100)
    producer = client.create_producer(run.topic(), batching_enabled=False)
    send_numbered(producer, 6)
    for round_number in range(3):
        messages = run.receive(consumer, 6 if round_number == 0 else 3)
        in_order = sorted(messages, key=lambda message: message.data())
        run.record_messages(f"round {round_number}", in_order)
        for index, message in enumerate(in_order):
            if round_number == 0 and index % 2 == 0:
                consumer.acknowledge(message)
            else:
                consumer.negative_acknowledge(message)
    messages = run.receive(consumer, 3)
    for message in messages:
        consumer.acknowledge(message)
    run.record_messages("rest", run.receive_rest(consumer))


@scenario
def shared_consumer_leaves(run: Run) -> None:
    """What a Shared consumer leaves unacknowledged goes to the other one, with its redelivery count."""
    client = run.client()
    first = subscribe(client, run.topic(), consumer_type=SHARED)
    producer = client.create_producer(run.topic(), batching_enabled=False)
    send_numbered(producer, 4)
    messages = run.receive(first, 4)
    first.acknowledge(messages[1])
    second = subscribe(client, run.topic(), consumer_type=SHARED)
    run.record_messages("second before", run.receive_rest(second))
    first.close()
    run.record_messages("second after", sorted(run.receive(second, 3), key=lambda message: message.data()))


@scenario
def exclusive_redelivery_counts(run: Run) -> None:
    """Redelivery of all unacknowledged messages and its counts on an Exclusive subscription."""
    client = run.client()
    consumer = subscribe(client, run.topic(), negative_ack_redelivery_delay_ms=100)
    producer = client.create_producer(run.topic(), batching_enabled=False)
    send_numbered(producer, 4)
    messages = run.receive(consumer, 4)
    consumer.acknowledge(messages[0])
    consumer.redeliver_unacknowledged_messages()
    run.record_messages("after redeliver", run.receive(consumer, 3))
    consumer.redeliver_unacknowledged_messages()
    messages = run.receive(consumer, 3)
    run.record_messages("after redeliver again", messages)
    consumer.negative_acknowledge(messages[2])
    run.record_messages("after one negative acknowledgement", run.receive_rest(consumer))
    consumer.close()
    run.record_messages("after reconnect", run.receive(subscribe(client, run.topic()), 3))


@scenario
def cumulative_ack_then_reconnect(run: Run) -> None:
    """A cumulative acknowledgement covers everything up to it and survives a reconnect."""
    client = run.client()
    consumer = subscribe(client, run.topic())
    producer = client.create_producer(run.topic(), batching_enabled=False)
    send_numbered(producer, 10)
    messages = run.receive(consumer, 10)
    consumer.acknowledge_cumulative(messages[5])
    client.close()
    client = run.client()
    consumer = subscribe(client, run.topic())
    run.record_messages("after reconnect", run.receive(consumer, 4))
    run.record_messages("rest", run.receive_rest(consumer))


@scenario
def ack_holes_then_reconnect(run: Run) -> None:
    """Individually acknowledged messages do not come again, those between them do."""
    client = run.client()
    consumer = subscribe(client, run.topic())
    producer = client.create_producer(run.topic(), batching_enabled=False)
    send_numbered(producer, 10)
    for index, message in enumerate(run.receive(consumer, 10)):
        if index in (1, 4, 5, 8):
            consumer.acknowledge(message)
    client.close()
    client = run.client()
    consumer = subscribe(client, run.topic())
    run.record_messages("after reconnect", run.receive(consumer, 6))
    run.record_messages("rest", run.receive_rest(consumer))


@scenario
def consumer_busy(run: Run) -> None:
    """One consumer at a time on Exclusive; another type is refused while one is connected."""
    first, second = run.client(), run.client()
    consumer = subscribe(first, run.topic())
    run.attempt("second on another connection", lambda: subscribe(second, run.topic()))
    run.attempt("second on the same connection", lambda: subscribe(first, run.topic()))
    run.attempt("another type", lambda: subscribe(second, run.topic(), consumer_type=SHARED))
    run.attempt("another subscription", lambda: subscribe(second, run.topic(), "other"))
    consumer.close()
    shared = run.attempt("another type once it has left", lambda: subscribe(second, run.topic(), consumer_type=SHARED))
    run.attempt("exclusive while shared", lambda: subscribe(first, run.topic()))
    run.attempt("a second shared one", lambda: subscribe(first, run.topic(), consumer_type=SHARED))
    shared.close()


@scenario
def producer_busy(run: Run) -> None:
    """A producer name is taken once on a topic, and free again when its owner has closed."""
    first, second = run.client(), run.client()
    producer = first.create_producer(run.topic(), producer_name="p")
    run.attempt("same name, other connection", lambda: second.create_producer(run.topic(), producer_name="p"))
    run.attempt("same name, same connection", lambda: first.create_producer(run.topic(), producer_name="p"))
    run.attempt("same name, other topic", lambda: second.create_producer(run.topic("other"), producer_name="p"))
    producer.close()
    run.attempt("same name once it is free", lambda: second.create_producer(run.topic(), producer_name="p"))


@scenario
def initial_positions(run: Run) -> None:
    """Earliest and latest say where a new subscription starts; an existing one goes on where it was."""
    client = run.client()
    producer = client.create_producer(run.topic(), batching_enabled=False)
    send_numbered(producer, 3, "before")
    earliest = subscribe(client, run.topic(), "early", initial_position=EARLIEST)
    latest = subscribe(client, run.topic(), "late", initial_position=LATEST)
    send_numbered(producer, 2, "after")
    run.record_messages("earliest", run.receive(earliest, 5))
    run.record_messages("latest", run.receive(latest, 2))
    latest.close()
    again = subscribe(client, run.topic(), "late", initial_position=EARLIEST)
    run.record_messages("existing, asked for earliest", run.receive_rest(again))


@scenario
def unsubscribe_and_subscribe_again(run: Run) -> None:
    """Unsubscribing forgets the position."""
    client = run.client()
    consumer = subscribe(client, run.topic())
    producer = client.create_producer(run.topic(), batching_enabled=False)
    send_numbered(producer, 3)
    consumer.acknowledge_cumulative(run.receive(consumer, 3)[2])
    run.attempt("unsubscribe", consumer.unsubscribe)
    run.record_messages("a new one from earliest", run.receive_rest(subscribe(client, run.topic())))


@scenario
def last_message_id(run: Run) -> None:
    """The last message id of a topic is that of the last message received."""
    client = run.client()
    consumer = subscribe(client, run.topic())
    producer = client.create_producer(run.topic(), batching_enabled=False)
    send_numbered(producer, 5)
    messages = run.receive(consumer, 5)
    last = run.attempt("get last message id", consumer.get_last_message_id)
    if last is not None:
        run.step("last message id", last == messages[-1].message_id())


@scenario
def reader_start_positions(run: Run) -> None:
    """Readers start where they are told, without or with the message itself, and know whether more is there."""
    client = run.client()
    producer = client.create_producer(run.topic(), batching_enabled=False)
    ids = [producer.send(b"m%d" % index) for index in range(5)]
    starts = {
        "earliest": (pulsar.MessageId.earliest, False),
        "latest": (pulsar.MessageId.latest, False),
        "the third": (ids[2], False),
        "the third, inclusive": (ids[2], True),
        "the last": (ids[4], False),
        "the last, inclusive": (ids[4], True),
    }
    readers = {}
    for name, (start, inclusive) in starts.items():
        reader = readers[name] = client.create_reader(run.topic(), start, start_message_id_inclusive=inclusive)
        run.step(f"{name}: more is there", reader.has_message_available())
        run.record_messages(name, read_rest(run, reader))
        run.step(f"{name}: more is there after that", reader.has_message_available())
    producer.send(b"new")
    for name, reader in readers.items():
        run.record_messages(f"{name}, a new one", read_rest(run, reader))


def read_rest(run: Run, reader: Any) -> list[Any]:
    received: list[Any] = []
    with contextlib.suppress(pulsar.Timeout):
        while True:
            received.append(reader.read_next(QUIET_MS))
    return received


@scenario
def reader_in_a_batch(run: Run) -> None:
    """A reader that starts within a batch gets the messages behind its start only."""
    client = run.client()
    send_one_batch(run, client, 6)
    whole = read_rest(run, client.create_reader(run.topic(), pulsar.MessageId.earliest))
    run.record_messages("all", whole)
    for inclusive in (False, True):
        reader = client.create_reader(run.topic(), whole[2].message_id(), start_message_id_inclusive=inclusive)
        run.record_messages(f"from the third, inclusive {inclusive}", read_rest(run, reader))


def lookups(run: Run, client: Any) -> None:
    missing = "persistent://public/missing-namespace/t"
    run.attempt("partitions of a new topic", lambda: run.step("partitions", client.get_topic_partitions(run.topic())))
    run.attempt("partitions, missing namespace", lambda: client.get_topic_partitions(missing))
    run.attempt("producer, missing namespace", lambda: client.create_producer(missing))
    run.attempt("consumer, missing namespace", lambda: subscribe(client, missing))
    run.attempt("producer, missing tenant", lambda: client.create_producer("persistent://nobody/ns/t"))
    run.attempt("producer, bad name", lambda: client.create_producer("persistent://public/t"))
    run.attempt("producer, short name", lambda: client.create_producer(f"{run.token}-short").close())
    consumer = run.attempt("consumer, full name", lambda: subscribe(client, run.topic("short")))
    producer = client.create_producer(f"{run.token}-short")
    producer.send(b"by short name")
    run.record_messages("received", run.receive(consumer, 1))


@scenario
def lookup_binary(run: Run) -> None:
    """Lookups over the binary protocol, and what a missing namespace means to the client."""
    lookups(run, run.client())


@scenario
def lookup_http(run: Run) -> None:
    """The same with an http:// service url."""
    lookups(run, run.client(run.broker.http_url))


@scenario
def many_topics_one_connection(run: Run) -> None:
    """Several producers and consumers share a connection without mixing their messages."""
    client = run.client()
    topics = [run.topic(f"t{index}") for index in range(5)]
    consumers = [subscribe(client, topic) for topic in topics]
    producers = [client.create_producer(topic, batching_enabled=False) for topic in topics]
    for round_number in range(3):
        for index, producer in enumerate(producers):
            producer.send(f"topic {index} round {round_number}".encode())
    for index, consumer in enumerate(consumers):
        run.record_messages(f"topic {index}", run.receive(consumer, 3) + run.receive_rest(consumer))


@scenario
def two_subscriptions(run: Run) -> None:
    """Each subscription gets all messages and keeps its own position."""
    client = run.client()
    consumers = [subscribe(client, run.topic(), name) for name in ("a", "b")]
    producer = client.create_producer(run.topic(), batching_enabled=False)
    send_numbered(producer, 4)
    consumers[0].acknowledge_cumulative(run.receive(consumers[0], 4)[3])
    run.record_messages("b", run.receive(consumers[1], 4))
    for consumer in consumers:
        consumer.close()
    run.record_messages("a again", run.receive_rest(subscribe(client, run.topic(), "a")))
    run.record_messages("b again", run.receive(subscribe(client, run.topic(), "b"), 4))
