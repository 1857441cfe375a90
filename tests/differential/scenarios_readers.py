"""Readers, markers, many topics at once, chunks, and what a message means to those who read it."""

import contextlib
from typing import Any

import pulsar
from tests.differential.harness import Run, scenario
from tests.differential.scenarios_operations import path_of, show
from tests.support.raw_client import RawClient, Type

from pybroker.wire import pulsar_api_pb2 as pb

EARLIEST, LATEST = pulsar.MessageId.earliest, pulsar.MessageId.latest
FROM_THE_BEGINNING = pb.MessageIdData(ledgerId=2**64 - 1, entryId=2**64 - 1)


def read_all(reader: pulsar.Reader) -> list[str]:
    """What it says is there."""
    found: list[str] = []
    while reader.has_message_available():
        found.append(reader.read_next(10_000).data().decode())
    return found


def send(run: Run, topic: str, count: int, first: int = 0) -> list[pulsar.MessageId]:
    producer = run.client().create_producer(topic, batching_enabled=False)
    return [producer.send(b"m%d" % number) for number in range(first, first + count)]


def send_batch(run: Run, topic: str, count: int) -> None:
    producer = run.client().create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=60_000)
    for number in range(count):
        producer.send_async(b"b%d" % number, None)
    producer.flush()


def raw_consumer(run: Run, raw: RawClient, label: str, topic: str, **options: Any) -> None:
    """Record how a subscription is answered and what its consumer gets."""
    run.step(f"{label}: subscribe", raw.subscribe(topic, **options))
    raw.send(Type.FLOW, consumer_id=options.get("consumer_id", 1), messagePermits=100)
    run.step(label, raw.replies())


@scenario
def readers_starts(run: Run) -> None:
    """A reader from every kind of start, with and without it, on an empty topic, singles and batches."""
    topic = run.topic()
    client = run.client()
    for start, name in ((EARLIEST, "earliest"), (LATEST, "latest")):
        run.step(f"empty, {name}", client.create_reader(topic, start).has_message_available())
    ids = send(run, topic, 3)
    send_batch(run, topic, 3)
    reader = client.create_reader(topic, EARLIEST)
    ids += [reader.read_next(10_000).message_id() for _ in range(6)][3:]
    starts = {"earliest": EARLIEST, "latest": LATEST, **{f"id {number}": each for number, each in enumerate(ids)}}
    for name, start in starts.items():
        for is_inclusive in (False, True):
            label = f"{name}, {'with' if is_inclusive else 'without'} it"
            reader = client.create_reader(topic, start, start_message_id_inclusive=is_inclusive)
            run.step(label, read_all(reader))
            reader.close()


@scenario
def readers_seek(run: Run) -> None:
    """A reader seeks to messages, times and both ends, and says whether there is more."""
    topic = run.topic()
    with run.raw() as raw:
        raw.open_producer(topic)
        for number in range(4):
            raw.send_message(1, number, b"m%d" % number, metadata={"publish_time": 1000 + 10 * number})
            raw.reply()
    reader = run.client().create_reader(topic, EARLIEST)
    ids = [reader.read_next(10_000).message_id() for _ in range(4)]
    targets = {"first": ids[0], "last": ids[3], "earliest": EARLIEST, "latest": LATEST}
    targets |= {f"time {time_ms}": time_ms for time_ms in (1, 1010, 1015, 1030, 1031)}
    for name, target in targets.items():
        reader.seek(target)
        run.step(name, read_all(reader))


@scenario
def readers_of_hashes(run: Run) -> None:
    """Sticky ranges on each type: an Exclusive consumer with ranges gets its hashes only, as the Java reader asks for it."""
    topic = run.topic()
    ranges = pb.KeySharedMeta(keySharedMode=pb.KeySharedMode.STICKY)
    ranges.hashRanges.add(start=0, end=30_000)
    with run.raw() as raw:
        raw.open_producer(topic)
        for number in range(8):
            raw.send_message(1, number, b"k%d" % number, metadata={"partition_key": f"k{number}"})
            raw.reply()
        for number, (kind, durable) in enumerate((k, d) for k in ("Exclusive", "Key_Shared") for d in (False, True)):
            raw_consumer(
                run,
                raw,
                f"{kind} {'durable' if durable else 'reader'}",
                topic,
                consumer_id=number,
                sub_type=kind,
                subscription=f"s{number}",
                durable=durable,
                keySharedMeta=ranges,
                start_message_id=FROM_THE_BEGINNING,
            )


