"""Reads of the local store: find entries, load indexes, open segment files, and run the reads in threads.

Operation: a read of buffered entries is answered on the event loop. Any other read is one job of a reading thread.
Ledgers without an index on disk are `LiveLedger` objects of the store; others are found by their file. Invariants: a
job receives immutable values (`LedgerLocation` with its index); damage is counted once for each entry and reported to
each reader; a deleted ledger's file is closed when the deletion returns, or with the last running read.

Concurrency: the event loop only; jobs run in the pool.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from pathlib import Path
from typing import ParamSpec, TypeVar

from pyroaring import BitMap

from pybroker.disk.open_files import OpenFiles
from pybroker.errors import DamagedEntries, NoSuchLedger, StoreError
from pybroker.ledgers.ledger_store import EntryRun, LedgerFile, LedgerPoint, LedgerTotals, StoredBlocks
from pybroker.ledgers.live_ledger import LiveLedger
from pybroker.local_store.segments.ledger_location import LedgerLocation
from pybroker.local_store.segments.segment_reader import (
    LoadedSegment,
    load_sealed,
    message_count_of,
    read_entries,
    scan,
    totals_before,
)
from pybroker.local_store.segments.segment_writer import segment_path
from pybroker.local_store.store_counters import StoreStats
from pybroker.local_store.store_environment import StoreEnvironment
from pybroker.local_store.store_options import LocalStoreOptions
from pybroker.runtime import logs
from pybroker.storage_format.segment_layout import EMPTY_EXTENT, PublishTimeOf, SegmentIndex

BULK_NICENESS = 10
"""Priority of the threads for bulk reads. With normal priority they took the processor from the event loop, and
publishing waited for milliseconds.
"""
_P = ParamSpec("_P")
_T = TypeVar("_T")


class IndexCache:
    """LRU cache of the indexes of sealed ledgers, limited by the number of index points.

    A single index may exceed the limit.
    """

    def __init__(self, max_points: int) -> None:
        self._max_points = max_points
        self._points = 0
        self._places: OrderedDict[int, LedgerLocation] = OrderedDict()

    def get(self, ledger_id: int) -> LedgerLocation | None:
        place = self._places.get(ledger_id)
        if place is not None:
            self._places.move_to_end(ledger_id)
        return place

    def put(self, ledger_id: int, place: LedgerLocation) -> None:
        self.drop(ledger_id)
        self._places[ledger_id] = place
        self._points += _cost(place)
        while self._points > self._max_points and len(self._places) > 1:
            self._points -= _cost(self._places.popitem(last=False)[1])

    def drop(self, ledger_id: int) -> None:
        place = self._places.pop(ledger_id, None)
        if place is not None:
            self._points -= _cost(place)


def _cost(place: LedgerLocation) -> int:
    return len(place.index) + 4  # a small index takes less memory than the objects around it


class LedgerReads:
    """The read operations of one store. The store shares its live ledgers with this object, and calls it after
    checkpoints and deletions.
    """

    def __init__(
        self,
        environment: StoreEnvironment,
        directory: Path,
        ledgers: dict[int, LiveLedger],
        options: LocalStoreOptions,
        stats: StoreStats,
        publish_time_of: PublishTimeOf,
    ) -> None:
        disk = self._disk = environment.disk
        self._directory = directory
        self._ledgers = ledgers
        self._stats = stats
        self._publish_time_of = publish_time_of
        self._loop = asyncio.get_running_loop()
        self._pool = environment.threads.pool("ledger-read", options.read_threads)
        # A separate pool: a slow bulk reader occupies a thread, and consumers must not wait for it.
        self._bulk_pool = environment.threads.pool("bulk-read", options.bulk_read_threads, niceness=BULK_NICENESS)
        self._indexes = IndexCache(options.index_cache_points)
        self._files = OpenFiles(disk, options.max_open_segments)
        self._damaged: dict[int, BitMap] = {}

    # Reads

    async def read(self, ledger_id: int, first_entry_id: int, max_entries: int, max_bytes: int) -> EntryRun:
        assert max_entries > 0, "a read asks for something"
        ledger = await self._live_ledger(ledger_id)
        if ledger is not None:
            buffered = ledger.read_buffered(first_entry_id, max_entries, max_bytes)
            if buffered is not None:
                return buffered
        place = await self._place(ledger_id)
        if place.is_end_known and first_entry_id >= place.extent.entry_count:
            raise StoreError(
                f"entry {ledger_id}:{first_entry_id} does not exist: the ledger has {place.extent.entry_count} entries"
            )
        self._stats.segment_reads += 1
        try:
            return await self.in_thread(self._read_job, ledger_id, place, first_entry_id, max_entries, max_bytes)
        except DamagedEntries as error:
            self._count_damage(error)
            raise

    async def totals_before(self, ledger_id: int, entry_id: int) -> LedgerTotals:
        ledger = await self._live_ledger(ledger_id)
        if ledger is not None and entry_id >= ledger.extent.entry_count:
            return ledger.totals_before(entry_id)
        place = await self._place(ledger_id)
        if entry_id == 0:
            return LedgerTotals(0, 0)
        if entry_id >= place.extent.entry_count:
            return LedgerTotals(place.extent.message_count, place.extent.size_bytes)
        return await self.in_thread(self._totals_job, ledger_id, place, entry_id)

    async def message_count_of(self, ledger_id: int, entry_ids: BitMap) -> int:
        ledger = await self._live_ledger(ledger_id)
        # In one iteration, so that entries that a checkpoint moves meanwhile are counted once.
        buffered = 0 if ledger is None else ledger.buffered_message_count_of(entry_ids)
        place = await self._place(ledger_id) if ledger is None else LedgerLocation(ledger.extent, ledger.index)
        stored_ids = entry_ids & BitMap(range(place.extent.entry_count))
        if not stored_ids:
            return buffered
        return buffered + await self.in_thread(self._message_count_job, ledger_id, place, stored_ids)

    async def publish_time_span(self, ledger_id: int, publish_time_ms: int) -> tuple[int, int]:
        ledger = await self._live_ledger(ledger_id)
        if ledger is not None:
            return ledger.publish_time_span(publish_time_ms)
        place = await self._place(ledger_id)
        return place.index.publish_time_span(publish_time_ms, place.extent.entry_count)

    async def points(self, ledger_id: int, spacing_bytes: int) -> list[LedgerPoint]:
        index = (await self._place(ledger_id)).index
        return [LedgerPoint(*point) for point in index.sparse_points(spacing_bytes)]

    async def stored_blocks(self, ledger_id: int, first_entry_id: int, end_entry_id: int) -> StoredBlocks | None:
        place = await self._place(ledger_id)
        extent, index = place.extent, place.index
        if first_entry_id >= extent.entry_count:
            return None
        offset, _ = index.place_of(index.point_of(first_entry_id))
        behind = index.point_at_or_behind(end_entry_id)
        end_offset = extent.end_offset if behind is None else index.place_of(behind)[0]
        return StoredBlocks(ledger_id, first_entry_id, min(end_entry_id, extent.entry_count), offset, end_offset)

    async def with_file(self, ledger_id: int, work: Callable[[LedgerFile], _T]) -> _T:
        return await self._in_pool(self._bulk_pool, partial(self._file_job, ledger_id, work))

    # Locations

    async def sealed_place(self, ledger_id: int) -> LedgerLocation:
        """Return the location of a sealed ledger in its segment file. Raises NoSuchLedger if the file does not exist."""
        place = self._indexes.get(ledger_id)
        if place is None:
            loaded = await self.in_thread(self._load_job, ledger_id)
            self._report(ledger_id, loaded)
            place = loaded.place
            self._indexes.put(ledger_id, place)
        return place

    async def load_index(self, ledger: LiveLedger) -> None:
        known = LedgerLocation(ledger.extent, SegmentIndex(self._publish_time_of))
        try:
            loaded = await self.in_thread(self._scan_job, ledger.ledger_id, known)
        except NoSuchLedger:
            # The entry count is known, and readers receive an error for each entry.
            logs.error("segment.missing", ledger_id=ledger.ledger_id, entries=ledger.extent.entry_count)
            self._stats.damaged_segments += 1
            loaded = LoadedSegment(known, [], [])
        if not ledger.is_index_known:
            self._report(ledger.ledger_id, loaded)
            ledger.index = loaded.place.index
            ledger.is_index_known = True

    def stored(self, ledger_id: int, place: LedgerLocation) -> None:
        self._indexes.put(ledger_id, place)

    async def delete(self, ledger_id: int) -> None:
        self._indexes.drop(ledger_id)
        self._damaged.pop(ledger_id, None)
        await self.in_thread(self._delete_job, ledger_id)

    async def in_thread(self, work: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Call the blocking function `work` in a reading thread and return its result. Raises StoreError for a device
        error.
        """
        return await self._in_pool(self._pool, partial(work, *args, **kwargs))

    async def _in_pool(self, pool: Executor, work: Callable[[], _T]) -> _T:
        try:
            return await self._loop.run_in_executor(pool, work)
        except FileNotFoundError as error:
            raise NoSuchLedger(
                f"the ledger file {Path(error.filename or '').name} does not exist in the directory ledgers/"
            ) from error
        except OSError as error:
            raise StoreError(f"a file in the directory ledgers/ cannot be read: {error}. Check the disk") from error

    async def close(self) -> None:
        for pool in (self._bulk_pool, self._pool):
            await asyncio.to_thread(pool.shutdown)
        self._files.close()

    async def _live_ledger(self, ledger_id: int) -> LiveLedger | None:
        ledger = self._ledgers.get(ledger_id)
        if ledger is not None and not ledger.is_index_known:
            await self.load_index(ledger)
            ledger = self._ledgers.get(ledger_id)
        return ledger

    async def _place(self, ledger_id: int) -> LedgerLocation:
        ledger = await self._live_ledger(ledger_id)
        return await self.sealed_place(ledger_id) if ledger is None else LedgerLocation(ledger.extent, ledger.index)

    def _report(self, ledger_id: int, loaded: LoadedSegment) -> None:
        faults = [*loaded.faults, *((gap.offset, gap.reason) for gap in loaded.gaps)]
        if faults:
            self._stats.damaged_segments += 1
            name = segment_path(self._directory, ledger_id).name
            text = "; ".join(f"offset {offset}: {reason}" for offset, reason in faults[:10])
            logs.error("segment.damaged", ledger_id=ledger_id, file=name, damages=len(faults), first_damages=text)

    def _count_damage(self, error: DamagedEntries) -> None:
        known = self._damaged.setdefault(error.ledger_id, BitMap())
        before = len(known)
        known.add_range(error.first_entry_id, error.last_entry_id + 1)
        self._stats.damaged_entries += len(known) - before

    # Jobs: run in the pool

    def _read_job(
        self, ledger_id: int, place: LedgerLocation, first_entry_id: int, max_entries: int, max_bytes: int
    ) -> EntryRun:
        path = segment_path(self._directory, ledger_id)
        with self._files.reading(path) as file:
            return read_entries(file, path, ledger_id, place, first_entry_id, max_entries, max_bytes)

    def _totals_job(self, ledger_id: int, place: LedgerLocation, entry_id: int) -> LedgerTotals:
        with self._files.reading(segment_path(self._directory, ledger_id)) as file:
            return totals_before(file, ledger_id, place, entry_id)

    def _message_count_job(self, ledger_id: int, place: LedgerLocation, entry_ids: BitMap) -> int:
        with self._files.reading(segment_path(self._directory, ledger_id)) as file:
            return message_count_of(file, ledger_id, place, entry_ids)

    def _file_job(self, ledger_id: int, work: Callable[[LedgerFile], _T]) -> _T:
        with self._files.reading(segment_path(self._directory, ledger_id)) as file:
            return work(file)

    def _load_job(self, ledger_id: int) -> LoadedSegment:
        with self._files.reading(segment_path(self._directory, ledger_id)) as file:
            return load_sealed(file, ledger_id, self._publish_time_of)

    def _scan_job(self, ledger_id: int, known: LedgerLocation) -> LoadedSegment:
        if known.extent == EMPTY_EXTENT:
            return LoadedSegment(known, [], [])
        with self._files.reading(segment_path(self._directory, ledger_id)) as file:
            return scan(file, ledger_id, known, self._publish_time_of)

    def _delete_job(self, ledger_id: int) -> None:
        path = segment_path(self._directory, ledger_id)
        self._disk.unlink(path)
        self._files.drop(path)  # after the removal, so that it cannot be opened again
