"""LockTable: one owner for each name, waiters in order of arrival, and no memory for unused names; beside a simple
model.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.planting import Plant, found_by_walk

from pybroker.waiting.lock_table import LockTable

Step = tuple[int, int, int]
"""The kind of a step, the index of the name, and a number that selects a waiter."""


class LockTableWalk:
    """A table of three locks beside one list for each: the owner, and behind it the waiters."""

    def __init__(self) -> None:
        self.table: LockTable[str, int] = LockTable()
        self.model: dict[str, list[int]] = {name: [] for name in "abc"}

    def run(self, steps: Sequence[Step]) -> None:
        for number, (kind, name_index, choice) in enumerate(steps):
            self._step(number, kind, "abc"[name_index % 3], choice)
            self.check()
        for name, queue in self.model.items():
            while queue:
                self._release(name)
                self.check()
        assert len(self.table) == 0

    def _step(self, number: int, kind: int, name: str, choice: int) -> None:
        queue = self.model[name]
        if kind % 5 < 2:
            is_taken = self.table.take(name, number)
            assert is_taken == (not queue), "a free lock was refused, or a held lock was taken"
            if not is_taken:
                self.table.wait(name, number)
            queue.append(number)
        elif kind % 5 == 2 and queue:
            self._release(name)
        elif kind % 5 == 3 and queue[1:]:
            leaving = queue.pop(1 + choice % len(queue[1:]))
            assert self.table.leave(name, leaving), "a waiter was lost"
        elif queue:
            assert not self.table.leave(name, queue[0]), "the owner does not wait"

    def _release(self, name: str) -> None:
        queue = self.model[name]
        successor = self.table.release(name, queue.pop(0))
        assert successor == (queue[0] if queue else None), "the lock did not go to the first waiter"

    def check(self) -> None:
        self.table.check_invariants()
        assert len(self.table) == sum(map(bool, self.model.values())), "a name is listed although its lock is free"
        for name, queue in self.model.items():
            assert self.table.owner(name) == (queue[0] if queue else None)
            assert self.table.waiting(name) == len(queue[1:])


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 2), st.integers(0, 20)), max_size=60))
def test_lock_table_equals_model_on_any_steps(steps: list[Step]) -> None:
    LockTableWalk().run(steps)


def test_wait_for_free_lock_fails() -> None:
    table: LockTable[str, int] = LockTable()
    with pytest.raises(AssertionError):
        table.wait("a", 1)


def test_release_by_other_than_owner_fails() -> None:
    table: LockTable[str, int] = LockTable()
    assert table.take("a", 1)
    with pytest.raises(AssertionError):
        table.release("a", 2)


def test_leave_without_waiting_changes_nothing() -> None:
    table: LockTable[str, int] = LockTable()
    assert not table.leave("a", 1)
    assert table.take("a", 1)
    table.wait("a", 2)
    assert not table.leave("a", 3)
    assert table.release("a", 1) == 2


def run_many_walks() -> None:
    for seed in range(50):
        chances = random.Random(seed)
        LockTableWalk().run([(chances.randrange(5), chances.randrange(3), chances.randrange(20)) for _ in range(60)])


def newest_waiter_gets_lock(patch: pytest.MonkeyPatch) -> None:
    def release(self: LockTable[str, int], name: str, owner: int) -> int | None:
        queue = self._queues.get(name)
        if queue is None:
            del self._owners[name]
            return None
        self._owners[name], _ = queue.popitem()
        if not queue:
            del self._queues[name]
        return self._owners[name]

    patch.setattr(LockTable, "release", release)


def held_lock_is_taken(patch: pytest.MonkeyPatch) -> None:
    def take(self: LockTable[str, int], name: str, owner: int) -> bool:
        self._owners[name] = owner
        return True

    patch.setattr(LockTable, "take", take)


def empty_queue_stays_listed(patch: pytest.MonkeyPatch) -> None:
    def leave(self: LockTable[str, int], name: str, waiter: int) -> bool:
        queue = self._queues.get(name)
        if queue is None or waiter not in queue:
            return False
        del queue[waiter]
        return True

    patch.setattr(LockTable, "leave", leave)


def leaving_waiter_takes_all_others_along(patch: pytest.MonkeyPatch) -> None:
    def leave(self: LockTable[str, int], name: str, waiter: int) -> bool:
        if waiter not in self._queues.get(name, ()):
            return False
        del self._queues[name]
        return True

    patch.setattr(LockTable, "leave", leave)


BUGS: list[Plant] = [
    newest_waiter_gets_lock,
    held_lock_is_taken,
    empty_queue_stays_listed,
    leaving_waiter_takes_all_others_along,
]


@pytest.mark.parametrize("plant", BUGS, ids=lambda plant: plant.__name__)
def test_model_finds_mutant_of_lock_table(plant: Plant) -> None:
    with found_by_walk(plant):
        run_many_walks()


def test_random_walks_of_lock_table_without_mutant() -> None:
    run_many_walks()
