"""Shares of a part: only a full holder stops, and continues when others have given memory back."""

from __future__ import annotations

from pybroker.memory.memory_budget import MemoryBudget
from pybroker.memory.memory_shares import MemoryShares


def shares_of(bound_bytes: int = 100) -> MemoryShares[str]:
    budget: MemoryBudget[object] = MemoryBudget(1000)
    return MemoryShares(budget.add_part("some", 0, bound_bytes), 5)


def test_one_alone_may_have_all_there_is() -> None:
    shares = shares_of()
    shares.report("a", 99)
    assert not shares.stops("a")
    shares.report("a", 100)
    assert shares.stops("a")


def test_a_second_one_gets_half_and_the_first_stops_until_it_has_less() -> None:
    shares = shares_of()
    shares.report("a", 80)
    shares.report("b", 1)
    assert shares.stops("a")
    assert not shares.stops("b")
    shares.report("b", 50)
    assert shares.stops("b")
    assert shares.freed() == []
    shares.report("a", 20)
    assert shares.freed() == ["a"]
    shares.report("b", 0)
    assert shares.waiting == 0
    shares.check_invariants()


def test_a_little_each_may_always_have() -> None:
    shares = shares_of()
    for name in "abcdefghijklmnopqrstuvwxyz":
        shares.report(name, 4)
    assert shares.allowed_bytes() == 5
    assert not shares.stops("a")


def test_who_is_gone_frees_those_that_wait() -> None:
    shares = shares_of()
    shares.report("a", 60)
    shares.report("b", 60)
    assert shares.stops("a")
    assert shares.stops("b")
    shares.report("b", 0)
    assert shares.freed() == ["a"]
    assert len(shares) == 1


def test_part_reports_that_it_is_full_when_it_has_no_room() -> None:
    budget: MemoryBudget[object] = MemoryBudget(1000)
    part = budget.add_part("publishes", 100, 400)
    for own_bytes in (0, 50, 300):
        part.limit_to(own_bytes)
        for size_bytes in (10, 39, 1, 50, 200, 100, -350, -50):
            assert part.fill(size_bytes) == (part.room() <= 0)
        assert not part.used_bytes
