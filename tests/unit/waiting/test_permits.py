"""Tasks that wait for permits: refused, timed out, cancelled, and nothing is lost."""

from __future__ import annotations

import asyncio

import pytest

from pybroker.waiting.fair_shares import Holder
from pybroker.waiting.permits import NoPermit, Permits

A, B = Holder("role a"), Holder("role b")


async def hold(permits: Permits, until: asyncio.Event, holder: Holder = A, timeout_s: float = 10) -> None:
    async with permits.held(holder, timeout_s):
        await until.wait()


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_tasks_wait_for_each_other_and_too_many_are_refused() -> None:
    permits, done = Permits(1, 1), asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(hold(permits, done))
        await turns()
        group.create_task(hold(permits, done))
        await turns()
        assert (permits.taken, permits.waiting) == (1, 1)
        with pytest.raises(NoPermit):
            await hold(permits, done)
        done.set()
    assert (permits.taken, permits.waiting) == (0, 0)


async def test_one_holder_that_fills_the_queue_makes_room_for_another_holder() -> None:
    permits, done = Permits(1, 2), asyncio.Event()
    async with asyncio.TaskGroup() as group:
        first = group.create_task(hold(permits, done))
        await turns()
        flood = [asyncio.ensure_future(hold(permits, done)) for _ in range(2)]
        await turns()
        honest = group.create_task(hold(permits, done, B))
        with pytest.raises(NoPermit, match="most of them of this client"):
            await flood[1]
        done.set()
        await asyncio.gather(first, flood[0], honest)
    assert (permits.taken, permits.waiting) == (0, 0)


async def test_a_wait_has_an_end() -> None:
    permits, done = Permits(1, 1), asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(hold(permits, done))
        await turns()
        with pytest.raises(NoPermit):
            await hold(permits, done, timeout_s=0.01)
        assert permits.waiting == 0
        done.set()


@pytest.mark.parametrize("is_admitted_first", [False, True])
async def test_a_task_that_is_cancelled_when_its_turn_comes_gives_it_back(is_admitted_first: bool) -> None:
    permits, done = Permits(1, 2), asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(hold(permits, done))
        await turns()
        cancelled = group.create_task(hold(permits, asyncio.Event()))
        after = group.create_task(hold(permits, done))
        await turns()
        done.set()
        if is_admitted_first:
            await asyncio.sleep(0)
        cancelled.cancel()
        await after
    assert (permits.taken, permits.waiting) == (0, 0)
