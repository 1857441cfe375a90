"""Password checks in threads, with limited concurrency, because a hash can take a second.

At most `concurrent` checks run. Client addresses are served round robin, and so are the users of one address. An
address with too many wrong passwords is delayed.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Collection
from typing import NamedTuple

from pybroker.errors import TooManyRequests
from pybroker.runtime.clock import Clock
from pybroker.waiting.admission_queue import AdmissionQueue, Admissions, QueueFull
from pybroker.waiting.token_bucket import TokenBucket

MAX_ADDRESSES = 10_000
"""Maximum number of addresses with recorded failures. The least recently used is dropped."""
FAILURES_AT_ONCE = 10
"""Wrong passwords of one address that are checked without delay."""


class CheckLimits(NamedTuple):
    """Configured limits of password checks."""

    concurrent: int
    pending: int
    pending_per_address: int
    failures_per_s: float
    timeout_s: float


class PasswordChecks(Admissions[str, None]):
    """Queue of password checks, fair by client address."""

    def __init__(self, limits: CheckLimits, clock: Clock) -> None:
        self._limits = limits
        self._clock = clock
        self._queue: AdmissionQueue[str, None] = AdmissionQueue(self, limits.pending, limits.pending_per_address)
        self._failures: OrderedDict[str, TokenBucket] = OrderedDict()
        self.running = 0

    @property
    def waiting(self) -> int:
        return len(self._queue)

    async def check(self, address: str, name: str, verify: Callable[[], bool]) -> bool:
        """Run `verify` in a thread when a thread is available, and return its result. Raises TooManyRequests if the
        queue is full or the check takes too long.

        The queue serves the addresses in turn, and the names of one address in turn. `name` stands for the user: all
        checks of one user have the same name.
        """
        try:
            await self._queue.enter(address, self._limits.timeout_s, name)
        except QueueFull:
            raise TooManyRequests("too many passwords are waiting for verification; try again later") from None
        except TimeoutError as error:
            raise TooManyRequests("the password was not verified in time; try again later") from error
        checking = asyncio.get_running_loop().run_in_executor(None, verify)
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
        self.running -= 1
        self._queue.admit_waiting()

    def may_admit(self, address: str) -> bool:
        if self.running >= self._limits.concurrent:
            return False
        bucket = self._failures.get(address)
        return bucket is None or bucket.available(self._clock.monotonic_ms()) >= 1

    def take(self, address: str) -> None:
        self.running += 1

    def give_back(self, address: str, unit: None) -> None:
        self.running -= 1

    def retry_ms(self, addresses: Collection[str]) -> float | None:
        """Return the milliseconds after which at least one of `addresses` may check a password again. These addresses
        wait because their earlier checks failed. None while all threads are busy.
        """
        if self.running >= self._limits.concurrent:
            return None
        return min(self._failures[each].wait_ms() for each in addresses)
