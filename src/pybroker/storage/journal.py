"""The write-ahead journal: one writer thread, one durable write for everything that waits, one hop back to the loop.
`journal_direct.py` does the same without the thread where the system can.

Operation: the loop puts runs and records into a queue; the writer takes what is there as soon as it is idle, up to
`max_batch_bytes`, writes it as one batch and hands the whole batch back by one `call_soon_threadsafe`.
What must always hold: a completion without error means that the batch is as durable as `sync_data` promises; batches are
written in queue order and their sequence numbers have no gaps; after an append of a ledger was refused, no later one of it
is written, nor one of another ledger that its listener made before it was told.
Failure: what finds no room is refused, and the journal goes on: first the runs, then, if what was reserved for them does not
help either, the other records. Any other error of a write is told to `on_fatal`, once, on the loop; nothing is completed
after it, and nothing retried, because a retried sync can report success for bytes that are gone.

Concurrency: `put` and `forget_fenced` on the loop; everything with "writer" in its comment on the writer thread.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import TypeVar

from pybroker.clock import Clock
from pybroker.errors import StorageFull, StoreError
from pybroker.storage.disk import lacks_room
from pybroker.storage.journal_end import JournalEndFile
from pybroker.storage.journal_files import JournalFile, JournalFiles
from pybroker.storage.layout.journal import (
    BATCH_ALIGNMENT,
    BATCH_HEADER_BYTES,
    FILE_HEADER_BYTES,
    align,
    encode_append,
    encode_batch_header,
)
from pybroker.storage.ledger_store import AppendListener, AppendRun
from pybroker.storage.stats import StoreStats
from pybroker.threads import Threads

_T = TypeVar("_T")

# Over the header of a batch: there is none.
ERASED = bytes(BATCH_ALIGNMENT)

RecordDone = Callable[[StoreError | None], None]


class JournalRecord:
    """An encoded record that is no run of entries; `done` is called on the loop."""

    __slots__ = ("data", "done")

    def __init__(self, data: bytes, done: RecordDone | None) -> None:
        self.data = data
        self.done = done


class JournalMark:
    """A place in the journal: everything put before it is in batches with a sequence number below `sequence`."""

    __slots__ = ("done", "sequence")

    def __init__(self, done: Callable[[int], None]) -> None:
        self.done = done
        self.sequence = -1


class ListenersTold:
    """A place in the journal: whatever `listeners` append behind it they append knowing that earlier runs were refused."""

    __slots__ = ("listeners",)

    def __init__(self, listeners: set[AppendListener]) -> None:
        self.listeners = listeners


JournalItem = AppendRun | JournalRecord | JournalMark | ListenersTold


class JournalBatch:
    """What one durable write holds, on its way to the disk and back."""

    __slots__ = (
        "error",
        "fenced_runs",
        "mark",
        "parts",
        "records",
        "refused_records",
        "refused_runs",
        "runs",
        "size_bytes",
        "submitted_ms",
    )

    def __init__(self) -> None:
        self.parts: list[bytes | array[int]] = []
        self.runs: list[AppendRun] = []
        self.records: list[JournalRecord] = []
        self.fenced_runs: list[AppendRun] = []  # refused, because an earlier append of their ledger or listener was
        self.refused_runs: list[AppendRun] = []
        self.refused_records: list[JournalRecord] = []
        self.error: StorageFull | None = None  # why there are refused ones
        self.mark: JournalMark | None = None
        self.size_bytes = 0
        self.submitted_ms = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalSetup:
    """What a journal is made of, whoever writes it. `completed` hears of each batch on the loop, `on_fatal` of the end."""

    files: JournalFiles
    end: JournalEndFile
    next_sequence: int
    stats: StoreStats
    completed: Callable[[JournalBatch], None]
    on_fatal: Callable[[BaseException], None]
    max_batch_bytes: int
    sync_data: bool
    clock: Clock
    threads: Threads


class Journal:
    """Owns the writer thread; the store owns the journal and hears of each batch through `completed`."""

    def __init__(self, setup: JournalSetup) -> None:
        self._files = setup.files
        self._end_file = setup.end
        self._next_sequence = setup.next_sequence
        self._stats = setup.stats
        self._completed = setup.completed
        self._on_fatal = setup.on_fatal
        self._max_batch_bytes = setup.max_batch_bytes
        self._sync_data = setup.sync_data
        self._clock = setup.clock
        self._threads = setup.threads
        self._loop = asyncio.get_running_loop()
        self._queue: SimpleQueue[JournalItem | None] = SimpleQueue()
        self._submitted_ms = 0.0
        self._fenced: set[int] = set()
        self._fenced_listeners: set[AppendListener] = set()  # writer
        self._file = setup.files.current
        self._start()

    def _start(self) -> None:
        self._thread = self._threads.start("journal-writer", self._run)

    @property
    def queue_depth(self) -> int:
        return self._queue.qsize()

    def put(self, item: JournalItem) -> None:
        """Hand over; the completion comes on the loop, never inside this call."""
        if not self._submitted_ms:
            self._submitted_ms = self._clock.monotonic_ms()
        self._queue.put(item)

    def forget_fenced(self, ledger_id: int) -> None:
        """Nothing of this fenced ledger is in the queue any more."""
        self._fenced.discard(ledger_id)

    async def close(self, *, is_covered: bool) -> None:
        """Write what is queued, end the thread, close the files. `is_covered` as in `JournalFiles.close`."""
        self._queue.put(None)
        await asyncio.to_thread(self._thread.join)
        await asyncio.to_thread(self._files.close, is_covered=is_covered)

    def _run(self) -> None:
        """The writer."""
        go_on = True
        while go_on:
            batch = JournalBatch()
            go_on = self._collect(batch, self._queue.get())
            try:
                if batch.parts:
                    self._write(batch)
            except BaseException as error:  # noqa: BLE001 - whatever it is, no later write may be receipted
                self._tell(self._on_fatal, error)
                return
            self._end(batch)
            self._tell(self._completed, batch)

    def _end(self, batch: JournalBatch) -> None:
        """Writer: the batch is written or refused."""
        if batch.mark is not None:
            batch.mark.sequence = self._next_sequence
        batch.parts = []

    def _collect(self, batch: JournalBatch, item: JournalItem | None) -> bool:
        """Writer: take `item` and what else is there. False when the thread shall end."""
        batch.submitted_ms, self._submitted_ms = self._submitted_ms, 0.0
        size_bytes = 0
        while True:
            if type(item) is AppendRun:
                if (self._fenced or self._fenced_listeners) and self._is_fenced(item):
                    batch.fenced_runs.append(item)
                else:
                    batch.runs.append(item)
                    encode_append(batch.parts, item.ledger_id, item.first_entry_id, item.payloads, item.message_counts)
                    size_bytes += item.size_bytes
            elif type(item) is JournalRecord:
                batch.records.append(item)
                batch.parts.append(item.data)
                size_bytes += len(item.data)
            elif type(item) is JournalMark:
                # The batch ends here: its sequence number must tell before from after.
                batch.mark = item
                return True
            elif type(item) is ListenersTold:
                self._fenced_listeners -= item.listeners
            else:
                return False
            if size_bytes >= self._max_batch_bytes:
                return True
            try:
                item = self._queue.get_nowait()
            except Empty:
                return True

    def _is_fenced(self, run: AppendRun) -> bool:
        """Writer: whether an earlier run was refused and this one must be too."""
        if run.listener in self._fenced_listeners:
            self._fenced.add(run.ledger_id)  # what comes later would leave a gap
            return True
        return run.ledger_id in self._fenced

    def _write(self, batch: JournalBatch) -> None:
        """Writer: put the batch on disk, or refuse what finds no room."""
        try:
            self._put_on_disk(batch)
            return
        except OSError as error:
            self._refuse_runs(batch, error)
        self._files.make_room().result()
        if batch.parts:
            try:
                self._put_on_disk(batch)
                return
            except OSError as error:
                self._refuse_records(batch, error)
        if self._must_erase():
            try:
                self._file.file.write_at((ERASED,), self._file.offset, durable=True)
            except OSError as error:
                if not lacks_room(error):
                    raise

    def _put_on_disk(self, batch: JournalBatch) -> None:
        start_ms = self._clock.monotonic_ms()
        pieces = self._encode(batch)
        self._file.file.write_at(pieces, self._file.offset, durable=self._sync_data)
        self._stats.synced(self._clock.monotonic_ms() - start_ms)
        self._advance(batch)

    def _encode(self, batch: JournalBatch) -> tuple[bytes, bytes]:
        """Writer: header and body, in a file that has room for them. Raises OSError when there is none."""
        body = b"".join(batch.parts)
        batch.size_bytes = BATCH_HEADER_BYTES + len(body)
        file = self._file_with_room(batch.size_bytes)
        header = encode_batch_header(file.header, self._next_sequence, len(batch.runs) + len(batch.records), body)
        return header, body

    def _advance(self, batch: JournalBatch) -> None:
        """Writer: the batch is in the file, as durable as promised."""
        file = self._file
        file.offset = align(file.offset + batch.size_bytes)
        file.last_sequence = self._next_sequence
        self._next_sequence += 1
        if self._sync_data:
            self._end_file.noted(self._next_sequence, file.header.generation, file.offset)

    def _file_with_room(self, size_bytes: int) -> JournalFile:
        if self._needs_next_file(size_bytes):
            self._file = self._files.take_next()
        return self._file

    def _needs_next_file(self, size_bytes: int) -> bool:
        # A batch larger than a whole file makes an empty file longer; it is the only one that does.
        file = self._file
        return file.offset + size_bytes > file.capacity_bytes and file.offset > FILE_HEADER_BYTES

    def _refuse_runs(self, batch: JournalBatch, error: OSError) -> None:
        """Writer: there is no room for the batch; its records are left and may find some. Raises any other `error`."""
        if not lacks_room(error):
            raise error
        batch.error = StorageFull(f"the journal cannot be written: {error.strerror}")
        batch.error.__cause__ = error
        self._fenced.update(run.ledger_id for run in batch.runs)
        self._fenced_listeners.update(run.listener for run in batch.runs)
        batch.refused_runs, batch.runs = batch.runs, []
        batch.parts = [record.data for record in batch.records]

    def _refuse_records(self, batch: JournalBatch, error: OSError) -> None:
        """Writer: there is no room for the records either. Raises any other `error`."""
        if not lacks_room(error):
            raise error
        batch.refused_records, batch.records = batch.records, []

    def _must_erase(self) -> bool:
        """Writer: whether bytes of a refused batch may be in the file: what was refused must not come back after a crash."""
        return self._file.offset < self._file.capacity_bytes

    def _tell(self, callback: Callable[[_T], None], value: _T) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, value)
        except RuntimeError:
            # The loop is closed: nobody is left who could be told.
            return
