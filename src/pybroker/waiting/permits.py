"""Tasks that wait for permits on behalf of clients.

Invariant: a taken permit is released, however the task that holds it ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from pybroker.waiting.fair_shares import Holder
from pybroker.waiting.permit_queue import PermitQueue


class NoPermit(Exception):
    """The queue is full, or the turn did not come in time."""


class Permits:
    """The permits for all tasks of one kind. Each holder has a share of them. Runs on one loop."""

    def __init__(self, permits: int, max_waiting: int) -> None:
        self._queue: PermitQueue[asyncio.Future[None]] = PermitQueue(permits, max_waiting)
        self._admitted: set[asyncio.Future[None]] = set()  # permits whose tasks have not run yet

    @property
    def waiting(self) -> int:
        """How many tasks wait."""
        return len(self._queue)

    @property
    def taken(self) -> int:
        return self._queue.taken

    @property
    def permits(self) -> int:
        """How many there are."""
        return self._queue.permits

    @asynccontextmanager
    async def held(self, holder: Holder, timeout_s: float) -> AsyncIterator[None]:
        """Wait for a permit of `holder` and hold it; holders are served round robin. Raises NoPermit."""
        await self._take(holder, timeout_s)
        try:
            yield
        finally:
            self._tell(self._queue.give_back(holder))

    async def _take(self, holder: Holder, timeout_s: float) -> None:
        if self._queue.take(holder):
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        crowded_out = self._queue.wait(turn, holder)
        if crowded_out is turn:
            raise NoPermit("too many wait already")
        if crowded_out is not None and not crowded_out.done():
            crowded_out.set_exception(NoPermit("too many wait already, most of them of this client"))
        try:
            async with asyncio.timeout(timeout_s):
                await turn
        except BaseException as error:
            if turn in self._queue:
                self._queue.leave(turn)
            elif turn in self._admitted:  # The permit was assigned while this wait ended.
                self._tell(self._queue.give_back(holder))
            if isinstance(error, TimeoutError):
                raise NoPermit(f"waited for {timeout_s:g} s") from error
            raise
        finally:
            self._admitted.discard(turn)

    def _tell(self, admitted: list[asyncio.Future[None]]) -> None:
        for turn in admitted:
            self._admitted.add(turn)
            if not turn.done():  # else its task has just been cancelled, and gives back what it got
                turn.set_result(None)
