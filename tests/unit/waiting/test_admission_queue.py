"""AdmissionQueue: waiting requests are admitted round robin, refused at the limits, and no unit is lost when a request ends."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection

import pytest

from pybroker.waiting.admission_queue import AdmissionQueue, Admissions, QueueFull

FOREVER_S = 60


class Units(Admissions[str, int]):
    """Numbered units, some of which are free; blocked addresses get none."""

    def __init__(self, free: int) -> None:
        self.free = list(range(free))
        self.blocked: set[str] = set()
        self.retry_after_ms: float | None = None

    def may_admit(self, address: str) -> bool:
        return bool(self.free) and address not in self.blocked

    def take(self, address: str) -> int:
        return self.free.pop()

    def give_back(self, address: str, unit: int) -> None:
        assert unit not in self.free, "given back twice"
        self.free.append(unit)

    def retry_ms(self, addresses: Collection[str]) -> float | None:
        return self.retry_after_ms


class UnitQueue:
    """A queue for units, and the order in which requests were admitted."""

    def __init__(self, free: int, max_waiting: int = 100, max_waiting_per_address: int | None = None) -> None:
        self.pool = Units(free)
        self.queue: AdmissionQueue[str, int] = AdmissionQueue(self.pool, max_waiting, max_waiting_per_address)
        self.order: list[str] = []

    def start(self, label: str, address: str, name: str = "", timeout_s: float = FOREVER_S) -> asyncio.Task[int]:
        return asyncio.create_task(self._enter(label, address, name, timeout_s))

    async def _enter(self, label: str, address: str, name: str, timeout_s: float) -> int:
        unit = await self.queue.enter(address, timeout_s, name)
        self.order.append(label)
        return unit

    def release(self, unit: int) -> None:
        self.pool.give_back("", unit)
        self.queue.admit_waiting()


async def iterations(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_free_unit_is_taken_without_waiting() -> None:
    units = UnitQueue(1)
    assert await units.queue.enter("a", 0) == 0
    assert len(units.queue) == 0


async def test_addresses_and_their_names_are_admitted_round_robin() -> None:
    units = UnitQueue(0)
    tasks = [
        units.start(label, address, name)
        for label, address, name in [("a1", "a", "x"), ("a2", "a", "x"), ("a3", "a", "y"), ("b1", "b", "")]
    ]
    await iterations()
    assert len(units.queue) == 4
    for unit in range(4):
        units.release(unit)
        await iterations()
    assert units.order == ["a1", "b1", "a3", "a2"]
    assert sorted(await asyncio.gather(*tasks)) == [0, 1, 2, 3]


async def test_request_of_admissible_address_passes_blocked_addresses() -> None:
    units = UnitQueue(1)
    units.pool.blocked.add("slow")
    slow = units.start("slow", "slow")
    await iterations()
    assert await units.queue.enter("quick", 0) == 0
    units.pool.blocked.clear()
    units.release(0)
    assert await slow == 0


async def test_newest_request_of_longest_queue_is_refused() -> None:
    units = UnitQueue(0, max_waiting=3, max_waiting_per_address=2)
    flood = [units.start(f"a{number}", "a") for number in range(3)]
    await iterations()
    with pytest.raises(QueueFull) as refused:
        await flood[2]
    assert (refused.value.waiting, refused.value.is_newcomer) == (2, True)
    others = [units.start("b", "b"), units.start("c", "c")]
    await iterations()
    with pytest.raises(QueueFull) as refused:
        await flood[1]
    assert (refused.value.waiting, refused.value.is_newcomer) == (3, False)
    for unit in range(3):
        units.release(unit)
    await asyncio.gather(flood[0], *others)


async def test_wait_beyond_deadline_leaves_queue() -> None:
    units = UnitQueue(0)
    with pytest.raises(TimeoutError):
        await units.queue.enter("a", 0.001)
    assert len(units.queue) == 0


@pytest.mark.parametrize("is_cancelled_first", [True, False])
async def test_request_cancelled_in_iteration_of_admission_gives_unit_back(is_cancelled_first: bool) -> None:
    units = UnitQueue(0)
    cancelled, after = units.start("cancelled", "a"), units.start("after", "a")
    await iterations()
    if is_cancelled_first:
        cancelled.cancel()
    units.release(0)
    cancelled.cancel()
    async with asyncio.timeout(1):
        assert await after == 0
    assert units.order == ["after"]
    assert (len(units.queue), units.pool.free) == (0, [])


async def test_all_waiting_requests_are_refused_with_the_given_error() -> None:
    units = UnitQueue(0)
    tasks = [units.start(address, address) for address in "ab"]
    await iterations()
    tasks[0].cancel()
    units.queue.refuse_all(ValueError("it has failed"))
    with pytest.raises(ValueError, match="it has failed"):
        await tasks[1]
    await asyncio.wait(tasks)
    assert len(units.queue) == 0


async def test_blocked_address_is_admitted_when_time_allows() -> None:
    units = UnitQueue(1)
    units.pool.blocked.add("a")
    units.pool.retry_after_ms = 1
    waiting = units.start("a", "a")
    await iterations()
    units.pool.blocked.clear()
    async with asyncio.timeout(5):
        assert await waiting == 0


@pytest.mark.parametrize("seed", range(20))
async def test_random_cancellations_neither_lose_nor_share_units(seed: int) -> None:
    chances = random.Random(seed)
    units = UnitQueue(2, max_waiting=8, max_waiting_per_address=5)
    in_use: set[int] = set()

    async def use(address: str, count: int) -> None:
        unit = await units.queue.enter(address, FOREVER_S, chances.choice("xy"))
        assert unit not in in_use, "two requests have one unit"
        in_use.add(unit)
        try:
            await iterations(count)
        finally:
            in_use.remove(unit)
            units.release(unit)

    tasks: list[asyncio.Task[None]] = []
    for _ in range(80):
        tasks.append(asyncio.create_task(use(chances.choice("abc"), chances.randrange(4))))
        if chances.random() < 0.4:
            chances.choice(tasks).cancel()
        await iterations(chances.randrange(2))
        assert len(units.queue) <= 8
    async with asyncio.timeout(5):
        await asyncio.gather(*tasks, return_exceptions=True)
    failures = [each.exception() for each in tasks if not each.cancelled()]
    assert all(each is None or isinstance(each, QueueFull) for each in failures)
    assert (len(units.queue), sorted(units.pool.free)) == (0, [0, 1])
