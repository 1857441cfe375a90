"""Work that keeps memory of one part while it waits for another never waits for ever; planted bugs are found."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fuzz.chains_model import ChainsWalk
from tests.support.planting import Plant, found_by_walk

from pybroker.memory.memory_budget import MemoryBudget, Part, Settled

NUMBERS = st.integers(0, 1000)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS), max_size=60))
def test_work_that_takes_several_parts_ends_on_any_walk(steps: list[tuple[int, int, int]]) -> None:
    ChainsWalk().run(steps)


def walk_many() -> None:
    for seed in range(200):
        chances = random.Random(seed)
        ChainsWalk().run([(chances.randrange(4), chances.randrange(32), chances.randrange(1000)) for _ in range(60)])


def all_of_it_is_waited_for(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Part, "safe_bytes", lambda self, size_bytes: size_bytes)


def twice_the_floor_is_waited_for(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Part, "safe_bytes", lambda self, size_bytes: min(size_bytes, 2 * self.floor_bytes))


def what_was_counted_is_not_given_back(patch: pytest.MonkeyPatch) -> None:
    count = Part.count
    patch.setattr(Part, "count", lambda self, size_bytes: count(self, max(size_bytes, 0)))


def what_is_counted_down_lets_nobody_go(patch: pytest.MonkeyPatch) -> None:
    def silent(self: Part[Any], size_bytes: int) -> Settled[Any] | None:
        self._use(size_bytes)
        return None

    patch.setattr(Part, "count", silent)


def floors_are_shared(patch: pytest.MonkeyPatch) -> None:
    add_part = MemoryBudget.add_part

    def without_floor(self: MemoryBudget[Any], name: str, floor_bytes: int, bound_bytes: int) -> Part[Any]:
        part = add_part(self, name, 0, bound_bytes)
        part.safe_bytes = lambda size_bytes: min(size_bytes, max(1, floor_bytes))  # type: ignore[method-assign]
        return part

    patch.setattr(MemoryBudget, "add_part", without_floor)


BUGS: list[Plant] = [
    all_of_it_is_waited_for,
    twice_the_floor_is_waited_for,
    what_was_counted_is_not_given_back,
    what_is_counted_down_lets_nobody_go,
    floors_are_shared,
]


@pytest.mark.parametrize("plant", BUGS, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_found(plant: Plant) -> None:
    with found_by_walk(plant):
        walk_many()


def test_without_a_bug_all_walks_hold() -> None:
    walk_many()
