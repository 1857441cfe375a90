"""Recovery of the journal after a crash: which batches of its files are valid, and the changes of each ledger in them.
Pure.

Invariant: a batch is valid only if all batches before it, from the checkpoint's sequence number on, are valid. Other
bytes are either a torn tail, whose entries have no receipts, or damage, which is reported and never skipped.

    after the last whole batch of a file                 synced journal              journal without sync
    old bytes, zeros, a torn batch                       torn tail: cut, reported    the same
    damage that the checkpoint covers completely         skipped, reported           the same
    a torn batch, then a valid one of this use           damage: refuse              cut: the disk never had that write
    a later file that does not continue this one         damage: refuse              cut: the rest is dropped
    less than the durable end that a mark states         damage: refuse              damage: refuse
    no file of the last run, which was not stopped       damage: refuse              damage: refuse
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pybroker.errors import StoreError
from pybroker.ledgers.known_data import HOW_TO_GO_ON, HOW_TO_REPAIR
from pybroker.storage_format.fields import LayoutError
from pybroker.storage_format.journal_end_layout import JournalEnd
from pybroker.storage_format.journal_layout import (
    BATCH_ALIGNMENT,
    FILE_HEADER_BYTES,
    AppendRecord,
    BatchHeader,
    CursorRecord,
    FileHeader,
    LedgerRecord,
    RecordType,
    batch_bytes_said,
    batch_prefix,
    decode_batch_header,
    decode_file_header,
    decode_records,
)
from pybroker.storage_format.segment_layout import LedgerExtent


class DamagedJournal(StoreError):
    """The journal lacks entries with receipts. The store does not start, because it would lose them unnoticed."""

    def __init__(self, text: str, file_name: str = "", offset: int | None = None) -> None:
        super().__init__(text)
        self.file_name = file_name
        self.offset = offset


@dataclass(slots=True)
class ScannedFile:
    """The whole batches of one file. They are consecutive, except for damaged batches that a checkpoint covers."""

    header: FileHeader
    batches: list[BatchHeader]
    end_offset: int
    later_offset: int | None  # offset of a valid batch of this use after invalid bytes
    covered_damage: list[int] = field(default_factory=list)  # offsets of damage that the checkpoint covers
    torn_bytes: int = 0  # size of an incomplete batch of this use at `end_offset`


def scan_file(data: bytes | bytearray, generation: int, covered_sequence: int = 0) -> ScannedFile:
    """Find the whole batches in a journal file that were written since its last reuse. Batches with sequence numbers
    below `covered_sequence` may be damaged, because a checkpoint covers them. Raises LayoutError if the file's header
    has another file number than `generation`.
    """
    header = decode_file_header(bytes(data[:FILE_HEADER_BYTES]))
    if header.generation != generation:
        raise LayoutError(
            f"the header belongs to journal file {header.generation}, not to {generation}: the file was renamed or replaced. "
            "Restore the right file"
        )
    view = memoryview(data)
    batches: list[BatchHeader] = []
    covered_damage: list[int] = []
    offset = FILE_HEADER_BYTES
    while True:
        batch = decode_batch_header(view, offset, header)
        if batch is None or (batches and batch.sequence != batches[-1].sequence + 1):
            later_offset = _find_later_batch(data, view, offset, header)
            later = None if later_offset is None else decode_batch_header(view, later_offset, header)
            # The missing batches are below the sequence number of the later one.
            if later is None or later.sequence > covered_sequence:
                torn_bytes = batch_bytes_said(view, offset, header)
                return ScannedFile(header, batches, offset, later_offset, covered_damage, torn_bytes)
            covered_damage.append(offset)
            batch = later
        batches.append(batch)
        offset = batch.end_offset


def _find_later_batch(data: bytes | bytearray, view: memoryview, offset: int, header: FileHeader) -> int | None:
    prefix = batch_prefix(header)
    found = data.find(prefix, offset)
    while found >= 0:
        if found % BATCH_ALIGNMENT == 0 and decode_batch_header(view, found, header) is not None:
            return found
        found = data.find(prefix, found + 1)
    return None


@dataclass(frozen=True, slots=True)
class CutTail:
    """Bytes after the last valid batch, which are not replayed."""

    file_name: str
    offset: int
    size_bytes: int
    sequence: int  # sequence number of the first dropped batch
    reason: str


class BatchOrder:
    """Decides file by file which batches are valid, and at the end whether all durable batches were found."""

    def __init__(self, next_sequence: int, *, is_synced: bool) -> None:
        self.next_sequence = next_sequence
        self.cut_tails: list[CutTail] = []
        self._is_synced = is_synced
        self._is_cut = False
        self._end_file = ""
        self._end_offset = 0

    def live_batches(self, file_name: str, scanned: ScannedFile) -> list[BatchHeader]:
        if self._is_cut:
            return []
        if scanned.batches or scanned.torn_bytes or not self._end_file:
            self._end_file, self._end_offset = file_name, scanned.end_offset
        live = [batch for batch in scanned.batches if batch.sequence >= self.next_sequence]
        if live and live[0].sequence != self.next_sequence:
            self._stop(file_name, FILE_HEADER_BYTES, f"batches before {live[0].sequence} are missing")
            return []
        if live:
            self.next_sequence = live[-1].sequence + 1
        if scanned.later_offset is not None:
            reason = f"no complete batch at this offset, but a complete batch at offset {scanned.later_offset}"
            self._stop(file_name, scanned.end_offset, reason, scanned.later_offset - scanned.end_offset)
        elif scanned.torn_bytes:
            reason = "the last batch is incomplete"
            self.cut_tails.append(
                CutTail(file_name, scanned.end_offset, scanned.torn_bytes, self.next_sequence, reason)
            )
        return live

    def check_end(self, end: JournalEnd | None, file_names: Mapping[int, str]) -> None:
        """Raise DamagedJournal if the journal ends before its recorded durable end `end`. `file_names`: the existing
        files by number, for the error.
        """
        if end is None or end.next_sequence <= self.next_sequence:
            return
        name = f"{end.generation:020d}.journal"
        offset = None
        if end.generation and end.generation not in file_names:
            file_name, what = name, "is missing"
        elif self._end_file:
            file_name, offset = self._end_file, self._end_offset
            what = f"is damaged at offset {offset}: batch {self.next_sequence} is missing or incomplete"
        else:
            file_name, what = "the journal", f"is damaged: batch {self.next_sequence} is missing"
        upto = f" in {name}, which ended at offset {end.end_offset}" if end.generation else ""
        text = f"{file_name} {what}; batches up to {end.next_sequence - 1} were durable{upto}. {HOW_TO_GO_ON}"
        raise DamagedJournal(text, file_name, offset)

    def require_files(self, first_generation: int, generations: Iterable[int]) -> None:
        """Raise DamagedJournal if the last run did not stop cleanly and none of its journal files exists.
        `first_generation`: the lowest number of its files; `generations`: the numbers of the existing files.
        """
        if not any(generation >= first_generation for generation in generations):
            raise DamagedJournal(
                f"journal/ contains no file of the last run (generation {first_generation} or later). The last run did "
                f"not stop cleanly, so all data since the last checkpoint, from batch "
                f"{self.next_sequence} on, is missing. {HOW_TO_GO_ON}",
                "journal",
            )

    def _stop(self, file_name: str, offset: int, reason: str, size_bytes: int = 0) -> None:
        """End the journal here. For a synced journal this is damage."""
        if self._is_synced:
            expected = f"batch {self.next_sequence} was expected"
            raise DamagedJournal(
                f"journal file {file_name} is damaged at offset {offset}: {reason}; {expected}. {HOW_TO_REPAIR}"
            )
        self._is_cut = True
        self.cut_tails.append(CutTail(file_name, offset, size_bytes, self.next_sequence, reason))


@dataclass(slots=True)
class ReplayedLedger:
    """Changes of one ledger in a part of the journal."""

    payloads: list[memoryview] = field(default_factory=list)
    message_counts: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Replayed:
    """Changes in a part of the journal, to be committed before the changes in the next part."""

    created_ledgers: list[int] = field(default_factory=list)
    deleted_ledgers: set[int] = field(default_factory=set)  # may include ledgers created in the same part
    ledgers: dict[int, ReplayedLedger] = field(default_factory=dict)  # without deleted ledgers
    cursor_records: list[CursorRecord] = field(default_factory=list)


class Replay:
    """Applies the batches of the journal in order. The caller takes, stores, and commits the result of each file.

    The next file can be applied while the result of the previous one is being stored.
    """

    def __init__(self, extents: Mapping[int, LedgerExtent]) -> None:
        """`extents`: the committed extents of unsealed ledgers."""
        self.max_ledger_id = max(extents, default=0)
        self.max_cursor_number = 0
        self.entry_count = 0
        self.size_bytes = 0
        self.dropped_entry_count = 0
        self._next_entry_ids = {ledger_id: extent.entry_count for ledger_id, extent in extents.items()}
        self._replayed = Replayed()

    def apply(self, file_name: str, data: memoryview, batch: BatchHeader) -> None:
        body = data[batch.body_offset : batch.body_offset + batch.body_length]
        try:
            for record in decode_records(body):
                if isinstance(record, AppendRecord):
                    self._append(record)
                elif isinstance(record, LedgerRecord):
                    self._change_ledger(record)
                else:
                    self._replayed.cursor_records.append(record)
                    self.max_cursor_number = max(self.max_cursor_number, record.number)
        except LayoutError as error:
            raise DamagedJournal(
                f"journal file {file_name} is damaged in the batch at offset {batch.body_offset}: {error}. {HOW_TO_REPAIR}"
            ) from error

    def take(self) -> Replayed:
        taken, self._replayed = self._replayed, Replayed()
        return taken

    def _append(self, record: AppendRecord) -> None:
        ledger_id = record.ledger_id
        expected = self._next_entry_ids.get(ledger_id)
        if expected is None:
            raise LayoutError(
                f"the batch contains entries of ledger {ledger_id}, but neither checkpoint.db nor an earlier batch contains "
                "the creation of this ledger"
            )
        if record.first_entry_id != expected:
            raise LayoutError(
                f"the batch contains entry {ledger_id}:{record.first_entry_id}, but the next entry of this ledger must be "
                f"{ledger_id}:{expected}"
            )
        ledger = self._replayed.ledgers.get(ledger_id)
        if ledger is None:
            ledger = self._replayed.ledgers[ledger_id] = ReplayedLedger()
        ledger.payloads += record.payloads
        ledger.message_counts += record.message_counts
        entry_count = len(record.payloads)
        self._next_entry_ids[ledger_id] = expected + entry_count
        self.entry_count += entry_count
        self.size_bytes += record.size_bytes

    def _change_ledger(self, record: LedgerRecord) -> None:
        ledger_id = record.ledger_id
        self.max_ledger_id = max(self.max_ledger_id, ledger_id)
        if record.type is RecordType.LEDGER_CREATED:
            if ledger_id in self._next_entry_ids:
                raise LayoutError(f"the batch contains the creation of ledger {ledger_id}, which already exists")
            self._next_entry_ids[ledger_id] = 0
            self._replayed.created_ledgers.append(ledger_id)
            return
        self._next_entry_ids.pop(ledger_id, None)
        self._replayed.deleted_ledgers.add(ledger_id)
        dropped = self._replayed.ledgers.pop(ledger_id, None)
        if dropped is not None:
            self.dropped_entry_count += len(dropped.payloads)
