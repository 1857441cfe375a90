"""Where losing entries is allowed: all entries that are not damaged come, and what is left out is told."""

import logging
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pybroker.columns.entry_run import EntryRun
from pybroker.reading.entry_source import DataLoss, EntrySource, ReadingFailed, TopicMissing
from pybroker.reading.lossy_reads import LossyReads
from pybroker.reading.positions import EntryRange, Place, TopicPlan

TOPIC = "persistent://public/default/t"


class Damaged(EntrySource):
    """A ledger of which some entries cannot be read; what comes before one of them is given first, in runs of three."""

    def __init__(self, damaged: set[int], error: type[ReadingFailed] = DataLoss) -> None:
        self.damaged = damaged
        self.error = error
        self.read_count = 0

    def read(self, entries: EntryRange) -> Iterator[EntryRun]:
        self.read_count += 1
        first, end = entries.first_entry_id, entries.end_entry_id
        stop = min((each for each in self.damaged if first <= each < end), default=end)
        for begin in range(first, stop, 3):
            count = min(3, stop - begin)
            yield EntryRun(entries.ledger_id, begin, b"x", np.zeros(count, np.int64), np.ones(count, np.int64))
        if stop < end:
            raise self.error(f"{stop} is damaged")

    def partitions(self, topic: str) -> list[str]:
        return [topic]

    def topics(self, namespace: str) -> list[str]:
        return []

    def plan(self, topic: str, start: Place | None = None, end: Place | None = None) -> TopicPlan:
        raise NotImplementedError

    def place_at_time(self, topic: str, publish_time_ms: int) -> Place:
        raise NotImplementedError

    def schema(self, topic: str, version: bytes | None = None) -> None:
        return None

    def show_progress(self, topic: str, subscription: str, place: Place) -> None:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


def left(source: EntrySource, first: int, end: int) -> list[int]:
    runs: Sequence[EntryRun] = list(LossyReads(source).read(EntryRange(TOPIC, 1, first, end)))
    return [run.first_entry_id + index for run in runs for index in range(run.entry_count)]


@given(st.sets(st.integers(0, 60)), st.integers(0, 30), st.integers(0, 40))
def test_all_entries_come_that_are_not_damaged_when_damage_is_short(damaged: set[int], first: int, count: int) -> None:
    end = first + count
    longest = run = 0
    for entry_id in range(first, end):
        run = run + 1 if entry_id in damaged else 0
        longest = max(longest, run)
    found = left(Damaged(damaged), first, end)
    intact = [each for each in range(first, end) if each not in damaged]
    assert sorted(set(found)) == found
    assert set(found) <= set(intact)
    if longest < 16:
        assert found == intact


@given(st.integers(1, 5000), st.integers(0, 5000), st.integers(0, 5000))
def test_long_damage_is_stepped_over_to_its_very_end_with_few_questions(before: int, damaged: int, behind: int) -> None:
    source = Damaged(set(range(before, before + damaged)))
    total = before + damaged + behind
    assert left(source, 0, total) == [*range(before), *range(before + damaged, total)]
    assert source.read_count < 60


def test_a_topic_that_is_gone_is_not_searched() -> None:
    source = Damaged(set(range(100)), TopicMissing)
    assert left(source, 0, 100) == []
    assert source.read_count == 1


def test_a_slow_broker_has_lost_nothing() -> None:
    with pytest.raises(ReadingFailed, match="50 is damaged"):
        left(Damaged({50}, ReadingFailed), 0, 100)


def test_what_is_left_out_is_told_with_its_place(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        left(Damaged({7, 8}), 0, 20)
    (record,) = caplog.records
    assert record.getMessage() == "reading.entries_lost"
    fields = record.__dict__["fields"]
    assert (fields["topic"], fields["ledger_id"], fields["first_entry_id"], fields["entries"]) == (TOPIC, 1, 7, 2)
