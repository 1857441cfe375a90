"""Read-ahead for cursors that catch up on the backlog of a topic. Cursors at nearly the same position share a read."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable

from pybroker.errors import StoreError
from pybroker.ledgers.ledger_store import EntryRun
from pybroker.managed_ledger.cache.entry_cache import part_of
from pybroker.managed_ledger.shared_resources import LedgerResources
from pybroker.memory.broker_memory import AheadHolder
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
    """The read-ahead of one managed ledger. Invariant: at most one read from the same position is in progress."""

    def __init__(self, resources: LedgerResources, read: Read) -> None:
        self._resources = resources
        self._read = read
        self._is_remote = resources.store.files is None
        self._few_read_bytes = FEW_REMOTE_READ_BYTES if self._is_remote else FEW_READ_BYTES
        self._under_way: dict[Position, asyncio.Event] = {}

    def find(self, position: Position) -> EntryRun | None:
        return self._resources.recent_reads.find(position)

    async def read(self, position: Position, group: Hashable, *, has_neighbours: bool) -> EntryRun | None:
        """Return entries from `position` on, more than the cursor needs now. Return None if the entry at `position`
        does not exist, or was trimmed during the read. Reads with the same `group` share one slot in the queue for
        memory. `has_neighbours`: the managed ledger has other cursors, so the result is cached for them. Raises
        StoreError.
        """
        while (under_way := self._under_way.get(position)) is not None:
            await under_way.wait()
            if (run := self.find(position)) is not None:
                return run
        self._under_way[position] = done = asyncio.Event()
        try:
            run = await self._read(position, READ_AHEAD_ENTRIES, self._size_bytes(), group)
            if run is not None and has_neighbours:
                self._resources.keep_recent(run)
            return run
        finally:
            del self._under_way[position]
            done.set()

    def _size_bytes(self) -> int:
        reads = self._resources.memory.reads
        return reads.share(LEAST_READ_BYTES, self._few_read_bytes if reads.users < FEW else READ_AHEAD_BYTES)

    def may_read_following(self, position: Position) -> bool:
        """Return whether a cursor may already read from `position` although it has not delivered all earlier entries
        that it has read.

        True only for a store without local files, where the cursor would wait several milliseconds for this read; and
        only while few cursors read, enough memory is free, and the entry at `position` is not cached.
        """
        memory = self._resources.memory
        return (
            self._is_remote
            and memory.reads.users < FEW
            and not memory.budget.waiting
            and memory.reads.room() >= self._size_bytes()
            and not self._resources.cache.contains(position)
            and self.find(position) is None
        )

    def count_held(self, holder: AheadHolder, size_bytes: int) -> None:
        """Record that `holder`, the read-ahead of one cursor, holds entries of `size_bytes` (0: no entries). The
        memory budget counts them as used by reads.
        """
        memory = self._resources.memory
        memory.follow(memory.reads.hold(holder, size_bytes) if size_bytes else memory.reads.drop(holder))

    def start(self, following: FollowingRead, group: Hashable, *, has_neighbours: bool) -> bool:
        """Start the read `following` in the background, with `group` and `has_neighbours` as in `read`. Return False if
        it is not started, because the broker is closing its managed ledgers.
        """
        return self._resources.tasks.start(self._follow(following, group, has_neighbours), "read ahead")

    async def _follow(self, following: FollowingRead, group: Hashable, has_neighbours: bool) -> None:
        run = None
        try:
            run = await self.read(following.position, group, has_neighbours=has_neighbours)
        except StoreError:
            pass  # The cursor reads again, and receives the error.
        finally:
            following.end(run)


class FollowingRead:
    """A background read of entries from `position` on, while a cursor still delivers the entries in front of them."""

    __slots__ = ("_ended", "_when_read", "position", "run")

    def __init__(self, position: Position, when_read: Callable[[FollowingRead], None]) -> None:
        self.position = position
        self.run: EntryRun | None = None
        """None until the read has ended, and if it found nothing or failed."""
        self._when_read = when_read
        self._ended = asyncio.Event()

    def may_have(self, position: Position) -> bool:
        """Return whether the read returned the entry at `position`, or may still return it."""
        if position.ledger_id != self.position.ledger_id or position < self.position:
            return False
        if self.run is not None:  # It may begin in front of `self.position`, if it is the read of another cursor.
            return position.entry_id < self.run.first_entry_id + len(self.run.payloads)
        return not self._ended.is_set() and position.entry_id < self.position.entry_id + READ_AHEAD_ENTRIES

    def end(self, run: EntryRun | None) -> None:
        self.run = run
        self._ended.set()
        if run is not None:
            self._when_read(self)

    async def entries(self) -> EntryRun | None:
        await self._ended.wait()
        return self.run


class CursorReadAhead(AheadHolder):
    """The entries that one cursor has read from the store beyond its requests. `group` and `has_neighbours`: as in
    `ReadAhead.read`.

    Operation: `hold` keeps the surplus of a read and begins the next read, if `ReadAhead.may_read_following` allows it,
    so bookies work while the surplus is delivered. `take` returns held entries. `read` returns the entries of the next
    read, or reads from the store.

    Memory: both runs count as read-ahead, which is dropped when other readers need the memory.
    """

    def __init__(self, reads: ReadAhead) -> None:
        self._reads = reads
        self.held: EntryRun | None = None
        """The last read, of which `take` returns entries; None without one."""
        self._following: FollowingRead | None = None

    def take(self, position: Position, max_entries: int, max_bytes: int) -> EntryRun | None:
        """Return held entries from `position` on, within the limits. Return None if the entries must be read with
        `read`.
        """
        held = self.held
        if held is None:
            return None
        index = position.entry_id - held.first_entry_id
        if position.ledger_id == held.ledger_id and 0 <= index < len(held.payloads):
            return part_of(held, index, max_entries, max_bytes)
        if self._following is None or not self._following.may_have(position):
            self.drop()
        return None

    async def read(self, position: Position, group: Hashable, *, has_neighbours: bool) -> EntryRun | None:
        """Return entries, including the one at `position`, from the background read if it has this entry, otherwise
        from the store. Return None if the entry does not exist, or was trimmed during the read. Raises StoreError.
        """
        following = self._following
        if following is not None and following.may_have(position):
            run = await following.entries()
            if run is not None and following.may_have(position):
                return run
        return await self._reads.read(position, group, has_neighbours=has_neighbours)

    def hold(self, run: EntryRun, following: Position | None, group: Hashable, *, has_neighbours: bool) -> None:
        """Keep `run`, which has more entries than requested, and start a background read of the entries after it if
        that is allowed. `following`: the next readable position after `run`; None if there is none.
        """
        self.held, self._following = run, None
        self._count()
        if self.held is None or following is None or not self._reads.may_read_following(following):
            return
        read = FollowingRead(following, self._has_read)
        if self._reads.start(read, group, has_neighbours=has_neighbours):
            self._following = read

    def _has_read(self, following: FollowingRead) -> None:
        if self._following is following:
            self._count()

    def _count(self) -> None:
        following = None if self._following is None else self._following.run
        self._reads.count_held(
            self, sum(sum(map(len, run.payloads)) for run in (self.held, following) if run is not None)
        )

    def drop(self) -> None:
        if self.held is not None:
            self.give_way()
            self._count()

    def give_way(self) -> None:
        self.held = self._following = None
