"""Limit of the number of waiting requests, with a fair share for each holder, and of the waiting time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from pybroker.waiting.fair_shares import FairShares, Holder


class WaitRefused(Exception):
    """The request may not wait, because too many wait already."""


class WaitTimedOut(Exception):
    """The request has waited until its deadline."""


class WaitLimit:
    """Limit for one kind of request. `count` is the number of waiting requests."""

    def __init__(self, key: str) -> None:
        """`key`: the configuration key of the limit, for error texts."""
        self._key = key
        self.shares = FairShares()
        """Number of waiting requests by holder."""
        self.refused_total = 0
        """Number of requests that could not wait, because the limit was reached."""
        self.late_total = 0
        """Number of requests that waited until their deadline."""

    @property
    def count(self) -> int:
        return self.shares.used

    @asynccontextmanager
    async def waiting(self, holder: Holder, limit: int, timeout_s: float) -> AsyncIterator[None]:
        """Count a request of `holder` as waiting within this context. Raises WaitTimedOut after `timeout_s`
        seconds, and WaitRefused if too many requests wait: all that `limit` permits, or the fair share of `holder`.
        """
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
