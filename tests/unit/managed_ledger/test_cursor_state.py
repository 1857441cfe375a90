"""Acknowledgements of one subscription: in order, out of order, of parts of batches, and after a restart."""

from __future__ import annotations

import struct
import time

import pytest
from pyroaring import BitMap

from pybroker.errors import StoreError
from pybroker.ledgers.ledger_store import LedgerSummary
from pybroker.managed_ledger.cursor_record import CursorRecord
from pybroker.managed_ledger.cursor_state import CursorState
from pybroker.managed_ledger.ledger_list import LedgerList
from pybroker.model.position import LATEST, Position

START = Position(5, -1)


def ledgers_of(counts: dict[int, int]) -> LedgerList:
    return LedgerList(LedgerSummary(ledger_id, count, count, count) for ledger_id, count in counts.items())


def cursor_of(counts: dict[int, int]) -> CursorState:
    return CursorState(ledgers_of(counts), Position(min(counts), -1))


def test_acknowledgements_in_order_move_the_mark_and_keep_no_sets() -> None:
    cursor = cursor_of({5: 10})
    assert cursor.acknowledge(5, (0,)) == 1
    assert cursor.acknowledge(5, [1, 2, 3]) == 3
    assert cursor.acknowledge(5, range(4, 7)) == 3
    assert cursor.mark_delete_position == (5, 6)
    assert cursor.backlog_entries == 3
    assert cursor.deleted_range_count == 0
    cursor.check_invariants()


def test_a_gap_holds_the_mark_until_it_closes() -> None:
    cursor = cursor_of({5: 10})
    assert cursor.acknowledge(5, [4, 2, 3, 8]) == 4
    assert cursor.mark_delete_position == START
    assert cursor.backlog_entries == 6
    assert cursor.deleted_range_count == 2
    assert cursor.acknowledge(5, [1]) == 1
    assert cursor.acknowledge(5, [0]) == 1
    assert cursor.mark_delete_position == (5, 4)
    assert cursor.backlog_entries == 4
    assert cursor.individually_deleted_text() == "[(5:7..5:8]]"
    cursor.check_invariants()


def test_the_mark_crosses_ledgers_that_are_deleted_whole() -> None:
    cursor = cursor_of({5: 3, 6: 0, 7: 2, 9: 4})
    assert cursor.acknowledge(7, [0, 1]) == 2
    assert cursor.acknowledge(9, [0, 2]) == 2
    assert cursor.acknowledge(5, [2, 1]) == 2
    assert cursor.mark_delete_position == START
    assert cursor.acknowledge(5, [0]) == 1
    assert cursor.mark_delete_position == (9, 0)
    assert cursor.backlog_entries == 2
    cursor.check_invariants()


def test_the_first_entry_of_the_next_ledger_moves_the_mark_there() -> None:
    cursor = cursor_of({5: 2, 6: 2})
    cursor.mark_delete_to(Position(5, 1))
    assert cursor.acknowledge(6, [0]) == 1
    assert cursor.mark_delete_position == (6, 0)
    cursor = cursor_of({5: 2, 6: 2})
    cursor.mark_delete_to(Position(5, 1))
    assert cursor.acknowledge(6, [0, 1]) == 2
    assert cursor.mark_delete_position == (6, 1)


@pytest.mark.parametrize("entry_ids", [[3, 3, 5], [5, 3, 3], [3, 5]])
def test_ids_that_look_like_a_run_by_their_ends_are_not_taken_for_one(entry_ids: list[int]) -> None:
    cursor = cursor_of({5: 10})
    cursor.mark_delete_to(Position(5, 2))
    assert cursor.acknowledge(5, entry_ids) == 2
    assert cursor.mark_delete_position == (5, 3)
    assert not cursor.is_deleted(5, 4)


