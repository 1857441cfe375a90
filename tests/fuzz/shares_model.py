"""What must hold of the shares of a part, checked after each step of a walk that a list of numbers describes.

Each holder wants to grow, and asks before it does; what it has got it gives back whenever the walk says. The model knows what
each has and who was stopped; who is stopped must be freed by whoever makes room, or nobody will.
"""

from __future__ import annotations

from collections.abc import Sequence

from pybroker.memory.memory_budget import MemoryBudget
from pybroker.memory.memory_shares import MemoryShares

BOUND, LEAST = 100, 6
HOLDERS = 6

Step = tuple[int, int, int]
"""What is done, by whom, and how much."""


class SharesWalk:
    """One part with its shares, beside another part that takes what is shared."""

    def __init__(self) -> None:
        self.budget: MemoryBudget[object] = MemoryBudget(400)
        self.part = self.budget.add_part("held", 0, BOUND)
        self.shares: MemoryShares[int] = MemoryShares(self.part, LEAST)
        self.has = dict.fromkeys(range(HOLDERS), 0)
        self.stopped: set[int] = set()

    def run(self, steps: Sequence[Step]) -> None:
        """Walk; then all give everything back, whoever is stopped goes on, and nothing is left."""
        for step in steps:
            self.step(*step)
            self.check()
        for holder in range(HOLDERS):
            self.give_back(holder, self.has[holder])
            self.check()
        assert not self.stopped, "everything is free, and somebody has stopped for ever"
        assert self.budget.used_bytes == 0
        assert len(self.shares) == self.shares.waiting == 0

    def step(self, kind: int, who: int, size: int) -> None:
        holder = who % HOLDERS
        if kind % 3:
            self.grow(holder, 1 + size % 12)
        elif self.has[holder]:
            self.give_back(holder, 1 + size % self.has[holder])

    def grow(self, holder: int, size_bytes: int) -> None:
        if holder in self.stopped:
            return
        if self.shares.stops(holder):
            assert self.has[holder] >= LEAST, "stopped with the little that each may have"
            others = sum(self.has.values()) - self.has[holder]
            assert self.has[holder] >= BOUND // 2 or others, "stopped alone, far below the bound"
            self.stopped.add(holder)
            return
        self.has[holder] += size_bytes
        self.shares.report(holder, self.has[holder])

    def give_back(self, holder: int, size_bytes: int) -> None:
        self.has[holder] -= size_bytes
        self.shares.report(holder, self.has[holder])
        if not self.has[holder]:
            self.stopped.discard(holder)  # gone, or at its beginning again
        for freed in self.shares.freed():
            assert freed in self.stopped, "freed without having stopped"
            self.stopped.discard(freed)

    def check(self) -> None:
        self.shares.check_invariants()
        self.budget.check_invariants()
        assert self.part.used_bytes == sum(self.has.values())
        assert self.shares.waiting == len(self.stopped)
        holders = [each for each in self.has.values() if each]
        equal = BOUND // max(1, len(holders))
        for holder in self.stopped:
            assert self.has[holder] >= min(equal, BOUND // 2), "who has less than its share goes on"
        # Whoever is not stopped may go up to its share, and one step beyond; shares shrink when others come.
        assert self.part.used_bytes <= 2 * BOUND + HOLDERS * (LEAST + 12)
