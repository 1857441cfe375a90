"""The read-ahead of one cursor on a store without local files: the next read begins while the cursor still has entries."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable

import pytest
from tests.unit.managed_ledger.stack import SMALL, FakeClock, publish_time_of

from pybroker.errors import StoreError
from pybroker.ledgers.ledger_store import EntryRun
from pybroker.ledgers.memory_store import MemoryLedgerStore
from pybroker.managed_ledger.cache.entry_cache import EntryCache
from pybroker.managed_ledger.read_ahead import (
    FEW,
    FEW_REMOTE_READ_BYTES,
    READ_AHEAD_ENTRIES,
    CursorReadAhead,
    ReadAhead,
)
from pybroker.managed_ledger.shared_resources import LedgerResources
from pybroker.memory.broker_memory import Memory
from pybroker.model.position import Position

RUN_ENTRIES = 10
ENTRY = b"x" * 100
RUN_BYTES = RUN_ENTRIES * len(ENTRY)
ALL = 1 << 20


def position(entry_id: int) -> Position:
    return Position(1, entry_id)


def run_from(entry_id: int) -> EntryRun:
    return EntryRun(1, entry_id, [ENTRY] * RUN_ENTRIES, [1] * RUN_ENTRIES)


def span(run: EntryRun | None) -> tuple[int, int] | None:
    """Return the first entry and the number of entries."""
    return None if run is None else (run.first_entry_id, len(run.payloads))


class Reads:
    """Reads whose results the test gives."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.memory = Memory.ample(self.clock)
        self.resources = LedgerResources(
            MemoryLedgerStore(publish_time_of), EntryCache(ALL), SMALL, self.clock, 10, publish_time_of, self.memory
        )
        self.asked: list[tuple[Position, asyncio.Future[EntryRun | None]]] = []
        self.cursor = CursorReadAhead(ReadAhead(self.resources, self._read))

    async def _read(self, at: Position, max_entries: int, max_bytes: int, group: Hashable) -> EntryRun | None:
        asked: asyncio.Future[EntryRun | None] = asyncio.get_running_loop().create_future()
        self.asked.append((at, asked))
        return await asked

    @property
    def asked_for(self) -> list[Position]:
        return [at for at, _ in self.asked]

    async def hold(self, entry_id: int) -> None:
        """Hold a run, and let the next read begin."""
        self.cursor.hold(run_from(entry_id), position(entry_id + RUN_ENTRIES), None, has_neighbours=False)
        await asyncio.sleep(0)

    async def answer(self, result: EntryRun | StoreError | None) -> None:
        """End the last read."""
        _, asked = self.asked[-1]
        if isinstance(result, StoreError):
            asked.set_exception(result)
        else:
            asked.set_result(result)
        for _ in range(3):
            await asyncio.sleep(0)

    @property
    def held_bytes(self) -> int:
        return self.memory.reads.ahead_bytes


@pytest.fixture
def reads() -> Reads:
    return Reads()


async def test_next_read_begins_while_entries_are_held_and_serves_following_request(reads: Reads) -> None:
    await reads.hold(0)
    assert reads.asked_for == [position(10)]
    assert span(reads.cursor.take(position(0), 4, ALL)) == (0, 4)
    reading = asyncio.ensure_future(reads.cursor.read(position(10), None, has_neighbours=False))
    await asyncio.sleep(0)
    assert not reading.done()
    await reads.answer(run_from(10))
    assert span(await reading) == (10, RUN_ENTRIES)
    assert len(reads.asked) == 1, "no second read"


async def test_completed_next_read_serves_entry_inside_it(reads: Reads) -> None:
    await reads.hold(0)
    await reads.answer(run_from(10))
    assert reads.held_bytes == 2 * RUN_BYTES
    assert reads.cursor.take(position(13), 4, ALL) is None
    assert span(await reads.cursor.read(position(13), None, has_neighbours=False)) == (10, RUN_ENTRIES)
    await reads.hold(10)
    assert reads.held_bytes == RUN_BYTES
    assert reads.asked_for == [position(10), position(20)]


async def test_next_read_that_another_cursor_made_may_begin_earlier(reads: Reads) -> None:
    await reads.hold(0)
    await reads.answer(run_from(5))
    assert span(await reads.cursor.read(position(14), None, has_neighbours=False)) == (5, RUN_ENTRIES)
    reading = asyncio.ensure_future(reads.cursor.read(position(15), None, has_neighbours=False))
    await asyncio.sleep(0)
    assert reads.asked_for == [position(10), position(15)]
    reading.cancel()


async def test_failed_next_read_is_repeated_for_the_request(reads: Reads) -> None:
    await reads.hold(0)
    await reads.answer(StoreError("no bookie"))
    reading = asyncio.ensure_future(reads.cursor.read(position(10), None, has_neighbours=False))
    await asyncio.sleep(0)
    await reads.answer(StoreError("no bookie"))
    with pytest.raises(StoreError, match="no bookie"):
        await reading
    assert reads.asked_for == [position(10), position(10)]


async def test_other_position_drops_held_entries_and_next_read(reads: Reads) -> None:
    await reads.hold(0)
    assert reads.cursor.take(position(10 + READ_AHEAD_ENTRIES), 1, ALL) is None
    assert reads.held_bytes == 0
    await reads.answer(run_from(10))
    assert reads.held_bytes == 0, "the result is not kept"
    assert reads.cursor.take(position(0), 1, ALL) is None


async def test_held_entries_and_next_read_give_way_to_other_readers(reads: Reads) -> None:
    await reads.hold(0)
    await reads.answer(run_from(10))
    reads.memory.reads.limit_to(2 * RUN_BYTES)
    taken_bytes = await reads.memory.take(reads.memory.reads, "other", RUN_BYTES)
    assert reads.held_bytes == 0
    assert reads.cursor.take(position(0), 1, ALL) is None
    reads.memory.give_back(reads.memory.reads, taken_bytes)
    assert reads.memory.reads.used_bytes == 0


async def test_no_next_read_begins_without_free_memory(reads: Reads) -> None:
    reads.memory.reads.limit_to(FEW_REMOTE_READ_BYTES)
    taken_bytes = await reads.memory.take(reads.memory.reads, "other", FEW_REMOTE_READ_BYTES - 2 * RUN_BYTES)
    await reads.hold(0)
    assert reads.asked == []
    assert reads.cursor.take(position(0), 1, ALL) is not None
    reads.memory.give_back(reads.memory.reads, taken_bytes)


async def test_no_next_read_begins_with_many_readers_or_for_cached_or_missing_entries(reads: Reads) -> None:
    reads.cursor.hold(run_from(0), None, None, has_neighbours=False)
    reads.resources.keep_recent(run_from(10))
    await reads.hold(0)
    others = [await reads.memory.take(reads.memory.reads, number, 1) for number in range(FEW)]
    await reads.hold(20)
    assert reads.asked == []
    for size_bytes in others:
        reads.memory.give_back(reads.memory.reads, size_bytes)


async def test_next_read_at_end_of_the_broker_does_not_start(reads: Reads) -> None:
    await reads.resources.tasks.close()
    await reads.hold(0)
    reading = asyncio.ensure_future(reads.cursor.read(position(10), None, has_neighbours=False))
    await asyncio.sleep(0)
    await reads.answer(run_from(10))
    assert span(await reading) == (10, RUN_ENTRIES)
