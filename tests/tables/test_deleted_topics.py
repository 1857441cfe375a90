"""A topic that is deleted under a query leaves it alone with a warning, or ends it with a clear error; it is not created again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pulsar
import pyarrow as pa
import pytest
from tests.clients.conftest import admin, path_of
from tests.support.broker_process import BrokerProcess
from tests.tables.stored import publish

from pybroker.reading.entry_source import DataLoss, EntrySource
from pybroker.reading.lossy_reads import LossyReads
from pybroker.reading.sources import open_source
from pybroker.reading.typed import TypedReader
from pybroker.spark.reader.admission import Limits
from pybroker.spark.reader.cuts import TopicRange
from pybroker.spark.reader.opened import source_options
from pybroker.spark.reader.query_planning import Planner
from pybroker.spark.reader.reader_options import ReadOptions, parse_read_options
from pybroker.spark.reader.rows import offered_columns, reading_of
from pybroker.spark.reader.streaming import StreamProgress

ALL = Limits()


class Stream:
    """What Spark does with a streaming query, without Spark."""

    def __init__(self, source: EntrySource, options: ReadOptions) -> None:
        self.source = source
        self.options = options
        self.progress = StreamProgress(Planner(source, options))
        self.offset: Any = written(self.progress.initial())

    def plan(self) -> list[TopicRange]:
        end = written(self.progress.latest(self.offset, ALL))
        tasks = self.progress.tasks(self.offset, end)
        self.offset = end
        return [one for task in tasks for one in task]

    def rows(self, ranges: list[TopicRange]) -> list[bytes]:
        columns: pa.Schema = offered_columns(None, self.options)
        source = self.source if self.options.fail_on_data_loss else LossyReads(self.source)
        reader = TypedReader(source, reading_of(None, columns, self.options))
        return [value for one in ranges for batch in reader.read(one.entries) for value in batch["value"].to_pylist()]


def written(document: Any) -> Any:
    """What comes back from a checkpoint."""
    return json.loads(json.dumps(document))


@pytest.fixture(params=["segment", "bulk", "broker"])
def options(request: pytest.FixtureRequest, broker: BrokerProcess, topic: str) -> dict[str, str]:
    return {
        "service.url": broker.url,
        "admin.url": broker.http_url,
        "topics": f"{topic}-a,{topic}-b",
        "readMode": request.param,
        "startingOffsets": "earliest",
        "predefinedSubscription": "progress",
    }


@pytest.fixture
def tolerant(options: dict[str, str]) -> Iterator[Stream]:
    parsed = parse_read_options({**options, "failOnDataLoss": "false"})
    with closing(open_source(source_options(parsed))) as source:
        yield Stream(source, parsed)


def topics_of(broker: BrokerProcess, topic: str) -> list[str]:
    listed = admin(broker, "GET", "/persistent/public/default").json
    return sorted(name for name in listed if name.startswith(f"{topic}-"))


@pytest.fixture(autouse=True)
def sent(client: pulsar.Client, topic: str) -> dict[str, list[bytes]]:
    return {name: publish(client, f"{topic}-{name}", 5) for name in ("a", "b")}


def test_deleted_topic_leaves_a_query_that_allows_loss(
    broker: BrokerProcess,
    client: pulsar.Client,
    topic: str,
    sent: dict[str, list[bytes]],
    tolerant: Stream,
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert sorted(tolerant.rows(tolerant.plan())) == sorted(sent["a"] + sent["b"])
    more = publish(client, f"{topic}-a", 5, serial=5)
    admin(broker, "DELETE", path_of(f"{topic}-b") + "?force=true")
    assert list(tolerant.progress.report_latest()["t"]) == [f"{topic}-a"]
    tolerant.progress.commit(tolerant.offset)
    assert tolerant.rows(tolerant.plan()) == more
    assert list(tolerant.offset["t"]) == [f"{topic}-a"]
    assert "spark.entries_lost" in caplog.text
    assert topics_of(broker, topic) == [f"{topic}-a"]
    # Created again, it is read from its beginning.
    again = publish(client, f"{topic}-b", 3, serial=20)
    assert tolerant.rows(tolerant.plan()) == again
    stats = admin(broker, "GET", path_of(f"{topic}-b") + "/stats?getPreciseBacklog=true").json
    assert stats["subscriptions"]["progress"]["msgBacklog"] == 3


def test_task_of_a_topic_that_is_deleted_after_planning_reads_the_other_topics(
    broker: BrokerProcess, topic: str, sent: dict[str, list[bytes]], tolerant: Stream
) -> None:
    ranges = tolerant.plan()
    assert {one.topic for one in ranges} == {f"{topic}-a", f"{topic}-b"}
    admin(broker, "DELETE", path_of(f"{topic}-b") + "?force=true")
    assert tolerant.rows(ranges) == sent["a"]


def test_deleted_topic_ends_a_query_that_forbids_loss(
    broker: BrokerProcess, topic: str, options: dict[str, str]
) -> None:
    parsed = parse_read_options(options)
    with closing(open_source(source_options(parsed))) as source:
        strict = Stream(source, parsed)
        ranges = strict.plan()
        admin(broker, "DELETE", path_of(f"{topic}-b") + "?force=true")
        with pytest.raises(DataLoss, match=f"{topic}-b"):
            strict.rows(ranges)
        with pytest.raises(DataLoss, match=rf"messages of topic {topic}-b are lost: .*deleted.*failOnDataLoss=false"):
            strict.plan()
