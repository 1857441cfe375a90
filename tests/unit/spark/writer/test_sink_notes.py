"""What an effectively-once sink concludes from its notes: nothing is lost, whatever an attempt sends and wherever it dies."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pybroker.spark.writer.sink_notes import (
    Resumption,
    Share,
    SinkFenced,
    SinkState,
    Writer,
    claim_note,
    complete_note,
    sent_note,
)

SHARE = Share(5, 0, "t")


def state_of(*notes: bytes) -> SinkState:
    state = SinkState()
    for note in notes:
        state.fold(note)
    return state


class Stored:
    """A topic that deduplicates by name and sequence id, and the notes beside it."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.last: dict[int, int] = {}
        self.state = state_of(claim_note(Writer("q", "r", 5), takes_over=False))

    def attempt(self, entries: list[tuple[int, ...]], segment: int, dies_after: int) -> int:
        """One attempt to send these entries; it dies after so many steps. How many rows it counts as stored twice."""
        writer = Writer("q", "r", 5)
        noted = self.state.shares.get(SHARE, [])
        generation = noted[-1].generation if noted else 0
        resumption = Resumption(noted, self.last.get(generation, -1))
        row = 0
        waiting: list[tuple[int, tuple[int, ...]]] = []
        doubled = 0

        def flush() -> bool:
            nonlocal dies_after
            if not waiting:
                return True
            first = waiting[0][0] - len(waiting[0][1])
            self.state.fold(sent_note(writer, SHARE, generation, first, [(end, hash(rows)) for end, rows in waiting]))
            for end, rows in waiting:
                if dies_after <= 0:
                    return False
                dies_after -= 1
                start = end - len(rows)
                if start > self.last.get(generation, -1):  # a duplicate is judged by its first row
                    self.rows += rows
                    self.last[generation] = end - 1
            waiting.clear()
            return True

        for rows in entries:
            row += len(rows)
            if not resumption.is_over and not waiting:
                if resumption.is_stored(row, hash(rows)):
                    continue
                doubled = resumption.doubled_rows
                if resumption.needs_new_name:
                    generation += 1
                    while self.last.get(generation, -1) >= 0:
                        generation += 1
            waiting.append((row, rows))
            if len(waiting) >= segment and not flush():
                return doubled
        flush()
        return doubled


entry = st.lists(st.integers(0, 3), min_size=1, max_size=3).map(tuple)
plan = st.lists(entry, max_size=8)


@given(plan, st.lists(st.tuples(st.integers(1, 4), st.integers(0, 10)), max_size=5))
def test_the_same_rows_sent_again_are_stored_once(
    entries: list[tuple[int, ...]], deaths: list[tuple[int, int]]
) -> None:
    topic = Stored()
    for segment, dies_after in deaths:
        assert topic.attempt(entries, segment, dies_after) == 0
    topic.attempt(entries, 3, 1000)
    assert topic.rows == [row for rows in entries for row in rows]


@given(st.lists(st.tuples(plan, st.integers(1, 4), st.integers(0, 10)), max_size=5), plan)
def test_other_rows_in_each_attempt_lose_nothing_of_the_last(
    attempts: list[tuple[list[tuple[int, ...]], int, int]], last: list[tuple[int, ...]]
) -> None:
    topic = Stored()
    for entries, segment, dies_after in attempts:
        topic.attempt(entries, segment, dies_after)
    topic.attempt(last, 2, 1000)
    wanted = [row for rows in last for row in rows]
    for value in set(wanted):
        assert topic.rows.count(value) >= wanted.count(value)


def test_a_row_that_is_stored_without_a_note_is_never_taken_for_another() -> None:
    resumption = Resumption([], 7)
    assert not resumption.is_stored(4, 1)
    assert resumption.needs_new_name
    assert resumption.doubled_rows == 8


def test_whoever_claims_first_has_the_sink_unless_the_other_takes_over() -> None:
    first, other = Writer("one", "r1", 0), Writer("two", "r2", 0)
    state = state_of(claim_note(first, takes_over=False), claim_note(other, takes_over=False))
    state.admit(first, "s")
    with pytest.raises(SinkFenced, match=r"belongs to the query one.*takeOver"):
        state.admit(other, "s")
    state.fold(claim_note(other, takes_over=True))
    state.admit(other, "s")
    with pytest.raises(SinkFenced, match="two"):
        state.admit(first, "s")


def test_a_later_run_replaces_an_earlier_one_also_behind_a_complete_batch() -> None:
    old, new = Writer("q", "r1", 3), Writer("q", "r2", 4)
    state = state_of(claim_note(old, takes_over=False), claim_note(new, takes_over=False))
    with pytest.raises(SinkFenced, match="replaced"):
        state.admit(old, "s")
    state.admit(new, "s")
    later = state_of(complete_note(new, 2, 10, state.runs), claim_note(old, takes_over=False))
    with pytest.raises(SinkFenced, match="replaced"):
        later.admit(old, "s")
    assert later.is_complete(new)
    assert not later.is_complete(Writer("q", "r2", 5))


def test_a_note_of_another_version_is_refused() -> None:
    with pytest.raises(ValueError, match="a newer pybroker"):
        SinkState().fold(b'{"v":2}')