def test_repeated_and_unknown_acknowledgements_delete_nothing() -> None:
    cursor = cursor_of({5: 10, 6: 3})
    cursor.acknowledge(5, [0, 5])
    far = 1 << 63
    for ledger_id, entry_ids in [
        (5, [0]),
        (5, [5]),
        (5, [0, 5]),
        (5, [10]),
        (5, [-1]),
        (5, [far, -3]),
        (4, [0]),
        (7, [0]),
    ]:
        assert cursor.acknowledge(ledger_id, entry_ids) == 0
    assert cursor.acknowledge(5, []) == 0
    assert cursor.acknowledge(5, [1, far, -1, 99]) == 1
    assert cursor.acknowledge_batch(Position(5, far), [0], 3) == 0
    assert not cursor.is_deleted(5, far)
    assert cursor.backlog_entries == 10
    cursor.check_invariants()


def test_a_cumulative_acknowledgement_swallows_the_holes_it_passes() -> None:
    cursor = cursor_of({5: 10, 6: 5})
    cursor.acknowledge(5, [3, 7])
    cursor.acknowledge(6, [2, 3])
    assert cursor.mark_delete_to(Position(6, 1)) == 10
    assert cursor.mark_delete_position == (6, 3)
    assert cursor.mark_delete_to(Position(5, 4)) == 0
    assert cursor.mark_delete_position == (6, 3)
    assert cursor.backlog_entries == 1
    cursor.check_invariants()


def test_a_cumulative_acknowledgement_behind_the_last_entry_is_ignored() -> None:
    cursor = cursor_of({5: 10})
    assert cursor.mark_delete_to(LATEST) == 0
    assert cursor.mark_delete_to(Position(5, 10)) == 0
    assert cursor.backlog_entries == 10


def test_a_cumulative_acknowledgement_behind_the_end_of_a_ledger_stops_at_its_last_entry() -> None:
    cursor = cursor_of({5: 10, 7: 3})
    assert cursor.mark_delete_to(Position(5, 400)) == 10
    assert cursor.mark_delete_position == (5, 9)


def test_a_batch_is_deleted_with_its_last_message() -> None:
    cursor = cursor_of({5: 3})
    position = Position(5, 1)
    assert cursor.acknowledge_batch(position, [0b1111111100], 10) == 8
    assert cursor.ack_set_of(5, 1) == [1020]
    assert cursor.acknowledge_batch(position, [0b1111111101], 10) == 8  # acknowledged bits are never set again
    assert cursor.remaining_messages(5, 1) == 8
    assert cursor.backlog_entries == 3
    assert cursor.acknowledge_batch(position, [0b11], 10) == 0
    assert cursor.is_deleted(5, 1)
    assert cursor.ack_set_of(5, 1) is None
    assert cursor.remaining_messages(5, 1) == 0
    assert cursor.backlog_entries == 2
    cursor.check_invariants()


def test_signed_words_and_bits_beyond_the_batch_are_understood() -> None:
    cursor = cursor_of({5: 3})
    assert cursor.acknowledge_batch(Position(5, 0), [-2, -1], 70) == 69
    assert cursor.ack_set_of(5, 0) == [-2, 63]


def test_an_acknowledgement_of_the_whole_entry_forgets_its_ack_set() -> None:
    for whole in ([0], [1, 0], [0, 1, 2]):
        cursor = cursor_of({5: 3})
        cursor.acknowledge_batch(Position(5, 0), [1], 2)
        cursor.acknowledge(5, whole)
        assert cursor.ack_set_of(5, 0) is None
        cursor.check_invariants()
    cursor = cursor_of({5: 3})
    cursor.acknowledge_batch(Position(5, 1), [1], 2)
    cursor.acknowledge(5, [1])
    assert cursor.ack_sets_in(5, 0, 3) is None
    cursor.check_invariants()


def test_a_cumulative_acknowledgement_inside_a_batch_deletes_what_is_before_it() -> None:
    cursor = cursor_of({5: 5, 6: 3})
    cursor.acknowledge_batch(Position(5, 2), [1], 2)
    assert cursor.mark_delete_to_batch(Position(6, 0), [0b100], 3) == 5
    assert cursor.mark_delete_position == (5, 4)
    assert cursor.ack_set_of(6, 0) == [4]
    assert cursor.ack_set_of(5, 2) is None
    assert cursor.mark_delete_to_batch(Position(6, 0), [0], 3) == 1
    assert cursor.mark_delete_position == (6, 0)
    assert cursor.mark_delete_to_batch(Position(6, 9), [0], 3) == 0
    cursor.check_invariants()


