"""Delivery times, edge cases of the index of delayed entries, and its records."""

from __future__ import annotations

from array import array

import pytest
from pyroaring import BitMap

from pybroker.dispatch.delayed.changed_delays import ChangedDelays
from pybroker.dispatch.delayed.delayed_entries import (
    MAX_DUE_MS,
    RUN_ENTRIES,
    Delayed,
    DelayedIndex,
    DelayedRun,
    DeliveryTimes,
)
from pybroker.dispatch.delayed.delayed_record import encode_more, encode_whole, stored_changes, stored_runs
from pybroker.errors import StoreError
from pybroker.model.position import Position

ALL = 1 << 60


def filled(count: int, ledger_id: int = 1, first_due_ms: int = 1000) -> DelayedIndex:
    """Entries 0 to `count` - 1 are due one after the other."""
    index = DelayedIndex()
    for start in range(0, count, 100):
        ids = range(start, min(count, start + 100))
        index.add(ledger_id, ids, [first_due_ms + entry_id for entry_id in ids])
    return index


def test_times_are_up_to_a_tick_early_unless_they_are_strict() -> None:
    assert DeliveryTimes(1000, is_strict=False).cutoff_ms(5000) == 6000
    assert DeliveryTimes(1000, is_strict=True).cutoff_ms(5000) == 5000


def test_the_alarm_is_at_the_due_time_and_with_strict_times_rings_once_a_tick() -> None:
    assert DeliveryTimes(1000, is_strict=False).alarm_ms(5000, last_alarm_ms=4900) == 5000
    assert DeliveryTimes(1000, is_strict=True).alarm_ms(5000, last_alarm_ms=4900) == 5900
    assert DeliveryTimes(1000, is_strict=True).alarm_ms(5000, last_alarm_ms=0) == 5000


def test_entries_come_in_the_order_of_their_times_whatever_ledger_they_are_in() -> None:
    index = DelayedIndex()
    index.add(2, [5, 6], [30, 10])
    index.seal_newest()
    index.add(1, [9], [20])
    assert index.next_due_ms() == 10
    assert index.take_due(25, 10) == [Delayed(10, 2, 6), Delayed(20, 1, 9)]
    assert index.take_due(29, 10) == []
    assert index.take_due(30, 10) == [Delayed(30, 2, 5)]
    assert index.next_due_ms() is None


def test_a_time_too_far_away_for_the_index_is_the_farthest_that_it_knows() -> None:
    index = DelayedIndex()
    index.add(1, [1], [(1 << 63) - 1])
    index.seal_newest()
    index.check_invariants()
    assert index.take_due(MAX_DUE_MS - 1, 1) == []
    assert index.take_due(MAX_DUE_MS, 1) == [Delayed(MAX_DUE_MS, 1, 1)]


def test_an_entry_takes_less_than_ten_bytes() -> None:
    index = filled(50 * RUN_ENTRIES)
    index.seal_newest()
    assert index.size_bytes < 10 * len(index)
    assert [each.entry_id for each in index.take_due(ALL, 10**6)] == list(range(50 * RUN_ENTRIES))
    assert index.size_bytes == 0


def test_what_lies_before_a_position_goes_with_its_runs() -> None:
    index = filled(3 * RUN_ENTRIES)
    index.discard_up_to(Position(1, 2 * RUN_ENTRIES))
    index.check_invariants()
    assert len(index) == RUN_ENTRIES - 1
    index.seal_newest()
    assert index.size_bytes < 20 * RUN_ENTRIES
    index.discard_up_to(Position(2, -1))
    assert len(index) == 0


def test_records_give_the_entries_back_but_for_unwanted_ones() -> None:
    index = filled(2 * RUN_ENTRIES)
    index.take_due(1000 + 9, 100)
    first = encode_whole(index.runs_after(0))
    serial = index.last_serial
    index.add(7, [1, 2, 3], [5, 5, 5])
    index.seal_newest()
    more = encode_more(index.runs_after(serial))
    restored = DelayedIndex()
    for run in stored_runs([b"\x01\x00\x00\x00\x00\x00\x00\x00", first, more]):
        restored.add_run(run, BitMap([2]) if run.ledger_id == 7 else BitMap())
    restored.check_invariants()
    assert len(restored) == 2 * RUN_ENTRIES - 10 + 2
    assert [each.entry_id for each in restored.take_due(5, 10)] == [1, 3]
    assert restored.take_due(1010, 10) == [Delayed(1010, 1, 10)]