@scenario
def readers_of_partitions(run: Run) -> None:
    """A reader of a partitioned topic reads all partitions, and knows when it has."""
    topic = run.topic()
    client = run.client()
    run.rest("partitions", "PUT", f"{path_of(topic)}/partitions", 3)
    run.step("empty", client.create_reader(topic, EARLIEST).has_message_available())
    producer = client.create_producer(topic, batching_enabled=False)
    for number in range(9):
        producer.send(b"m%d" % number, partition_key=f"k{number}")
    reader = client.create_reader(topic, EARLIEST)
    run.step("all", sorted(read_all(reader)))
    reader.seek(1)
    run.step("again", sorted(read_all(reader)))
    run.step("latest", read_all(client.create_reader(topic, LATEST)))


@scenario
def readers_leave_nothing(run: Run) -> None:
    """The subscriptions of readers: names, types, while they are there and afterwards."""
    topic = run.topic()
    client = run.client()
    send(run, topic, 2)
    reader = client.create_reader(topic, EARLIEST, subscription_role_prefix=run.tenant("role"))
    names = run.http("GET", f"{path_of(topic)}/subscriptions", ..., "application/json")[2].decode()
    role = names.strip('[]"').partition("-reader-")[0]
    run.step("while it is there", role)
    read_all(reader)
    reader.close()
    run.rest("after it", "GET", f"{path_of(topic)}/subscriptions")


@scenario
def readers_pass_over_markers(run: Run) -> None:
    """Messages with a marker type are stored, counted, shown by REST, acknowledged for everybody and given to nobody."""
    topic = run.topic()
    with run.raw() as raw:
        raw.open_producer(topic)
        run.step("subscribe", raw.subscribe(topic))
        raw.publish(1, 1)
        for number, marker_type in enumerate((10, 11, 13, 20, 21, 22), 1):
            raw.send_message(1, number, b"marker", metadata={"marker_type": marker_type})
            run.step(f"marker {marker_type}", raw.reply())
        raw.send_message(1, 7, b"marker", metadata={"marker_type": 10}, marker=True)
        run.step("marker, announced", raw.reply())
        raw.publish(1, 1, first=8)
        raw.send(Type.FLOW, consumer_id=1, messagePermits=2)
        run.step("with two permits", raw.replies())
        for number, kind in enumerate(("Shared", "Failover", "Key_Shared"), 2):
            raw.subscribe(topic, number, kind, subscription=kind)
            raw.send(Type.FLOW, consumer_id=number, messagePermits=2)
            messages = [each for each in raw.replies(1.5) if each["type"] == "MESSAGE"]
            run.step(kind, messages)
    show(run, "next by peek", f"{path_of(topic)}/subscription/sub/position/2")
    show(run, "second in the topic", f"{path_of(topic)}/examinemessage?initialPosition=earliest&messagePosition=2")


@scenario
def readers_last_message(run: Run) -> None:
    """The last message id: without any, single, batch, and with a marker behind it."""
    topic = run.topic()
    with run.raw() as raw:
        raw.open_producer(topic)
        raw.subscribe(topic)
        run.step("none", raw.request(Type.GET_LAST_MESSAGE_ID, consumer_id=1))
        raw.publish(1, 1)
        run.step("single", raw.request(Type.GET_LAST_MESSAGE_ID, consumer_id=1))
        raw.send_message(1, 5, batch=[b"a", b"b"])
        raw.reply()
        run.step("batch", raw.request(Type.GET_LAST_MESSAGE_ID, consumer_id=1))
        raw.send_message(1, 9, b"marker", metadata={"marker_type": 10})
        raw.reply()
        run.step("marker", raw.request(Type.GET_LAST_MESSAGE_ID, consumer_id=1))


