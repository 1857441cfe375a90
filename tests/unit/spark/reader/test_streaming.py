"""A stream reads every entry once, in batches that are the same when they are planned again, and says what is lost."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.spark.fake_source import ENTRY_BYTES, FakeSource

from pybroker.reading.entry_source import DataLoss, TopicMissing
from pybroker.reading.positions import Place, TopicPlan
from pybroker.spark.reader.admission import Limits
from pybroker.spark.reader.cuts import TopicRange
from pybroker.spark.reader.offsets import InvalidOffsets
from pybroker.spark.reader.query_planning import Planner, plan_batch
from pybroker.spark.reader.reader_options import parse_read_options
from pybroker.spark.reader.streaming import StreamProgress

PUBLIC = "persistent://public/default/"
ALL = Limits()


def stream(source: FakeSource, **options: str) -> StreamProgress:
    given_options = {"service.url": "pulsar://localhost:6650", "startingOffsets": "earliest", **options}
    if not {"topics", "topicsPattern"} & set(options):
        given_options["topic"] = options.get("topic", "t")
    if "startingTime" in options:
        del given_options["startingOffsets"]
    return StreamProgress(Planner(source, parse_read_options(given_options)))


def written(document: Any) -> Any:
    """What comes back from a checkpoint."""
    return json.loads(json.dumps(document))


def entries(tasks: list[tuple[TopicRange, ...]]) -> list[tuple[str, int, int]]:
    return [
        (one.topic.removeprefix(PUBLIC), one.cut.ledger_id, entry_id)
        for task in tasks
        for one in task
        for entry_id in range(one.cut.first_entry_id, one.cut.end_entry_id)
    ]


def follow(
    progress: StreamProgress, start: Any, limits: Limits = ALL, batches: int = 1000
) -> tuple[list[tuple[str, int, int]], Any]:
    """All entries until nothing new comes, and the last offset."""
    seen = []
    for _ in range(batches):
        end = written(progress.latest(start, limits))
        if end == start:
            break
        seen += entries(progress.tasks(start, end))
        start = end
    return seen, start


def test_a_stream_reads_what_is_there_and_what_comes() -> None:
    source = FakeSource()
    source.grow("t", 1, 3)
    progress = stream(source)
    seen, offset = follow(progress, written(progress.initial()))
    assert seen == [("t", 1, 0), ("t", 1, 1), ("t", 1, 2)]
    source.grow("t", 1, 1)
    source.grow("t", 5, 2)
    assert follow(progress, offset)[0] == [("t", 1, 3), ("t", 5, 0), ("t", 5, 1)]


def test_a_stream_begins_at_the_end_unless_it_is_told() -> None:
    source = FakeSource()
    source.grow("t", 1, 3)
    progress = stream(source, startingOffsets="latest")
    start = written(progress.initial())
    assert progress.latest(start, ALL) is start
    source.grow("t", 1, 1)
    assert follow(progress, start)[0] == [("t", 1, 3)]


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5), st.integers(0, 30)), max_size=15),
    st.integers(0, 30 * ENTRY_BYTES),
    st.integers(0, 40),
)
def test_limits_neither_lose_nor_double_an_entry(
    growth: list[tuple[int, int, int]], max_bytes: int, max_messages: int
) -> None:
    source = FakeSource()
    source.grow("t0", 1, 0)
    progress = stream(source, topicsPattern="t.*", splitBytes="64k")
    offset, seen = written(progress.initial()), []
    ledger_ids = [1] * 4
    for number, step, count in growth:
        ledger_ids[number] += step - 1
        source.grow(f"t{number}", ledger_ids[number], count)
        more, offset = follow(progress, offset, Limits(max_bytes, max_messages), batches=2)
        seen += more
    seen += follow(progress, offset, Limits(max_bytes, max_messages))[0]
    everything = [
        (topic.removeprefix(PUBLIC), number, entry_id)
        for topic, ledgers in source.ledgers.items()
        for number, count in ledgers.items()
        for entry_id in range(count)
    ]
    assert sorted(seen) == sorted(everything)


def test_a_batch_that_is_planned_again_is_the_same_whatever_happened_meanwhile() -> None:
    source = FakeSource()
    source.grow("t", 1, 500)
    progress = stream(source, splitBytes="64k")
    start = written(progress.initial())
    end = written(progress.latest(start, ALL))
    planned = progress.tasks(start, end)
    assert len(planned) > 3
    source.grow("t", 1, 300)
    source.grow("t", 2, 10)
    assert stream(source, splitBytes="64k").tasks(start, end) == planned
    # Trimmed meanwhile: the same tasks, which then say what is gone.
    source.trim("t", 1)
    assert stream(source, splitBytes="64k").tasks(start, end) == planned


def test_offsets_that_do_not_follow_each_other_are_planned_anew() -> None:
    source = FakeSource()
    source.grow("t", 1, 10)
    progress = stream(source)
    start = written(progress.initial())
    middle = written(progress.latest(start, Limits(size_bytes=4 * ENTRY_BYTES)))
    end = written(progress.latest(middle, ALL))
    assert len(entries(progress.tasks(middle, end))) == 6
    assert len(entries(progress.tasks(start, end))) == 10


def test_a_topic_without_news_is_not_read_again_with_its_neighbours() -> None:
    source = FakeSource()
    source.grow("a", 1, 5)
    source.grow("b", 2, 5)
    progress = stream(source, topics="a,b")
    _, offset = follow(progress, written(progress.initial()))
    source.grow("b", 2, 1)
    end = written(progress.latest(offset, ALL))
    assert entries(progress.tasks(offset, end)) == [("b", 2, 5)]


def test_new_topics_and_partitions_are_read_from_their_beginning_even_after_latest() -> None:
    source = FakeSource()
    source.partition_counts[PUBLIC + "p"] = 1
    source.grow("p-partition-0", 1, 3)
    progress = stream(source, topic="p", startingOffsets="latest")
    start = written(progress.initial())
    source.partition_counts[PUBLIC + "p"] = 2
    source.grow("p-partition-1", 7, 2)
    seen, offset = follow(progress, start)
    assert seen == [("p-partition-1", 7, 0), ("p-partition-1", 7, 1)]
    assert follow(progress, offset)[0] == []


def test_a_topic_of_many_that_are_named_is_found_by_one_list() -> None:
    source = FakeSource()
    names = [f"n{index}" for index in range(20)]
    for name in names:
        source.grow(name, 1, 1)
    progress = stream(source, topics=",".join(names))
    assert len(follow(progress, written(progress.initial()))[0]) == 20
    source.delete("n7")
    with pytest.raises(TopicMissing):
        stream(source, topics=",".join(names)).initial()


def test_available_now_stops_at_what_was_there_when_it_began() -> None:
    source = FakeSource()
    source.grow("t1", 1, 10)
    progress = stream(source, topicsPattern="t.*")
    start = written(progress.initial())
    progress.freeze()
    source.grow("t1", 1, 5)
    source.grow("t2", 2, 5)
    seen, offset = follow(progress, start, Limits(size_bytes=3 * ENTRY_BYTES))
    assert seen == [("t1", 1, entry_id) for entry_id in range(10)]
    # The next run of the query goes on there.
    later = stream(source, topicsPattern="t.*")
    later.freeze()
    assert len(follow(later, offset)[0]) == 10


def test_a_time_begins_and_ends_a_stream() -> None:
    source = FakeSource()
    source.grow("t", 1, 10)
    progress = stream(source, startingTime="1004", endingTime="1008")
    seen, offset = follow(progress, written(progress.initial()))
    assert seen == [("t", 1, entry_id) for entry_id in range(4, 8)]
    source.grow("t", 1, 5)
    assert follow(progress, offset)[0] == []


def test_a_batch_index_leaves_out_messages_of_the_first_entry_only() -> None:
    source = FakeSource()
    source.grow("t", 1, 10)
    progress = stream(source, startingOffsets='{"v":1,"t":{"t":{"l":1,"e":4,"b":3}}}')
    start = written(progress.initial())
    end = written(progress.latest(start, Limits(size_bytes=2 * ENTRY_BYTES)))
    (task,) = progress.tasks(start, end)
    assert [(one.cut.first_entry_id, one.from_batch_index) for one in task] == [(4, 3)]
    later = written(progress.latest(end, ALL))
    assert [one.from_batch_index for task in progress.tasks(end, later) for one in task] == [0]


def test_a_trimmed_start_is_a_loss_with_what_was_asked_and_found() -> None:
    source = FakeSource()
    source.grow("t", 1, 10)
    progress = stream(source)
    start = written(progress.initial())
    source.grow("t", 2, 10)
    source.trim("t", 1)
    with pytest.raises(DataLoss, match=r"asked from 1:0.*failOnDataLoss=false"):
        progress.latest(start, ALL)


def test_a_loss_is_only_told_where_the_options_say_so(caplog: pytest.LogCaptureFixture) -> None:
    source = FakeSource()
    source.grow("t", 1, 10)
    progress = stream(source, failOnDataLoss="false")
    start = written(progress.initial())
    source.grow("t", 2, 10)
    source.trim("t", 1)
    seen, _ = follow(progress, start)
    assert seen == [("t", 2, entry_id) for entry_id in range(10)]
    assert "spark.entries_lost" in caplog.text


def test_a_start_at_the_end_of_a_ledger_that_was_trimmed_has_lost_nothing() -> None:
    source = FakeSource()
    source.grow("t", 1, 10)
    progress = stream(source)
    _, offset = follow(progress, written(progress.initial()))
    source.grow("t", 2, 3)
    source.trim("t", 1)
    assert len(follow(progress, offset)[0]) == 3


def test_a_deleted_topic_is_a_loss() -> None:
    source = FakeSource()
    for name in ("t1", "t2"):
        source.grow(name, 1, 1)
    progress = stream(source, topicsPattern="t.*")
    _, offset = follow(progress, written(progress.initial()))
    source.delete("t1")
    with pytest.raises(DataLoss, match="t1"):
        progress.latest(offset, ALL)
    tolerant = stream(source, topicsPattern="t.*", failOnDataLoss="false")
    after = written(tolerant.latest(offset, ALL))
    assert list(after["t"]) == [PUBLIC + "t2"]
    assert tolerant.tasks(offset, after) == []


def test_deleted_topics_of_a_list_leave_the_query_and_come_back(caplog: pytest.LogCaptureFixture) -> None:
    source = FakeSource()
    for name in ("t1", "t2"):
        source.grow(name, 1, 1)
    progress = stream(source, topics="t1,t2", failOnDataLoss="false")
    _, offset = follow(progress, written(progress.initial()))
    source.delete("t1")
    source.grow("t2", 1, 1)
    seen, offset = follow(progress, offset)
    assert seen == [("t2", 1, 1)]
    assert list(offset["t"]) == [PUBLIC + "t2"]
    assert "spark.entries_lost" in caplog.text
    source.delete("t2")
    seen, offset = follow(progress, offset)
    assert (seen, offset["t"]) == ([], {})
    assert follow(progress, offset) == ([], offset)  # without any topic the query waits
    source.grow("t1", 5, 2)
    assert follow(progress, offset)[0] == [("t1", 5, 0), ("t1", 5, 1)]


class DeletedMeanwhile(FakeSource):
    """Topics of `deleted` are still listed, and deleted before they are planned."""

    def __init__(self) -> None:
        super().__init__()
        self.deleted: list[str] = []

    def plan(self, topic: str, start: Place | None = None, end: Place | None = None) -> TopicPlan:
        self._delete()
        return super().plan(topic, start, end)

    def place_at_time(self, topic: str, publish_time_ms: int) -> Place:
        self._delete()
        return super().place_at_time(topic, publish_time_ms)

    def _delete(self) -> None:
        while self.deleted:
            self.delete(self.deleted.pop())


@pytest.mark.parametrize("options", [{}, {"endingTime": "5000000"}, {"startingTime": "0"}])
@pytest.mark.parametrize("fails", [True, False])
def test_topic_deleted_between_list_and_plan_is_a_loss_of_that_topic(fails: bool, options: dict[str, str]) -> None:
    source = DeletedMeanwhile()
    for name in ("t1", "t2", "t3"):
        source.grow(name, 1, 1)
    progress = stream(source, topics="t1,t2,t3", failOnDataLoss=str(fails), **options)
    start = written(progress.initial())
    source.deleted = ["t1", "t3"]
    if fails:
        with pytest.raises(DataLoss, match=r"messages of .*/t1 are lost: the topic has been deleted"):
            progress.latest(start, ALL)
        return
    end = written(progress.latest(start, ALL))
    assert entries(progress.tasks(start, end)) == [("t2", 1, 0)]
    # New topics that are deleted before they are read for the first time.
    source.grow("t1", 7, 1)
    source.deleted = ["t1"]
    assert list(progress.latest(end, ALL)["t"]) == [PUBLIC + "t2"]


def test_topic_deleted_meanwhile_ends_neither_report_nor_preparation() -> None:
    source = DeletedMeanwhile()
    for name in ("t1", "t2", "t3"):
        source.grow(name, 1, 1)
    progress = stream(source, topics="t1,t2,t3")
    source.deleted = ["t1"]
    assert list(progress.report_latest()["t"]) == [PUBLIC + "t2", PUBLIC + "t3"]
    source.deleted = ["t3"]
    progress.freeze()


def test_query_begins_without_missing_topics_where_loss_is_allowed(caplog: pytest.LogCaptureFixture) -> None:
    source = FakeSource()
    source.grow("t1", 1, 1)
    options = {"service.url": "pulsar://localhost:6650", "topics": "t1,t2"}
    with pytest.raises(TopicMissing, match="t2"):
        plan_batch(Planner(source, parse_read_options(options)))
    planner = Planner(source, parse_read_options({**options, "failOnDataLoss": "false"}))
    assert [(one.topic, one.cut.first_entry_id) for task in plan_batch(planner) for one in task] == [(PUBLIC + "t1", 0)]
    assert "spark.topic_missing" in caplog.text
    source.delete("t1")
    with pytest.raises(TopicMissing, match="t1"):
        planner.topics_once_there()


def test_a_named_topic_that_is_not_there_is_an_error_or_is_waited_for() -> None:
    source = FakeSource()
    with pytest.raises(TopicMissing):
        stream(source).initial()
    progress = stream(source, waitingForNonExistedTopic="true")
    start = written(progress.initial())
    assert progress.latest(start, ALL) is start
    source.grow("t", 1, 2)
    assert len(follow(progress, start)[0]) == 2


def test_offsets_of_topics_that_are_not_read_are_refused() -> None:
    source = FakeSource()
    source.grow("t", 1, 2)
    with pytest.raises(InvalidOffsets, match="typo"):
        stream(source, startingOffsets='{"typo": "latest"}').initial()


def test_progress_is_shown_from_the_start_and_after_each_batch() -> None:
    source = FakeSource()
    source.grow("t", 1, 5)
    progress = stream(source, predefinedSubscription="spark")
    start = written(progress.initial())
    key = (PUBLIC + "t", "spark")
    assert source.progress[key] == Place(1, 0)  # Before anything is read: what is to be read is held.
    end = written(progress.latest(start, ALL))
    assert source.progress[key] == Place(1, 0)
    progress.commit(end)
    assert source.progress[key] == Place(1, 5)


def test_without_a_subscription_no_progress_is_shown() -> None:
    source = FakeSource()
    source.grow("t", 1, 5)
    progress = stream(source)
    progress.commit(written(progress.latest(written(progress.initial()), ALL)))
    assert not source.progress
