"""Streams read every message once, go on where they stopped, and show how far they are."""

import json
from pathlib import Path
from typing import Any

import pulsar
import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from tests.clients.conftest import admin, path_of, until
from tests.spark.conftest import HAS_READ_LIMITS
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
    shown = {"predefinedSubscription": "progress"}
    limits = [{"maxMessagesPerTrigger": "150"}, {"maxBytesPerTrigger": "2k"}]
    if not HAS_READ_LIMITS:
        for limit in limits:
            with pytest.raises(StreamingQueryException, match=r"need PySpark 4\.2"):
                run(read_stream(spark, broker, topic, **limit).load(), tmp_path / "refused")
        limits = [{}, {}]
    query = run(read_stream(spark, broker, topic, **limits[0], **shown).load(), tmp_path)
    batches = [each["numInputRows"] for each in query.recentProgress if each["numInputRows"]]
    assert batches == ([150, 150] if HAS_READ_LIMITS else [300])
    sent += publish(client, topic, 50, 300)
    run(read_stream(spark, broker, topic, **limits[1], **shown).load(), tmp_path)
    assert_same(spark.read.parquet(str(tmp_path / "rows")).collect(), sent)
    stats = admin(broker, "GET", path_of(topic) + "/stats").json["subscriptions"]["progress"]
    # Before 4.2 Spark reports the last batch of a run as committed in the next run.
    assert (stats["msgBacklog"] > 0) == (not HAS_READ_LIMITS)
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


def test_topic_deleted_under_a_running_query_leaves_it_alone(
    spark: Any, broker: BrokerProcess, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    options = {"topics": f"{topic}-a,{topic}-b", "startingOffsets": "earliest", "failOnDataLoss": "false"}
    where = {"service.url": broker.url, "admin.url": broker.http_url}
    sent = publish(client, f"{topic}-a", 10) + publish(client, f"{topic}-b", 10)
    frame = spark.readStream.format("pulsar").options(**where, **options).load()
    query = frame.writeStream.format("memory").queryName("left").start()
    until(lambda: spark.table("left").count() == len(sent) or not query.isActive, 300)
    admin(broker, "DELETE", path_of(f"{topic}-b") + "?force=true")
    sent += publish(client, f"{topic}-a", 10, 10)
    until(lambda: spark.table("left").count() == len(sent) or not query.isActive, 300)
    assert query.exception() is None
    assert_same(spark.table("left").collect(), sent)
    query.stop()
    with pytest.raises(PySparkException, match=f"{topic}-b"):
        spark.readStream.format("pulsar").options(**where, **{**options, "failOnDataLoss": "true"}).load()
