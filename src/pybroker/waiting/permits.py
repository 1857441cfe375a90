"""A limited number of permits for tasks that work for clients.

Each holder (role or address) has a fair share (`fair_shares.py`), because a slow client can keep a permit for a long
time. Waiting holders are served round robin.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from pybroker.waiting.admission_queue import AdmissionQueue, Admissions, QueueFull
from pybroker.waiting.fair_shares import FairShares, Holder


class NoPermit(Exception):
    """No permit was granted: the queue is full, or the wait has reached its time limit."""


class Permits(Admissions[Holder, None]):
    """Permits for all tasks of one kind. Runs on one event loop."""

    def __init__(self, permits: int, max_waiting: int) -> None:
        """`max_waiting`: maximum number of waiting tasks. Above it, the newest task of the holder with most waiting
        tasks is refused.
        """
        assert permits > 0
        self.permits = permits
        self.shares = FairShares()
        """Number of taken permits by holder."""
        self._queue: AdmissionQueue[Holder, None] = AdmissionQueue(self, max_waiting)

    @property
    def waiting(self) -> int:
        return len(self._queue)

    @property
    def taken(self) -> int:
        return self.shares.used

    @asynccontextmanager
    async def held(self, holder: Holder, timeout_s: float) -> AsyncIterator[None]:
        """Hold a permit, charged to `holder` (role or address), within this context. Raises NoPermit if the queue is full,
        or after a wait of `timeout_s` seconds.
        """
        try:
            await self._queue.enter(holder, timeout_s)
        except QueueFull as full:
            whose = "" if full.is_newcomer else ", and most requests are from this client"
            raise NoPermit(f"the queue of waiting requests is full{whose}") from None
        except TimeoutError as error:
            raise NoPermit(f"the request has waited for {timeout_s:g} s, its time limit") from error
        try:
            yield
        finally:
            self.give_back(holder, None)
            self._queue.admit_waiting()

    def may_admit(self, address: Holder) -> bool:
        return self.shares.may_take(address, self.permits)

    def take(self, address: Holder) -> None:
        self.shares.add(address.name, 1)

    def give_back(self, address: Holder, unit: None) -> None:
        self.shares.add(address.name, -1)