def test_the_ack_sets_of_a_run_are_a_column_or_nothing() -> None:
    cursor = cursor_of({5: 5})
    assert cursor.ack_sets_in(5, 0, 5) is None
    cursor.acknowledge_batch(Position(5, 3), [1], 2)
    assert cursor.ack_sets_in(5, 0, 3) is None
    assert cursor.ack_sets_in(5, 2, 3) == [None, [1], None]


def test_what_is_left_of_a_run_is_none_when_all_of_it_is() -> None:
    cursor = cursor_of({4: 3, 5: 10})
    cursor.mark_delete_to(Position(5, 1))
    cursor.acknowledge(5, [4, 6])
    assert cursor.undeleted_in(5, 2, 2) is None
    assert cursor.undeleted_in(5, 7, 3) is None
    assert cursor.undeleted_in(5, 2, 8) == [2, 3, 5, 7, 8, 9]
    assert cursor.undeleted_in(5, 0, 3) == [2]
    assert cursor.undeleted_in(5, 0, 6) == [2, 3, 5]
    assert cursor.undeleted_in(5, 0, 2) == []
    assert cursor.undeleted_in(4, 0, 3) == []
    assert cursor.undeleted_in(5, 6, 1) == []


def test_reading_on_skips_what_is_deleted() -> None:
    cursor = cursor_of({5: 10, 6: 5, 7: 2})
    cursor.acknowledge(5, [2, 3, 9])
    cursor.acknowledge(6, range(5))
    assert cursor.first_undeleted(Position(5, 0)) == (5, 0)
    assert cursor.first_undeleted(Position(5, 2)) == (5, 4)
    assert cursor.first_undeleted(Position(5, 9)) == (7, 0)
    cursor.acknowledge(7, [0, 1])
    assert cursor.first_undeleted(Position(6, 1)) == (7, 2)
    cursor.mark_delete_to(Position(5, 5))
    assert cursor.first_undeleted(START) == (5, 6)


def test_a_reset_makes_everything_behind_the_mark_unacknowledged() -> None:
    cursor = cursor_of({5: 10})
    cursor.acknowledge(5, [0, 1, 5])
    cursor.acknowledge_batch(Position(5, 7), [1], 2)
    cursor.reset(START)
    assert cursor.mark_delete_position == START
    assert cursor.backlog_entries == 10
    assert cursor.ack_set_of(5, 7) is None
    cursor.check_invariants()


def test_what_was_trimmed_is_neither_left_nor_stored() -> None:
    ledgers = ledgers_of({5: 4, 6: 4, 7: 4, 8: 4})
    cursor = CursorState(ledgers, START)
    cursor.take_delta()
    cursor.acknowledge(5, [2])
    cursor.acknowledge(6, [0, 1, 2, 3])
    cursor.acknowledge(8, [0])
    assert cursor.has_deleted_all_of(6)
    assert not cursor.has_deleted_all_of(5)
    ledgers.remove([6])
    cursor.forget_ledgers([6])
    cursor.check_invariants()
    assert cursor.mark_delete_position == START
    assert cursor.backlog_entries == 3 + 4 + 3
    assert cursor.is_deleted(6, 0)
    assert cursor.undeleted_in(6, 0, 4) == []
    delta = cursor.take_delta()
    assert delta is not None
    assert set(CursorRecord(delta).holes) == set(CursorRecord(cursor.snapshot()).holes) == {5, 8}
    assert cursor.mark_delete_to(Position(6, 2)) == 3, "up to a gap is up to what is before it"
    assert cursor.first_undeleted(Position(6, 1)) == (7, 0)


