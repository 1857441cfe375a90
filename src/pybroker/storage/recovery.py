"""From the bytes of journal files to what they mean: which batches count, where to stop, what each ledger has to get.

Pure. What must always hold: a batch counts only when every batch before it, from the checkpoint's sequence number on, counts;
what does not count is either a torn tail, which was never receipted, or damage, which is told and never skipped.

    what is behind the last whole batch of a file         synced journal            journal without sync
    old bytes, zeros, a torn batch                        torn tail: cut            torn tail: cut
    a torn batch, then a valid one of this use            damage: refuse            cut: that write never reached the disk
    a later file that does not go on where this stops     damage: refuse            cut: everything behind is dropped
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain

from pybroker.errors import StoreError
from pybroker.storage.layout.fields import LayoutError
from pybroker.storage.layout.journal import (
    BATCH_ALIGNMENT,
    FILE_HEADER_BYTES,
    AppendRecord,
    BatchHeader,
    CursorRecord,
    FileHeader,
    LedgerRecord,
    RecordType,
    batch_prefix,
    decode_batch_header,
    decode_file_header,
    decode_records,
)
from pybroker.storage.layout.segment import EMPTY_EXTENT, LedgerExtent


class DamagedJournal(StoreError):
    """The journal lacks what was receipted: the store does not start, so that nothing is lost silently."""


@dataclass(slots=True)
class ScannedFile:
    """The whole batches of one file, consecutive, and where they end."""

    header: FileHeader
    batches: list[BatchHeader]
    end_offset: int
    later_offset: int | None  # of a valid batch of this use behind bytes that are none


def scan_file(data: bytes, generation: int) -> ScannedFile:
    """Find the batches of the file's present use. Raises LayoutError when the header is not that of `generation`."""
    header = decode_file_header(data[:FILE_HEADER_BYTES])
    if header.generation != generation:
        raise LayoutError(f"journal file {generation} has the header of {header.generation}")
    view = memoryview(data)
    batches: list[BatchHeader] = []
    offset = FILE_HEADER_BYTES
    while (batch := decode_batch_header(view, offset, header)) is not None:
        if batches and batch.sequence != batches[-1].sequence + 1:
            break
        batches.append(batch)
        offset = batch.end_offset
    return ScannedFile(header, batches, offset, _find_later_batch(data, view, offset, header))


def _find_later_batch(data: bytes, view: memoryview, offset: int, header: FileHeader) -> int | None:
    prefix = batch_prefix(header)
    found = data.find(prefix, offset)
    while found >= 0:
        if found % BATCH_ALIGNMENT == 0 and decode_batch_header(view, found, header) is not None:
            return found
        found = data.find(prefix, found + 1)
    return None


class BatchOrder:
    """Decides, file after file, which batches count."""

    def __init__(self, next_sequence: int, *, is_synced: bool) -> None:
        self.next_sequence = next_sequence
        self._is_synced = is_synced
        self._is_cut = False

    def live_batches(self, file_name: str, scanned: ScannedFile) -> list[BatchHeader]:
        """The batches of this file that the checkpoint does not cover. Raises DamagedJournal."""
        if self._is_cut:
            return []
        live = [batch for batch in scanned.batches if batch.sequence >= self.next_sequence]
        if live and live[0].sequence != self.next_sequence:
            self._stop(file_name, FILE_HEADER_BYTES, f"batches before {live[0].sequence} are missing")
            return []
        if live:
            self.next_sequence = live[-1].sequence + 1
        if scanned.later_offset is not None:
            reason = f"no whole batch here, but one at offset {scanned.later_offset}"
            self._stop(file_name, scanned.end_offset, reason)
        return live

    def _stop(self, file_name: str, offset: int, reason: str) -> None:
        """Nothing behind this counts, and with a synced journal that cannot be."""
        if self._is_synced:
            expected = f"batch {self.next_sequence} was expected"
            raise DamagedJournal(f"{file_name} is damaged at offset {offset}: {reason}; {expected}")
        self._is_cut = True


@dataclass(slots=True)
class ReplayedLedger:
    """What the journal adds to a ledger behind its committed extent."""

    extent: LedgerExtent
    payloads: list[list[memoryview]] = field(default_factory=list)
    message_counts: list[list[int]] = field(default_factory=list)
    entry_count: int = 0


class Replay:
    """Applies records, batch after batch; the caller takes the result of each file, stores it and commits it."""

    def __init__(self, extents: Mapping[int, LedgerExtent]) -> None:
        self.extents = dict(extents)  # of unsealed ledgers, as committed
        self.cursor_records: list[CursorRecord] = []
        self.deleted_ledgers: set[int] = set()
        self.max_ledger_id = max(extents, default=0)
        self.max_cursor_number = 0
        self.entry_count = 0
        self.size_bytes = 0
        self.dropped_entry_count = 0
        self._ledgers: dict[int, ReplayedLedger] = {}

    def apply(self, file_name: str, data: memoryview, batch: BatchHeader) -> None:
        """Apply one batch that counts. Raises DamagedJournal when it contradicts what is stored."""
        body = data[batch.body_offset : batch.body_offset + batch.body_length]
        try:
            for record in decode_records(body):
                if isinstance(record, AppendRecord):
                    self._append(record)
                elif isinstance(record, LedgerRecord):
                    self._change_ledger(record)
                else:
                    self.cursor_records.append(record)
                    self.max_cursor_number = max(self.max_cursor_number, record.number)
        except LayoutError as error:
            raise DamagedJournal(f"{file_name} is damaged in the batch at {batch.body_offset}: {error}") from error

    def take_ledgers(self) -> dict[int, ReplayedLedger]:
        """What is to be written now."""
        taken, self._ledgers = self._ledgers, {}
        return taken

    def _append(self, record: AppendRecord) -> None:
        ledger_id = record.ledger_id
        if ledger_id not in self.extents:
            raise LayoutError(f"entries of ledger {ledger_id}, which does not exist")
        ledger = self._ledgers.get(ledger_id)
        if ledger is None:
            ledger = self._ledgers[ledger_id] = ReplayedLedger(self.extents[ledger_id])
        expected = ledger.extent.entry_count + ledger.entry_count
        if record.first_entry_id != expected:
            raise LayoutError(f"entry {ledger_id}:{record.first_entry_id} follows on {ledger_id}:{expected - 1}")
        ledger.payloads.append(record.payloads)
        ledger.message_counts.append(record.message_counts.tolist())
        ledger.entry_count += len(record.payloads)
        self.entry_count += len(record.payloads)
        self.size_bytes += sum(map(len, record.payloads))

    def _change_ledger(self, record: LedgerRecord) -> None:
        self.max_ledger_id = max(self.max_ledger_id, record.ledger_id)
        if record.type is RecordType.LEDGER_CREATED:
            if record.ledger_id in self.extents:
                raise LayoutError(f"ledger {record.ledger_id} is created twice")
            self.extents[record.ledger_id] = EMPTY_EXTENT
            return
        self.extents.pop(record.ledger_id, None)
        self.deleted_ledgers.add(record.ledger_id)
        dropped = self._ledgers.pop(record.ledger_id, None)
        if dropped is not None:
            self.dropped_entry_count += dropped.entry_count


def flatten_payloads(ledger: ReplayedLedger) -> list[memoryview]:
    return list(chain.from_iterable(ledger.payloads))


def flatten_message_counts(ledger: ReplayedLedger) -> list[int]:
    return list(chain.from_iterable(ledger.message_counts))
