"""KeyedLock: tasks get a lock in order of arrival, and no cancelled task loses it or keeps it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from pybroker.waiting.keyed_lock import KeyedLock


async def iterations(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


class Users:
    """Tasks that hold locks until they are released."""

    def __init__(self, lock: KeyedLock[str]) -> None:
        self.lock = lock
        self.order: list[str] = []
        self.may_end: dict[str, asyncio.Event] = {}

    def start(self, user: str, name: str = "a") -> asyncio.Task[None]:
        self.may_end[user] = asyncio.Event()
        return asyncio.create_task(self._hold(user, name))

    async def _hold(self, user: str, name: str) -> None:
        async with self.lock.held(name, f"used by {user}"):
            self.order.append(user)
            await self.may_end[user].wait()


async def test_waiters_get_lock_in_order_of_arrival() -> None:
    users = Users(KeyedLock())
    tasks = [users.start(user) for user in ("first", "second", "third")]
    other = users.start("other", "b")
    await iterations()
    assert users.order == ["first", "other"]
    assert (users.lock.purpose("a"), users.lock.waiting("a")) == ("used by first", 2)
    for user in ("first", "second", "third", "other"):
        users.may_end[user].set()
    await asyncio.gather(*tasks, other)
    assert users.order == ["first", "other", "second", "third"]
    assert not users.lock.is_held("a")
    assert (users.lock.purpose("a"), users.lock.waiting("a"), len(users.lock._table)) == ("", 0, 0)


async def test_failure_of_holder_passes_lock_on() -> None:
    lock: KeyedLock[str] = KeyedLock()
    with pytest.raises(ValueError, match="of the holder"):
        async with lock.held("a"):
            raise ValueError("of the holder")
    async with asyncio.timeout(1), lock.held("a"):
        assert lock.is_held("a")


async def test_cancelled_waiter_leaves_queue() -> None:
    users = Users(KeyedLock())
    first, second, third = (users.start(user) for user in ("first", "second", "third"))
    await iterations()
    second.cancel()
    await iterations()
    assert users.lock.waiting("a") == 1
    users.may_end["first"].set()
    users.may_end["third"].set()
    await asyncio.gather(first, third)
    assert users.order == ["first", "third"]
    assert second.cancelled()
    assert len(users.lock._table) == 0


@pytest.mark.parametrize("is_cancelled_first", [True, False])
async def test_waiter_cancelled_in_iteration_of_release_passes_lock_on(is_cancelled_first: bool) -> None:
    lock: KeyedLock[str] = KeyedLock()
    users = Users(lock)
    async with lock.held("a"):
        cancelled, after = users.start("cancelled"), users.start("after")
        await iterations()
        if is_cancelled_first:
            cancelled.cancel()
    cancelled.cancel()
    users.may_end["after"].set()
    async with asyncio.timeout(1):
        await after
    assert users.order == ["after"]
    assert len(lock._table) == 0


async def test_all_waiters_cancelled_frees_lock() -> None:
    lock: KeyedLock[str] = KeyedLock()
    users = Users(lock)
    async with lock.held("a"):
        waiting = [users.start(str(number)) for number in range(3)]
        await iterations()
        for each in waiting:
            each.cancel()
    assert not lock.is_held("a")
    await asyncio.wait(waiting)
    assert len(lock._table) == 0


class Refused(Exception):
    """The wait context does not let a request wait."""


async def test_wait_context_applies_only_to_waiting_requests_and_may_refuse() -> None:
    entered: list[str] = []

    @asynccontextmanager
    async def context(name: str) -> AsyncIterator[None]:
        entered.append(name)
        if len(entered) > 1:
            raise Refused
        yield

    users = Users(KeyedLock(context))
    first = users.start("first")
    await iterations()
    assert entered == []
    second = users.start("second")
    await iterations()
    with pytest.raises(Refused):
        async with users.lock.held("a"):
            pytest.fail("it has the lock")
    assert entered == ["a", "a"]
    for user in ("first", "second"):
        users.may_end[user].set()
    await asyncio.gather(first, second)
    assert len(users.lock._table) == 0


async def test_wait_context_sees_lock_without_request_that_timed_out() -> None:
    seen: list[tuple[str, int]] = []

    @asynccontextmanager
    async def context(name: str) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(0.01):
                yield
        except TimeoutError:
            seen.append((lock.purpose(name), lock.waiting(name)))
            raise Refused from None

    lock: KeyedLock[str] = KeyedLock(context)
    async with lock.held("a", "being tested"):
        with pytest.raises(Refused):
            async with lock.held("a"):
                pytest.fail("it has the lock")
    assert seen == [("being tested", 0)]


@pytest.mark.parametrize("is_before", [True, False])
async def test_wait_context_that_fails_around_free_lock_does_not_keep_it(is_before: bool) -> None:
    let_go = asyncio.Event()

    @asynccontextmanager
    async def context(name: str) -> AsyncIterator[None]:
        await let_go.wait()  # The lock becomes free meanwhile.
        if is_before:
            raise Refused
        yield
        raise Refused

    lock: KeyedLock[str] = KeyedLock(context)
    users = Users(lock)
    async with lock.held("a"):
        refused = users.start("refused")
        await iterations()
    let_go.set()
    with pytest.raises(Refused):
        await refused
    assert users.order == []
    assert len(lock._table) == 0


async def test_passed_waits_for_earlier_requests_only() -> None:
    users = Users(KeyedLock())
    first = users.start("first")
    await iterations()
    passed = asyncio.create_task(users.lock.passed("a"))
    await iterations()
    later = users.start("later")
    await iterations()
    assert not passed.done()
    users.may_end["first"].set()
    async with asyncio.timeout(1):
        await passed
        await users.lock.passed("free")
    await iterations()
    assert users.order == ["first", "later"]
    users.may_end["later"].set()
    await asyncio.gather(first, later)


async def test_lock_counts_as_held_only_while_its_task_runs() -> None:
    users = Users(KeyedLock())
    async with users.lock.held("a"):
        assert users.lock.is_held("a")
        second = users.start("second")
        await iterations()
    assert not users.lock.is_held("a")
    await iterations()
    assert users.lock.is_held("a")
    users.may_end["second"].set()
    await second


async def test_all_free_waits_for_every_lock_and_waiter() -> None:
    users = Users(KeyedLock())
    await users.lock.all_free()
    tasks = [users.start("first"), users.start("second"), users.start("other", "b")]
    await iterations()
    all_free = asyncio.create_task(users.lock.all_free())
    for user in ("first", "other", "second"):
        await iterations()
        assert not all_free.done()
        users.may_end[user].set()
    async with asyncio.timeout(1):
        await all_free
    await asyncio.gather(*tasks)


@pytest.mark.parametrize("seed", range(20))
async def test_random_cancellations_neither_lose_nor_share_lock(seed: int) -> None:
    chances = random.Random(seed)
    lock: KeyedLock[str] = KeyedLock()
    holders: dict[str, int] = dict.fromkeys("ab", 0)

    async def use(name: str, count: int) -> None:
        async with lock.held(name):
            holders[name] += 1
            assert holders[name] == 1, "two tasks have one lock"
            try:
                await iterations(count)
            finally:
                holders[name] -= 1

    async def pass_by(name: str) -> None:
        await lock.passed(name)

    tasks: list[asyncio.Task[None]] = []
    for _ in range(60):
        name = chances.choice("ab")
        work = pass_by(name) if chances.random() < 0.2 else use(name, chances.randrange(3))
        tasks.append(asyncio.create_task(work))
        if chances.random() < 0.5:
            chances.choice(tasks).cancel()
        await iterations(chances.randrange(3))
        lock._table.check_invariants()
    async with asyncio.timeout(5):
        await asyncio.gather(*tasks, return_exceptions=True)
    assert all(each.cancelled() or each.exception() is None for each in tasks)
    assert len(lock._table) == 0
