"""LedgerStore and CursorStore on local files: journal first, segment files at checkpoint.

Operation: an append goes into its ledger's buffer and into the journal; when the journal's batch is durable, each listener
hears of its runs in one list. Reads come from the buffer, or from the segment file in a reading thread. See
docs/storage-format.md for the files and what happens to them when.
What must always hold: `append_completed` without error means as durable as configured; entry ids of a ledger have no gaps;
memory and journal are bounded: beyond `journal_max_bytes` and `journal_max_records` runs wait in `_held` until a checkpoint
has ended, which their owners feel as later completions.
What is left to others: which ledgers belong to what (metadata), who appends (managed ledger), the directory's lock (app).

Concurrency: the loop only. Threads: journal writer, journal files, checkpoint, cold reads; each gets plain values.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from itertools import chain
from pathlib import Path
from time import perf_counter
from typing import ParamSpec, TypeVar

from pybroker import logs
from pybroker.errors import LedgerFenced, NoSuchLedger, StoreError
from pybroker.storage.checkpoint import Moved
from pybroker.storage.checkpoint_table import TableChange
from pybroker.storage.checkpointer import Checkpointer
from pybroker.storage.cursor_shelf import CursorShelf, merge
from pybroker.storage.cursor_store import CursorDone, CursorOwner, CursorStore
from pybroker.storage.disk import Disk
from pybroker.storage.index_cache import IndexCache
from pybroker.storage.journal import JournalBatch, JournalRecord, JournalSetup
from pybroker.storage.journal_direct import open_journal
from pybroker.storage.layout.journal import (
    CursorRecord,
    LedgerRecord,
    RecordType,
    encode_cursor_record,
    encode_ledger_record,
    encode_probe,
)
from pybroker.storage.ledger_store import AppendListener, AppendRun, EntryRun, LedgerStore, LedgerSummary
from pybroker.storage.live_ledger import LedgerState, LiveLedger
from pybroker.storage.options import LocalStoreOptions
from pybroker.storage.segments import load_sealed, parse_segment_name, read_entries, scan_unsealed, segment_path
from pybroker.storage.start_up import LEDGER_ID_BLOCK, OpenedStore, StoreDirectories, open_store
from pybroker.storage.stats import StoreStats

_P = ParamSpec("_P")
_T = TypeVar("_T")


class LocalStore(LedgerStore, CursorStore):
    """Owned by the app. Made by `open`; `close` ends its threads."""

    def __init__(
        self,
        directory: Path,
        options: LocalStoreOptions,
        on_fatal: Callable[[BaseException], None],
        disk: Disk,
        opened: OpenedStore,
        stats: StoreStats,
    ) -> None:
        self._options = options
        self._on_fatal = on_fatal
        self._disk = disk
        self._stats = stats
        self._directory = StoreDirectories.below(directory).ledgers
        self._table = opened.table
        self._ledger_ids = iter(opened.reserved_ledger_ids)
        self._next_block_start = opened.reserved_ledger_ids.stop
        self._reserving = asyncio.Lock()
        self._loop = asyncio.get_running_loop()
        self._readers = ThreadPoolExecutor(options.read_threads, thread_name_prefix="ledger-read")
        self._shelf = CursorShelf(opened.facts.cursor_number)
        self._indexes = IndexCache(options.index_cache_points)
        self._ledgers: dict[int, LiveLedger] = {}
        for ledger_id, extent in opened.extents.items():
            ledger = self._ledgers[ledger_id] = LiveLedger(ledger_id, extent)
            ledger.set_state(LedgerState.FENCED)  # nobody continues the ledger of an earlier run
        self._held: deque[AppendRun] = deque()
        self._held_waiters: list[asyncio.Future[None]] = []
        self._idle_waiters: dict[int, list[asyncio.Future[None]]] = {}
        self._waiting: set[asyncio.Future[None]] = set()
        self._failed: BaseException | None = None
        self._is_closed = False
        setup = JournalSetup(
            files=opened.files,
            next_sequence=opened.facts.sequence,
            stats=stats,
            completed=self._batch_completed,
            on_fatal=self._fail,
            max_batch_bytes=options.max_batch_bytes,
            sync_data=options.sync_data,
        )
        self._journal = open_journal(setup, direct_io=options.direct_io)
        self._checkpointer = Checkpointer(
            disk,
            self._directory,
            opened.table,
            self._journal,
            opened.files,
            self._ledgers,
            self._shelf,
            options,
            stats,
            self._ledger_stored,
            self._release_held,
            self._fail,
        )

    @classmethod
    async def open(
        cls,
        directory: Path,
        options: LocalStoreOptions,
        on_fatal: Callable[[BaseException], None],
        disk: Disk | None = None,
    ) -> LocalStore:
        """Recover what an earlier run left in `directory`, or make it. Raises StoreError, also when it is damaged.

        `on_fatal` is called at most once, on the loop, when a write has failed in a way that must not be survived.
        """
        disk = disk or Disk()
        stats = StoreStats()
        try:
            opened = await asyncio.to_thread(
                open_store,
                disk,
                StoreDirectories.below(directory),
                stats,
                journal_file_bytes=options.journal_file_bytes,
                is_synced=options.sync_data,
            )
            return cls(directory, options, on_fatal, disk, opened, stats)
        except OSError as error:
            raise StoreError(f"{directory} cannot be opened: {error}") from error

    def figures(self) -> dict[str, float]:
        return asdict(self.stats())

    def stats(self) -> StoreStats:
        """The counters; the same object every time, with the present figures of what is now."""
        stats = self._stats
        stats.journal_queue_depth = self._journal.queue_depth
        stats.held_runs = len(self._held)
        stats.journal_live_bytes = self._checkpointer.live_bytes
        stats.live_ledgers = len(self._ledgers)
        return stats

    # Appends

    def append(self, run: AppendRun) -> None:
        ledger = self._ledgers.get(run.ledger_id)
        if ledger is None or ledger.state is not LedgerState.OPEN or self._is_closed or self._failed is not None:
            self._refuse_later(run)
            return
        assert run.first_entry_id == ledger.next_entry_id, "entry ids of a ledger have no gaps"
        ledger.next_entry_id += len(run.payloads)
        ledger.pending_runs += 1
        if self._held or self._checkpointer.is_full:
            self._held.append(run)
        else:
            self._admit(ledger, run)

    def _admit(self, ledger: LiveLedger, run: AppendRun) -> None:
        buffer = ledger.buffer
        buffer.payloads += run.payloads
        buffer.message_counts += run.message_counts
        self._journal.put(run)
        self._checkpointer.appended(ledger, run.size_bytes, len(run.payloads))

    def _release_held(self) -> None:
        """A checkpoint has ended: runs that waited for it go on, in order."""
        while self._held and not self._checkpointer.is_full:
            run = self._held.popleft()
            ledger = self._ledgers.get(run.ledger_id)
            if ledger is None or ledger.has_refused:
                self._refuse_later(run)
                if ledger is not None:
                    self._run_ended(ledger)
            else:
                self._admit(ledger, run)
        if not self._held:
            waiters, self._held_waiters = self._held_waiters, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)

    def _refuse_later(self, run: AppendRun) -> None:
        self._loop.call_soon(
            run.listener.append_completed, [run], LedgerFenced(f"ledger {run.ledger_id} takes no more appends")
        )

    def _batch_completed(self, batch: JournalBatch) -> None:
        """The one hop back: everything of a batch, grouped by who asked."""
        stats = self._stats
        stats.journal_batches += 1
        stats.journal_bytes += batch.size_bytes
        if batch.submitted_s:
            took_s = perf_counter() - batch.submitted_s
            stats.submit_to_completion_s += took_s
            stats.submit_to_completion_max_s = max(stats.submit_to_completion_max_s, took_s)
        if batch.error is not None:
            stats.journal_refused_batches += 1
        self._complete_runs(batch.runs, batch.error)
        if batch.fenced_runs:
            self._complete_runs(batch.fenced_runs, LedgerFenced("an earlier append of this ledger was refused"))
        for record in batch.records:
            if record.done is not None:
                self._guard(record.done, batch.error)
        if batch.mark is not None:
            batch.mark.done(batch.mark.sequence)

    def _complete_runs(self, runs: list[AppendRun], error: StoreError | None) -> None:
        by_listener: dict[AppendListener, list[AppendRun]] = {}
        for run in runs:
            own = by_listener.get(run.listener)
            if own is None:
                by_listener[run.listener] = [run]
            else:
                own.append(run)
            ledger = self._ledgers.get(run.ledger_id)
            if ledger is not None:  # else deleted meanwhile
                if error is not None and not ledger.has_refused:
                    ledger.fence(run.first_entry_id)
                self._run_ended(ledger)
            self._stats.journal_entries += len(run.payloads)
        for listener, own in by_listener.items():
            self._guard(partial(listener.append_completed, own), error)

    def _run_ended(self, ledger: LiveLedger) -> None:
        ledger.pending_runs -= 1
        if ledger.pending_runs == 0 and ledger.state is not LedgerState.OPEN:
            if ledger.has_refused:
                self._journal.forget_fenced(ledger.ledger_id)
            for waiter in self._idle_waiters.pop(ledger.ledger_id, ()):
                if not waiter.done():
                    waiter.set_result(None)

    def _guard(self, done: Callable[[StoreError | None], None], error: StoreError | None) -> None:
        """What one listener does wrong must not keep the others' completions from them."""
        try:
            done(error)
        except Exception as escaped:  # noqa: BLE001 - the boundary between the store and its listeners
            logs.error("append.completion_failed", exc_info=escaped)

    def _fail(self, error: BaseException) -> None:
        if self._failed is None:
            self._failed = error
            self._checkpointer.fail(error)
            # Appends stay unanswered: whether they are on disk is not known. Who waits in a task must not wait for ever.
            for waiter in (*self._waiting, *chain.from_iterable(self._idle_waiters.values()), *self._held_waiters):
                if not waiter.done():
                    waiter.set_exception(StoreError("the journal has failed"))
            self._on_fatal(error)

    # Ledgers

    async def create_ledger(self) -> int:
        self._check_open()
        async with self._reserving:
            ledger_id = next(self._ledger_ids, None)
            if ledger_id is None:
                block = range(self._next_block_start, self._next_block_start + LEDGER_ID_BLOCK)
                await self._in_reader(self._table.commit, TableChange({"ledger_id": block.stop}))
                self._next_block_start = block.stop
                self._ledger_ids = iter(block)
                ledger_id = next(self._ledger_ids)
        ledger = LiveLedger(ledger_id)

        def durable() -> None:
            self._ledgers[ledger_id] = ledger
            self._checkpointer.created(ledger_id)

        await self._record(encode_ledger_record(LedgerRecord(RecordType.LEDGER_CREATED, ledger_id)), durable)
        return ledger_id

    def read_buffered(self, ledger_id: int, first_entry_id: int, max_entries: int, max_bytes: int) -> EntryRun | None:
        ledger = self._ledgers.get(ledger_id)
        return None if ledger is None else ledger.read_buffered(first_entry_id, max_entries, max_bytes)

    async def read(self, ledger_id: int, first_entry_id: int, max_entries: int, max_bytes: int) -> EntryRun:
        assert max_entries > 0, "a read asks for something"
        ledger = self._ledgers.get(ledger_id)
        if ledger is not None and not ledger.is_index_known:
            await self._load_index(ledger)
            ledger = self._ledgers.get(ledger_id)
        if ledger is not None:
            buffered = ledger.read_buffered(first_entry_id, max_entries, max_bytes)
            if buffered is not None:
                return buffered
            place = Moved(ledger.extent, ledger.index)
        else:
            place = await self._sealed_place(ledger_id)
        if first_entry_id >= place.extent.entry_count:
            raise StoreError(f"entry {ledger_id}:{first_entry_id} does not exist")
        span = place.index.span(first_entry_id, max_entries, place.extent.end_offset)
        self._stats.segment_reads += 1
        path = segment_path(self._directory, ledger_id)
        return await self._in_reader(
            read_entries, self._disk, path, ledger_id, span, first_entry_id, max_entries, max_bytes
        )

    async def seal(self, ledger_id: int) -> LedgerSummary:
        ledger = self._ledgers.get(ledger_id)
        if ledger is not None:
            if ledger.state is LedgerState.OPEN:
                ledger.set_state(LedgerState.FENCED)
            if not ledger.is_index_known:
                await self._load_index(ledger)
            if ledger.pending_runs:
                waiter: asyncio.Future[None] = self._loop.create_future()
                self._idle_waiters.setdefault(ledger_id, []).append(waiter)
                await waiter
            if ledger_id in self._ledgers:
                if ledger.state is not LedgerState.SEALED:
                    ledger.set_state(LedgerState.SEALED)
                    self._checkpointer.sealed(ledger)
                return ledger.summary()
        extent = (await self._sealed_place(ledger_id)).extent
        return LedgerSummary(ledger_id, extent.entry_count, extent.message_count, extent.size_bytes)

    async def recover(self, ledger_id: int) -> LedgerSummary:
        return await self.seal(ledger_id)

    async def delete_ledger(self, ledger_id: int) -> None:
        self._check_open()
        ledger = self._ledgers.get(ledger_id)
        if ledger is None:
            if not await self._in_reader(self._disk.exists, segment_path(self._directory, ledger_id)):
                return
        elif ledger.state is LedgerState.OPEN:
            ledger.set_state(LedgerState.FENCED)
        for run in [run for run in self._held if run.ledger_id == ledger_id]:
            self._held.remove(run)
            self._refuse_later(run)
            if ledger is not None:
                self._run_ended(ledger)

        def durable() -> None:
            self._ledgers.pop(ledger_id, None)
            self._indexes.drop(ledger_id)
            self._checkpointer.deleted(ledger_id)
            for waiter in self._idle_waiters.pop(ledger_id, ()):
                if not waiter.done():
                    waiter.set_result(None)

        await self._record(encode_ledger_record(LedgerRecord(RecordType.LEDGER_DELETED, ledger_id)), durable)
        await self._in_reader(self._disk.unlink, segment_path(self._directory, ledger_id))

    async def list_ledgers(self) -> list[int]:
        live = set(self._ledgers)
        names = await self._in_reader(self._disk.list_names, self._directory)
        return sorted(live.union(number for name in names if (number := parse_segment_name(name)) is not None))

    async def flush(self) -> None:
        if self._held:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._held_waiters.append(waiter)
            await waiter
        await self._record(encode_probe(), _nothing)

    # Cursors

    async def load(self, cursor_id: str) -> tuple[bytes | None, list[bytes]]:
        # The shelf first: what a checkpoint moves between the two looks is then seen twice, never not at all.
        shelved = self._shelf.shelved(cursor_id)
        return merge(await self._in_reader(self._table.load_cursor, cursor_id), shelved)

    def attach(self, cursor_id: str, owner: CursorOwner) -> None:
        self._shelf.attach(cursor_id, owner)

    async def detach(self, cursor_id: str) -> None:
        owner = self._shelf.owner(cursor_id)
        if owner is None:
            return
        try:
            if self._shelf.is_changed(cursor_id):
                record = self._shelf.new_record(RecordType.CURSOR_SNAPSHOT, cursor_id, owner.snapshot())
                await self._record(encode_cursor_record(record), partial(self._shelf.apply, record))
        finally:
            self._shelf.detach(cursor_id)

    def append_delta(self, cursor_id: str, delta: bytes, done: CursorDone | None) -> None:
        if self._is_closed or self._failed is not None:
            if done is not None:
                self._loop.call_soon(done, StoreError("the store is closed"))
            return
        record = self._shelf.new_record(RecordType.CURSOR_DELTA, cursor_id, delta)
        data = encode_cursor_record(record)
        self._shelf.apply(record)
        self._journal.put(JournalRecord(data, partial(self._delta_ended, record, done)))
        self._checkpointer.recorded(len(data))

    async def delete(self, cursor_id: str) -> None:
        record = self._shelf.new_record(RecordType.CURSOR_DELETED, cursor_id, b"")
        await self._record(encode_cursor_record(record), partial(self._shelf.apply, record))

    def _delta_ended(self, record: CursorRecord, done: CursorDone | None, error: StoreError | None) -> None:
        if error is not None:
            self._shelf.refused(record)
        if done is not None:
            done(error)

    # Life

    async def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._checkpointer.stop_retrying()
        is_stored = True
        while is_stored and self._failed is None and self._held:
            is_stored = await self._checkpointer.run()
        if is_stored and self._failed is None:
            await self._checkpointer.run(is_last=True)
        await self._checkpointer.close()
        await self._journal.close()
        await asyncio.to_thread(self._readers.shutdown)
        self._table.close()

    def _check_open(self) -> None:
        if self._is_closed or self._failed is not None:
            raise StoreError("the store is closed")

    async def _record(self, data: bytes, durable: Callable[[], None]) -> None:
        """Write a record and wait; `durable` is called in the batch's own hop, before anything of a later batch."""
        self._check_open()
        written: asyncio.Future[None] = self._loop.create_future()

        def done(error: StoreError | None) -> None:
            if error is None:
                durable()
            if written.done():
                return  # the caller was cancelled; what was written counts all the same
            if error is None:
                written.set_result(None)
            else:
                written.set_exception(error)

        self._journal.put(JournalRecord(data, done))
        self._checkpointer.recorded(len(data))
        self._waiting.add(written)
        try:
            await written
        finally:
            self._waiting.discard(written)

    async def _load_index(self, ledger: LiveLedger) -> None:
        path = segment_path(self._directory, ledger.ledger_id)
        index = await self._in_reader(scan_unsealed, self._disk, path, ledger.ledger_id, ledger.extent)
        if not ledger.is_index_known:
            ledger.index = index
            ledger.is_index_known = True

    async def _sealed_place(self, ledger_id: int) -> Moved:
        place = self._indexes.get(ledger_id)
        if place is None:
            path = segment_path(self._directory, ledger_id)
            place = Moved(*await self._in_reader(load_sealed, self._disk, path, ledger_id))
            self._indexes.put(ledger_id, place)
        return place

    def _ledger_stored(self, ledger_id: int, place: Moved) -> None:
        self._indexes.put(ledger_id, place)

    async def _in_reader(self, work: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            return await self._loop.run_in_executor(self._readers, partial(work, *args, **kwargs))
        except FileNotFoundError as error:
            raise NoSuchLedger(str(error)) from error
        except OSError as error:
            raise StoreError(f"cannot be read: {error}") from error


def _nothing() -> None:
    """A probe changes nothing."""
