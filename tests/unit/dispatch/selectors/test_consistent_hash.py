"""Consistent hashing: the ring behind the figures in the documentation."""

from __future__ import annotations

import random

import pytest
from tests.unit.dispatch.support import consumer

from pybroker.dispatch.consumer_state import ConsumerState
from pybroker.dispatch.selectors.consistent_hash import ConsistentHashSelector
from pybroker.model.hashing import key_hash


def of(points_each: int, *names: str) -> tuple[ConsistentHashSelector, list[ConsumerState]]:
    selector = ConsistentHashSelector(points_each)
    consumers = [consumer(name) for name in names]
    for each in consumers:
        selector.add(each)
    return selector, consumers


@pytest.mark.parametrize("names", [("c1", "c2"), ("c2", "c1")])
def test_two_consumers_with_ten_points_have_the_documented_ranges(names: tuple[str, str]) -> None:
    selector, consumers = of(10, *names)
    ranges = {each.name: selector.ranges()[each] for each in consumers}
    assert ranges["c1"] == [(2960, 5968), (22258, 43033), (49261, 54464), (55155, 61273)]
    assert ranges["c2"] == [(1, 2959), (5969, 22257), (43034, 49260), (54465, 55154), (61274, 65535)]


def test_keys_hash_to_1_up_to_65535() -> None:
    selector = ConsistentHashSelector(1)
    assert selector.sticky_hashes([0, 65534, 65535, key_hash(b"Order-3459134")]) == [1, 65535, 1, 20788]


def test_every_hash_belongs_to_the_range_of_its_owner() -> None:
    selector, consumers = of(100, "a", "b", "c")
    for each in consumers:
        for start, end in selector.ranges()[each]:
            assert selector.owner(start) is selector.owner(end) is each
    covered = sum(end - start + 1 for mine in selector.ranges().values() for start, end in mine)
    assert covered == 65535


def test_shares_are_about_even() -> None:
    selector, consumers = of(100, *(f"consumer-{n}" for n in range(5)))
    shares = [sum(end - start + 1 for start, end in selector.ranges()[each]) for each in consumers]
    assert min(shares) > 65535 / 5 * 0.7
    assert max(shares) < 65535 / 5 * 1.3


def test_consumers_of_one_name_have_different_points_and_a_free_number_is_used_again() -> None:
    selector, (first, second, third) = of(20, "same", "same", "same")
    ranges = selector.ranges()
    assert set(ranges) == {first, second, third}
    selector.remove(second)
    fourth = consumer("same")
    selector.add(fourth)
    assert selector.ranges()[fourth] == ranges[second]
    assert selector.ranges()[first] == ranges[first]


def test_the_first_at_a_point_has_it_and_the_next_takes_over() -> None:
    points: dict[int, list[str]] = {}
    for name in map(str, range(2000)):
        (point,) = ConsistentHashSelector(1)._points_of(name, 0)
        points.setdefault(point, []).append(name)
    one, other = next(names for names in points.values() if len(names) > 1)[:2]
    selector, (first, second) = of(1, one, other)
    assert selector.ranges() == {first: [(1, 65535)]}
    selector.remove(first)
    assert selector.ranges() == {second: [(1, 65535)]}
    assert selector.add(first) == [], "it comes behind the one that is there"
    assert selector.ranges() == {second: [(1, 65535)]}


def test_without_consumers_nobody_owns_anything() -> None:
    selector, (only,) = of(5, "a")
    assert selector.owner(65535) is only
    selector.remove(only)
    assert selector.owner(1) is None
    assert selector.ranges() == {}


def test_a_newcomer_names_those_who_lost_to_it_and_a_leaver_moves_only_its_own() -> None:
    chance = random.Random(2)
    selector = ConsistentHashSelector(10)
    present: list[ConsumerState] = []
    before: list[ConsumerState | None] = []
    for step in range(60):
        leaver = None
        if present and chance.random() < 0.45:
            leaver = present.pop(chance.randrange(len(present)))
            selector.remove(leaver)
            losers = []
        else:
            present.append(consumer(f"c{step % 7}"))
            losers = selector.add(present[-1])
        after = [selector.owner(sticky_hash) for sticky_hash in range(1, 65536, 13)]
        if before:
            moved = {one for one, other in zip(before, after, strict=True) if one is not other}
            assert moved <= ({leaver} if leaver else {*losers, None})
        before = after
