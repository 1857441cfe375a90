"""Ledgers that may be deleted: acknowledged by every cursor, expired or too many, and never the current one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pybroker.ledgers.ledger_store import LedgerSummary
from pybroker.managed_ledger.cursor_state import CursorState
from pybroker.managed_ledger.ledger_list import LedgerList
from pybroker.managed_ledger.retention import KEEP_ALL, RetentionLimits, removable
from pybroker.model.position import EARLIEST, LATEST, Position

NOW_MS = 1_000_000
ENTRY_BYTES = 10


def ledgers_of(*counts: int, ages_ms: tuple[int, ...] | None = None, open_from: int | None = None) -> LedgerList:
    """Ledgers 1, 2, 3, ... with so many entries of 10 bytes, closed at these ages; open from index `open_from` on (the
    last).
    """
    ledgers = LedgerList()
    for index, count in enumerate(counts):
        ledgers.add_ledger(index + 1)
        ledgers.added(index + 1, count, count, count * ENTRY_BYTES)
    for index in range(len(counts) - 1 if open_from is None else open_from):
        count = counts[index]
        closed_ms = NOW_MS - (ages_ms[index] if ages_ms else 0)
        ledgers.close_ledger(LedgerSummary(index + 1, count, count, count * ENTRY_BYTES), closed_ms)
    return ledgers


def removed(ledgers: LedgerList, slowest: Position, retention: RetentionLimits) -> list[int]:
    """With a cursor at `slowest` and one behind it."""
    cursors = [CursorState(ledgers, position) for position in (LATEST, slowest)]
    return removable(ledgers, ledgers.ledger_ids()[-1], cursors, retention, NOW_MS)


def cursor_of(ledgers: LedgerList, *acknowledged: int, mark: Position = EARLIEST) -> CursorState:
    """Return a cursor that has acknowledged all of these ledgers."""
    state = CursorState(ledgers, mark)
    for ledger_id in acknowledged:
        state.acknowledge(ledger_id, range(ledgers.entry_count_of(ledger_id)))
    return state


NOTHING = RetentionLimits()


def test_without_retention_whatever_lies_behind_the_slowest_cursor_goes() -> None:
    ledgers = ledgers_of(4, 4, 4, 4)
    assert removed(ledgers, EARLIEST, NOTHING) == []
    assert removed(ledgers, Position(1, 2), NOTHING) == []
    assert removed(ledgers, Position(1, 3), NOTHING) == [1]
    assert removed(ledgers, Position(2, 0), NOTHING) == [1]
    assert removed(ledgers, Position(3, 3), NOTHING) == [1, 2, 3]
    assert removed(ledgers, LATEST, NOTHING) == [1, 2, 3], "the current ledger stays"


def test_time_keeps_what_was_closed_less_long_ago() -> None:
    ledgers = ledgers_of(4, 4, 4, 4, ages_ms=(500, 400, 300))
    assert removed(ledgers, LATEST, RetentionLimits(400, -1)) == [1, 2]
    assert removed(ledgers, LATEST, RetentionLimits(401, -1)) == [1]
    assert removed(ledgers, Position(1, 3), RetentionLimits(300, -1)) == [1], "a cursor keeps what time does not"


def test_size_keeps_the_newest_ledgers_as_long_as_without_one_more_there_would_be_too_little() -> None:
    ledgers = ledgers_of(4, 4, 4, 4)  # 160 bytes
    assert removed(ledgers, LATEST, RetentionLimits(-1, 120)) == [1]
    assert removed(ledgers, LATEST, RetentionLimits(-1, 121)) == []
    assert removed(ledgers, LATEST, RetentionLimits(-1, 80)) == [1, 2]
    assert removed(ledgers, LATEST, RetentionLimits(-1, 1)) == [1, 2, 3]


def test_what_either_limit_lets_go_goes() -> None:
    ledgers = ledgers_of(4, 4, 4, 4, ages_ms=(500, 400, 300))
    assert removed(ledgers, LATEST, RetentionLimits(500, 80)) == [1, 2]
    assert removed(ledgers, LATEST, RetentionLimits(300, 10_000)) == [1, 2, 3]


@pytest.mark.parametrize("retention", [RetentionLimits(0, -1), RetentionLimits(-1, 0), RetentionLimits(0, 10_000)])
def test_zero_of_either_keeps_nothing(retention: RetentionLimits) -> None:
    assert removed(ledgers_of(4, 4, 4), LATEST, retention) == [1, 2]


def test_minus_one_of_both_keeps_everything() -> None:
    assert removed(ledgers_of(4, 4, 4, ages_ms=(900_000, 900_000)), LATEST, KEEP_ALL) == []


def test_a_clock_that_was_set_back_keeps_nothing_for_ever() -> None:
    assert removed(ledgers_of(4, 4, ages_ms=(-5_000,)), LATEST, NOTHING) == [1]
    assert removed(ledgers_of(4, 4, ages_ms=(-5_000,)), LATEST, RetentionLimits(1, -1)) == []


def test_empty_ledgers_go_wherever_they_are() -> None:
    ledgers = ledgers_of(0, 4, 0, 4, 0, 0)
    assert removed(ledgers, EARLIEST, KEEP_ALL) == [1, 3, 5]


def test_what_is_not_sealed_stays_with_all_that_follows() -> None:
    ledgers = ledgers_of(4, 4, 4, open_from=0)
    ledgers.close_ledger(LedgerSummary(2, 4, 4, 40), 0)
    assert removable(ledgers, 3, (), NOTHING, NOW_MS) == []


def test_the_current_ledger_of_a_terminated_stream_stays_although_it_is_sealed() -> None:
    ledgers = ledgers_of(4, 4, open_from=2)
    assert removable(ledgers, 2, (), NOTHING, NOW_MS) == [1]


def test_a_needed_ledger_keeps_no_other() -> None:
    ledgers = ledgers_of(4, 4, 4, 4)
    one = cursor_of(ledgers, 2, 3)
    assert removable(ledgers, 4, [one], NOTHING, NOW_MS) == [2, 3]
    one.acknowledge(1, [0, 1, 3])
    assert removable(ledgers, 4, [one], NOTHING, NOW_MS) == [2, 3]
    other = cursor_of(ledgers, 1, 3)
    assert removable(ledgers, 4, [one, other], NOTHING, NOW_MS) == [3], "all cursors have to agree"
    assert removable(ledgers, 4, [one, other, cursor_of(ledgers, mark=LATEST)], NOTHING, NOW_MS) == [3]
    assert removable(ledgers, 4, [one, other, cursor_of(ledgers)], NOTHING, NOW_MS) == []


def test_retention_keeps_the_newest_ledgers_behind_a_needed_one_too() -> None:
    ledgers = ledgers_of(4, 4, 4, 4, 4, ages_ms=(500, 400, 300, 200))  # 200 bytes
    cursors = [cursor_of(ledgers, 2, 3, 4)]
    assert removable(ledgers, 5, cursors, RetentionLimits(300, -1), NOW_MS) == [2, 3]
    assert removable(ledgers, 5, cursors, RetentionLimits(-1, 160), NOW_MS) == [2]
    assert removable(ledgers, 5, cursors, RetentionLimits(-1, 161), NOW_MS) == []
    assert removable(ledgers, 5, cursors, KEEP_ALL, NOW_MS) == []


def test_the_newest_entry_stays_while_an_older_one_is_needed() -> None:
    ledgers = ledgers_of(4, 4, 4, 0, 0)
    assert removable(ledgers, 5, [cursor_of(ledgers, 2, 3)], NOTHING, NOW_MS) == [2, 4]
    assert removable(ledgers, 5, [cursor_of(ledgers, 1, 2, 3)], NOTHING, NOW_MS) == [1, 2, 3, 4]


limits = st.sampled_from([-1, 0, 10, 25, 60, 1000])
ledger_sets = st.sets(st.integers(1, 8))


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 90)), min_size=1, max_size=8),
    st.lists(st.tuples(ledger_sets, st.integers(0, 9), st.integers(-1, 4)), max_size=3),
    limits,
    limits,
)
def test_what_is_left_is_what_each_rule_on_its_own_asks_for(
    shapes: list[tuple[int, int]], acknowledged: list[tuple[set[int], int, int]], time_ms: int, size_bytes: int
) -> None:
    ledgers = ledgers_of(*(count for count, _ in shapes), ages_ms=tuple(age for _, age in shapes))
    cursors = [cursor_of(ledgers, *ids, mark=Position(*mark)) for ids, *mark in acknowledged]
    rows = list(ledgers.rows())
    gone = removable(ledgers, rows[-1].ledger_id, cursors, RetentionLimits(time_ms, size_bytes), NOW_MS)
    kept = [row for row in rows if row.ledger_id not in gone]
    assert kept[-1] is rows[-1]
    full_gone = [row for row in rows if row.ledger_id in gone and row.entry_count]
    needed = {
        row.ledger_id
        for row in rows
        if any(not cursor.is_deleted(row.ledger_id, each) for cursor in cursors for each in range(row.entry_count))
    }
    assert needed.isdisjoint(gone)
    left = sum(row.size_bytes for row in kept)
    if size_bytes > 0 and time_ms < 0 and full_gone:
        assert left >= size_bytes
    if time_ms > 0 and size_bytes < 0:
        assert all(NOW_MS - row.closed_ms >= time_ms for row in full_gone)
    spared = [row for row in kept[:-1] if row.entry_count and row.ledger_id not in needed]
    assert all(row.ledger_id < spared[0].ledger_id for row in full_gone if spared), "the oldest go first"
    for row in spared[:1]:
        is_young = time_ms < 0 or NOW_MS - row.closed_ms < time_ms
        is_small = size_bytes < 0 or left - row.size_bytes < size_bytes
        is_newest = row.ledger_id == ledgers.last_position.ledger_id
        assert (is_young and is_small) or (is_newest and min(needed) < row.ledger_id), "it could have gone too"
    ledgers.remove(gone)
    assert ledgers.ledger_ids() == [row.ledger_id for row in kept]
