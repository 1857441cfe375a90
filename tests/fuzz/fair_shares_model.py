"""What must hold of shares of a limited resource, checked after each step of a walk that a list of numbers describes.

Holders only keep what they have: nothing is taken from them. The oracle counts on its own, and states the promises of the rule
without its formula: a newcomer is served as long as the limit is not tiny, nobody alone gets all, the reserve is the operators'.
"""

from __future__ import annotations

from collections.abc import Sequence

from pybroker.waiting.fair_shares import FairShares, Holder

LIMIT = 160
RESERVED = 10
HOLDERS = [Holder(name) for name in "abcde"]
OPERATOR = Holder("operator", is_operator=True)

Step = tuple[int, int, int]
"""What is done, by whom, and how much."""


class FairSharesWalk:
    """One resource of `LIMIT` units, five holders and an operator."""

    def __init__(self) -> None:
        self.shares = FairShares()
        self.has = dict.fromkeys([*HOLDERS, OPERATOR], 0)

    def run(self, steps: Sequence[Step]) -> None:
        for kind, who, size in steps:
            holder = [*HOLDERS, OPERATOR][who % (len(HOLDERS) + 1)]
            if kind % 4:
                self.take(holder, 1 + size % 60)
            elif self.has[holder]:
                self.give_back(holder, 1 + size % self.has[holder])
            self.check()
        for holder, count in self.has.items():
            self.give_back(holder, count)
        assert self.shares.used == len(self.shares) == 0, "everything was given back"
        assert all(self.shares.may_take(each, LIMIT) for each in HOLDERS)

    def take(self, holder: Holder, wanted: int) -> None:
        """One by one, as clients do, until it is refused."""
        for _ in range(wanted):
            if not self.shares.may_take(holder, LIMIT):
                assert self.has[holder] or sum(self.has.values()) >= LIMIT - RESERVED, "one that has nothing is refused"
                return
            self.shares.add(holder.name, 1)
            self.has[holder] += 1

    def give_back(self, holder: Holder, count: int) -> None:
        if count:
            self.shares.add(holder.name, -count)
            self.has[holder] -= count

    def check(self) -> None:
        self.shares.check_invariants()
        used = sum(self.has.values())
        assert self.shares.used == used <= LIMIT, "the limit holds"
        others = used - self.has[OPERATOR]
        assert others <= LIMIT - RESERVED, "the reserve is for operators"
        for holder, count in self.has.items():
            assert self.shares.used_by(holder.name) == count
            if holder is not OPERATOR:
                assert count <= (LIMIT - RESERVED) * 3 // 4 + 1, "one holder leaves a quarter to others"
        greedy = [count for count in self.has.values() if count]
        if used < (LIMIT - RESERVED) * 3 // 4:
            assert all(self.shares.may_take(each, LIMIT) for each in HOLDERS), "refused without contention"
        assert self.shares.may_take(OPERATOR, LIMIT) == (used < LIMIT)
        if not self.has[OPERATOR] and len(greedy) < len(HOLDERS):
            newcomer = next(each for each in HOLDERS if not self.has[each])
            if len(greedy) <= 2:
                assert self.shares.may_take(newcomer, LIMIT), "two holders keep a third one out"
        assert dict(self.shares.largest(10)) == {each.name: count for each, count in self.has.items() if count}
        counts = [count for _, count in self.shares.largest(10)]
        assert counts == sorted(counts, reverse=True)
