"""Long work on the event loop, as a generator that yields after each small step; other tasks run between time slices."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Iterable
from typing import TYPE_CHECKING, TypeVar

from pybroker.runtime.tasks import all_results

if TYPE_CHECKING:
    from pybroker.runtime.clock import Clock

T = TypeVar("T")

SLICE_MS = 2.0
"""Time of one slice, without its last step."""
KEPT_AT_ONCE = 16
"""Items that `kept` checks at a time."""
BACKGROUND_SLICE_MS = 0.5
BUSY_MS = 0.1
"""If other tasks take this time in one iteration of the event loop, background work pauses for PAUSE_S."""
PAUSE_S = 0.001


async def in_slices(steps: Generator[None, None, T], clock: Clock) -> T:
    ends_ms = clock.monotonic_ms() + SLICE_MS
    while True:
        try:
            next(steps)
        except StopIteration as done:
            result: T = done.value
            return result
        if clock.monotonic_ms() >= ends_ms:
            await asyncio.sleep(0)
            ends_ms = clock.monotonic_ms() + SLICE_MS


async def kept(items: Iterable[T], keeps: Callable[[T], Awaitable[bool]], clock: Clock) -> list[T]:
    """Return the items for which `keeps` returns True, in their order. At most `KEPT_AT_ONCE` calls of `keeps` run at
    the same time. Other tasks run after each time slice, even if no call of `keeps` waits.
    """
    answers: dict[int, T] = {}
    left = enumerate(items)

    async def work() -> None:
        ends_ms = clock.monotonic_ms() + SLICE_MS
        for index, item in left:
            if await keeps(item):
                answers[index] = item
            if clock.monotonic_ms() >= ends_ms:
                await asyncio.sleep(0)
                ends_ms = clock.monotonic_ms() + SLICE_MS

    await all_results(work() for _ in range(KEPT_AT_ONCE))
    return [answers[index] for index in sorted(answers)]


class BackgroundSlices:
    """Time slices of background work, such as a compaction, for which no client waits. The background work pauses
    while other tasks are busy.

    A message of a client passes the event loop at least twice, and without the pauses would wait for a slice each time.
    Alone, the work takes the whole time.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ends_ms = 0.0

    def has_ended(self) -> bool:
        return self._clock.monotonic_ms() >= self._ends_ms

    async def next(self) -> None:
        """Let other tasks run, and begin a slice."""
        yielded_ms = self._clock.monotonic_ms()
        await asyncio.sleep(0)
        if self._clock.monotonic_ms() - yielded_ms >= BUSY_MS:
            await asyncio.sleep(PAUSE_S)
        self._ends_ms = self._clock.monotonic_ms() + BACKGROUND_SLICE_MS
