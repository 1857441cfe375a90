"""Compaction: triggered by REST on both brokers, and what those who read compacted get."""

import json
from typing import Any

import pulsar
from tests.differential.harness import Run, scenario
from tests.differential.scenarios_retention import Topic, id_of
from tests.support.raw_client import RawClient

Message = tuple[str | None, bytes]


def publish(topic: Topic, *messages: Message, **options: Any) -> None:
    producer = topic.client.create_producer(topic.name, producer_name="p", **{"batching_enabled": False, **options})
    for key, value in messages:
        producer.send_async(value, lambda *_: None, **({} if key is None else {"partition_key": key}))
    producer.flush()
    producer.close()


def internal(run: Run, path: str) -> Any:
    """What a GET answers, without a step."""
    return json.loads(run.http("GET", path, ..., "")[2])


def compact(topic: Topic, label: str) -> None:
    topic.run.rest(f"{label}: compact", "PUT", f"{topic.path}/compaction")
    topic.until(f"{label}: done", f"{topic.path}/compaction", lambda body: b"RUNNING" not in body)
    topic.run.rest(f"{label}: status", "GET", f"{topic.path}/compaction")


def read(topic: Topic, label: str, *, is_compacted: bool = True, start: Any = pulsar.MessageId.earliest) -> None:
    reader = topic.client.create_reader(topic.name, start, is_read_compacted=is_compacted)
    found = []
    while reader.has_message_available():
        message = reader.read_next(10_000)
        found.append(id_of(message.message_id(), key=message.partition_key(), value=message.data().decode()))
    reader.close()
    topic.run.step(label, found)


def view(topic: Topic, label: str) -> None:
    """The view as internal stats show it; the size is left out, as it is of what was stored, which differs."""
    stats = internal(topic.run, f"{topic.path}/internalStats")
    shown = stats["compactedLedger"]
    cursors = {name: sorted(cursor["properties"]) for name, cursor in stats["cursors"].items()}
    topic.run.step(label, {"entries": shown["entries"], "has": shown["ledgerId"] >= 0, "cursors": cursors})


@scenario
def compacted_messages(run: Run) -> None:
    """Replaced and deleted keys, messages without key, the live tail, a second compaction, nothing left."""
    topic = Topic(run)
    topic.publish(0)
    run.rest("before", "GET", f"{topic.path}/compaction")
    compact(topic, "empty")
    view(topic, "empty view")
    publish(
        topic, ("a", b"1"), ("b", b"1"), ("a", b"2"), (None, b"no key"), ("c", b"1"), ("b", b""), ("", b"empty key")
    )
    compact(topic, "first")
    read(topic, "compacted")
    read(topic, "everything", is_compacted=False)
    view(topic, "view")
    publish(topic, ("a", b"3"), ("d", b"1"))
    read(topic, "with the tail")
    compact(topic, "second")
    read(topic, "compacted again")
    publish(topic, *[(key, b"") for key in ("a", "c", "d", "")])
    compact(topic, "third")
    read(topic, "nothing is left")
    view(topic, "empty view at last")
    stats = internal(run, f"{topic.path}/stats")
    run.step("removed", stats["compaction"]["lastCompactionRemovedEventCount"])
    run.step("subscriptions", sorted(stats["subscriptions"]))
    run.rest("list of subscriptions", "GET", f"{topic.path}/subscriptions")


@scenario
def compacted_batches(run: Run) -> None:
    """What is left of batches, with each codec, and their indexes."""
    codecs = pulsar.CompressionType
    for codec in (codecs.NONE, codecs.LZ4, codecs.ZLib, codecs.ZSTD, codecs.SNAPPY):
        topic = Topic(run, codec.name)
        topic.publish(0)
        options = {"batching_enabled": True, "batching_max_publish_delay_ms": 2000, "compression_type": codec}
        publish(topic, ("a", b"1"), ("b", b"1"), (None, b"none"), ("a", b"2"), ("c", b"1"), **options)
        publish(topic, ("c", b"2"), ("d", b"1"), ("d", b""), **options)
        compact(topic, codec.name)
        read(topic, f"{codec.name} compacted")
        publish(topic, ("a", b"3"), **options)
        compact(topic, f"{codec.name} again")
        read(topic, f"{codec.name} compacted again")


@scenario
def compacted_reading_starts_in_the_middle(run: Run) -> None:
    """Readers from a message that is gone, seeks, durable subscriptions, the last message id."""
    topic = Topic(run)
    producer = topic.client.create_producer(topic.name, producer_name="p", batching_enabled=False)
    ids = [producer.send(b"%d" % index, partition_key=f"k{index % 3}") for index in range(9)]
    producer.send(b"", partition_key="k2")
    compact(topic, "all")
    for index in (0, 5, 6, 7, 8):
        read(topic, f"from {index}", start=ids[index])
    for is_compacted in (True, False):
        consumer = topic.client.subscribe(topic.name, f"last-{is_compacted}", is_read_compacted=is_compacted)
        run.step(f"last {is_compacted}", id_of(consumer.get_last_message_id()))
        consumer.close()
    for kind in (pulsar.ConsumerType.Exclusive, pulsar.ConsumerType.Failover):
        consumer = topic.client.subscribe(
            topic.name,
            kind.name,
            kind,
            is_read_compacted=True,
            initial_position=pulsar.InitialPosition.Earliest,
        )
        first = consumer.receive(10_000)
        run.step(f"{kind.name} first", id_of(first.message_id()))
        consumer.acknowledge_cumulative(first)
        consumer.close()
        consumer = topic.client.subscribe(topic.name, kind.name, kind, is_read_compacted=True)
        run.step(f"{kind.name} goes on", id_of(consumer.receive(10_000).message_id()))
        consumer.close()


@scenario
def compaction_refused(run: Run) -> None:
    """Where there is nothing to compact, and who may not read compacted."""
    topic = Topic(run)
    topic.publish(1)
    for method in ("PUT", "GET"):
        run.rest(f"{method} missing", method, f"{topic.missing}/compaction")
    run.rest_status("no such method", "DELETE", f"{topic.path}/compaction")
    with run.raw() as raw:
        for number, kind in enumerate(("Shared", "Key_Shared"), 1):
            run.step(kind, refusal(raw, topic.name, number, kind))
        run.step("non-persistent", refusal(raw, f"non-{topic.name}", 3, "Exclusive"))


def refusal(raw: RawClient, topic: str, number: int, kind: str) -> object:
    answer = raw.subscribe(topic, number, kind, subscription=f"s{number}", read_compacted=True)
    return [answer["type"], answer.get("error")]


@scenario
def compaction_of_partitions(run: Run) -> None:
    """A partitioned topic: asked as a whole, answered by its partitions."""
    topic = Topic(run)
    run.rest("partitions", "PUT", f"{topic.path}/partitions", 2)
    publish(topic, *[(f"k{index % 8}", b"%d" % index) for index in range(40)])
    run.rest("compact", "PUT", f"{topic.path}/compaction")
    run.rest_status("status", "GET", f"{topic.path}/compaction")
    for index in range(2):
        path = f"{topic.path}-partition-{index}/compaction"
        topic.until(f"{index} done", path, lambda body: b"SUCCESS" in body)
    reader = topic.client.create_reader(topic.name, pulsar.MessageId.earliest, is_read_compacted=True)
    found = [reader.read_next(10_000) for _ in range(8)]
    reader.close()
    run.step("compacted", sorted([each.partition_key(), each.data().decode()] for each in found))
