"""The index of delayed entries does what a dictionary would do, and the walks that show it find bugs planted into it."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from heapq import heappop

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap
from tests.fuzz.delayed_model import walk
from tests.support.planting import Plant, found_by_walk

from pybroker.dispatch.delayed import delayed_entries
from pybroker.dispatch.delayed.changed_delays import ChangedDelays
from pybroker.dispatch.delayed.delayed_entries import DelayedIndex, DelayedRun
from pybroker.model.position import Position

SEEDS, STEPS = 30, 150


@pytest.fixture(autouse=True)
def small_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a walk sees many of them."""
    monkeypatch.setattr(delayed_entries, "RUN_ENTRIES", 16)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(min_value=0))
def test_the_index_is_what_the_model_says(seed: int) -> None:
    walk(seed, STEPS)


def walk_many() -> None:
    for seed in range(SEEDS):
        walk(seed, STEPS)


def newest_are_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        DelayedIndex, "next_due_ms", lambda self: self._runs[0][0] if self._runs else (10**9 if self._count else None)
    )


def discarded_entries_stay_members(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(DelayedIndex, "discard", lambda self, ledger_id, entry_ids: None)


def passed_positions_stay(patch: pytest.MonkeyPatch) -> None:
    discard_up_to = DelayedIndex.discard_up_to
    patch.setattr(
        DelayedIndex, "discard_up_to", lambda self, at: discard_up_to(self, Position(at.ledger_id, at.entry_id - 1))
    )


def runs_are_not_sorted(patch: pytest.MonkeyPatch) -> None:
    class Unsorted(DelayedRun):
        def __init__(self, ledger_id: int, first_entry_id: int, packed: array[int]) -> None:
            super().__init__(ledger_id, first_entry_id, array("Q", reversed(packed)))

    patch.setattr(delayed_entries, "DelayedRun", Unsorted)


def runs_with_one_entry_left_are_dropped(patch: pytest.MonkeyPatch) -> None:
    pop = DelayedIndex._pop

    def pop_and_forget(self: DelayedIndex) -> None:
        pop(self)
        if self._runs and self._runs[0][2].index == len(self._runs[0][2].packed) - 1:
            heappop(self._runs)

    patch.setattr(DelayedIndex, "_pop", pop_and_forget)


def sparse_entries_wrap_around(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(delayed_entries, "_SPAN_MASK", (1 << 40) - 1)


def restored_runs_bring_back_what_is_gone(patch: pytest.MonkeyPatch) -> None:
    add_run = DelayedIndex.add_run
    patch.setattr(DelayedIndex, "add_run", lambda self, run, unwanted: add_run(self, run, BitMap()))


def an_entry_twice_counts_twice(patch: pytest.MonkeyPatch) -> None:
    add = DelayedIndex.add

    def count_all(self: DelayedIndex, ledger_id: int, entry_ids: list[int], due_times_ms: Iterable[int]) -> bool:
        before = len(self)
        has_runs = add(self, ledger_id, entry_ids, list(due_times_ms))
        self._count = before + len(entry_ids)
        return has_runs

    patch.setattr(DelayedIndex, "add", count_all)


def a_tick_too_early(patch: pytest.MonkeyPatch) -> None:
    take_due = DelayedIndex.take_due
    patch.setattr(DelayedIndex, "take_due", lambda self, cutoff, most: take_due(self, cutoff + 1, most))


def a_changed_time_leaves_the_former_one(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(DelayedIndex, "_counts", lambda self, delayed: True)


def a_changed_time_does_not_count_before_the_next_run(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        DelayedIndex, "move", lambda self, position: position.entry_id in self._members.get(position.ledger_id, ())
    )


def a_changed_time_is_lost_in_a_restart(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("tests.fuzz.delayed_model.stored_changes", lambda records: {})


def what_is_given_back_has_its_former_time(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ChangedDelays, "applied", lambda self, ledger_id, entry_ids, due_times_ms: due_times_ms)


def times_that_count_leave_with_others(patch: pytest.MonkeyPatch) -> None:
    counting = DelayedIndex._counting_newest
    patch.setattr(DelayedIndex, "_counting_newest", lambda self: set(sorted(counting(self))[1:]))


@pytest.mark.parametrize(
    "plant",
    [
        newest_are_not_looked_at,
        discarded_entries_stay_members,
        passed_positions_stay,
        runs_are_not_sorted,
        runs_with_one_entry_left_are_dropped,
        sparse_entries_wrap_around,
        restored_runs_bring_back_what_is_gone,
        an_entry_twice_counts_twice,
        a_tick_too_early,
        a_changed_time_leaves_the_former_one,
        a_changed_time_does_not_count_before_the_next_run,
        a_changed_time_is_lost_in_a_restart,
        what_is_given_back_has_its_former_time,
        times_that_count_leave_with_others,
    ],
)
def test_a_planted_bug_is_found(plant: Plant) -> None:
    with found_by_walk(plant, KeyError):
        walk_many()
