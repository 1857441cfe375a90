"""Waiting for one's turn: a queue of permits whose holders are tasks.

What must hold: permits that were taken are given back, however the task that holds them ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from pybroker.model.permit_queue import PermitQueue


class NoPermit(Exception):
    """The queue is full, or the turn did not come in time."""


class Permits:
    """So many permits, bytes for instance, for all tasks of one kind. Runs on one loop."""

    def __init__(self, permits: int, max_waiting: int) -> None:
        self._queue: PermitQueue[asyncio.Future[None]] = PermitQueue(permits, max_waiting)

    @property
    def waiting(self) -> int:
        """How many tasks wait."""
        return len(self._queue)

    @property
    def taken(self) -> int:
        return self._queue.permits - self._queue.free

    @property
    def permits(self) -> int:
        """How many there are."""
        return self._queue.permits

    @asynccontextmanager
    async def held(self, count: int, timeout_s: float) -> AsyncIterator[None]:
        """Hold `count` permits, all of them if that is more; wait for them in order. Raises NoPermit."""
        count = min(count, self._queue.permits)
        await self._take(count, timeout_s)
        try:
            yield
        finally:
            self._tell(self._queue.give_back(count))

    async def _take(self, count: int, timeout_s: float) -> None:
        if self._queue.take(count):
            return
        turn = asyncio.get_running_loop().create_future()
        if not self._queue.wait(turn, count):
            raise NoPermit("too many wait already")
        try:
            async with asyncio.timeout(timeout_s):
                await turn
        except BaseException as error:
            if turn in self._queue:
                self._tell(self._queue.leave(turn))
            else:  # The turn came in the very moment in which this ended.
                self._tell(self._queue.give_back(count))
            if isinstance(error, TimeoutError):
                raise NoPermit(f"waited for {timeout_s:g} s") from error
            raise

    @staticmethod
    def _tell(admitted: list[asyncio.Future[None]]) -> None:
        for turn in admitted:
            if not turn.done():  # else its task has just been cancelled, and gives back what it got
                turn.set_result(None)
