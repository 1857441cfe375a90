"""Calls that are made later, in the order in which they were asked for, by the broker's clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

from pybroker.runtime.runtime import Runtime


class LateCalls:
    """Owned by the caller. Invariant: no call overtakes another."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._waiting: deque[Callable[[], None]] = deque()
        self._last_due_ms = 0.0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, call: Callable[[], None], delay_s: float, *, after_last: bool = False) -> None:
        """Call `delay_s` from now, or from when the last one is due with `after_last`; not before the last one in any case."""
        now_ms = self._runtime.clock.monotonic_ms()
        begin_ms = max(now_ms, self._last_due_ms) if after_last else now_ms
        self._last_due_ms = max(self._last_due_ms, begin_ms + delay_s * 1000)
        self._waiting.append(call)
        self._runtime.call_later((self._last_due_ms - now_ms) / 1000, partial(self._due, call))

    def _due(self, call: Callable[[], None]) -> None:
        if self._waiting and self._waiting[0] is call:  # else it was hurried, and others wait now
            self._waiting.popleft()()

    def hurry(self) -> None:
        """Make all that wait, now."""
        self._last_due_ms = 0.0
        while self._waiting:
            self._waiting.popleft()()

    def drop(self) -> None:
        """Make none of them."""
        self._waiting.clear()
