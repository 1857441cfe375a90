"""The model of the memory budget finds bugs: each one planted here makes some of the random walks fail."""

from __future__ import annotations

import random
from collections.abc import Hashable

import pytest
from tests.fuzz.budget_model import BudgetWalk
from tests.support.planting import Plant, found_by_walk

from pybroker.memory.memory_budget import MemoryBudget, Part, Settled

WALKS = 300
STEPS = 80


def walk_many() -> None:
    for seed in range(WALKS):
        chances = random.Random(seed)
        BudgetWalk().run(
            [(chances.randrange(8), chances.randrange(1000), chances.randrange(1000)) for _ in range(STEPS)]
        )


def what_is_given_back_wakes_nobody(patch: pytest.MonkeyPatch) -> None:
    give_back = Part.give_back

    def silent(self: Part[int], size_bytes: int) -> Settled[int]:
        patch.setattr(MemoryBudget, "settle", lambda self: Settled([], []))
        try:
            return give_back(self, size_bytes)
        finally:
            patch.setattr(MemoryBudget, "settle", SETTLE)

    patch.setattr(Part, "give_back", silent)


def who_leaves_lets_nobody_go(patch: pytest.MonkeyPatch) -> None:
    leave = Part.leave

    def silent(self: Part[int], waiter: int) -> Settled[int] | None:
        patch.setattr(MemoryBudget, "settle", lambda self: Settled([], []))
        try:
            return leave(self, waiter)
        finally:
            patch.setattr(MemoryBudget, "settle", SETTLE)

    patch.setattr(Part, "leave", silent)


def a_byte_is_lost_with_each_taker(patch: pytest.MonkeyPatch) -> None:
    use = Part._use
    patch.setattr(Part, "_use", lambda self, size_bytes: use(self, size_bytes + (size_bytes < -1)))


def groups_take_no_turns(patch: pytest.MonkeyPatch) -> None:
    admit_head = Part.admit_head

    def first_again(self: Part[int]) -> int:
        group = next(iter(self._rows))
        waiter = admit_head(self)
        if group in self._rows:
            self._rows.move_to_end(group, last=False)
        return waiter

    patch.setattr(Part, "admit_head", first_again)


def the_newest_of_a_group_goes_first(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Part, "_head", lambda self: list(next(iter(self._rows.values())).items())[-1])


def a_part_outgrows_its_bound(patch: pytest.MonkeyPatch) -> None:
    def room(self: Part[int], *, with_shared: bool = True) -> int:
        budget = self._budget
        shared = max(0, budget.shared_bytes - budget.shared_used_bytes) if with_shared else 0
        return max(0, self.floor_bytes - self.used_bytes) + shared

    patch.setattr(Part, "room", room)


def a_part_takes_the_floors_of_others(patch: pytest.MonkeyPatch) -> None:
    def room(self: Part[int], *, with_shared: bool = True) -> int:
        free = self._budget.limit_bytes - self._budget.used_bytes if with_shared else 0
        return min(self.bound_bytes - self.used_bytes, max(free, self.floor_bytes - self.used_bytes))

    patch.setattr(Part, "room", room)


def the_young_overtake(patch: pytest.MonkeyPatch) -> None:
    room = Part.room

    def whole_room(self: Part[int], *, with_shared: bool = True) -> int:
        return room(self)

    patch.setattr(Part, "room", whole_room)


def what_is_read_ahead_stays(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MemoryBudget, "_make_room", lambda self, part, size_bytes, gave_way: None)


def the_newest_gives_way(patch: pytest.MonkeyPatch) -> None:
    def evict_newest(self: Part[int]) -> int:
        holder = next(reversed(self._ahead))
        self._forget(holder)
        return holder

    patch.setattr(Part, "evict_oldest", evict_newest)


def floors_give_way_to_others(patch: pytest.MonkeyPatch) -> None:
    def make_room(self: MemoryBudget[int], part: Part[int], size_bytes: int, gave_way: list[int]) -> None:
        for other in self.parts.values():
            while size_bytes > part.room() and other.ahead_bytes:
                gave_way.append(other.evict_oldest())

    patch.setattr(MemoryBudget, "_make_room", make_room)


def more_is_waited_for_than_there_can_be(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Part, "took", lambda self, size_bytes: size_bytes)


def who_leaves_still_counts(patch: pytest.MonkeyPatch) -> None:
    leave = Part.leave

    def counted(self: Part[int], waiter: int) -> Settled[int] | None:
        self.takers += 1
        return leave(self, waiter)

    patch.setattr(Part, "leave", counted)


def who_holds_anew_counts_twice(patch: pytest.MonkeyPatch) -> None:
    def hold(self: Part[int], holder: int, size_bytes: int) -> Settled[int] | None:
        self._ahead.pop(holder, None)
        self._ahead[holder] = size_bytes
        self.ahead_bytes += size_bytes
        self._use(size_bytes)
        return self._budget.settle()

    patch.setattr(Part, "hold", hold)


def others_go_once_the_first_group_has_left(patch: pytest.MonkeyPatch) -> None:
    remove = Part._remove

    def remove_all(self: Part[int], group: Hashable, waiter: int) -> None:
        remove(self, group, waiter)
        self._rows.pop(group, None)

    patch.setattr(Part, "_remove", remove_all)


SETTLE = MemoryBudget.settle
BUGS: list[Plant] = [
    what_is_given_back_wakes_nobody,
    who_leaves_lets_nobody_go,
    a_byte_is_lost_with_each_taker,
    groups_take_no_turns,
    the_newest_of_a_group_goes_first,
    a_part_outgrows_its_bound,
    a_part_takes_the_floors_of_others,
    the_young_overtake,
    what_is_read_ahead_stays,
    the_newest_gives_way,
    floors_give_way_to_others,
    more_is_waited_for_than_there_can_be,
    who_leaves_still_counts,
    who_holds_anew_counts_twice,
    others_go_once_the_first_group_has_left,
]


def test_without_a_bug_all_walks_hold() -> None:
    walk_many()


@pytest.mark.parametrize("plant", BUGS, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_found(plant: Plant) -> None:
    with found_by_walk(plant, StopIteration):
        walk_many()
