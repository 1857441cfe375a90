"""Schedules checkpoints, and prepares their input on the event loop.

Operation: at a threshold of appends, the checkpointer freezes all buffered entries and puts a mark into the journal, in
one event loop iteration. When the journal completes the mark, all earlier appends are durable or refused, so the frozen
entries are exactly the journal before the mark. The checkpoint thread writes them while appends continue.

Invariants: one checkpoint runs at a time; the journal before the mark is released only after the commit. Failure:
without disk space the checkpoint is retried, the journal stays, and the reserve file is deleted. Any other error ends
the process.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Protocol

from pybroker.disk.shortage import lacks_room
from pybroker.errors import StoreError
from pybroker.ledgers.live_ledger import LedgerState, LiveLedger
from pybroker.local_store.checkpoint.checkpoint import CheckpointJob, LedgerWork, run_checkpoint
from pybroker.local_store.checkpoint.checkpoint_table import CheckpointTable, CursorChange, TableChange
from pybroker.local_store.checkpoint.cursor_registry import CursorRegistry, RegisteredCursor
from pybroker.local_store.free_space import StorageSpace
from pybroker.local_store.journal.journal import Journal
from pybroker.local_store.journal.journal_end import JournalEndFile
from pybroker.local_store.journal.journal_files import JournalFiles
from pybroker.local_store.journal.journal_items import JournalMark
from pybroker.local_store.segments.ledger_location import LedgerLocation
from pybroker.local_store.segments.segment_tail import Leftovers
from pybroker.local_store.store_counters import StoreStats
from pybroker.local_store.store_environment import StoreEnvironment
from pybroker.local_store.store_options import LocalStoreOptions
from pybroker.runtime import logs
from pybroker.runtime.tasks import TaskOwner

# Upper bound of the disk space per ledger beside payloads: partly filled file system blocks and an index.
_LEDGER_BYTES = 8192
# The same per entry: columns and block headers.
_ENTRY_BYTES = 16
# One part in 8 of each limit is reserved for ledgers that use less than their share of journal and memory.
_KEPT_PART = 8
_MOST_SHARES = 64


class CheckpointListener(Protocol):
    """Callbacks to the store, on the event loop."""

    def index_stored(self, ledger_id: int, place: LedgerLocation) -> None:
        """Called when the segment file of a sealed ledger is complete. The store then frees the ledger's memory."""

    def checkpoint_ended(self) -> None:
        """Called when a checkpoint is committed, so that appends that wait for it can continue."""

    def checkpoint_failed(self, error: BaseException) -> None: ...