@scenario
def readers_null_values(run: Run) -> None:
    """No value is not an empty value; keys and flags come as they were sent, alone and in REST."""
    topic = run.topic()
    fields: list[dict[str, Any]] = [
        {"null_value": True, "partition_key": "k"},
        {},
        {"null_partition_key": True},
        {"partition_key": "azE=", "partition_key_b64_encoded": True, "ordering_key": b"order"},
    ]
    with run.raw() as raw:
        raw.open_producer(topic)
        for number, each in enumerate(fields):
            raw.send_message(1, number, b"", metadata=each)
            raw.reply()
        raw_consumer(run, raw, "raw", topic)
    consumer = run.client().subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
    received = run.receive(consumer, len(fields))
    run.record_messages("client", received)
    run.step("null", [message.has_null_value() for message in received])
    for number in range(1, len(fields) + 1):
        show(run, f"REST {number}", f"{path_of(topic)}/subscription/sub/position/{number}")


@scenario
def readers_interwoven_chunks(run: Run) -> None:
    """Chunks of several producers between each other on each type; what the statistics say; an incomplete one."""
    topic = run.topic()
    with run.raw() as raw:
        for producer_id in (1, 2):
            raw.open_producer(topic, producer_id, producer_name=f"{run.token}-p{producer_id}")
        for index in range(3):
            for producer_id in (1, 2):
                if (producer_id, index) == (2, 2):
                    continue  # never comes
                fields = {"uuid": f"u{producer_id}", "chunk_id": index, "num_chunks_from_msg": 3}
                fields |= {"total_chunk_msg_size": 12, "uncompressed_size": 12}
                raw.send_message(producer_id, 5, b"%d-%d " % (producer_id, index), metadata=fields, is_chunk=True)
                run.step(f"chunk {producer_id}-{index}", raw.reply())
        raw.send_message(1, 6, b"whole")
        raw.reply()
        for number, kind in enumerate(("Exclusive", "Shared"), 1):
            raw_consumer(run, raw, kind, topic, consumer_id=number, sub_type=kind, subscription=kind)
    client = run.client()
    consumer = client.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
    received = run.receive(consumer, 2)
    run.record_messages("client", received)
    for message in received:
        consumer.acknowledge(message)
    consumer.close()
    body = run.rest("position", "GET", f"{path_of(topic)}/subscription/s/position/1", ...)
    run.step("incomplete one", isinstance(body, str))


@scenario
def readers_several_topics(run: Run) -> None:
    """One consumer of two topics: negative acknowledgement, seek by time, unsubscribe."""
    topics = [run.topic("a"), run.topic("b")]
    client = run.client()
    kind = pulsar.ConsumerType.Shared
    consumer = client.subscribe(
        topics,
        "s",
        kind,
        initial_position=pulsar.InitialPosition.Earliest,
        negative_ack_redelivery_delay_ms=10,
    )
    for topic in topics:
        send(run, topic, 3)

    def record(label: str, count: int) -> list[Any]:
        received = run.receive(consumer, count)
        ordered = sorted(received, key=lambda message: (message.topic_name(), message.data()))
        run.step(label, [[m.topic_name(), m.data().decode(), m.redelivery_count()] for m in ordered])
        return received

    for message in record("first", 6):
        if message.data() == b"m1":
            consumer.negative_acknowledge(message)
        else:
            consumer.acknowledge(message)
    for message in record("given back", 2):
        consumer.acknowledge(message)
    run.attempt("seek by time", lambda: consumer.seek(1))
    record("after the seek", 6)
    run.attempt("unsubscribe", consumer.unsubscribe)
    for topic in topics:
        run.rest(f"subscriptions {topics.index(topic)}", "GET", f"{path_of(topic)}/subscriptions")
    with contextlib.suppress(pulsar.PulsarException):
        consumer.close()
