"""Spark reads from and writes to Apache Pulsar itself, over the binary protocol."""

import secrets
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest
from tests.clients.conftest import new_client
from tests.spark.sent import assert_same, publish
from tests.support.reference import Reference, reference_broker
from tests.support.rest import call

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.java]


@pytest.fixture(scope="module")
def reference() -> Iterator[Reference]:
    with reference_broker() as broker:
        yield broker


@pytest.fixture(scope="module")
def client(reference: Reference) -> Iterator[pulsar.Client]:
    connected = new_client(reference.url)
    yield connected
    connected.close()


@pytest.fixture
def topic() -> str:
    return f"persistent://public/default/spark-{secrets.token_hex(4)}"


def test_batches_are_read_with_and_without_the_address_of_its_admin_api(
    spark: Any, reference: Reference, client: pulsar.Client, topic: str
) -> None:
    path = topic.replace("://", "/")
    assert call(f"{reference.http_url}/admin/v2/{path}/partitions", "PUT", body=2).status == 204
    sent = []
    for index in range(2):
        # Several ledgers, and entries of one message and of many.
        sent += publish(client, f"{topic}-partition-{index}", 150, batched=False)
        sent += publish(client, f"{topic}-partition-{index}", 400, 150, compression_type=pulsar.CompressionType.ZSTD)
    reader = spark.read.format("pulsar").option("service.url", reference.url).option("topic", topic)
    frame = reader.option("minPartitions", "4").load()
    assert frame.rdd.getNumPartitions() > 2
    assert_same(frame.collect(), sent)
    assert_same(reader.option("admin.url", reference.http_url).load().collect(), sent)


def test_a_stream_goes_on_where_it_stopped_and_shows_its_progress(
    spark: Any, reference: Reference, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    reader = spark.readStream.format("pulsar").option("service.url", reference.url).option("topic", topic)
    reader = reader.option("startingOffsets", "earliest").option("predefinedSubscription", "progress")
    sent = []
    for serial in (0, 300):
        sent += publish(client, topic, 300, serial, batching_max_messages=10)
        writer = reader.option("maxBytesPerTrigger", "16k").load().writeStream.format("parquet")
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).option(
            "path", str(tmp_path / "rows")
        )
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(120)
    assert_same(spark.read.parquet(str(tmp_path / "rows")).collect(), sent)
    stats = call(f"{reference.http_url}/admin/v2/{topic.replace('://', '/')}/stats").json
    assert stats["subscriptions"]["progress"]["msgBacklog"] == 0


@pytest.mark.parametrize("delivery", ["at-least-once", "effectively-once"])
def test_a_stream_is_written_each_row_once(
    spark: Any, reference: Reference, client: pulsar.Client, topic: str, tmp_path: Path, delivery: str
) -> None:
    source = f"{topic}-source"
    sent = publish(client, source, 500)
    reader = spark.readStream.format("pulsar").option("service.url", reference.url).option("topic", source)
    rows = reader.option("startingOffsets", "earliest").load()
    rows = rows.select("value", "__key", "__eventTime", "__messageProperties")
    writer = rows.writeStream.format("pulsar").option("service.url", reference.url).option("topic", topic)
    checkpoint = tmp_path / "checkpoint"
    for _ in range(2):
        started = writer.option("delivery", delivery).option("checkpointLocation", str(checkpoint))
        assert started.trigger(availableNow=True).start().awaitTermination(120)
        if delivery == "effectively-once":
            # As a driver leaves it that dies before it notes that the batch is complete: it is run again.
            for commit in (checkpoint / "commits").glob("*0*"):
                commit.unlink()
    found = spark.read.format("pulsar").option("service.url", reference.url).option("topic", topic).load().collect()
    # Places and topic are others; all else is what was sent.
    assert Counter(map(_content, found)) == Counter(
        (each.value, each.key, each.properties, each.event_time_ms) for each in sent
    )


def _content(row: Any) -> tuple[bytes, bytes | None, tuple[tuple[str, str], ...], int | None]:
    key, event = row["__key"], row["__eventTime"]
    return (
        bytes(row["value"]),
        None if key is None else bytes(key),
        tuple(sorted((row["__messageProperties"] or {}).items())),
        None if event is None else round(event.timestamp() * 1000),
    )
