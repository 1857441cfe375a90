"""Streams read every message once, go on where they stopped, and show how far they are."""

import json
from pathlib import Path
from typing import Any

import pulsar
import pytest
from tests.clients.conftest import admin, path_of
from tests.spark.sent import assert_same, publish, read_stream
from tests.support.broker_process import BrokerProcess

pytestmark = pytest.mark.spark


def run(frame: Any, directory: Path) -> Any:
    """Everything that there is, once, into files; the query when it has ended."""
    writer = frame.writeStream.format("parquet").option("checkpointLocation", str(directory / "checkpoint"))
    query = writer.option("path", str(directory / "rows")).trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    return query


def test_a_stream_goes_on_where_it_stopped_within_its_limits(
    spark: Any, broker: BrokerProcess, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    # By count alone: a batch that the client closes by time makes limits, which are estimates, cut elsewhere.
    sent = publish(client, topic, 300, batching_max_messages=10, batching_max_publish_delay_ms=60_000)
    query = run(
        read_stream(spark, broker, topic, maxMessagesPerTrigger="150", predefinedSubscription="progress").load(),
        tmp_path,
    )
    assert [each["numInputRows"] for each in query.recentProgress if each["numInputRows"]] == [150, 150]
    sent += publish(client, topic, 50, 300)
    run(read_stream(spark, broker, topic, maxBytesPerTrigger="2k", predefinedSubscription="progress").load(), tmp_path)
    assert_same(spark.read.parquet(str(tmp_path / "rows")).collect(), sent)
    stats = admin(broker, "GET", path_of(topic) + "/stats").json["subscriptions"]["progress"]
    assert stats["msgBacklog"] == 0
    # What Spark keeps can be read, and is understood as the start of another query.
    offset = max((tmp_path / "checkpoint" / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    text = offset.read_text().splitlines()[-1]
    assert set(json.loads(text)["t"]) == {topic}
    frame = read_stream(spark, broker, topic, startingOffsets=text).load()
    run(frame, tmp_path / "later")
    assert spark.read.schema("value binary").parquet(str(tmp_path / "later" / "rows")).count() == 0


def test_partitions_that_are_added_are_found(
    spark: Any, broker: BrokerProcess, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    admin(broker, "PUT", path_of(topic) + "/partitions", 1)
    sent = publish(client, topic + "-partition-0", 20)
    run(read_stream(spark, broker, topic).load(), tmp_path)
    admin(broker, "POST", path_of(topic) + "/partitions", 2)
    sent += publish(client, topic + "-partition-1", 20)
    run(read_stream(spark, broker, topic).load(), tmp_path)
    assert_same(spark.read.parquet(str(tmp_path / "rows")).collect(), sent)
