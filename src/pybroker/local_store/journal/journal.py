"""Interface of the journal, which is the write-ahead log of the local store, and the common part of its drivers.

A driver passes items to `journal_batcher.py`, performs its steps, and reports the result of each batch. Drivers: a
writer thread (`journal_thread.py`), the event loop with background writes by the kernel (`journal_direct.py`), and step
by step in tests.

Invariants: a completion without error means that the batch is as durable as `sync_data` promises. Batches are written,
and completions called on the event loop, in the order of `put`; never inside `put`. A fatal failure is reported to
`on_fatal` once. After it, nothing is completed or retried, because a retried sync can report success for lost bytes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from pybroker.local_store.journal.journal_batcher import Ended, JournalBatcher, MakeRoom, Step, TakeFile, Write
from pybroker.local_store.journal.journal_end import JournalEndFile
from pybroker.local_store.journal.journal_files import JournalFiles
from pybroker.local_store.journal.journal_items import JournalBatch, JournalItem
from pybroker.local_store.store_counters import StoreStats
from pybroker.runtime.clock import Clock
from pybroker.runtime.threads import Threads


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalSetup:
    """Parameters of a journal: `completed` receives each batch on the event loop, `on_fatal` the fatal error."""

    files: JournalFiles  # started
    end: JournalEndFile
    next_sequence: int
    stats: StoreStats
    completed: Callable[[JournalBatch], None]
    on_fatal: Callable[[BaseException], None]
    max_batch_bytes: int
    sync_data: bool
    direct_io: bool  # use direct IO if the system supports it
    clock: Clock
    threads: Threads


class Journal(ABC):
    """The journal of one store."""

    def __init__(self, setup: JournalSetup) -> None:
        self.setup = setup
        self.batcher = JournalBatcher(
            setup.files.current.place, setup.next_sequence, setup.max_batch_bytes, is_synced=setup.sync_data
        )

    @property
    @abstractmethod
    def queue_depth(self) -> int: ...

    @abstractmethod
    def put(self, item: JournalItem) -> None: ...

    @abstractmethod
    async def close(self, *, is_covered: bool) -> None:
        """Write the queued items, and close the files. `is_covered`: all data is in segment files and `checkpoint.db`,
        so the next start needs no journal.
        """

    def forget_fenced(self, ledger_id: int) -> None:
        """Forget that the ledger is fenced (its appends are refused), to free memory. The queue must contain no item of
        the ledger any more.
        """
        self.batcher.forget_fenced(ledger_id)

    def note_end(self, ended: Ended) -> JournalBatch:
        if ended.end is not None:
            self.setup.end.noted(*ended.end)
        self.setup.files.written_to(self.batcher.offset)
        return ended.batch


class BlockingSteps:
    """Performs the steps of a batcher, and waits for each step to end."""

    def __init__(self, journal: Journal) -> None:
        self._batcher = journal.batcher
        self._files = journal.setup.files
        self._file = self._files.current
        self._stats = journal.setup.stats
        self._clock = journal.setup.clock

    def carry_out(self, step: Step) -> Ended:
        while type(step) is not Ended:
            step = self._answered(step)
        return step

    def _answered(self, step: Step) -> Step:
        batcher = self._batcher
        if type(step) is MakeRoom:
            self._files.make_room().exception()  # the next write reports a failure
            return batcher.room_made()
        try:
            if type(step) is TakeFile:
                self._file = self._files.take_next()
                return batcher.file_taken(self._file.place)
            assert type(step) is Write
            start_ms = self._clock.monotonic_ms()
            self._file.file.write_at(step.pieces, step.offset, durable=step.is_durable)
        except OSError as error:
            return batcher.failed(error)
        if not step.is_erasure:
            self._stats.synced(self._clock.monotonic_ms() - start_ms)
        return batcher.written()