def test_the_mark_moves_on_over_what_was_trimmed_in_front_of_deleted_entries() -> None:
    ledgers = ledgers_of({5: 4, 6: 4, 7: 4})
    cursor = CursorState(ledgers, START)
    cursor.acknowledge(5, [2])
    cursor.acknowledge_batch(Position(6, 1), [1], 3)
    cursor.acknowledge(7, [0, 3])
    ledgers.remove([5, 6])
    cursor.forget_ledgers([5, 6])
    assert cursor.mark_delete_position == (7, 0)
    assert cursor.backlog_entries == 2
    assert cursor.ack_sets_in(6, 0, 4) is None
    cursor.check_invariants()


def test_records_that_name_trimmed_ledgers_give_back_the_rest() -> None:
    cursor = cursor_of({5: 4, 6: 4, 7: 4})
    cursor.acknowledge(6, [0, 1, 2, 3])
    first = cursor.snapshot()
    cursor.acknowledge(7, [0, 1])
    cursor.acknowledge_batch(Position(5, 3), [1], 3)
    ledgers = ledgers_of({5: 4, 7: 4})
    for snapshot, deltas in ((cursor.snapshot(), []), (first, [cursor.take_delta() or b""])):
        restored = CursorState.restore(ledgers, START, snapshot, deltas)
        restored.check_invariants()
        assert restored.backlog_entries == 6
        assert restored.individually_deleted_text() == "[(7:-1..7:1]]"


def test_ranges_are_shown_with_an_open_start_and_end_with_their_ledger() -> None:
    cursor = cursor_of({5: 5, 6: 5})
    assert cursor.individually_deleted_text() == "[]"
    cursor.acknowledge(5, [1, 2, 3])
    assert cursor.individually_deleted_text() == "[(5:0..5:3]]"
    cursor.acknowledge(6, [0, 4])
    assert cursor.individually_deleted_text() == "[(5:0..5:3],(6:-1..6:0],(6:3..6:4]]"
    assert cursor.individually_deleted_text(max_ranges=2) == "[(5:0..5:3],(6:-1..6:0]]"
    assert cursor.deleted_range_count == 3


def test_a_delta_holds_only_what_changed_since_the_last_one() -> None:
    cursor = cursor_of({5: 100_000})
    assert cursor.take_delta() is None
    cursor.acknowledge(5, [0])
    assert cursor.take_delta() is not None
    assert cursor.take_delta() is None
    cursor.acknowledge(5, range(1, 100_000, 2))
    big = cursor.take_delta()
    cursor.acknowledge(5, [20])
    small = cursor.take_delta()
    assert big is not None
    assert small is not None
    assert len(big) > 5_000
    assert len(small) < 100


def test_nothing_is_taken_when_nothing_changed() -> None:
    cursor = cursor_of({5: 10})
    cursor.acknowledge(5, [10])
    cursor.mark_delete_to(START)
    cursor.forget_ledgers([4])
    assert cursor.take_delta() is None


def test_a_restored_cursor_has_nothing_to_store() -> None:
    ledgers = ledgers_of({5: 10})
    cursor = CursorState(ledgers, START)
    cursor.acknowledge(5, [3])
    assert CursorState.restore(ledgers, START, cursor.snapshot(), []).take_delta() is None
    fresh = CursorState.restore(ledgers, Position(5, 3), None, [])
    assert fresh.mark_delete_position == (5, 3)
    assert fresh.take_delta() is None


def test_a_lost_delta_is_made_up_for_by_the_next_one() -> None:
    ledgers = ledgers_of({5: 10})
    cursor = CursorState(ledgers, START)
    cursor.acknowledge(5, [7])
    first = cursor.take_delta()
    assert first is not None
    cursor.acknowledge(5, [3, 4])
    assert cursor.take_delta() is not None
    cursor.forget_deltas()
    third = cursor.take_delta()
    assert third is not None
    restored = CursorState.restore(ledgers, START, None, [first, third])
    assert restored.individually_deleted_text() == "[(5:2..5:4],(5:6..5:7]]"


def test_a_reset_backwards_survives_a_restart() -> None:
    ledgers = ledgers_of({5: 10})
    cursor = CursorState(ledgers, START)
    cursor.mark_delete_to(Position(5, 6))
    cursor.acknowledge(5, [8])
    deltas = [cursor.take_delta()]
    cursor.reset(Position(5, 1))
    cursor.acknowledge(5, [4])
    deltas.append(cursor.take_delta())
    restored = CursorState.restore(ledgers, START, None, [delta for delta in deltas if delta is not None])
    assert restored.mark_delete_position == (5, 1)
    assert restored.individually_deleted_text() == "[(5:3..5:4]]"


