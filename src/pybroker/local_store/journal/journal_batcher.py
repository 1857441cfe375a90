"""Rules of the write-ahead journal, without IO: the next write, its file and offset, and the result of each item.

Operation: `take` adds items to the open batch; `close_batch` returns the first step. A driver performs the step and
reports the result with `written`, `file_taken`, `room_made`, or `failed`, each of which returns the next step; the last
step is `Ended`.

Invariants: one batch is in progress at a time, in the order of the items. Sequence numbers of batches on disk have no
gaps. After a refused run, no later run of its ledger is written, nor any run that the same listener appends to another
ledger before it is notified.

Failure: without disk space, items are refused and the journal continues. Runs are refused first; other records only if
releasing the reserve does not help. `failed` raises any other error: nothing may be written or completed after it.

Concurrency: one thread, except for `forget_fenced`, which is a single set operation.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from pybroker.disk.shortage import lacks_room
from pybroker.errors import StorageFull
from pybroker.ledgers.ledger_store import AppendListener, AppendRun
from pybroker.local_store.journal.journal_items import (
    JournalBatch,
    JournalItem,
    JournalMark,
    JournalRecord,
    ListenersTold,
)
from pybroker.storage_format.journal_layout import (
    BATCH_ALIGNMENT,
    BATCH_HEADER_BYTES,
    FILE_HEADER_BYTES,
    FileHeader,
    align,
    encode_append,
    encode_batch_header,
)

# Written over the header of a refused batch.
ERASED = bytes(BATCH_ALIGNMENT)


class JournalLocation:
    """The next write position in a journal file.

    The batcher advances `offset` and `last_sequence`. The file may be reused when a checkpoint covers `last_sequence`.
    """

    __slots__ = ("capacity_bytes", "header", "last_sequence", "offset")

    def __init__(self, header: FileHeader, capacity_bytes: int) -> None:
        self.header = header
        self.capacity_bytes = capacity_bytes
        self.offset = FILE_HEADER_BYTES
        self.last_sequence = -1


class Write(NamedTuple):
    """Write `pieces` consecutively at `offset` of the current file. Report the result with `written` or `failed`."""

    pieces: tuple[bytes, ...]
    offset: int
    is_durable: bool  # sync to the device
    is_erasure: bool = False


class TakeFile(NamedTuple):
    """Continue in the journal's next file. Report the result with `file_taken` or `failed`."""


class MakeRoom(NamedTuple):
    """Release reserved space for a batch, as far as possible. Report the result with `room_made`."""


class BatchEnd(NamedTuple):
    """The durable end of the journal: the file and the offset after the last batch, which has the sequence number
    before `next_sequence`.
    """

    next_sequence: int
    generation: int
    offset: int


class Ended(NamedTuple):
    """The batch is written or refused. If `end` is set, it must be recorded before the results are reported."""

    batch: JournalBatch
    end: BatchEnd | None


Step = Write | TakeFile | MakeRoom | Ended


class _State(Enum):
    """The event for which the batcher waits."""

    COLLECTING = "items"
    TAKING_FILE = "the next file"
    WRITING = "the batch to be written"
    MAKING_ROOM = "the release of reserved space"
    ERASING = "the data of a refused batch to be erased"


