"""New ledger ids of the local store, reserved in blocks with one commit each. No id is used twice, even after a crash."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

LEDGER_ID_BLOCK = 1000


class LedgerIds:
    """The ledger ids of one store. `next` runs on the event loop; any thread may read `first` and `end`.

    Invariant: every returned id is below `end`, and the reservation up to `end` is durable.
    """

    def __init__(self, reserved: range, reserve: Callable[[int], Awaitable[None]]) -> None:
        """`reserved`: ids that are reserved already. `reserve` stores a new value of `end` durably, or raises."""
        self.first = reserved.start
        """Earlier runs assigned lower ids."""
        self.end = reserved.stop
        self._unused = iter(reserved)
        self._reserve = reserve
        self._reserving = asyncio.Lock()

    async def next(self) -> int:
        """Return a new ledger id. Raises the error of a failed reservation; the next call tries again."""
        async with self._reserving:
            ledger_id = next(self._unused, None)
            if ledger_id is None:
                block = range(self.end, self.end + LEDGER_ID_BLOCK)
                await self._reserve(block.stop)
                self.end = block.stop
                self._unused = iter(block)
                ledger_id = next(self._unused)
            return ledger_id
