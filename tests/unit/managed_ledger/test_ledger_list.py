"""Ordered ledgers: neighbours, distances, totals, and the stored form."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pybroker.errors import StoreError
from pybroker.ledgers.ledger_store import LedgerSummary, LedgerTotals
from pybroker.managed_ledger.ledger_list import LedgerList
from pybroker.model.position import EARLIEST, LATEST, Position

CLOSED_MS = 1_700_000_000_000


def ledgers_of(counts: dict[int, int]) -> LedgerList:
    """Return ledgers with so many entries of 2 messages and 10 bytes; the last one is open."""
    ledgers = LedgerList()
    for ledger_id, count in counts.items():
        if len(ledgers):
            last = ledgers.summaries()[-1]
            ledgers.close_ledger(last, CLOSED_MS)
        ledgers.add_ledger(ledger_id)
        ledgers.added(ledger_id, count, 2 * count, 10 * count)
    return ledgers


THREE = {3: 10, 5: 0, 8: 4}


def test_positions_follow_each_other_across_ledgers_and_over_empty_ones() -> None:
    ledgers = ledgers_of(THREE)
    assert ledgers.next_position(Position(3, 4)) == (3, 5)
    assert ledgers.next_position(Position(3, 9)) == (8, 0)
    assert ledgers.next_position(Position(4, 7)) == (8, 0)
    assert ledgers.previous_position(Position(8, 0)) == (3, 9)
    assert ledgers.previous_position(Position(3, 1)) == (3, 0)
    assert ledgers.previous_position(Position(3, 0)) == (3, -1)
    assert ledgers.previous_position(LATEST) == (8, 3)
    assert ledgers.next_position(EARLIEST) == (3, 0)
    assert ledgers.first_position == (3, 0)
    assert ledgers.last_position == (8, 3)


def test_the_position_behind_the_last_entry_stays_right_wherever_the_next_entry_goes() -> None:
    ledgers = ledgers_of({3: 10})
    ledgers.add_ledger(5)
    end = ledgers.next_position(Position(3, 9))
    assert end == ledgers.end_position == (3, 10)
    assert ledgers.normalize(end) == end
    ledgers.added(3, 1, 1, 1)  # in flight when ledger 5 was created
    assert ledgers.normalize(end) == (3, 10)
    ledgers.added(5, 1, 1, 1)
    assert ledgers.normalize(Position(3, 11)) == (5, 0)
    assert ledgers.entries_after(Position(3, 9)) == 2


def test_a_list_without_entries_begins_at_its_first_ledger() -> None:
    assert LedgerList().last_position == EARLIEST
    assert LedgerList().entries_after(EARLIEST) == 0
    ledgers = ledgers_of({7: 0, 9: 0})
    assert ledgers.last_position == (7, -1)
    assert ledgers.end_position == (7, 0)
    assert ledgers.normalize(EARLIEST) == (7, 0)
    assert ledgers.normalize(ledgers.end_position) > ledgers.last_position
    assert ledgers.previous_position(LATEST) == (7, -1)


def test_distances_are_exact_from_any_position_to_any_other() -> None:
    ledgers = ledgers_of(THREE)
    assert ledgers.entries_after(EARLIEST) == 14
    assert ledgers.entries_after(Position(3, -1)) == 14
    assert ledgers.entries_after(Position(3, 8)) == 5
    assert ledgers.entries_after(Position(3, 100)) == 4
    assert ledgers.entries_after(Position(5, -1)) == 4
    assert ledgers.entries_after(LATEST) == 0
    assert ledgers.entries_between(Position(3, 8), Position(8, 0)) == 2
    assert ledgers.entries_between(Position(8, 0), Position(3, 8)) == 0


def test_totals_grow_and_shrink_with_the_ledgers() -> None:
    ledgers = ledgers_of(THREE)
    assert (ledgers.entry_count, ledgers.message_count, ledgers.size_bytes) == (14, 28, 140)
    ledgers.remove([3, 5])
    assert (ledgers.entry_count, ledgers.message_count, ledgers.size_bytes) == (4, 8, 40)
    assert ledgers.ledger_ids() == [8]
    assert ledgers.first_position == (8, 0)
    assert ledgers.entries_after(Position(3, 2)) == 4
    assert ledgers.entries_after(Position(8, 1)) == 2
    ledgers.added(8, 1, 1, 1)
    assert ledgers.entries_after(Position(8, 1)) == 3


def test_a_sealed_ledger_holds_what_its_summary_says() -> None:
    ledgers = LedgerList()
    ledgers.add_ledger(1)
    ledgers.added(1, 2, 2, 20)
    ledgers.close_ledger(LedgerSummary(1, 3, 3, 30), CLOSED_MS)
    ledgers.added(1, 1, 1, 10)  # the summary included it already
    assert ledgers.summaries() == [LedgerSummary(1, 3, 3, 30)]
    assert ledgers.entry_count == 3
    assert ledgers.open_ledger_ids() == []


def test_what_was_stored_comes_back_and_open_ledgers_come_back_empty() -> None:
    ledgers = ledgers_of(THREE)
    restored = LedgerList.decode(ledgers.encode(), CLOSED_MS + 1)
    assert restored.ledger_ids() == [3, 5, 8]
    assert restored.open_ledger_ids() == [8]
    assert restored.entry_count == 10
    assert [row.closed_ms for row in restored.rows()] == [CLOSED_MS, CLOSED_MS, 0]
    restored.close_ledger(LedgerSummary(8, 4, 8, 40), CLOSED_MS + 1)
    assert restored.summaries() == ledgers.summaries()
    assert restored.entries_after(Position(3, 9)) == 4


def test_a_newer_or_damaged_document_is_refused_with_the_reason() -> None:
    with pytest.raises(StoreError, match="format version 2"):
        LedgerList.decode(b'{"version":2,"something":"else"}', 0)
    with pytest.raises(StoreError, match="in the metadata of the topic is damaged: Input data was truncated"):
        LedgerList.decode(b'{"version":1', 0)
    with pytest.raises(StoreError, match="ledger 4 follows ledger 5, but ledger ids must rise"):
        LedgerList.decode(b'{"version":1,"ledgers":[{"id":5},{"id":4}]}', 0)


def test_a_ledger_of_an_older_document_counts_as_closed_now() -> None:
    ledgers = LedgerList.decode(b'{"version":1,"ledgers":[{"id":4,"entries":2},{"id":5,"closed":7}]}', 99)
    assert [row.closed_ms for row in ledgers.rows()] == [99, 7]


def test_a_ledger_is_closed_once() -> None:
    ledgers = ledgers_of({3: 1})
    ledgers.close_ledger(LedgerSummary(3, 1, 2, 10), 5)
    ledgers.close_ledger(LedgerSummary(3, 1, 2, 10), 6)
    assert [row.closed_ms for row in ledgers.rows()] == [5]


def test_sealed_ledgers_are_removed_wherever_they_are_but_never_the_last_nor_the_newest_entry() -> None:
    ledgers = ledgers_of({3: 1, 5: 4, 7: 2, 9: 0})
    with pytest.raises(AssertionError):
        ledgers.remove([9])
    with pytest.raises(AssertionError):
        ledgers.remove([3, 5, 7, 9])
    ledgers = ledgers_of({3: 1, 5: 4, 7: 2, 9: 0})
    with pytest.raises(AssertionError, match="newest"):
        ledgers.remove([7])
    ledgers = ledgers_of({3: 1, 5: 4, 7: 2, 9: 0})
    ledgers.remove([3, 5, 7])
    assert ledgers.last_position == (9, -1)


def test_a_gap_is_passed_over_and_what_is_behind_it_is_counted_without_it() -> None:
    ledgers = ledgers_of({3: 2, 5: 4, 7: 2, 9: 0})
    ledgers.remove([5])
    assert ledgers.ledger_ids() == [3, 7, 9]
    assert (ledgers.entry_count, ledgers.message_count, ledgers.size_bytes) == (4, 8, 40)
    for position in (Position(5, -1), Position(5, 2), Position(5, 9)):
        assert not ledgers.has_entry(position)
        assert ledgers.normalize(position) == ledgers.next_position(position) == (7, 0)
        assert ledgers.floor(position) == ledgers.previous_position(position) == (3, 1)
        assert ledgers.entries_after(position) == 2
        assert ledgers.entries_between(Position(3, 0), position) == 1
        assert ledgers.entries_between(position, Position(7, 1)) == 2
    assert ledgers.entries_after(EARLIEST) == 4
    assert ledgers.entries_after(Position(7, 0)) == 1
    assert ledgers.totals_behind(3) == ledgers.totals_behind(5) == LedgerTotals(4, 20)
    ledgers.added(9, 3, 3, 3)
    assert ledgers.entries_after(Position(7, 0)) == 4
    assert LedgerList.decode(ledgers.encode(), 0).ledger_ids() == [3, 7, 9]


def test_the_document_can_leave_out_ledgers_that_are_still_there() -> None:
    ledgers = ledgers_of({3: 2, 5: 4, 7: 2})
    assert LedgerList.decode(ledgers.encode(without=[5]), 0).ledger_ids() == [3, 7]
    assert ledgers.ledger_ids() == [3, 5, 7]


def test_what_follows_a_ledger_is_counted_whether_it_is_there_or_not() -> None:
    ledgers = ledgers_of(THREE)
    assert ledgers.totals_behind(3) == ledgers.totals_behind(6) == LedgerTotals(8, 40)
    assert ledgers.totals_behind(8) == LedgerTotals(0, 0)
    assert ledgers.totals_behind(-1) == LedgerTotals(28, 140)


@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=6),
    st.sets(st.sampled_from([3, 5, 7, 9])),
    st.integers(-1, 14),
    st.integers(-1, 6),
)
def test_neighbours_and_distances_agree_with_a_plain_list_of_entries(
    counts: list[int], gone: set[int], ledger_id: int, entry_id: int
) -> None:
    ledgers = ledgers_of({2 * index + 1: count for index, count in enumerate(counts)})
    gone = {each for each in gone if each < ledgers.last_position.ledger_id}
    ledgers.remove(gone)
    entries = [Position(2 * index + 1, entry) for index, count in enumerate(counts) for entry in range(count)]
    entries = [entry for entry in entries if entry.ledger_id not in gone]
    position = Position(ledger_id, entry_id)
    behind = [entry for entry in entries if entry > position]
    before = [entry for entry in entries if entry < position]
    assert ledgers.next_position(position) == (behind[0] if behind else ledgers.end_position)
    assert ledgers.previous_position(position) == (before[-1] if before else (1, -1))
    assert ledgers.entries_after(position) == len(behind)
    assert ledgers.has_entry(position) == (position in entries)
    assert ledgers.normalize(ledgers.end_position) > ledgers.last_position


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=4),
    st.integers(-2, 12),
    st.integers(-2, 4),
)
def test_first_entry_and_end_agree_with_all_entries(counts: list[int], ledger_id: int, entry_id: int) -> None:
    by_ledger = {3 * index: count for index, count in enumerate(counts)}
    ledgers, position = ledgers_of(by_ledger), Position(ledger_id, entry_id)
    entries = [Position(each, index) for each, count in by_ledger.items() for index in range(count)]
    first = next((each for each in entries if each >= position), None)
    assert ledgers.entry_from(position) == first
    assert ledgers.normalize(position) == (first or ledgers.end_position)
    last = max(by_ledger)
    assert ledgers.is_at_end(position) == (ledger_id == last and entry_id >= by_ledger[last])
    assert not (ledgers.is_at_end(position) and first)
