"""Messages that producers sent, and rows that Spark read, in a form that can be compared."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import pulsar
from tests.support.broker_process import BrokerProcess

from pybroker.model.names import TopicName
from pybroker.wire import pulsar_api_pb2 as pb


@dataclass(frozen=True)
class Sent:
    """All that a reader must see of a message."""

    topic: str
    value: bytes | None
    key: bytes | None
    properties: tuple[tuple[str, str], ...]
    event_time_ms: int | None
    message_id: tuple[int, int, int, int]


def publish(
    client: pulsar.Client, topic: str, count: int, serial: int = 0, *, batched: bool = True, **options: Any
) -> list[Sent]:
    """`count` messages with keys, properties and event times; every seventh has none of them."""
    producer = client.create_producer(
        topic,
        batching_enabled=batched,
        batching_max_messages=options.pop("batching_max_messages", 17),
        block_if_queue_full=True,
        **options,
    )
    sent: list[Sent] = []
    failures: list[Any] = []

    def remember(value: bytes, extra: dict[str, Any]) -> None:
        def told(result: pulsar.Result, message_id: pulsar._pulsar.MessageId) -> None:
            if result != pulsar.Result.Ok:
                failures.append(result)
                return
            # A producer on one partition is told of no partition.
            partition = TopicName.parse(topic).partition_index
            place = (message_id.ledger_id(), message_id.entry_id(), partition, message_id.batch_index())
            key = extra.get("partition_key")
            sent.append(
                Sent(
                    topic,
                    value,
                    key.encode() if key is not None else None,
                    tuple(sorted(extra.get("properties", {}).items())),
                    extra.get("event_timestamp"),
                    place,
                )
            )

        producer.send_async(value, told, **extra)

    for index in range(serial, serial + count):
        plain = index % 7 == 0
        extra = (
            {}
            if plain
            else {
                "partition_key": f"key-{index % 11}",
                "properties": {"n": str(index)},
                "event_timestamp": 1000 + index,
            }
        )
        remember(b"%d:" % index + b"x" * (index % 90), extra)
    producer.flush()
    producer.close()
    assert not failures
    return sent


def rows_as_sent(rows: list[Any]) -> list[Sent]:
    """Of all columns that a query has without further options."""
    found = []
    for row in rows:
        message_id = pb.MessageIdData.FromString(bytes(row["__messageId"]))
        event = row["__eventTime"]
        found.append(
            Sent(
                row["__topic"],
                None if row["value"] is None else bytes(row["value"]),
                None if row["__key"] is None else bytes(row["__key"]),
                tuple(sorted((row["__messageProperties"] or {}).items())),
                None if event is None else round(event.timestamp() * 1000),
                (message_id.ledgerId, message_id.entryId, message_id.partition, message_id.batch_index),
            )
        )
    return found


def assert_same(rows: list[Any], sent: list[Sent]) -> None:
    """As multisets; the difference is told."""
    found, wanted = Counter(rows_as_sent(rows)), Counter(sent)
    assert not wanted - found, f"lost: {list((wanted - found).items())[:3]}"
    assert not found - wanted, f"too many: {list((found - wanted).items())[:3]}"


def read(spark: Any, broker: BrokerProcess, topic: str, **options: Any) -> Any:
    """A batch data frame; `__` in an option's name is a dot."""
    reader = spark.read.format("pulsar").option("service.url", broker.url).option("admin.url", broker.http_url)
    if not {"topics", "topicsPattern"} & set(options):
        reader = reader.option("topic", topic)
    for key, value in options.items():
        reader = reader.option(key.replace("__", "."), value)
    return reader


def read_stream(spark: Any, broker: BrokerProcess, topic: str, **options: Any) -> Any:
    """The same as a stream from the beginning."""
    reader = spark.readStream.format("pulsar").option("service.url", broker.url).option("admin.url", broker.http_url)
    reader = reader.option("topic", topic).option("startingOffsets", "earliest")
    for key, value in options.items():
        reader = reader.option(key.replace("__", "."), value)
    return reader
