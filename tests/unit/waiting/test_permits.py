"""Permits: holders have shares and are served round robin; refused, late and cancelled tasks lose no permit."""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack

import pytest

from pybroker.waiting.fair_shares import Holder
from pybroker.waiting.permits import NoPermit, Permits

A, B, C = Holder("role a"), Holder("role b"), Holder("role c")


async def hold(permits: Permits, until: asyncio.Event, holder: Holder = A, timeout_s: float = 10) -> None:
    async with permits.held(holder, timeout_s):
        await until.wait()


async def iterations() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_tasks_wait_for_permit_and_task_beyond_queue_limit_is_refused() -> None:
    permits, done = Permits(1, 1), asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(hold(permits, done))
        await iterations()
        group.create_task(hold(permits, done))
        await iterations()
        assert (permits.taken, permits.waiting) == (1, 1)
        with pytest.raises(NoPermit):
            await hold(permits, done)
        done.set()
    assert (permits.taken, permits.waiting) == (0, 0)


async def test_newest_task_of_holder_that_fills_queue_is_refused_for_another_holder() -> None:
    permits, done = Permits(1, 2), asyncio.Event()
    async with asyncio.TaskGroup() as group:
        first = group.create_task(hold(permits, done))
        await iterations()
        flood = [asyncio.ensure_future(hold(permits, done)) for _ in range(2)]
        await iterations()
        honest = group.create_task(hold(permits, done, B))
        with pytest.raises(NoPermit, match="most requests are from this client"):
            await flood[1]
        done.set()
        await asyncio.gather(first, flood[0], honest)
    assert (permits.taken, permits.waiting) == (0, 0)


async def test_wait_beyond_time_limit_is_refused() -> None:
    permits, done = Permits(1, 1), asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(hold(permits, done))
        await iterations()
        with pytest.raises(NoPermit):
            await hold(permits, done, timeout_s=0.01)
        assert permits.waiting == 0
        done.set()


@pytest.mark.parametrize("is_admitted_first", [False, True])
async def test_task_cancelled_when_admitted_gives_permit_back(is_admitted_first: bool) -> None:
    permits, done = Permits(1, 2), asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(hold(permits, done))
        await iterations()
        cancelled = group.create_task(hold(permits, asyncio.Event()))
        after = group.create_task(hold(permits, done))
        await iterations()
        done.set()
        if is_admitted_first:
            await asyncio.sleep(0)
        cancelled.cancel()
        await after
    assert (permits.taken, permits.waiting) == (0, 0)


async def test_holders_are_served_round_robin_and_tasks_of_one_holder_in_order() -> None:
    permits, order = Permits(1, 9), list[str]()

    async def note(label: str, holder: Holder) -> None:
        async with permits.held(holder, 10):
            order.append(label)

    async with asyncio.TaskGroup() as group, permits.held(A, 10):
        for label, holder in (("a1", A), ("a2", A), ("b1", B), ("a3", A)):
            group.create_task(note(label, holder))
        await iterations()
        assert order == []
    assert order == ["a1", "b1", "a2", "a3"]
    assert (permits.taken, permits.waiting) == (0, 0)


async def test_one_holder_leaves_permits_for_another_holder() -> None:
    permits = Permits(8, 9)
    async with AsyncExitStack() as stack:
        for _ in range(6):
            await stack.enter_async_context(permits.held(A, 10))
        with pytest.raises(NoPermit):
            await stack.enter_async_context(permits.held(A, 0.001))
        waiting = asyncio.create_task(hold(permits, asyncio.Event()))
        await iterations()
        async with asyncio.timeout(1), permits.held(B, 10):
            assert (permits.taken, permits.waiting) == (7, 1)
        assert permits.waiting == 1
    await iterations()
    assert (permits.taken, permits.waiting) == (1, 0)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert permits.taken == 0


@pytest.mark.parametrize("seed", range(10))
async def test_random_cancellations_neither_lose_nor_create_permits(seed: int) -> None:
    chances, permits, holding = random.Random(seed), Permits(6, 8), 0

    async def use(holder: Holder, count: int) -> None:
        nonlocal holding
        async with permits.held(holder, 10):
            holding += 1
            try:
                for _ in range(count):
                    await asyncio.sleep(0)
            finally:
                holding -= 1

    tasks: list[asyncio.Task[None]] = []
    for _ in range(100):
        tasks.append(asyncio.create_task(use(chances.choice([A, B, C]), chances.randrange(8))))
        if chances.random() < 0.3:
            chances.choice(tasks).cancel()
        await asyncio.sleep(0)
        permits.shares.check_invariants()
        assert holding <= permits.taken <= 6
        assert permits.waiting <= 8
    async with asyncio.timeout(5):
        await asyncio.gather(*tasks, return_exceptions=True)
    failures = [each.exception() for each in tasks if not each.cancelled()]
    assert all(each is None or isinstance(each, NoPermit) for each in failures)
    assert (holding, permits.taken, permits.waiting) == (0, 0, 0)
