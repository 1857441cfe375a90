"""Addresses take turns, and names within an address; at the limit, the longest queue loses a waiter."""

from __future__ import annotations

import random

from pybroker.waiting.fair_queue import FairQueue


def anybody(address: str) -> bool:
    return True


def test_addresses_take_turns_and_names_within_them() -> None:
    queue: FairQueue[str, str] = FairQueue(100, 100)
    for number in range(3):
        queue.add("flood", "x", f"x{number}")
    queue.add("flood", "alice", "alice")
    queue.add("quiet", "bob", "bob")
    assert [queue.next(anybody) for _ in range(6)] == ["x0", "bob", "alice", "x1", "x2", None]


def test_the_newest_of_the_longest_row_makes_room() -> None:
    queue: FairQueue[str, str] = FairQueue(4, 3)
    assert [queue.add("flood", "x", f"x{number}") for number in range(4)] == [None, None, None, "x3"]
    assert queue.add("flood", "alice", "alice") == "x2"
    assert queue.add("quiet", "bob", "bob") is None
    assert queue.add("other", "eve", "eve") == "x1"
    assert len(queue) == 4


def test_an_address_that_may_not_go_is_passed_over() -> None:
    queue: FairQueue[str, str] = FairQueue(10, 10)
    queue.add("slow", "x", "x")
    queue.add("quiet", "bob", "bob")
    assert queue.next(lambda address: address != "slow") == "bob"
    assert queue.next(lambda address: address != "slow") is None
    assert list(queue.addresses) == ["slow"]


def test_nobody_is_lost_or_counted_twice() -> None:
    rng = random.Random(5)
    queue: FairQueue[str, int] = FairQueue(20, 8)
    waiting: dict[int, tuple[str, str]] = {}
    for who in range(5000):
        match rng.randrange(3):
            case 0 | 1:
                place = rng.choice("abcd"), rng.choice("xy")
                waiting[who] = place
                displaced = queue.add(*place, who)
                if displaced is not None:
                    del waiting[displaced]
            case 2 if waiting and rng.random() < 0.5:
                leaving = rng.choice(list(waiting))
                assert queue.remove(*waiting.pop(leaving), leaving)
                assert not queue.remove("a", "x", leaving)
            case 2:
                found = queue.next(anybody)
                assert (found is None) == (not waiting)
                if found is not None:
                    del waiting[found]
        assert len(queue) == len(waiting) <= 20
        assert set(queue.addresses) == {address for address, _ in waiting.values()}
