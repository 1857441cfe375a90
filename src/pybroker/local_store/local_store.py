"""The ledger store and cursor store on local files: journal first, segment files at checkpoint.

Operation: an append goes into the buffer of its ledger and into the journal. When the journal batch is durable, each
listener receives its completed runs in one list. Reads use the buffer, or the segment file in a reading thread.
docs/reference/storage-format.md describes the files.

Limits: near `journal_max_bytes` and `journal_max_records`, appends of the ledgers with the most data in the journal
wait until a checkpoint ends; at these limits, all appends wait. Without disk space, appends are refused
(`free_space.py`).

Concurrency: the event loop only. Threads (journal writer, journal files, checkpoint, space, reads) receive immutable
values.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Self

from pyroaring import BitMap

from pybroker.errors import LedgerFenced, StorageFull, StoreError
from pybroker.ledgers.cursor_store import CursorDone, CursorOwner, CursorStore
from pybroker.ledgers.known_data import NOTHING_KNOWN, KnownData, StoreMark
from pybroker.ledgers.ledger_store import (
    AppendListener,
    AppendRun,
    EntryRun,
    LedgerFile,
    LedgerFiles,
    LedgerIndex,
    LedgerPoint,
    LedgerPurpose,
    LedgerStore,
    LedgerSummary,
    LedgerTotals,
    StoredBlocks,
    T,
)
from pybroker.ledgers.live_ledger import LedgerState, LiveLedger
from pybroker.local_store.checkpoint.checkpoint_table import DamagedCursor, TableChange
from pybroker.local_store.checkpoint.checkpointer import Checkpointer
from pybroker.local_store.checkpoint.cursor_registry import CursorRegistry, merge
from pybroker.local_store.deferred_appends import DeferredAppends
from pybroker.local_store.free_space import StorageSpace
from pybroker.local_store.journal.journal import Journal, JournalSetup
from pybroker.local_store.journal.journal_direct import open_journal
from pybroker.local_store.journal.journal_items import JournalBatch, JournalMark, JournalRecord, ListenersTold
from pybroker.local_store.ledger_ids import LedgerIds
from pybroker.local_store.segments.ledger_location import LedgerLocation
from pybroker.local_store.segments.ledger_reads import LedgerReads
from pybroker.local_store.segments.segment_writer import parse_segment_name, segment_path
from pybroker.local_store.start_up import OpenedStore, open_store
from pybroker.local_store.store_counters import StoreStats
from pybroker.local_store.store_directories import StoreDirectories
from pybroker.local_store.store_environment import StoreEnvironment
from pybroker.local_store.store_options import LocalStoreOptions
from pybroker.model.counters import Buckets
from pybroker.model.position import Position
from pybroker.runtime import logs
from pybroker.storage_format.journal_layout import (
    CursorRecord,
    LedgerRecord,
    RecordType,
    encode_cursor_record,
    encode_ledger_record,
    encode_probe,
)
from pybroker.storage_format.segment_layout import PublishTimeOf, no_publish_time

# A ledger may always use 1/16 of a batch in the journal's queue.
_QUEUE_SHARES = 16


class LocalStore(LedgerStore, LedgerIndex, LedgerFiles, CursorStore):
    """A store in one data directory. Created by `open`; `close` ends its threads."""

    def __init__(
        self,
        directory: Path,
        space: StorageSpace,
        on_fatal: Callable[[BaseException], None],
        environment: StoreEnvironment,
        opened: OpenedStore,
        stats: StoreStats,
        publish_time_of: PublishTimeOf,
        make_journal: Callable[[JournalSetup], Journal],
    ) -> None:
        options = space.options
        self._space = space
        self._files = opened.files
        self._journal_end = opened.journal_end
        self._on_fatal = on_fatal
        self._disk = environment.disk
        self._clock = environment.clock
        self._slow = environment.slow_operations
        self._stats = stats
        self._directory = StoreDirectories.below(directory).ledgers
        self._table = opened.table
        self._ledger_ids = LedgerIds(opened.reserved_ledger_ids, self._reserve_ledger_ids)
        self._first_named_ledger_id = opened.facts.first_named_ledger_id
        self._loop = asyncio.get_running_loop()
        self._shelf = CursorRegistry(opened.facts.cursor_number)
        self._publish_time_of = publish_time_of
        self._ledgers: dict[int, LiveLedger] = {}
        self._reads = LedgerReads(environment, self._directory, self._ledgers, options, stats, publish_time_of)
        for ledger_id, extent in opened.extents.items():
            ledger = self._ledgers[ledger_id] = LiveLedger(ledger_id, extent, publish_time_of)
            ledger.set_state(LedgerState.FENCED)  # ledgers of an earlier run accept no appends
        self._damaged_cursors = set(opened.damaged_cursors)
        self._held = DeferredAppends()
        self._max_queued_bytes = options.max_batch_bytes
        self._queued_bytes = 0  # size of runs in the journal whose batch has not ended
        self._held_waiters: list[asyncio.Future[None]] = []
        self._idle_waiters: dict[int, list[asyncio.Future[None]]] = {}
        self._waiting: dict[asyncio.Future[None], None] = {}  # in the order of their calls
        self._failed: BaseException | None = None
        self._is_closed = False
        setup = JournalSetup(
            files=opened.files,
            end=opened.journal_end,
            next_sequence=opened.facts.sequence,
            stats=stats,
            completed=self._batch_completed,
            on_fatal=self._fail,
            max_batch_bytes=options.max_batch_bytes,
            sync_data=options.sync_data,
            direct_io=options.direct_io,
            clock=environment.clock,
            threads=environment.threads,
        )
        self._journal = make_journal(setup)
        self._checkpointer = Checkpointer(
            environment,
            self._directory,
            opened.table,
            self._journal,
            opened.files,
            opened.journal_end,
            self._ledgers,
            self._shelf,
            options,
            stats,
            space,
            listener=self,
        )
        space.start(self._checkpointer.unstored_bytes, self._space_changed)

    @classmethod
    async def open(
        cls,
        directory: Path,
        options: LocalStoreOptions,
        on_fatal: Callable[[BaseException], None],
        environment: StoreEnvironment | None = None,
        publish_time_of: PublishTimeOf = no_publish_time,
        make_journal: Callable[[JournalSetup], Journal] = open_journal,
        known: KnownData = NOTHING_KNOWN,
    ) -> Self:
        """Open the store in `directory` and recover its data, or create a new store. Raises StoreError if the store is
        damaged or cannot be opened, and MissingData if it lacks data that must exist according to the metadata
        (`known`).

        `on_fatal` is called at most once, on the event loop, when a write fails and the store cannot continue.
        `publish_time_of` is called in the checkpoint thread, for one entry in 64 KiB. `make_journal` creates the
        journal driver.
        """
        environment = environment or StoreEnvironment()
        stats = StoreStats()
        try:
            space, opened = await asyncio.to_thread(_open, environment, directory, options, stats, known)
            return cls(directory, space, on_fatal, environment, opened, stats, publish_time_of, make_journal)
        except OSError as error:
            raise StoreError(f"{directory} cannot be opened: {error}") from error

    def mark(self) -> StoreMark:
        """Return the progress of the store, which the caller keeps in the metadata to detect lost files later. May be
        called in any thread.
        """
        end = self._journal_end.noted_end
        return StoreMark(sequence=end.next_sequence, commit=end.commit, ledger=self._ledger_ids.end)

    def figures(self) -> dict[str, float]:
        return self.stats().figures()

    def histograms(self) -> dict[str, Buckets]:
        return self._stats.histograms()

    def stats(self) -> StoreStats:
        """Update and return the counters. Each call returns the same object."""
        stats = self._stats
        stats.journal_queue_depth = self._journal.queue_depth
        stats.held_runs = self._held.count
        stats.journal_live_bytes = self._checkpointer.live_bytes
        stats.live_ledgers = len(self._ledgers)
        stats.damaged_cursors = len(self._damaged_cursors)
        stats.free_bytes = self._space.free_bytes
        stats.file_system_bytes = self._space.total_bytes
        stats.publishing_refused = int(self._space.refusal() is not None)
        return stats

    # Appends

    def refusal(self) -> str | None:
        return self._space.refusal()

    def append(self, run: AppendRun) -> None:
        ledger = self._ledgers.get(run.ledger_id)
        if ledger is None or ledger.state is not LedgerState.OPEN or self._is_closed or self._failed is not None:
            self._refuse_later(run)
            return
        refusal = self._space.refusal()
        if refusal is not None:
            self._stats.refused_entries += len(run.payloads)
            raise StorageFull(refusal)
        assert run.first_entry_id == ledger.next_entry_id, "entry ids of a ledger have no gaps"
        ledger.next_entry_id += len(run.payloads)
        ledger.pending_runs += 1
        held = self._held
        if (held.count and held.holds(run.listener)) or not self._admits(ledger):
            held.hold(run)
        else:
            self._admit(ledger, run)

    def _admits(self, ledger: LiveLedger) -> bool:
        most_bytes = self._max_queued_bytes
        if self._queued_bytes < most_bytes and not self._checkpointer.is_nearly_full:
            return True
        is_queue_long = self._queued_bytes >= most_bytes and ledger.queued_bytes >= most_bytes // _QUEUE_SHARES
        return not is_queue_long and self._checkpointer.admits(ledger)

    def _admit(self, ledger: LiveLedger, run: AppendRun) -> None:
        buffer = ledger.buffer
        buffer.payloads += run.payloads
        buffer.message_counts += run.message_counts
        buffer.size_bytes += run.size_bytes
        ledger.queued_bytes += run.size_bytes
        self._queued_bytes += run.size_bytes
        self._journal.put(run)
        self._checkpointer.recorded(run.size_bytes, len(run.payloads), ledger)

    def index_stored(self, ledger_id: int, place: LedgerLocation) -> None:
        self._reads.stored(ledger_id, place)

    def checkpoint_ended(self) -> None:
        self._release_held()

    def checkpoint_failed(self, error: BaseException) -> None:
        self._fail(error)

    def _release_held(self) -> None:
        for run in self._held.release(self._may_go):
            ledger = self._ledgers.get(run.ledger_id)
            if ledger is None or ledger.has_refused:
                self._refuse_later(run)
                if ledger is not None:
                    self._run_ended(ledger)
            else:
                self._admit(ledger, run)
        if not self._held.count:
            waiters, self._held_waiters = self._held_waiters, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)

    def _may_go(self, run: AppendRun) -> bool:
        """Return whether a deferred `run` may leave the queue: it is admitted, or its ledger was deleted or fenced."""
        ledger = self._ledgers.get(run.ledger_id)
        return ledger is None or ledger.has_refused or self._admits(ledger)

    def _space_changed(self) -> None:
        """Refuse deferred runs when disk space runs out. When space is available again, retry the creation of the next
        journal file.
        """
        refusal = self._space.refusal()
        if refusal is None:
            self._files.try_again()
            return
        # The checkpoint for which deferred runs wait may never end.
        held = self._held.take_all()
        if held:
            for ledger in filter(None, (self._ledgers.get(run.ledger_id) for run in held)):
                if ledger.state is LedgerState.OPEN:
                    ledger.set_state(LedgerState.FENCED)
            # Queued after the runs of the same ledgers, so that completions keep the order of appends.
            self._journal.put(JournalMark(lambda _: self._complete_runs(held, StorageFull(refusal))))
        self._release_held()
        self._checkpointer.request()

    def _refuse_later(self, run: AppendRun) -> None:
        self._loop.call_soon(
            run.listener.append_completed, [run], LedgerFenced(f"ledger {run.ledger_id} is closed for appends")
        )

    def _batch_completed(self, batch: JournalBatch) -> None:
        stats = self._stats
        stats.journal_batches += 1
        stats.journal_bytes += batch.size_bytes
        stats.journal_batch_bytes.add(batch.size_bytes)
        if batch.submitted_ms:
            took_s = (self._clock.monotonic_ms() - batch.submitted_ms) / 1000
            if took_s * 1000 >= self._slow.threshold_ms:
                self._slow.took("journal", took_s * 1000, size_bytes=batch.size_bytes)
            stats.submit_to_completion_s += took_s
            stats.submit_to_completion_max_s = max(stats.submit_to_completion_max_s, took_s)
        if batch.error is not None:
            stats.journal_refused_batches += 1
            # First, so that appends and deferred runs are refused already when listeners are notified.
            self._space.decide()
        entry_count = 0
        for run in batch.runs:
            entry_count += len(run.payloads)
        stats.journal_batch_entries.add(entry_count)
        for run in chain(batch.runs, batch.refused_runs, batch.fenced_runs):
            self._queued_bytes -= run.size_bytes
            ledger = self._ledgers.get(run.ledger_id)
            if ledger is not None:
                ledger.queued_bytes -= run.size_bytes
        self._complete_runs(batch.runs, None)
        if batch.refused_runs:
            self._complete_runs(batch.refused_runs, batch.error)
            self._journal.put(ListenersTold({run.listener for run in batch.refused_runs}))
        if batch.fenced_runs:
            self._complete_runs(batch.fenced_runs, LedgerFenced("an earlier append was refused"))
        if batch.records or batch.refused_records:
            self._records_completed(batch)
        if batch.mark is not None:
            batch.mark.done(batch.mark.sequence)
        if self._held.count:
            self._release_held()

    def _records_completed(self, batch: JournalBatch) -> None:
        for record in batch.records:
            if record.done is not None:
                self._guard(record.done, None)
        for record in batch.refused_records:
            if record.done is not None:
                self._guard(record.done, batch.error)
        if batch.refused_records:
            self._checkpointer.request()  # which frees journal files

    def _complete_runs(self, runs: list[AppendRun], error: StoreError | None) -> None:
        by_listener: dict[AppendListener, list[AppendRun]] = {}
        for run in runs:
            own = by_listener.get(run.listener)
            if own is None:
                by_listener[run.listener] = [run]
            else:
                own.append(run)
            ledger = self._ledgers.get(run.ledger_id)
            if ledger is not None:  # otherwise deleted meanwhile
                if error is not None and not ledger.has_refused:
                    ledger.fence(run.first_entry_id)
                ledger.pending_runs -= 1  # `_run_ended`, without its call: this runs for each append
                if not ledger.pending_runs and ledger.state is not LedgerState.OPEN:
                    self._became_idle(ledger)
            if error is None:
                self._stats.journal_entries += len(run.payloads)
            else:
                self._stats.refused_entries += len(run.payloads)
        for listener, own in by_listener.items():
            try:
                listener.append_completed(own, error)
            except Exception as escaped:  # noqa: BLE001 - the boundary between the store and its listeners
                self._escaped(escaped)

    def _run_ended(self, ledger: LiveLedger) -> None:
        ledger.pending_runs -= 1
        if not ledger.pending_runs and ledger.state is not LedgerState.OPEN:
            self._became_idle(ledger)

    def _became_idle(self, ledger: LiveLedger) -> None:
        """Handle that no append of the ledger is under way, and none will follow."""
        if ledger.has_refused:
            self._journal.forget_fenced(ledger.ledger_id)
        for waiter in self._idle_waiters.pop(ledger.ledger_id, ()):
            if not waiter.done():
                waiter.set_result(None)

    def _guard(self, done: Callable[[StoreError | None], None], error: StoreError | None) -> None:
        try:
            done(error)
        except Exception as escaped:  # noqa: BLE001 - the boundary between the store and its listeners
            self._escaped(escaped)

    def _escaped(self, escaped: Exception) -> None:
        """Log an exception of a callback. The completions of other listeners are still delivered."""
        logs.error("append.completion_failed", exc_info=escaped)

    def _fail(self, error: BaseException) -> None:
        if self._failed is None:
            self._failed = error
            self._checkpointer.fail(error)
            # Waiting tasks get an error. Appends get no completion, because it is unknown whether they are on disk.
            for waiter in (*self._waiting, *chain.from_iterable(self._idle_waiters.values()), *self._held_waiters):
                if not waiter.done():
                    waiter.set_exception(StoreError("the journal has failed"))
            self._on_fatal(error)

    # Ledgers

    @property
    def index(self) -> LedgerIndex:
        return self

    @property
    def files(self) -> LedgerFiles:
        return self

    async def create_ledger(
        self,
        purpose: LedgerPurpose = LedgerPurpose.ENTRIES,
        owner: str = "",
        compacted_up_to: Position | None = None,
    ) -> int:
        self._check_open()
        ledger_id = await self._ledger_ids.next()
        ledger = LiveLedger(ledger_id, publish_time_of=self._publish_time_of)

        def durable() -> None:
            self._ledgers[ledger_id] = ledger
            self._checkpointer.created(ledger_id)

        await self._record(encode_ledger_record(LedgerRecord(RecordType.LEDGER_CREATED, ledger_id)), durable)
        return ledger_id

    async def _reserve_ledger_ids(self, end: int) -> None:
        facts = {"ledger_id": end, "journal_end": self._journal_end.noted_end.next_sequence}
        await self._reads.in_thread(self._table.commit, TableChange(facts))

    def read_buffered(self, ledger_id: int, first_entry_id: int, max_entries: int, max_bytes: int) -> EntryRun | None:
        ledger = self._ledgers.get(ledger_id)
        return None if ledger is None else ledger.read_buffered(first_entry_id, max_entries, max_bytes)

    async def read(self, ledger_id: int, first_entry_id: int, max_entries: int, max_bytes: int) -> EntryRun:
        return await self._reads.read(ledger_id, first_entry_id, max_entries, max_bytes)

    async def totals_before(self, ledger_id: int, entry_id: int) -> LedgerTotals:
        return await self._reads.totals_before(ledger_id, entry_id)

    async def message_count_of(self, ledger_id: int, entry_ids: BitMap) -> int:
        return await self._reads.message_count_of(ledger_id, entry_ids)

    async def publish_time_span(self, ledger_id: int, publish_time_ms: int) -> tuple[int, int]:
        return await self._reads.publish_time_span(ledger_id, publish_time_ms)

    async def points(self, ledger_id: int, spacing_bytes: int) -> list[LedgerPoint]:
        return await self._reads.points(ledger_id, spacing_bytes)

    async def stored_blocks(self, ledger_id: int, first_entry_id: int, end_entry_id: int) -> StoredBlocks | None:
        return await self._reads.stored_blocks(ledger_id, first_entry_id, end_entry_id)

    async def with_file(self, ledger_id: int, work: Callable[[LedgerFile], T]) -> T:
        return await self._reads.with_file(ledger_id, work)

    async def seal(self, ledger_id: int) -> LedgerSummary:
        ledger = self._ledgers.get(ledger_id)
        if ledger is not None:
            if ledger.state is LedgerState.OPEN:
                ledger.set_state(LedgerState.FENCED)
            if not ledger.is_index_known:
                await self._reads.load_index(ledger)
            if ledger.pending_runs:
                waiter: asyncio.Future[None] = self._loop.create_future()
                self._idle_waiters.setdefault(ledger_id, []).append(waiter)
                await waiter
            if ledger_id in self._ledgers:
                if ledger.state is not LedgerState.SEALED:
                    ledger.set_state(LedgerState.SEALED)
                    self._checkpointer.sealed(ledger)
                return ledger.summary()
        extent = (await self._reads.sealed_place(ledger_id)).extent
        return LedgerSummary(ledger_id, extent.entry_count, extent.message_count, extent.size_bytes)

    async def recover(self, ledger_id: int) -> LedgerSummary:
        return await self.seal(ledger_id)

    async def delete_ledger(self, ledger_id: int) -> None:
        self._check_open()
        ledger = self._ledgers.get(ledger_id)
        if ledger is None:
            if not await self._reads.in_thread(self._disk.exists, segment_path(self._directory, ledger_id)):
                return
        elif ledger.state is LedgerState.OPEN:
            ledger.set_state(LedgerState.FENCED)
        for run in self._held.take(ledger_id):
            self._refuse_later(run)
            if ledger is not None:
                self._run_ended(ledger)

        def durable() -> None:
            self._ledgers.pop(ledger_id, None)
            self._checkpointer.deleted(ledger_id)
            if self._space.refusal() is not None:
                self._checkpointer.request()
            for waiter in self._idle_waiters.pop(ledger_id, ()):
                if not waiter.done():
                    waiter.set_result(None)

        await self._record(encode_ledger_record(LedgerRecord(RecordType.LEDGER_DELETED, ledger_id)), durable)
        await self._reads.delete(ledger_id)

    def is_own(self, ledger_id: int) -> bool:
        return True  # the locked directory is the mark

    async def list_ledgers(self) -> list[int]:
        live = set(self._ledgers)
        names = await self._reads.in_thread(self._disk.list_names, self._directory)
        return sorted(live.union(number for name in names if (number := parse_segment_name(name)) is not None))

    def is_name_certain(self, ledger_id: int) -> bool:
        return ledger_id >= self._first_named_ledger_id

    def is_id_given(self, ledger_id: int) -> bool:
        return ledger_id < self._ledger_ids.first

    async def flush(self) -> None:
        if self._held.count:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._held_waiters.append(waiter)
            await waiter
        await self._record(encode_probe(), _nothing)

    async def load(self, cursor_id: str) -> tuple[bytes | None, list[bytes]]:
        # The registry first: a record that a checkpoint moves between the two reads is then seen twice, not missed.
        shelved = self._shelf.shelved(cursor_id)
        try:
            stored = await self._reads.in_thread(self._table.load_cursor, cursor_id)
        except DamagedCursor as error:
            if cursor_id not in self._damaged_cursors:  # otherwise the start or an earlier load has logged it
                self._damaged_cursors.add(cursor_id)
                logs.error("checkpoint.cursor_damaged", cursor=cursor_id, reason=str(error))
            raise
        return merge(stored, shelved)

    def attach(self, cursor_id: str, owner: CursorOwner) -> None:
        self._shelf.attach(cursor_id, owner)

    async def detach(self, cursor_id: str, *, is_changed: bool = False) -> None:
        owner = self._shelf.owner(cursor_id)
        if owner is None:
            return
        try:
            if is_changed or self._shelf.is_changed(cursor_id):
                record = self._shelf.new_record(RecordType.CURSOR_SNAPSHOT, cursor_id, owner.snapshot())
                await self._record(encode_cursor_record(record), partial(self._shelf.apply, record))
        finally:
            self._shelf.detach(cursor_id)

    def append_delta(self, cursor_id: str, delta: bytes, done: CursorDone | None) -> None:
        if self._is_closed or self._failed is not None:
            if done is not None:
                self._loop.call_soon(done, StoreError("the ledger store is closed"))
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

    async def checkpoint(self) -> bool:
        """Move all durable data from the journal to segment files. Return False if the store has failed or is closing."""
        return not self._is_closed and await self._checkpointer.run()

    async def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._checkpointer.stop_retrying()
        is_stored = True
        while is_stored and self._failed is None and self._held.count:
            is_stored = await self._checkpointer.run()
        is_covered = is_stored and self._failed is None and await self._checkpointer.run(is_last=True)
        await self._checkpointer.close()
        await self._space.close()
        await self._journal.close(is_covered=is_covered)
        await self._reads.close()
        self._journal_end.close()
        self._table.close()

    def _check_open(self) -> None:
        if self._is_closed or self._failed is not None:
            raise StoreError(
                "the ledger store is closed, because the broker is stopping or a write to its disk has failed"
            )

    async def _record(self, data: bytes, durable: Callable[[], None]) -> None:
        """Write a record to the journal and wait until it is durable. `durable` is called when its batch completes,
        before any completion of a later batch.
        """
        self._check_open()
        written: asyncio.Future[None] = self._loop.create_future()

        def done(error: StoreError | None) -> None:
            if error is None:
                durable()
            if written.done():
                return  # the caller was cancelled; the record is written
            if error is None:
                written.set_result(None)
            else:
                written.set_exception(error)

        self._journal.put(JournalRecord(data, done))
        self._checkpointer.recorded(len(data))
        self._waiting[written] = None
        try:
            await written
        finally:
            self._waiting.pop(written, None)


def _open(
    environment: StoreEnvironment, directory: Path, options: LocalStoreOptions, stats: StoreStats, known: KnownData
) -> tuple[StorageSpace, OpenedStore]:
    environment.disk.make_directory(directory)
    space = StorageSpace(environment, directory, options)
    directories = StoreDirectories.below(directory)
    return space, open_store(environment, directories, stats, space, known, is_synced=options.sync_data)


def _nothing() -> None:
    """Do nothing: completion of a record without effect, which only tests the journal."""
