"""Read-ahead for cursors that catch up on the backlog of a topic. Cursors at nearly the same position share a read."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable

from pybroker.ledgers.ledger_store import EntryRun
from pybroker.managed_ledger.shared_resources import LedgerResources
from pybroker.model.position import Position

READ_AHEAD_ENTRIES = 1000
READ_AHEAD_BYTES = 256 * 1024
"""The maximum size of a read for a cursor that catches up. A call of the reading thread costs more than the dispatch of
a hundred entries, and a size four times as large is no faster with many readers.
"""
FEW_READ_BYTES = 1024 * 1024
"""Maximum size with few readers, in bytes: a third less processor time for a single reader of batches."""
FEW_REMOTE_READ_BYTES = 4 * 1024 * 1024
"""The maximum size with few readers of a store without local files, where a read waits several milliseconds for bookies:
at 1 MiB, a single reader of batches received less than half as many messages.
"""
FEW = 8
"""Below this number of readers, reads are large."""
LEAST_READ_BYTES = 64 * 1024
"""Maximum size with many readers and little memory, in bytes."""

Read = Callable[[Position, int, int, Hashable], Awaitable[EntryRun | None]]


class ReadAhead:
    """The read-ahead of one managed ledger. Invariant: at most one read from a position is in progress."""

    def __init__(self, resources: LedgerResources, read: Read) -> None:
        self._resources = resources
        self._read = read
        self._few_read_bytes = FEW_REMOTE_READ_BYTES if resources.store.files is None else FEW_READ_BYTES
        self._under_way: dict[Position, asyncio.Event] = {}

    def find(self, position: Position) -> EntryRun | None:
        return self._resources.recent_reads.find(position)

    async def read(self, position: Position, group: Hashable, *, has_neighbours: bool) -> EntryRun | None:
        """Return entries from `position` on, more than the cursor needs now; None if the first one does not exist, or
        was trimmed during the read. `has_neighbours`: other cursors are close, so the result is cached for them. Raises
        StoreError.
        """
        while (under_way := self._under_way.get(position)) is not None:
            await under_way.wait()
            if (run := self.find(position)) is not None:
                return run
        memory = self._resources.memory
        self._under_way[position] = done = asyncio.Event()
        try:
            most_bytes = self._few_read_bytes if memory.reads.users < FEW else READ_AHEAD_BYTES
            size_bytes = memory.reads.share(LEAST_READ_BYTES, most_bytes)
            run = await self._read(position, READ_AHEAD_ENTRIES, size_bytes, group)
            if run is not None and has_neighbours:
                self._resources.keep_recent(run)
            return run
        finally:
            del self._under_way[position]
            done.set()
