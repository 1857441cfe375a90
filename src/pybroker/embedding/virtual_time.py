"""Virtual time: the broker's clock and timers follow the machine's time, and jump when a test advances them.

Invariants: time never goes back. `advance` runs the timers in due order, and waits for the broker's resulting work
before the next timer. Keep-alive of connections uses the machine's time, so a jump closes no connection.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Awaitable, Callable

from pybroker.config import BrokerConfig
from pybroker.runtime.clock import Clock
from pybroker.runtime.runtime import Runtime, Timer

STEPS = 500
"""Maximum number of steps of one advance. A timer with a shorter period runs less often during the advance."""
SETTLE_TURNS = 6
"""Iterations of the event loop after each step: for timers, pumps, completed writes, and their waiters."""
LONGEST_SETTLE_S = 10.0
"""Limit in seconds of the machine's time. A task that is still busy then waits for something other than time, and the
advance continues.
"""


class MovedClock(Clock):
    """A clock that shows the machine's time plus the time that tests have added."""

    def __init__(self) -> None:
        self.added_ms = 0.0

    def monotonic_ms(self) -> float:
        return super().monotonic_ms() + self.added_ms

    def wall_ms(self) -> int:
        return super().wall_ms() + int(self.added_ms)


class _Ringing(Timer):
    __slots__ = ("callback", "due_ms", "is_cancelled", "serial")

    def __init__(self, due_ms: float, serial: int, callback: Callable[[], None]) -> None:
        self.due_ms = due_ms
        self.serial = serial
        self.callback = callback
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True

    def __lt__(self, other: _Ringing) -> bool:
        return (self.due_ms, self.serial) < (other.due_ms, other.serial)


class VirtualRuntime(Runtime):
    """The runtime of one embedded broker, for use on its event loop."""

    def __init__(self, config: BrokerConfig, clock: MovedClock) -> None:
        super().__init__(config, clock)
        self._moved = clock
        self._machine = Clock()
        self._heap: list[_Ringing] = []
        self._serial = 0
        self._alarm: asyncio.TimerHandle | None = None
        self._woken: set[asyncio.Task[object]] = set()
        self._is_closed = False

    @property
    def peer_clock(self) -> Clock:
        return self._machine

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        self._serial += 1
        timer = _Ringing(self._moved.monotonic_ms() + max(0.0, delay_s) * 1000, self._serial, callback)
        if not self._is_closed:
            heapq.heappush(self._heap, timer)
            if self._heap[0] is timer:
                self._set_alarm()
        return timer

    async def sleep(self, delay_s: float) -> None:
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        task = asyncio.current_task()
        assert task is not None
        self._woken.discard(task)

        def wake() -> None:
            if not woken.done():
                woken.set_result(None)
                self._woken.add(task)

        timer = self.call_later(delay_s, wake)
        try:
            await woken
        finally:
            timer.cancel()

    def cancel_timers(self) -> None:
        self._is_closed = True
        self._heap.clear()
        if self._alarm is not None:
            self._alarm.cancel()

    async def advance(self, milliseconds: float, settle: Callable[[], Awaitable[None]]) -> None:
        """Advance the time and run all timers that become due. `settle` waits until the broker has no more work."""
        await self._settle()  # a task that was just started may not wait yet
        left_ms, shortest_ms = milliseconds, milliseconds / STEPS
        while left_ms > 0 and not self._is_closed:
            next_ms = self._next_due_ms()
            step_ms = left_ms if next_ms is None else min(left_ms, max(next_ms, shortest_ms))
            self._moved.added_ms += step_ms
            left_ms -= step_ms
            self._ring_due()
            await self._settle()
        await settle()
        self._ring_due()
        await self._settle()

    def _next_due_ms(self) -> float | None:
        while self._heap and self._heap[0].is_cancelled:
            heapq.heappop(self._heap)
        return self._heap[0].due_ms - self._moved.monotonic_ms() if self._heap else None

    def _ring_due(self) -> None:
        now_ms = self._moved.monotonic_ms()
        due: list[_Ringing] = []
        while self._heap and self._heap[0].due_ms <= now_ms:
            due.append(heapq.heappop(self._heap))
        self._set_alarm()
        for timer in due:
            if not timer.is_cancelled:
                timer.is_cancelled = True
                try:
                    timer.callback()
                except Exception as error:  # noqa: BLE001  (as a loop does with its own timers)
                    asyncio.get_running_loop().call_exception_handler(
                        {"message": "a timer of the broker failed", "exception": error}
                    )

    def _set_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        next_ms = self._next_due_ms()
        if next_ms is not None:
            self._alarm = asyncio.get_running_loop().call_later(max(0.0, next_ms) / 1000, self._alarmed)

    def _alarmed(self) -> None:
        self._alarm = None
        self._ring_due()

    async def _settle(self) -> None:
        for _ in range(SETTLE_TURNS):
            await asyncio.sleep(0)
        began_ms = self._machine.monotonic_ms()
        while self._woken:
            self._woken = {task for task in self._woken if not task.done()}
            if self._machine.monotonic_ms() - began_ms > LONGEST_SETTLE_S * 1000:
                self._woken.clear()
            await asyncio.sleep(0)
