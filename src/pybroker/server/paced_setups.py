"""Pacing of connection setups and disconnects, so that many of them at once do not block the event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

PER_ITERATION = 8
"""About 1 ms: decoding CONNECT and the commands after it, the responses, or the release of a closed connection."""


class PacedSetups:
    """Admits setups and disconnects, at most PER_ITERATION in each iteration of the event loop, in order of arrival.

    The caller limits the queue: a connection waits at most twice, with its first commands and with its end.
    Invariant: while fewer than PER_ITERATION are left or an action waits, the next iteration is scheduled.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[Callable[[], None]] = deque()
        self._left = PER_ITERATION  # in this iteration

    def admit(self) -> bool:
        """Return whether the caller may set up or disconnect now. If not, it must pass its action to `wait`."""
        if not self._left:
            return False
        if self._left == PER_ITERATION:
            self._loop.call_soon(self._next_iteration)
        self._left -= 1
        return True

    def wait(self, action: Callable[[], None]) -> None:
        """Run `action` in a later iteration. Call only after `admit` has returned False."""
        self._waiting.append(action)

    def _next_iteration(self) -> None:
        waiting = self._waiting
        count = min(PER_ITERATION, len(waiting))
        self._left = PER_ITERATION - count
        if count:
            self._loop.call_soon(self._next_iteration)
        for _ in range(count):
            waiting.popleft()()