class JournalBatcher:
    """The state of one journal's writes. The driver performs the steps that the methods return."""

    def __init__(self, place: JournalLocation, next_sequence: int, max_batch_bytes: int, *, is_synced: bool) -> None:
        """Begin at `place`. `max_batch_bytes`: a larger batch accepts no more items. `is_synced`: sync each batch to
        the device.
        """
        self._place = place
        self._next_sequence = next_sequence
        self._max_batch_bytes = max_batch_bytes
        self._is_synced = is_synced
        self._state = _State.COLLECTING
        self._batch = JournalBatch()
        self._open_bytes = 0
        self._body = b""
        self._fenced: set[int] = set()
        self._fenced_listeners: set[AppendListener] = set()

    @property
    def offset(self) -> int:
        """The offset in the current file at which the next batch will be written."""
        return self._place.offset

    def forget_fenced(self, ledger_id: int) -> None:
        self._fenced.discard(ledger_id)

    # The open batch

    def take(self, item: JournalItem) -> bool:
        """Add `item` to the open batch. Return False if the batch then accepts no further item."""
        batch = self._batch
        if type(item) is AppendRun:
            if (self._fenced or self._fenced_listeners) and self._is_fenced(item):
                batch.fenced_runs.append(item)
                return True
            batch.runs.append(item)
            encode_append(batch.parts, item.ledger_id, item.first_entry_id, item.payloads, item.message_counts)
            self._open_bytes += item.size_bytes
        elif type(item) is JournalRecord:
            batch.records.append(item)
            batch.parts.append(item.data)
            self._open_bytes += len(item.data)
        elif type(item) is JournalMark:
            # A mark ends its batch, so that the sequence number separates earlier from later items.
            batch.mark = item
            return False
        else:
            assert type(item) is ListenersTold
            self._fenced_listeners -= item.listeners
        return self._open_bytes < self._max_batch_bytes

    def _is_fenced(self, run: AppendRun) -> bool:
        """Return whether the run must be refused because an earlier run was refused."""
        if run.listener in self._fenced_listeners:
            self._fenced.add(run.ledger_id)  # later runs would leave a gap
            return True
        return run.ledger_id in self._fenced

    def close_batch(self, submitted_ms: float) -> Step:
        """Close the open batch and return the first step that the driver must perform. `submitted_ms`: when the oldest
        item of the batch was put into the journal.
        """
        self._expect(_State.COLLECTING)
        self._batch.submitted_ms = submitted_ms
        if not self._batch.parts:  # only marks, or runs of fenced ledgers
            return self._end(None)
        return self._put()

    # Answers

    def written(self) -> Step:
        if self._state is _State.ERASING:
            return self._end(None)
        self._expect(_State.WRITING)
        place = self._place
        place.offset = align(place.offset + self._batch.size_bytes)
        place.last_sequence = self._next_sequence
        self._next_sequence += 1
        end = BatchEnd(self._next_sequence, place.header.generation, place.offset) if self._is_synced else None
        return self._end(end)

    def file_taken(self, place: JournalLocation) -> Step:
        self._expect(_State.TAKING_FILE)
        self._place = place
        return self._write()

    def room_made(self) -> Step:
        self._expect(_State.MAKING_ROOM)
        return self._put() if self._batch.parts else self._erase()

    def failed(self, error: OSError) -> Step:
        """Report a failed write, or a failed preparation of the next file. Return the next step if the disk is full;
        raise any other `error`.
        """
        if not lacks_room(error):
            raise error
        if self._state is _State.ERASING:
            return self._end(None)  # there was no space for the batch either
        assert self._state in {_State.WRITING, _State.TAKING_FILE}, self._state
        batch = self._batch
        if batch.error is not None:
            batch.refused_records, batch.records = batch.records, []
            return self._erase()
        batch.error = StorageFull(f"the journal cannot be written: {error.strerror}")
        batch.error.__cause__ = error
        self._fenced.update(run.ledger_id for run in batch.runs)
        self._fenced_listeners.update(run.listener for run in batch.runs)
        batch.refused_runs, batch.runs = batch.runs, []
        batch.parts = [record.data for record in batch.records]
        self._state = _State.MAKING_ROOM
        return MakeRoom()

    def _put(self) -> Step:
        batch, place = self._batch, self._place
        self._body = b"".join(batch.parts)
        batch.size_bytes = BATCH_HEADER_BYTES + len(self._body)
        # A batch larger than a whole file extends an empty file; only such a batch exceeds the capacity.
        if place.offset + batch.size_bytes > place.capacity_bytes and place.offset > FILE_HEADER_BYTES:
            self._state = _State.TAKING_FILE
            return TakeFile()
        return self._write()

    def _write(self) -> Step:
        batch, place = self._batch, self._place
        self._state = _State.WRITING
        record_count = len(batch.runs) + len(batch.records)
        header = encode_batch_header(place.header, self._next_sequence, record_count, self._body)
        return Write((header, self._body), place.offset, self._is_synced)

    def _erase(self) -> Step:
        place = self._place
        if place.offset >= place.capacity_bytes:
            return self._end(None)
        self._state = _State.ERASING
        return Write((ERASED,), place.offset, is_durable=True, is_erasure=True)

    def _end(self, end: BatchEnd | None) -> Ended:
        batch, self._batch = self._batch, JournalBatch()
        self._state = _State.COLLECTING
        self._open_bytes = 0
        self._body = b""
        if batch.mark is not None:
            batch.mark.sequence = self._next_sequence
        batch.parts = []
        return Ended(batch, end)

    def _expect(self, state: _State) -> None:
        assert self._state is state, f"waiting for {self._state.value}"
