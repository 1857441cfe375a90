"""What must hold of a memory budget, checked after each step of a walk that a list of numbers describes.

The model knows every amount by itself: what was taken, counted, kept, and who waits in which order. What it does not say is how the
budget finds out whose turn it is.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

from pybroker.memory.memory_budget import MemoryBudget, Part, Settled

LIMIT = 100
PARTS = {"reads": (20, 70), "outboxes": (15, 100), "publishes": (10, 30)}  # floor and bound
GROUPS = 3

Step = tuple[int, int, int]
"""What is done, to which part or to whom, and how much."""


class Asked(NamedTuple):
    part: str
    group: int
    size_bytes: int
    since_ms: int


class BudgetWalk:
    """One budget, and what is known of it."""

    def __init__(self) -> None:
        self.budget: MemoryBudget[int] = MemoryBudget(LIMIT)
        self.parts: dict[str, Part[int]] = {
            name: self.budget.add_part(name, floor, bound) for name, (floor, bound) in PARTS.items()
        }
        self.waiting: OrderedDict[int, Asked] = OrderedDict()
        self.taken: dict[int, Asked] = {}
        self.ahead: OrderedDict[int, tuple[str, int]] = OrderedDict()
        self.counted = dict.fromkeys(PARTS, 0)
        self.skipped_ranges: dict[tuple[str, int], set[int]] = {}
        """Of each group that waits: the groups that were served since it began to."""
        self.now_ms = 0
        self.next_id = 0

    # --- steps -------------------------------------------------------------------------------------------------------

    def run(self, steps: Sequence[Step]) -> None:
        """Walk, then give everything back: nothing may be left, and nobody wait."""
        for step in steps:
            self.step(*step)
        self.end()

    def step(self, kind: int, who: int, size: int) -> None:
        self.now_ms += 1
        name = list(PARTS)[who % len(PARTS)]
        match kind % 8:
            case 0 | 1:
                self.ask(name, who // len(PARTS) % GROUPS, 1 + size % 60)
            case 2 if self.taken:
                self.give_back(list(self.taken)[who % len(self.taken)])
            case 3:
                self.hold(name, size % 40)
            case 4 if self.ahead:
                self.drop(list(self.ahead)[who % len(self.ahead)])
            case 5 if self.waiting:
                self.leave(list(self.waiting)[who % len(self.waiting)])
            case 6:
                self.count(name, 1 + size % 25)
            case 7 if self.counted[name]:
                self.count(name, -(1 + size % self.counted[name]))
        self.check()

    def ask(self, name: str, group: int, size_bytes: int) -> None:
        part, waiter = self.parts[name], self.next_id
        self.next_id += 1
        self.waiting[waiter] = Asked(name, group, part.took(size_bytes), self.now_ms)
        self.skipped_ranges.setdefault((name, group), set())
        self.settled(part.ask(waiter, group, size_bytes, self.now_ms))

    def give_back(self, holder: int) -> None:
        asked = self.taken.pop(holder)
        self.settled(self.parts[asked.part].give_back(asked.size_bytes))

    def hold(self, name: str, size_bytes: int) -> None:
        self.next_id += 1
        holder = self.next_id
        if self.ahead and size_bytes % 3 == 0:  # one that holds something already
            holder = next(iter(self.ahead))
            name, _ = self.ahead.pop(holder)
        self.ahead[holder] = (name, size_bytes)
        self.settled(self.parts[name].hold(holder, size_bytes))

    def drop(self, holder: int) -> None:
        name, _ = self.ahead.pop(holder)
        self.settled(self.parts[name].drop(holder))

    def leave(self, waiter: int) -> None:
        asked = self.waiting.pop(waiter)
        self.forget_group(asked)
        settled = self.parts[asked.part].leave(waiter)
        assert settled is not None, "it waited"
        self.settled(settled)

    def count(self, name: str, size_bytes: int) -> None:
        self.counted[name] += size_bytes
        self.settled(self.parts[name].count(size_bytes))

    def end(self) -> None:
        """Whoever has something gives it back, until nobody has anything."""
        while self.taken or self.ahead or any(self.counted.values()):
            self.now_ms += 1
            if self.taken:
                self.give_back(next(iter(self.taken)))
            elif self.ahead:
                self.drop(next(iter(self.ahead)))
            else:
                name = next(name for name, counted in self.counted.items() if counted)
                self.count(name, -self.counted[name])
            self.check()
        assert not self.waiting, "everything is free, and somebody waits"
        assert self.budget.used_bytes == 0
        assert self.budget.shared_used_bytes == 0
        assert all(part.takers == 0 for part in self.parts.values())

    # --- what must hold ----------------------------------------------------------------------------------------------

    def settled(self, settled: Settled[int] | None) -> None:
        """Follow what the budget says, and check that it may."""
        if settled is None:
            return
        for holder in settled.gave_way:
            name, _ = self.ahead[holder]
            oldest = next(each for each, (part, _) in self.ahead.items() if part == name)
            assert holder == oldest, "somebody who has held longer keeps it"
            if not any(asked.part == name for asked in self.waiting.values()):
                assert self.used(name) > PARTS[name][0], "it gave way to others within its own floor"
            del self.ahead[holder]
        assert len(set(settled.granted)) == len(settled.granted)
        before = self.waiting.copy()
        for waiter in settled.granted:
            self.granted(waiter, before)
        served = [self.taken[waiter].part for waiter in settled.granted]
        for waiter in settled.granted:
            if served.count(self.taken[waiter].part) == 1:  # else who took the floor, and who what is shared, is open
                self.check_not_overtaking(self.taken[waiter], set(served))

    def check_not_overtaking(self, granted: Asked, served: set[str]) -> None:
        """Who waits longer for what is shared comes before."""
        if self.used(granted.part) <= PARTS[granted.part][0]:
            return  # It is the part's own floor.
        for name, part in self.parts.items():
            if part.waiting and name not in served and part.head_since_ms() < granted.since_ms:
                waits_for_shared = part.head_size_bytes() <= PARTS[name][1] - self.used(name)
                assert not waits_for_shared, "a younger one got what an older one waits for"

    def granted(self, waiter: int, before: OrderedDict[int, Asked]) -> None:
        asked = self.waiting.pop(waiter)
        self.taken[waiter] = asked
        first = next(each for each, other in before.items() if (other.part, other.group) == (asked.part, asked.group))
        assert first == waiter, "in a group those that came first go first"
        del before[waiter]
        for (name, group), served in self.skipped_ranges.items():
            if name == asked.part and group != asked.group:
                assert asked.group not in served, "one group was served twice while another waited"
                served.add(asked.group)
        self.skipped_ranges.pop((asked.part, asked.group), None)
        if any((other.part, other.group) == (asked.part, asked.group) for other in before.values()):
            self.skipped_ranges[asked.part, asked.group] = set()

    def forget_group(self, gone: Asked) -> None:
        key = (gone.part, gone.group)
        if not any((asked.part, asked.group) == key for asked in self.waiting.values()):
            self.skipped_ranges.pop(key, None)

    def used(self, name: str) -> int:
        return (
            sum(asked.size_bytes for asked in self.taken.values() if asked.part == name)
            + sum(kept for part, kept in self.ahead.values() if part == name)
            + self.counted[name]
        )

    def check(self) -> None:
        self.budget.check_invariants()
        shared = LIMIT - sum(floor for floor, _ in PARTS.values())
        shared_used = 0
        for name, part in self.parts.items():
            floor, bound = PARTS[name]
            used = self.used(name)
            assert part.used_bytes == used, f"{name}: the model has {used}"
            assert part.waiting == sum(asked.part == name for asked in self.waiting.values())
            shared_used += max(0, used - floor)
            heads = [asked for asked in self.waiting.values() if asked.part == name]
            if heads and used + min(asked.size_bytes for asked in heads) <= floor:
                # The one whose turn it is may be larger; whoever fits into the floor waits for nobody else's part.
                assert part.head_size_bytes() + used > min(floor, bound), f"{name} waits within its own floor"
            if not self.counted[name] and not self.ahead:
                assert used <= bound, f"{name} was given more than its bound"
        if not any(self.counted.values()) and not self.ahead:
            assert shared_used <= shared, "parts were given each other's floors"
        self.check_nobody_waits_in_vain(shared, shared_used)

    def check_nobody_waits_in_vain(self, shared: int, shared_used: int) -> None:
        """What was read ahead gives way before anybody waits who could be served with it."""
        for name, part in self.parts.items():
            if part.waiting and any(held == name for held, _ in self.ahead.values()):
                used = self.used(name)
                own = sum(kept for held, kept in self.ahead.values() if held == name)
                room = min(PARTS[name][1] - used, max(0, PARTS[name][0] - used) + max(0, shared - shared_used))
                assert own == 0 or part.head_size_bytes() <= room or self.is_claimed(name), (
                    f"{name}: kept what gives way"
                )

    def is_claimed(self, name: str) -> bool:
        """Whether somebody in another part has waited longer for what is shared."""
        since = self.parts[name].head_since_ms()
        return any(other.waiting and other.head_since_ms() < since for key, other in self.parts.items() if key != name)
