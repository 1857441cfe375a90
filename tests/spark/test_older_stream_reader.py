"""What PySpark 4.0 and 4.1 ask of a stream's reader, in their order: each message is read once, also after a restart."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.unit.spark.fake_source import FakeSource

from pybroker.reading.entry_source import DataLoss
from pybroker.spark.reader.older_stream_reader import OlderStreamReader
from pybroker.spark.reader.open_stream import Declared
from pybroker.spark.reader.query_planning import Planner
from pybroker.spark.reader.reader_options import parse_read_options
from pybroker.spark.reader.reading_task import ReadTask
from pybroker.spark.reader.rows import offered_columns
from pybroker.spark.reader.streaming import StreamProgress

pytestmark = pytest.mark.spark
Entries = list[tuple[str, int, int]]


def reader_of(source: FakeSource, **options: str) -> OlderStreamReader:
    """A reader as a query has it after its start or restart."""
    given = {"service.url": "pulsar://localhost:6650", "startingOffsets": "earliest", "topicsPattern": "t.*", **options}
    parsed = parse_read_options(given)
    reader = OlderStreamReader(parsed, Declared(parsed, offered_columns(None, parsed), (None,)))
    planner = Planner(source, parsed)
    reader._opened = (source, planner, StreamProgress(planner))
    return reader


def written(document: Any) -> Any:
    """What comes back from a checkpoint."""
    return json.loads(json.dumps(document))


def batch(reader: OlderStreamReader, start: Any, end: Any) -> Entries:
    return [
        (one.topic.rpartition("/")[2], one.cut.ledger_id, entry_id)
        for task in reader.partitions(start, end)
        if isinstance(task, ReadTask)
        for one in task.ranges
        for entry_id in range(one.cut.first_entry_id, one.cut.end_entry_id)
    ]


def test_batches_follow_each_other() -> None:
    source = FakeSource()
    source.grow("t", 1, 3)
    reader = reader_of(source)
    start = written(reader.initialOffset())
    end = written(reader.latestOffset())
    assert batch(reader, start, end) == [("t", 1, 0), ("t", 1, 1), ("t", 1, 2)]
    assert written(reader.latestOffset()) == end
    source.grow("t", 1, 1)
    source.grow("t2", 5, 1)
    later = written(reader.latestOffset())
    reader.commit(end)
    assert batch(reader, end, later) == [("t", 1, 3), ("t2", 5, 0)]


@pytest.mark.parametrize("is_finished", [True, False])
def test_restarted_query_goes_on_at_its_checkpoint(is_finished: bool) -> None:
    source = FakeSource()
    source.grow("t", 1, 10)
    first = reader_of(source)
    start = written(first.initialOffset())
    end = written(first.latestOffset())
    source.grow("t", 1, 5)
    source.grow("t2", 4, 2)
    again = reader_of(source)
    if not is_finished:
        assert batch(again, start, end) == batch(first, start, end)
    later = written(again.latestOffset())
    assert batch(again, end, later) == [*(("t", 1, entry_id) for entry_id in range(10, 15)), ("t2", 4, 0), ("t2", 4, 1)]
    assert batch(again, later, written(again.latestOffset())) == []
    # Another restart without news makes a batch without entries at most.
    unchanged = reader_of(source)
    assert batch(unchanged, later, written(unchanged.latestOffset())) == []


@pytest.mark.parametrize(("starting", "count"), [("earliest", 10), ("latest", 0)])
def test_query_whose_end_is_asked_for_before_its_beginning_reads_up_to_there(starting: str, count: int) -> None:
    source = FakeSource()
    source.grow("t", 1, 10)
    reader = reader_of(source, startingOffsets=starting)
    end = written(reader.latestOffset())
    source.grow("t", 1, 3)
    start = written(reader.initialOffset())
    assert batch(reader, start, end) == [("t", 1, entry_id) for entry_id in range(count)]


def test_subscription_moves_with_what_spark_commits_alone() -> None:
    source = FakeSource()
    topic = source.grow("t", 1, 10)
    reader = reader_of(source, predefinedSubscription="progress")
    reader.initialOffset()
    end = written(reader.latestOffset())
    source.grow("t", 1, 5)
    reader.latestOffset()
    assert source.progress[topic, "progress"].entry_id == 0
    reader.commit(end)
    assert source.progress[topic, "progress"].entry_id == 10


@pytest.mark.parametrize("fails", [True, False])
def test_topic_deleted_before_a_restart_is_a_loss(fails: bool) -> None:
    source = FakeSource()
    for name in ("t1", "t2"):
        source.grow(name, 1, 2)
    first = reader_of(source)
    first.initialOffset()
    end = written(first.latestOffset())
    source.delete("t1")
    source.grow("t2", 1, 1)
    again = reader_of(source, failOnDataLoss=str(fails))
    later = written(again.latestOffset())
    if fails:
        with pytest.raises(DataLoss, match="t1 are lost: the topic has been deleted"):
            again.partitions(end, later)
    else:
        assert batch(again, end, later) == [("t2", 1, 2)]
