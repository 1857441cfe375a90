"""Shares of a limited resource on random walks: no holder takes all, newcomers are served; planted bugs are found."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fuzz.fair_shares_model import LIMIT, FairSharesWalk
from tests.support.planting import Plant, found_by_walk

from pybroker.waiting.fair_shares import FairShares, Holder

NUMBERS = st.integers(0, 1000)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS), max_size=60))
def test_fair_shares_hold_on_any_walk(steps: list[tuple[int, int, int]]) -> None:
    FairSharesWalk().run(steps)


@pytest.mark.parametrize("greedy", range(1, 6))
def test_greedy_holders_get_equal_shares_when_they_take_in_turns(greedy: int) -> None:
    shares, holders = FairShares(), [Holder(str(number)) for number in range(greedy)]
    while any(shares.may_take(each, 16_000) for each in holders):
        for each in holders:
            if shares.may_take(each, 16_000):
                shares.add(each.name, 1)
    expected = 15_000 * 3 / (3 * greedy + 1)
    assert all(abs(shares.used_by(each.name) - expected) <= 3 for each in holders)
    assert shares.may_take(Holder("newcomer"), 16_000)


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_a_tiny_limit_can_be_used_up_by_one_holder(limit: int) -> None:
    shares = FairShares()
    for _ in range(limit):
        assert shares.may_take(Holder("a"), limit)
        shares.add("a", 1)
    assert not shares.may_take(Holder("a"), limit)
    assert not shares.may_take(Holder("b"), limit)


def test_a_refusal_names_the_holder_and_the_key() -> None:
    shares, weak = FairShares(), Holder("role weak")
    while shares.may_take(weak, LIMIT):
        shares.add(weak.name, 1)
    text = shares.refusal(weak, LIMIT, "leases", "maxReadLeases")
    assert "role weak holds 113 of 160 leases (maxReadLeases)" in text
    shares.add("role other", 150 - 113)
    assert "150 of 160 leases are in use" in shares.refusal(Holder("role third"), LIMIT, "leases", "maxReadLeases")


def walk_many() -> None:
    for seed in range(100):
        chances = random.Random(seed)
        FairSharesWalk().run(
            [(chances.randrange(8), chances.randrange(60), chances.randrange(1000)) for _ in range(60)]
        )


def anybody_takes_while_there_is_something(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FairShares, "may_take", lambda self, holder, limit: self.used < limit)


def nobody_has_a_share(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FairShares, "may_take", lambda self, holder, limit: holder.is_operator or not self.is_full(limit))


def the_reserve_is_open(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FairShares, "_free", lambda self, limit: limit - self.used)


def the_reserve_is_for_nobody(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FairShares, "may_take", lambda self, holder, limit: self.used_by(holder.name) < 3 * self._free(limit))


def a_share_is_what_is_free(patch: pytest.MonkeyPatch) -> None:
    def may_take(self: FairShares, holder: Holder, limit: int) -> bool:
        if holder.is_operator:
            return self.used < limit
        return 2 * self.used_by(holder.name) < self._free(limit)

    patch.setattr(FairShares, "may_take", may_take)


def what_is_given_back_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    add = FairShares.add
    patch.setattr(FairShares, "add", lambda self, name, count: add(self, name, count) if count > 0 else None)


def all_count_for_one(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FairShares, "used_by", lambda self, name: self.used)


def who_has_nothing_stays_listed(patch: pytest.MonkeyPatch) -> None:
    def add(self: FairShares, name: str, count: int) -> None:
        self.used += count
        self._used_by[name] = self._used_by.get(name, 0) + count

    patch.setattr(FairShares, "add", add)


def the_least_come_first(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        FairShares, "largest", lambda self, count: sorted(self._used_by.items(), key=lambda each: each[1])[:count]
    )


BUGS: list[Plant] = [
    anybody_takes_while_there_is_something,
    nobody_has_a_share,
    the_reserve_is_open,
    the_reserve_is_for_nobody,
    a_share_is_what_is_free,
    what_is_given_back_is_forgotten,
    all_count_for_one,
    who_has_nothing_stays_listed,
    the_least_come_first,
]


@pytest.mark.parametrize("plant", BUGS, ids=lambda plant: plant.__name__)
def test_a_planted_bug_in_fair_shares_is_found(plant: Plant) -> None:
    with found_by_walk(plant):
        walk_many()


def test_without_a_bug_all_walks_of_fair_shares_hold() -> None:
    walk_many()
