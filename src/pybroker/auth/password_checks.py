"""Password checks in threads, few at a time: a hash takes up to a second on purpose, and unauthenticated connections
request them.

At most `concurrent` checks run, even if their callers are gone. Addresses are served round robin, and users within
an address; an address with too many wrong passwords must wait. The loop continues meanwhile, although hashes are
computed in Python.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from pybroker.errors import TooManyRequests
from pybroker.runtime.clock import Clock
from pybroker.waiting.fair_queue import FairQueue
from pybroker.waiting.token_bucket import TokenBucket

MAX_ADDRESSES = 10_000
"""Maximum number of addresses with recorded failures; the least recently seen is forgotten."""
FAILURES_AT_ONCE = 10
"""Wrong passwords of an address that are checked without delay."""


class CheckLimits(NamedTuple):
    """Limits from the configuration."""

    concurrent: int
    pending: int
    pending_per_address: int
    failures_per_s: float
    timeout_s: float


class PasswordChecks:
    """Password checks of the authentication service, on one loop."""

    def __init__(self, limits: CheckLimits, clock: Clock) -> None:
        self._limits = limits
        self._clock = clock
        self._queue: FairQueue[str, asyncio.Future[None]] = FairQueue(limits.pending, limits.pending_per_address)
        self._failures: OrderedDict[str, TokenBucket] = OrderedDict()
        self._timer: asyncio.TimerHandle | None = None
        self.running = 0

    @property
    def waiting(self) -> int:
        return len(self._queue)

    async def check(self, address: str, name: str, verify: Callable[[], bool]) -> bool:
        """Return the result of `verify`, called in a thread in fair order of `address`, and of `name` within it. Raise
        TooManyRequests.
        """
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        displaced = self._queue.add(address, name, turn)
        if displaced is not None and not displaced.done():
            displaced.set_exception(TooManyRequests("too many passwords wait to be checked; try again later"))
        self._start_next()
        try:
            async with asyncio.timeout(self._limits.timeout_s):
                await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self._ended()  # The check had just been started.
            else:
                self._queue.remove(address, name, turn)
            if isinstance(error, TimeoutError):
                raise TooManyRequests("the password could not be checked in time; try again later") from error
            raise
        checking = loop.run_in_executor(None, verify)
        checking.add_done_callback(lambda done: self._checked(address, done))
        return await asyncio.shield(checking)

    def _checked(self, address: str, done: asyncio.Future[bool]) -> None:
        if done.cancelled() or done.exception() is not None or not done.result():
            now_ms = self._clock.monotonic_ms()
            bucket = self._failures.pop(address, None)
            if bucket is None:
                period_ms = max(1, round(1000 * FAILURES_AT_ONCE / self._limits.failures_per_s))
                bucket = TokenBucket(FAILURES_AT_ONCE, period_ms, now_ms)
            bucket.available(now_ms)
            bucket.spend(1)
            self._failures[address] = bucket
            if len(self._failures) > MAX_ADDRESSES:
                self._failures.popitem(last=False)
        self._ended()

    def _ended(self) -> None:
        self.running -= 1
        self._start_next()

    def _start_next(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self.running < self._limits.concurrent:
            turn = self._queue.next(self._may_go)
            if turn is None:
                break
            if not turn.done():  # otherwise the task was just cancelled
                self.running += 1
                turn.set_result(None)
        if self.running < self._limits.concurrent and len(self._queue):
            wait_ms = min(self._failures[each].wait_ms() for each in self._queue.addresses)
            self._timer = asyncio.get_running_loop().call_later(max(1, wait_ms) / 1000, self._start_next)

    def _may_go(self, address: str) -> bool:
        bucket = self._failures.get(address)
        return bucket is None or bucket.available(self._clock.monotonic_ms()) >= 1
