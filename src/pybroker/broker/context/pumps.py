"""Queue of subscriptions that have entries to dispatch.

One callback per event loop iteration dispatches within a time budget. A chain of short callbacks would starve the
journal's writer thread.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable

from pybroker.runtime.clock import Clock

TURN_BUDGET_MS = 0.4


class Pumped(ABC):
    """A subscription that a `PumpList` queues and dispatches."""

    is_queued = False

    @abstractmethod
    def pump(self, now_ms: float, deadline_ms: float) -> bool:
        """Dispatch entries until `deadline_ms`. Return whether more entries can be dispatched. `now_ms` is the start
        time of the queue's callback. Both are times of the monotonic clock.
        """

    @abstractmethod
    def failed(self, bug: Exception) -> None:
        """Handle an unexpected exception from `pump`. Other subscriptions in the queue are not affected."""

    @abstractmethod
    def wake(self) -> None: ...


class PumpList:
    """Queue of subscriptions with entries to dispatch. A callback is scheduled while the queue is not empty."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock) -> None:
        self._loop = loop
        self._clock = clock
        self._queue: deque[Pumped] = deque()
        self.may_dispatch: Callable[[], bool] | None = None
        """Called once per callback, in a cluster. False: this broker may have lost its bundles, so nothing is dispatched."""

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, pumped: Pumped) -> None:
        """Add a subscription, which must not be in the queue yet."""
        assert not pumped.is_queued
        pumped.is_queued = True
        self._queue.append(pumped)
        if len(self._queue) == 1:
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        now_ms = self._clock.monotonic_ms()
        deadline_ms = now_ms + TURN_BUDGET_MS
        queue = self._queue
        if self.may_dispatch is not None and not self.may_dispatch():
            for pumped in queue:
                pumped.is_queued = False
            queue.clear()
            return
        for _ in range(len(queue)):
            pumped = queue[0]
            has_more = False
            try:
                has_more = pumped.pump(now_ms, deadline_ms)
            except Exception as bug:  # noqa: BLE001  (a fault boundary)
                pumped.failed(bug)
            queue.popleft()
            pumped.is_queued = False
            if has_more:
                pumped.is_queued = True
                queue.append(pumped)
            if queue and self._clock.monotonic_ms() >= deadline_ms:
                break
        if queue:
            self._loop.call_soon(self._run)
