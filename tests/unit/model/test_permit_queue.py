"""Permits: in order, never more than there are, and only so many wait."""

from __future__ import annotations

import random

from pybroker.model.permit_queue import PermitQueue


def test_who_does_not_fit_waits_and_nobody_overtakes_it() -> None:
    queue: PermitQueue[str] = PermitQueue(10, 5)
    assert queue.take(6)
    assert not queue.take(5)
    assert queue.wait("large", 5)
    assert not queue.take(1), "there is room for one, but somebody waits"
    assert queue.wait("small", 1)
    assert queue.give_back(6) == ["large", "small"]
    assert queue.free == 4


def test_the_queue_has_an_end() -> None:
    queue: PermitQueue[str] = PermitQueue(1, 1)
    assert queue.take(1)
    assert queue.wait("a", 1)
    assert not queue.wait("b", 1)


def test_who_leaves_lets_those_behind_it_go() -> None:
    queue: PermitQueue[str] = PermitQueue(10, 5)
    assert queue.take(6)
    assert queue.wait("large", 8)
    assert queue.wait("small", 4)
    assert queue.leave("large") == ["small"]
    assert len(queue) == 0


def test_permits_are_neither_lost_nor_made() -> None:
    rng = random.Random(12)
    queue: PermitQueue[int] = PermitQueue(20, 8)
    holding: dict[int, int] = {}
    waiting: dict[int, int] = {}
    for who in range(5000):
        admitted: list[int] = []
        match rng.randrange(3):
            case 0:
                count = rng.randint(0, 20)
                if queue.take(count):
                    holding[who] = count
                elif queue.wait(who, count):
                    waiting[who] = count
                else:
                    assert len(waiting) == 8
            case 1 if holding:
                admitted = queue.give_back(holding.pop(rng.choice(list(holding))))
            case 2 if waiting:
                leaving = rng.choice(list(waiting))
                del waiting[leaving]
                admitted = queue.leave(leaving)
        assert admitted == list(waiting)[: len(admitted)]
        for each in admitted:
            holding[each] = waiting.pop(each)
        assert sum(holding.values()) + queue.free == 20
        assert len(queue) == len(waiting)
