"""Work that takes memory of several parts one after the other and keeps all of it until it is done: none of it waits for ever.

An HTTP request holds its body, then a message that it looks at, then its answer; a compaction holds what it has noted while it
reads. Each waits only for what a part's floor has (`Part.safe_bytes`) and counts the rest. What must hold: whenever nothing more
begins, all that is under way ends, though each of them ends only when it has everything; and then nothing is held.
"""

from __future__ import annotations

from collections.abc import Sequence

from pybroker.memory.memory_budget import MemoryBudget, Part, Settled

LIMIT = 120
PARTS = {"requests": (10, 40), "views": (10, 30), "compaction": (8, 60), "answers": (10, 40), "reads": (20, 70)}
"""Floor and bound, in the order in which they are taken."""
GROUPS = 3

Step = tuple[int, int, int]


class Work:
    """What it wants of each part, and what it has."""

    def __init__(self, wants: list[tuple[str, int]], group: int) -> None:
        self.wants = wants
        self.group = group
        self.has: list[tuple[str, int, int]] = []  # what was taken and what was counted
        self.is_waiting = False

    @property
    def is_done(self) -> bool:
        return len(self.has) == len(self.wants)


class ChainsWalk:
    def __init__(self) -> None:
        self.budget: MemoryBudget[Work] = MemoryBudget(LIMIT)
        self.parts: dict[str, Part[Work]] = {
            name: self.budget.add_part(name, floor, bound) for name, (floor, bound) in PARTS.items()
        }
        self.kept = self.budget.add_part("delayed", 0, 20)
        """What ends only when its client wants: it is counted, and nobody may depend on its end."""
        self.under_way: list[Work] = []
        self.now_ms = 0

    def run(self, steps: Sequence[Step]) -> None:
        for step in steps:
            self.step(*step)
            self.budget.check_invariants()
        self.end()

    def step(self, kind: int, which: int, size: int) -> None:
        self.now_ms += 1
        match kind % 4:
            case 0 | 1:
                chosen = [name for bit, name in enumerate(PARTS) if which >> bit & 1]
                self.begin(Work([(name, 1 + size * (bit + 3) % 50) for bit, name in enumerate(chosen)], size % GROUPS))
            case 2 if done := [each for each in self.under_way if each.is_done]:
                self.finish(done[which % len(done)])
            case 2 if self.under_way:
                self.cancel(self.under_way[which % len(self.under_way)])
            case 3:
                change = size % 20 - min(10, self.kept.used_bytes)
                self.follow(self.kept.count(max(change, -self.kept.used_bytes)))

    def begin(self, work: Work) -> None:
        self.under_way.append(work)
        self.go_on(work)

    def go_on(self, work: Work) -> None:
        """Ask for what it wants next; `follow` goes on with it once it has that."""
        if work.is_done:
            return
        name, size_bytes = work.wants[len(work.has)]
        part = self.parts[name]
        work.is_waiting = True
        self.follow(part.ask(work, work.group, part.safe_bytes(size_bytes), self.now_ms))

    def follow(self, settled: Settled[Work] | None) -> None:
        for work in () if settled is None else settled.granted:
            name, size_bytes = work.wants[len(work.has)]
            part = self.parts[name]
            taken_bytes = part.took(part.safe_bytes(size_bytes))
            counted_bytes = max(0, size_bytes - taken_bytes)
            work.has.append((name, taken_bytes, counted_bytes))
            work.is_waiting = False
            self.follow(part.count(counted_bytes))
            self.go_on(work)

    def finish(self, work: Work) -> None:
        self.under_way.remove(work)
        for name, taken_bytes, counted_bytes in work.has:
            self.follow(self.parts[name].count(-counted_bytes))
            self.follow(self.parts[name].give_back(taken_bytes))

    def cancel(self, work: Work) -> None:
        if work.is_waiting:
            self.follow(self.parts[work.wants[len(work.has)][0]].leave(work))
        self.finish(work)

    def end(self) -> None:
        """Nothing more begins; what is kept stays kept, and all work ends by itself."""
        while self.under_way:
            done = [each for each in self.under_way if each.is_done]
            assert done, f"{len(self.under_way)} wait for each other"
            self.finish(done[0])
            self.budget.check_invariants()
        assert self.budget.used_bytes == self.kept.used_bytes
        assert self.budget.waiting == 0
        assert all(part.takers == 0 for part in self.parts.values())
