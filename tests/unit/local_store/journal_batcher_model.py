"""A journal's batcher beside a simple model: a driver on lists of bytes whose disk is full, or fails, at drawn moments.

What must hold: a reader of the files finds exactly what was told to be written, in the order in which it was taken, in batches
without gaps; each item has one end; nothing behind a refused run of a ledger is written, nor what a listener appended before it
was told; a record is refused only when it was tried alone; a mark tells before from after.
"""

from __future__ import annotations

import errno
import os
from typing import Any

from hypothesis import strategies as st
from tests.support.world import SyncWorld

from pybroker.errors import StoreError
from pybroker.ledgers.ledger_store import AppendListener, AppendRun
from pybroker.local_store.journal.journal_batcher import (
    BatchEnd,
    Ended,
    JournalBatcher,
    JournalLocation,
    MakeRoom,
    Step,
    TakeFile,
    Write,
)
from pybroker.local_store.journal.journal_items import (
    JournalBatch,
    JournalItem,
    JournalMark,
    JournalRecord,
    ListenersTold,
)
from pybroker.local_store.journal.journal_recovery import scan_file
from pybroker.storage_format.journal_layout import (
    BATCH_ALIGNMENT,
    FILE_HEADER_BYTES,
    AppendRecord,
    CursorRecord,
    FileHeader,
    RecordType,
    decode_records,
    encode_cursor_record,
    encode_file_header,
)

MAX_BATCH_BYTES = 1500
SIZES = st.sampled_from((0, 1, 300, 900, 5000))
CAPACITIES = st.sampled_from((FILE_HEADER_BYTES + 1024, FILE_HEADER_BYTES + 4096, FILE_HEADER_BYTES + (64 << 10)))
# What becomes of a step: done; refused for want of room, before or after its bytes were written; failed.
OUTCOMES = st.sampled_from(("done", "done", "done", "no room", "no room but written"))
LISTENERS = st.integers(0, 1)
SLOTS = st.integers(0, 3)
STEPS = st.one_of(
    st.tuples(st.just("run"), SLOTS, SIZES),
    st.tuples(st.just("run"), SLOTS, SIZES),
    st.tuples(st.just("record"), SIZES),
    st.tuples(st.just("mark")),
    st.tuples(st.just("told"), LISTENERS),
    st.tuples(st.just("forget"), SLOTS),
    st.tuples(st.just("write"), st.lists(OUTCOMES, max_size=3), CAPACITIES),
)
SCRIPTS = st.lists(STEPS, min_size=25, max_size=60)
Outcome = str


class NoListener(AppendListener):
    """Its identity is all that counts."""

    def append_completed(self, runs: list[AppendRun], error: StoreError | None) -> None:
        raise AssertionError("the batcher tells nobody")