class Checkpointer:
    """Decides when checkpoints run. Owned by the store, which reports each append and each created, sealed, or deleted
    ledger.
    """

    def __init__(
        self,
        environment: StoreEnvironment,
        directory: Path,
        table: CheckpointTable,
        journal: Journal,
        files: JournalFiles,
        journal_end: JournalEndFile,
        ledgers: dict[int, LiveLedger],
        shelf: CursorRegistry,
        options: LocalStoreOptions,
        stats: StoreStats,
        space: StorageSpace,
        listener: CheckpointListener,
    ) -> None:
        self._disk = environment.disk
        self._clock = environment.clock
        self._slow = environment.slow_operations
        self._space = space
        self._directory = directory
        self._table = table
        self._journal = journal
        self._files = files
        self._journal_end = journal_end
        self._ledgers = ledgers
        self._shelf = shelf
        self._options = options
        self._nearly_full_bytes = options.journal_max_bytes - options.journal_max_bytes // _KEPT_PART
        self._nearly_full_records = options.journal_max_records - options.journal_max_records // _KEPT_PART
        self._stats = stats
        self._listener = listener
        self._thread = environment.threads.pool("checkpoint")
        self._tasks = TaskOwner("checkpoint")
        self._lock = asyncio.Lock()
        self._closing = asyncio.Event()
        self._is_scheduled = False
        self._is_requested = False
        self._failed: BaseException | None = None
        self._has_given_up = False
        self._has_made_last = False
        self._marked: asyncio.Future[CheckpointJob] | None = None
        self._job: CheckpointJob | None = None
        # Journal bytes after the mark, and before it until the checkpoint commits.
        self._bytes = 0
        self._records = 0
        self._bytes_before_mark = 0
        self._records_before_mark = 0
        self.is_nearly_full = False
        """Whether the journal is near one of its limits, so that not every ledger may append."""
        # At these values of `_bytes` and `_records`, a checkpoint may be due or the journal nearly full.
        self._next_bytes = self._next_records = 0
        self._journal_measured()
        self._dirty: dict[int, LiveLedger] = {}
        self._frozen_count = 0  # entries of the running checkpoint
        self._created: list[int] = []
        self._deleted: list[int] = []

    @property
    def live_bytes(self) -> int:
        return self._bytes + self._bytes_before_mark

    def unstored_bytes(self) -> int:
        """Return the bytes that checkpoints must still write to segment files, as an upper bound."""
        job = self._job
        works, written_bytes = (0, 0) if job is None else (len(job.works), job.written_bytes)
        records = self._records + self._records_before_mark
        ledgers = len(self._dirty) + works
        live_bytes = self._bytes + self._bytes_before_mark
        return max(0, live_bytes + _ENTRY_BYTES * records + _LEDGER_BYTES * ledgers - written_bytes)

    def admits(self, ledger: LiveLedger) -> bool:
        """Return whether `ledger` may append now. If not, its appends must wait for a checkpoint: the journal is full,
        or it is nearly full and `ledger` has used its share: an equal part for each ledger with entries in the journal.
        """
        if not self.is_nearly_full:
            return True
        options = self._options
        is_full = (
            self._bytes + self._bytes_before_mark >= options.journal_max_bytes
            or self._records + self._records_before_mark >= options.journal_max_records
        )
        parts = min(max(2, len(self._dirty) + self._frozen_count), _MOST_SHARES)
        return not is_full and (
            ledger.unstored_bytes < options.journal_max_bytes // parts
            and ledger.unstored_entries < options.journal_max_records // parts
        )

    def _journal_measured(self) -> None:
        """Update `is_nearly_full`, and the values at which this is necessary again."""
        bytes_left = self._nearly_full_bytes - self._bytes_before_mark
        records_left = self._nearly_full_records - self._records_before_mark
        self.is_nearly_full = self._bytes >= bytes_left or self._records >= records_left
        self._next_bytes = min(self._options.checkpoint_max_bytes, bytes_left)
        self._next_records = min(self._options.checkpoint_max_entries, records_left)

    def recorded(self, size_bytes: int, record_count: int = 1, ledger: LiveLedger | None = None) -> None:
        """Count bytes and records that were appended to the journal: entries of `ledger`, or other records if `ledger`
        is None. Start a checkpoint if a threshold is reached.
        """
        if ledger is not None:
            self._dirty[ledger.ledger_id] = ledger
        self._bytes += size_bytes
        self._records += record_count
        if self._bytes >= self._next_bytes or self._records >= self._next_records or self._is_requested:
            self._journal_measured()
            if not self._is_scheduled and self._is_due():
                self._is_scheduled = True
                self._tasks.start(self._run_scheduled(), "checkpoint")

    def request(self) -> None:
        self._is_requested = True
        self.recorded(0, 0)

    def created(self, ledger_id: int) -> None:
        """Record that the creation of the ledger is durable in the journal."""
        self._created.append(ledger_id)

    def sealed(self, ledger: LiveLedger) -> None:
        """Record that the ledger is sealed. The next checkpoint completes its segment file with an index."""
        self.recorded(0, ledger=ledger)

    def deleted(self, ledger_id: int) -> None:
        """Record that the deletion of the ledger is durable in the journal."""
        self._deleted.append(ledger_id)
        self._dirty.pop(ledger_id, None)
        for work in self._job.works if self._job is not None else ():
            if work.ledger_id == ledger_id:
                work.is_deleted = True

    def fail(self, error: BaseException) -> None:
        """Make a running checkpoint and all later ones fail with `error`, because the journal has failed."""
        self._failed = error
        if self._marked is not None and not self._marked.done():
            self._marked.set_exception(StoreError("the journal has failed"))

    async def run(self, *, is_last: bool = False) -> bool:
        """Run a checkpoint now. Return False if it was not committed, or if the last checkpoint of a clean stop has
        already run.

        `is_last`: the last checkpoint of a clean stop, which records that the stop was clean. No checkpoint may follow
        it.
        """
        async with self._lock:
            if self._failed is not None or self._has_given_up or self._has_made_last:
                return False
            start_ms = self._clock.monotonic_ms()
            self._is_requested = False
            try:
                job = await self._freeze()
            except StoreError:
                if not self._has_failed():
                    raise
                return False
            job.change.cursors = await self._snapshot_cursors()
            job.change.facts["cursor_number"] = self._shelf.next_number
            job.change.facts |= {"is_clean": int(is_last), "is_journal_made": 1}
            job.counts_files = is_last
            self._job = job
            try:
                moved = await self._write(job)
            finally:
                self._job = None
            if moved is None:
                # The uncommitted entries are only in the journal, so a later checkpoint must not mark them as covered.
                self._has_given_up = True
                return False
            self._apply(job, moved)
            self._has_made_last = is_last
            self._stats.checkpoints += 1
            took_ms = self._clock.monotonic_ms() - start_ms
            self._slow.took("checkpoint", took_ms, written_bytes=job.written_bytes)
            self._stats.checkpoint_s += took_ms / 1000
            self._stats.checkpoint_bytes += job.written_bytes
        self._listener.checkpoint_ended()
        return True

    def stop_retrying(self) -> None:
        """End the retries of a checkpoint that waits for disk space, because the store is closing. The journal keeps
        the data.
        """
        self._closing.set()

    async def close(self) -> None:
        await self._tasks.close()
        await asyncio.to_thread(self._thread.shutdown)

    def _has_failed(self) -> bool:
        return self._failed is not None

    async def _run_scheduled(self) -> None:
        # In its own iteration, so that the append at the threshold is not delayed.
        await asyncio.sleep(0)
        try:
            while self._is_due() and await self.run():
                pass
        except Exception as error:  # noqa: BLE001 - a journal that is never released again must not go unnoticed
            if self._failed is None:
                self._listener.checkpoint_failed(error)
        finally:
            self._is_scheduled = False

    def _is_due(self) -> bool:
        return (
            self._bytes >= self._options.checkpoint_max_bytes
            or self._records >= self._options.checkpoint_max_entries
            or (self._is_requested and self._records > 0)
            or self.is_nearly_full  # ignores thresholds, because appends wait for this checkpoint
        )

    async def _freeze(self) -> CheckpointJob:
        """Freeze the buffered entries and wait until the journal completes the mark."""
        dirty, self._dirty = self._dirty, {}
        frozen = []
        for ledger in dirty.values():
            ledger.freeze()
            frozen.append((ledger, ledger.state is LedgerState.SEALED))
        self._frozen_count = len(frozen)
        self._bytes_before_mark, self._bytes = self.live_bytes, 0
        self._records_before_mark, self._records = self._records + self._records_before_mark, 0
        self._journal_measured()
        marked: asyncio.Future[CheckpointJob] = asyncio.get_running_loop().create_future()

        def reached(sequence: int) -> None:
            # In the callback and not in the task: entries that complete after the mark belong to the next checkpoint.
            if not marked.done():
                marked.set_result(self._make_job(sequence, frozen))

        self._marked = marked
        self._journal.put(JournalMark(reached))
        return await marked

    def _make_job(self, sequence: int, frozen: list[tuple[LiveLedger, bool]]) -> CheckpointJob:
        created, self._created = self._created, []
        deleted, self._deleted = self._deleted, []
        change = TableChange({"sequence": sequence})
        for ledger_id in created:
            if (ledger := self._ledgers.get(ledger_id)) is not None:
                change.extents[ledger_id] = ledger.extent
        works = []
        for ledger, is_sealed in frozen:
            buffer = ledger.writing
            if ledger.ledger_id in self._ledgers and (is_sealed or (buffer is not None and buffer.payloads)):
                payloads, counts = (buffer.payloads, buffer.message_counts) if buffer is not None else ([], [])
                works.append(LedgerWork(ledger.ledger_id, ledger.extent, ledger.index, payloads, counts, is_sealed))
            else:
                ledger.writing = None
        leftovers = Leftovers.REFUSE if self._options.sync_data else Leftovers.CUT
        return CheckpointJob(change, works, deleted, leftovers)

    async def _snapshot_cursors(self) -> list[CursorChange]:
        """Return the changes of all cursors. It may yield to the event loop between cursors, because record numbers
        show which records a snapshot includes.
        """
        changes = []
        turn_start_ms = self._clock.monotonic_ms()
        for cursor in self._shelf.dirty():
            changes.append(self._cursor_change(cursor))
            if self._clock.monotonic_ms() - turn_start_ms > self._options.snapshot_turn_ms:
                await asyncio.sleep(0)
                turn_start_ms = self._clock.monotonic_ms()
        return changes

    def _cursor_change(self, cursor: RegisteredCursor) -> CursorChange:
        is_deleted = cursor.deleted_number > 0
        if cursor.owner is not None and cursor.deltas:
            try:
                # The snapshot covers every record numbered so far.
                snapshot = (self._shelf.next_number - 1, cursor.owner.snapshot())
                return CursorChange(cursor.cursor_id, is_deleted, snapshot, [], snapshot[0])
            except Exception as error:  # noqa: BLE001 - one broken topic must not keep the journal of all
                logs.error("cursor.snapshot_failed", cursor=cursor.cursor_id, exc_info=error)
        return CursorChange(
            cursor.cursor_id, is_deleted, cursor.snapshot, list(cursor.deltas), self._shelf.next_number - 1
        )

    async def _write(self, job: CheckpointJob) -> dict[int, LedgerLocation] | None:
        loop = asyncio.get_running_loop()
        is_delayed = False
        while True:
            try:
                moved = await loop.run_in_executor(self._thread, self._work, job)
                self._space.is_checkpoint_waiting = False
                return moved
            except (OSError, StoreError) as error:
                if not (isinstance(error, OSError) and lacks_room(error)):
                    self._listener.checkpoint_failed(error)
                    return None
                if not is_delayed:
                    logs.warning("checkpoint.delayed", reason=error)
                is_delayed = self._space.is_checkpoint_waiting = True
                self._stats.checkpoint_retries += 1
                await loop.run_in_executor(self._thread, self._space.no_room, error)
            if await self._is_closing_after(self._options.checkpoint_retry_s):
                return None

    def _work(self, job: CheckpointJob) -> dict[int, LedgerLocation]:
        # At least the covered batches. `journal.end` may be ahead, because it contains only durable batches.
        job.change.facts["journal_end"] = max(job.change.facts["sequence"], self._journal_end.noted_end.next_sequence)
        moved = run_checkpoint(self._disk, self._directory, self._table, job)
        self._journal_end.committed(self._table.commit_count, job.change.facts["sequence"])
        self._space.measure()
        return moved

    async def _is_closing_after(self, delay_s: float) -> bool:
        try:
            async with asyncio.timeout(delay_s):
                await self._closing.wait()
        except TimeoutError:
            return False
        return True

    def _apply(self, job: CheckpointJob, moved: dict[int, LedgerLocation]) -> None:
        for work in job.works:
            ledger = self._ledgers.get(work.ledger_id)
            if ledger is None:
                continue  # deleted meanwhile
            result = moved[work.ledger_id]
            ledger.moved(result.extent, result.index)
            if work.is_sealed:
                del self._ledgers[work.ledger_id]
                self._listener.index_stored(work.ledger_id, result)
        for cursor in job.change.cursors:
            self._shelf.stored(cursor.cursor_id, cursor.covered_number)
        self._frozen_count = 0
        self._bytes_before_mark = 0
        self._records_before_mark = 0
        self._journal_measured()
        self._files.release(job.change.facts["sequence"])