def test_what_is_stored_about_entries_that_are_gone_is_dropped() -> None:
    cursor = cursor_of({5: 10, 6: 10})
    cursor.acknowledge(5, [3, 7, 9])
    cursor.acknowledge(6, [2])
    cursor.acknowledge_batch(Position(5, 8), [1], 2)
    restored = CursorState.restore(ledgers_of({5: 8, 7: 5}), START, cursor.snapshot(), [])
    restored.check_invariants()
    assert restored.individually_deleted_text() == "[(5:2..5:3],(5:6..5:7]]"
    assert restored.backlog_entries == 11


def test_a_newer_or_damaged_record_is_refused_with_the_reason() -> None:
    ledgers = ledgers_of({5: 10})
    cursor = CursorState(ledgers, START)
    cursor.acknowledge(5, [3, 5])
    cursor.acknowledge_batch(Position(5, 7), [1], 2)
    good = cursor.snapshot()
    with pytest.raises(StoreError, match="format version 3"):
        CursorState.restore(ledgers, START, b"\x03" + good[1:], [])
    with pytest.raises(StoreError, match="format version 3"):
        CursorState.restore(ledgers, START, good, [b"\x03"])
    for length in range(len(good)):
        with pytest.raises(StoreError, match="damaged"):
            CursorState.restore(ledgers, START, good[:length], [])
    with pytest.raises(StoreError, match="damaged"):
        CursorState.restore(ledgers, START, good + b"\0", [])
    with pytest.raises(StoreError, match="damaged"):
        CursorState.restore(ledgers, START, good[:1] + b"\x07" + good[2:], [])
    with pytest.raises(StoreError, match="damaged"):
        CursorState.restore(ledgers, START, struct.pack("<BBqqII", 1, 0, 5, -1, 1 << 31, 0), [])


def test_a_million_alternating_holes_are_stored_whole_and_close_quickly() -> None:
    count = 2_000_000
    ledgers = ledgers_of({5: count})
    cursor = CursorState(ledgers, START)
    began_s = time.process_time()
    assert cursor.acknowledge(5, range(1, count, 2)) == count // 2
    snapshot = cursor.snapshot()
    assert len(snapshot) < 300_000
    restored = CursorState.restore(ledgers, START, snapshot, [])
    assert restored.deleted_range_count == count // 2
    assert restored.acknowledge(5, range(0, count, 2)) == count // 2
    assert restored.mark_delete_position == (5, count - 1)
    assert restored.backlog_entries == 0
    assert time.process_time() - began_s < 5


def test_the_first_wanted_entry_is_neither_deleted_nor_unwanted() -> None:
    cursor = cursor_of({5: 6, 6: 3, 7: 2})
    cursor.acknowledge(5, [2, 4])
    unwanted = {5: BitMap([0, 1, 3]), 6: BitMap([0, 1, 2]), 7: BitMap([1])}
    assert cursor.first_wanted(Position(5, 0), unwanted) == (5, 5)
    assert cursor.first_wanted(Position(5, 1), {}) == (5, 1)
    cursor.acknowledge(5, [5])
    assert cursor.first_wanted(Position(5, 3), unwanted) == (7, 0)
    cursor.acknowledge(7, [0])
    assert cursor.first_wanted(Position(5, 0), unwanted) == (7, 2), "where the next entry will be"


def test_what_is_deleted_in_a_ledger_is_everything_up_to_the_mark_and_the_holes() -> None:
    cursor = cursor_of({5: 3, 6: 6, 7: 2})
    cursor.mark_delete_to(Position(6, 1))
    cursor.acknowledge(6, [4])
    assert [list(cursor.deleted_in(ledger_id)) for ledger_id in (5, 6, 7)] == [[0, 1, 2], [0, 1, 4], []]