def test_a_record_that_replaces_all_makes_those_before_it_void() -> None:
    old = encode_whole(filled(RUN_ENTRIES).runs_after(0))
    new = encode_whole([])
    assert list(stored_runs([old, encode_more([]), new])) == []


@pytest.mark.parametrize("cut", [1, 7, 9, 25, 40])
def test_a_damaged_record_is_refused(cut: int) -> None:
    index = DelayedIndex()
    index.add(1, [1, 2], [10, 20])
    index.seal_newest()
    record = encode_whole(index.runs_after(0))
    assert len(record) == 40
    broken = record + b"\x00" if cut == len(record) else record[:cut]
    with pytest.raises(StoreError, match="damaged"):
        list(stored_runs([broken]))


def test_a_record_of_a_newer_version_is_refused() -> None:
    with pytest.raises(StoreError, match="newer"):
        list(stored_runs([b"\x03\x00\x00\x00\x00\x00\x00\x00"]))


def test_changed_times_are_stored_with_runs_and_alone_and_the_last_one_counts() -> None:
    first, second = Position(5, 7), Position(6, 0)
    run = DelayedRun(5, 7, array("Q", [100 << 22]))
    records = [encode_whole([run], [(first, 10)]), encode_more((), [(first, 20)]), encode_more((), [(second, 0)])]
    assert stored_changes(records) == {first: 20, second: 0}
    assert [each.entry_id for each in stored_runs(records)] == [7]
    assert stored_changes([*records, encode_whole([])]) == {}
    assert encode_whole([run])[0] == 1
    for cut in range(1, 20):
        with pytest.raises(StoreError, match="damaged"):
            stored_changes([records[0][:-cut]])


def test_changed_times_are_forgotten_when_entries_are_acknowledged_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pybroker.dispatch.delayed.changed_delays.MAX_CHANGED_DELAYS", 3)
    changed = ChangedDelays()
    for entry_id in range(3):
        changed.set(Position(5 + entry_id % 2, entry_id), entry_id)
    changed.set(Position(5, 0), 9)
    changed.check_invariants()
    assert dict(changed) == {Position(5, 0): 9, Position(5, 2): 2, Position(6, 1): 1}
    assert not changed.has_room(Position(9, 9))
    assert changed.has_room(Position(6, 1))
    assert changed.applied(5, [0, 1, 2], [70, 71, 0]) == [9, 71, 2]
    assert changed.applied(7, [0], [70]) == [70]
    changed.discard(5, [0, 1, 1 << 50])
    assert (len(changed), changed.get(Position(5, 0))) == (2, None)
    changed.discard_up_to(Position(6, 0))
    assert dict(changed) == {Position(6, 1): 1}
    changed.discard_up_to(Position(6, 1))
    changed.check_invariants()
    assert not changed


def test_times_that_are_changed_again_and_again_take_no_more_room() -> None:
    changed = ChangedDelays()
    index = DelayedIndex(changed)
    index.add(1, [1, 2], [10**9, 10**9])
    for due_ms in range(10_000, 0, -1):
        changed.set(Position(1, 1), due_ms)
        assert index.move(Position(1, 1))
    assert index.size_bytes < 2 * (RUN_ENTRIES + 1) * 140
    assert index.take_due(5_000, 9) == [Delayed(1, 1, 1)]
    index.seal_newest()
    assert [len(run.packed) for run in index.runs_after(0)] == [1]
    index.check_invariants()


def test_a_time_that_is_changed_while_the_entry_is_read_counts_when_it_could_not_be() -> None:
    changed = ChangedDelays()
    index = DelayedIndex(changed)
    index.add(1, [1], [10])
    [taken] = index.take_due(10, 9)
    changed.set(taken.position, 50)
    assert not index.move(taken.position)
    index.add(taken.ledger_id, [taken.entry_id], [taken.due_ms])
    assert index.take_due(49, 9) == []
    assert index.take_due(50, 9) == [Delayed(50, 1, 1)]