class JournalWorld(SyncWorld):
    """A batcher and the files that its driver writes. Each batch is checked where it is written."""

    def __init__(self, kind: type[JournalBatcher] = JournalBatcher, *, is_synced: bool = True) -> None:
        self.files: list[bytearray] = []
        self.is_synced = is_synced
        self.place = self.new_file(FILE_HEADER_BYTES + 4096)
        self.batcher = kind(self.place, 0, MAX_BATCH_BYTES, is_synced=is_synced)
        self.listeners = (NoListener(), NoListener())
        self.untold: set[AppendListener] = set()
        self.broken: set[int] = set()  # ledgers of which a run was not written
        self.next_entry: dict[int, int] = {}
        self.ledgers = [0, 1, 2, 3]  # of each slot; of the first two by one listener, of the others by the other
        self.item_count = 0
        # Of the open batch
        self.open: list[JournalItem] = []
        self.open_bytes = 0
        self.must_be_fenced: list[AppendRun] = []
        self.is_closed = False
        # In the files, batch by batch; the last one may be of a refused batch that could not be erased.
        self.written: list[list[JournalItem]] = []
        self.may_have_rest = False

    def new_file(self, capacity_bytes: int) -> JournalLocation:
        """With the bytes of the one before it, as a file that is used again has."""
        generation = len(self.files) + 1
        header = FileHeader(generation, salt=generation * 7919)
        data = bytearray(self.files[-1]) if self.files else bytearray()
        data += bytes(max(0, capacity_bytes - len(data)))
        data[:FILE_HEADER_BYTES] = encode_file_header(header)
        self.files.append(data)
        return JournalLocation(header, capacity_bytes)

    def perform(self, name: str, *arguments: Any) -> None:
        if self.is_closed and name != "write":
            self.write([], FILE_HEADER_BYTES + 4096)
        super().perform(name, *arguments)

    def finish(self) -> None:
        self.write([], FILE_HEADER_BYTES + 4096)

    # Items

    def run(self, slot: int, size_bytes: int) -> None:
        self.item_count += 1
        ledger_id, listener = self.ledgers[slot], self.listeners[slot // 2]
        first = self.next_entry.setdefault(ledger_id, 0)
        self.next_entry[ledger_id] += 1
        run = AppendRun(
            listener, ledger_id, first, [self.item_count.to_bytes(4) + bytes(size_bytes)], [1], size_bytes + 4, None
        )
        if ledger_id in self.broken or listener in self.untold:
            self.broken.add(ledger_id)
            self.must_be_fenced.append(run)
            self.put(run, 0)
        else:
            self.put(run, run.size_bytes)

    def record(self, size_bytes: int) -> None:
        self.item_count += 1
        data = encode_cursor_record(CursorRecord(RecordType.CURSOR_DELTA, "c", self.item_count, bytes(size_bytes)))
        record = JournalRecord(data, None)
        self.put(record, len(data))

    def mark(self) -> None:
        self.put(JournalMark(lambda sequence: None), 0)

    def told(self, number: int) -> None:
        listener = self.listeners[number]
        self.untold.discard(listener)
        self.put(ListenersTold({listener}), 0)

    def put(self, item: JournalItem, size_bytes: int) -> None:
        self.open.append(item)
        self.open_bytes += size_bytes
        self.is_closed = not self.batcher.take(item)
        assert self.is_closed == (isinstance(item, JournalMark) or self.open_bytes >= MAX_BATCH_BYTES)

    def forget(self, slot: int) -> None:
        """A ledger of which a run was refused is at its end; the next one of its listener has another id."""
        if self.ledgers[slot] in self.broken:
            self.batcher.forget_fenced(self.ledgers[slot])
            self.ledgers[slot] += len(self.ledgers)

    # The driver

    def write(self, outcomes: list[Outcome], capacity_bytes: int) -> None:
        left = list(outcomes)
        step = self.batcher.close_batch(0)
        failures = 0
        seen: list[type] = []
        while not isinstance(step, Ended):
            outcome = left.pop(0) if left and not isinstance(step, MakeRoom) else "done"
            failures += outcome != "done"
            seen.append(type(step))
            step = self.answered(step, outcome, capacity_bytes)
        assert len(seen) <= 8, "every batch comes to its end"
        self.check_batch(step, failures, has_made_room=MakeRoom in seen)
        self.open, self.open_bytes, self.must_be_fenced, self.is_closed = [], 0, [], False

    def answered(self, step: Step, outcome: Outcome, capacity_bytes: int) -> Step:
        if isinstance(step, MakeRoom):
            return self.batcher.room_made()
        if isinstance(step, TakeFile):
            if outcome != "done":
                return self.batcher.failed(no_room())
            assert self.place.offset > FILE_HEADER_BYTES, "an empty file is not passed over"
            self.place = self.new_file(capacity_bytes)
            return self.batcher.file_taken(self.place)
        assert isinstance(step, Write)
        data = b"".join(step.pieces)
        assert step.offset == self.place.offset
        assert step.offset % BATCH_ALIGNMENT == 0
        assert step.is_durable == (self.is_synced or step.is_erasure)
        fits = step.offset + len(data) <= self.place.capacity_bytes
        assert fits or step.offset == FILE_HEADER_BYTES, "only an empty file grows"
        if outcome != "no room":
            file = self.files[-1]
            file += bytes(max(0, step.offset + len(data) - len(file)))
            file[step.offset : step.offset + len(data)] = data
            self.may_have_rest = False
        elif step.is_erasure:
            self.may_have_rest = (
                True  # as large a file as this has no room for a sector: the next batch takes that place
            )
        return self.batcher.written() if outcome == "done" else self.batcher.failed(no_room())

    # What must hold

    def check_batch(self, ended: Ended, failures: int, *, has_made_room: bool) -> None:
        batch = ended.batch
        runs = [item for item in self.open if isinstance(item, AppendRun)]
        records = [item for item in self.open if isinstance(item, JournalRecord)]
        assert batch.fenced_runs == self.must_be_fenced
        others = [run for run in runs if run not in batch.fenced_runs]
        assert sorted(batch.runs + batch.refused_runs, key=others.index) == batch.runs + batch.refused_runs == others
        assert batch.records + batch.refused_records == records
        assert not (batch.refused_runs and batch.runs)
        if not failures:
            assert batch.error is None
        if batch.error is None:
            assert not batch.refused_runs + batch.refused_records
        assert not batch.refused_records or failures > 1, "records are tried again, without the runs"
        assert has_made_room == (batch.error is not None)
        for run in batch.refused_runs:
            self.broken.add(run.ledger_id)
            self.untold.add(run.listener)
        kept = [item for item in self.open if item in batch.runs or item in batch.records]
        if kept:
            self.written.append(kept)  # type: ignore[arg-type]
            self.may_have_rest = False
        self.check_end(ended, is_written=bool(kept))
        self.check_files(batch)

    def check_end(self, ended: Ended, *, is_written: bool) -> None:
        if is_written and self.is_synced:
            assert ended.end == BatchEnd(len(self.written), len(self.files), self.place.offset)
        else:
            assert ended.end is None
        if ended.batch.mark is not None:
            assert ended.batch.mark.sequence == len(self.written)

    def check_files(self, batch: JournalBatch) -> None:
        found: list[list[tuple[str, int]]] = []
        sequences: list[int] = []
        for generation, data in enumerate(self.files, 1):
            scanned = scan_file(data, generation)
            for header in scanned.batches:
                body = memoryview(data)[header.body_offset : header.body_offset + header.body_length]
                found.append([identity(record) for record in decode_records(body)])
                sequences.append(header.sequence)
        expected = [[item_identity(item) for item in items] for items in self.written]
        if self.may_have_rest and len(found) == len(expected) + 1:
            found.pop()
            sequences.pop()
        assert found == expected
        assert sequences == list(range(len(expected)))
        assert not batch.parts, "memory is given back"


def no_room() -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def identity(record: object) -> tuple[str, int]:
    if isinstance(record, AppendRecord):
        return "run", int.from_bytes(record.payloads[0][:4])
    assert isinstance(record, CursorRecord)
    return "record", record.number


def item_identity(item: JournalItem) -> tuple[str, int]:
    if isinstance(item, AppendRun):
        return "run", int.from_bytes(item.payloads[0][:4])
    assert isinstance(item, JournalRecord)
    (record,) = decode_records(memoryview(item.data))
    return identity(record)


def walk(script: list[tuple[Any, ...]], *, is_synced: bool) -> None:
    JournalWorld(is_synced=is_synced).play(script)
