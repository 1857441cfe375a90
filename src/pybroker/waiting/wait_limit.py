"""A limit of how many requests wait, with a share for each holder, and of how long each waits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from pybroker.waiting.fair_shares import FairShares, Holder


class WaitRefused(Exception):
    """The request may not wait. The text says why."""


class WaitTimedOut(Exception):
    """The request has waited until its deadline."""


class WaitLimit:
    """Invariant: `count` requests are within `waiting`."""

    def __init__(self, key: str) -> None:
        """`key`: the configuration key of the limit, for error texts."""
        self._key = key
        self.shares = FairShares()
        """Waiting requests by holder."""
        self.refused_total = 0
        """Requests that could not wait, because the limit was reached."""
        self.late_total = 0
        """Requests that have waited until their deadline."""

    @property
    def count(self) -> int:
        return self.shares.used

    @asynccontextmanager
    async def waiting(self, holder: Holder, limit: int, timeout_s: float) -> AsyncIterator[None]:
        """Count a request of `holder` that only waits within this context. Raises WaitRefused, WaitTimedOut."""
        if not self.shares.may_take(holder, limit):
            self.refused_total += 1
            raise WaitRefused(self.shares.refusal(holder, limit, "waiting requests", self._key))
        self.shares.add(holder.name, 1)
        try:
            async with asyncio.timeout(timeout_s) as deadline:
                yield
        except TimeoutError as error:
            if not deadline.expired():
                raise
            self.late_total += 1
            raise WaitTimedOut from error
        finally:
            self.shares.add(holder.name, -1)
