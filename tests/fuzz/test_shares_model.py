"""Shares of a part on random walks: nobody stops for ever or in vain, everything is given back; planted bugs are found."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fuzz.shares_model import SharesWalk
from tests.support.planting import Plant, found_by_walk

from pybroker.memory.memory_budget import Settled
from pybroker.memory.memory_shares import MemoryShares

NUMBERS = st.integers(0, 1000)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS), max_size=100))
def test_shares_hold_on_any_walk(steps: list[tuple[int, int, int]]) -> None:
    SharesWalk().run(steps)


def walk_many() -> None:
    for seed in range(200):
        chances = random.Random(seed)
        SharesWalk().run([(chances.randrange(6), chances.randrange(60), chances.randrange(1000)) for _ in range(100)])


def what_was_held_before_stays_counted(patch: pytest.MonkeyPatch) -> None:
    def report(self: MemoryShares[int], holder: int, size_bytes: int) -> Settled[object] | None:
        self._used.pop(holder, 0)
        if size_bytes:
            self._used[holder] = size_bytes
        else:
            self._waiting.pop(holder, None)
        return self._part.count(size_bytes)

    patch.setattr(MemoryShares, "report", report)


def who_is_gone_still_waits(patch: pytest.MonkeyPatch) -> None:
    report = MemoryShares.report

    def kept(self: MemoryShares[int], holder: int, size_bytes: int) -> Settled[object] | None:
        waiting = dict(self._waiting)
        settled = report(self, holder, size_bytes)
        self._waiting = waiting
        return settled

    patch.setattr(MemoryShares, "report", kept)


def nobody_is_freed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MemoryShares, "freed", lambda self: [])


def who_is_freed_waits_on(patch: pytest.MonkeyPatch) -> None:
    freed = MemoryShares.freed

    def kept(self: MemoryShares[int]) -> list[int]:
        waiting = dict(self._waiting)
        found = freed(self)
        self._waiting = waiting
        return found

    patch.setattr(MemoryShares, "freed", kept)


def only_the_first_is_freed(patch: pytest.MonkeyPatch) -> None:
    freed = MemoryShares.freed

    def first(self: MemoryShares[int]) -> list[int]:
        return freed(self)[:1]

    patch.setattr(MemoryShares, "freed", first)


def the_little_of_each_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MemoryShares, "allowed_bytes", lambda self: self._part.most_bytes // max(1, 40 * len(self._used)))


def nobody_ever_stops(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MemoryShares, "stops", lambda self, holder: False)


def who_stops_is_not_remembered(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MemoryShares, "stops", lambda self, holder: self._used.get(holder, 0) >= self.allowed_bytes())


def the_bound_is_for_all_but_one(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MemoryShares, "allowed_bytes", lambda self: self._part.most_bytes)


BUGS: list[Plant] = [
    what_was_held_before_stays_counted,
    who_is_gone_still_waits,
    nobody_is_freed,
    who_is_freed_waits_on,
    only_the_first_is_freed,
    the_little_of_each_is_forgotten,
    nobody_ever_stops,
    who_stops_is_not_remembered,
    the_bound_is_for_all_but_one,
]


@pytest.mark.parametrize("plant", BUGS, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_found(plant: Plant) -> None:
    with found_by_walk(plant):
        walk_many()


def test_without_a_bug_all_walks_hold() -> None:
    walk_many()
