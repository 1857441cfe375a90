"""Permits: holders take turns and have a share, never more are taken than there are, and only so many wait."""

from __future__ import annotations

import random

from pybroker.waiting.fair_shares import Holder
from pybroker.waiting.permit_queue import PermitQueue

A, B, C = Holder("role a"), Holder("role b"), Holder("role c")


def test_waiters_of_one_holder_are_admitted_in_order_and_holders_in_turns() -> None:
    queue: PermitQueue[str] = PermitQueue(1, 9)
    assert queue.take(A)
    assert not queue.take(B)
    for waiter, holder in (("a1", A), ("a2", A), ("b1", B), ("a3", A)):
        assert queue.wait(waiter, holder) is None
    order = [queue.give_back(A)[0]]
    for previous in (A, B, A):
        order += queue.give_back(previous)
    assert order == ["a1", "b1", "a2", "a3"]
    assert queue.give_back(A) == []
    assert (queue.taken, len(queue)) == (0, 0)


def test_one_holder_leaves_permits_for_another_one() -> None:
    queue: PermitQueue[str] = PermitQueue(8, 9)
    assert [queue.take(A) for _ in range(8)] == [True] * 6 + [False] * 2
    assert queue.wait("a", A) is None
    assert queue.take(B), "another holder does not wait behind one with its share"
    assert queue.give_back(B) == []
    assert queue.give_back(A) == ["a"]


def test_when_too_many_wait_the_newest_of_the_longest_row_leaves() -> None:
    queue: PermitQueue[str] = PermitQueue(1, 2)
    assert queue.take(C)
    assert queue.wait("a1", A) is None
    assert queue.wait("a2", A) is None
    assert queue.wait("a3", A) == "a3"
    assert queue.wait("b", B) == "a2"
    assert "a2" not in queue
    assert len(queue) == 2
    queue.leave("a1")
    assert queue.give_back(C) == ["b"]


def test_permits_are_neither_lost_nor_made() -> None:
    rng = random.Random(12)
    queue: PermitQueue[int] = PermitQueue(20, 8)
    holding: dict[int, Holder] = {}
    waiting: dict[int, Holder] = {}
    for who in range(3000):
        admitted: list[int] = []
        match rng.randrange(3):
            case 0:
                holder = rng.choice([A, B, C])
                if queue.take(holder):
                    holding[who] = holder
                else:
                    waiting[who] = holder
                    crowded_out = queue.wait(who, holder)
                    if crowded_out is not None:
                        del waiting[crowded_out]
            case 1 if holding:
                admitted = queue.give_back(holding.pop(rng.choice(list(holding))))
            case 2 if waiting and rng.random() < 0.5:
                leaving = rng.choice(list(waiting))
                del waiting[leaving]
                queue.leave(leaving)
        for each in admitted:
            holding[each] = waiting.pop(each)
        assert queue.taken == len(holding) <= 20
        assert len(queue) == len(waiting) <= 8
        queue.shares.check_invariants()
        assert not any(queue.shares.may_take(each, 20) for each in set(waiting.values())), "waits for nothing"
