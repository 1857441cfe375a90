"""The combined state of `checkpoint.db` and the journal, read without changes, with all damage found.

Journal batches are applied as at a broker start: in order, from the checkpoint's sequence number on. Where a broker
would not start, this module records the damage and continues as far as possible.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pybroker.disk.database import SQLITE_FAILURES
from pybroker.errors import StoreError
from pybroker.ledgers.known_data import NOTHING_KNOWN
from pybroker.local_store.checkpoint.checkpoint_rows import (
    DIGESTED_TABLES,
    FIRST_VERSION,
    TABLE_VERSION,
    DamagedTable,
    NewerTable,
    TableCheck,
    first_version_checksum,
    read_digest,
    read_rows,
    schema_version,
    version_text,
)
from pybroker.local_store.checkpoint.checkpoint_table import NAMES_NOT_CERTAIN, Facts, missing_facts
from pybroker.local_store.checkpoint.cursor_registry import CursorRegistry, merge
from pybroker.local_store.journal.journal_end import JOURNAL_END_NAME, latest_end, read_journal_end
from pybroker.local_store.journal.journal_recovery import BatchOrder, DamagedJournal, scan_file
from pybroker.local_store.start_up import known_ends
from pybroker.storage_format.fields import LayoutError, UnknownVersion
from pybroker.storage_format.journal_end_layout import JournalEnd
from pybroker.storage_format.journal_layout import (
    AppendRecord,
    BatchHeader,
    CursorRecord,
    LedgerRecord,
    RecordType,
    decode_records,
)
from pybroker.storage_format.segment_layout import EMPTY_EXTENT, LedgerExtent
from pybroker.tools.data_files import DataFiles, NotUsable
from pybroker.tools.journal_header import with_new_header
from pybroker.tools.salvaged_table import SalvagedTable, is_whole_record
from pybroker.tools.sqlite_log import find_log_damage

NO_NAME = "no topic refers to these entries, so metadata is lost"
NO_TOPIC = "contains no topic, although there are ledgers with entries"
NO_METADATA = "is missing, although there are ledgers with entries (this is normal only with metadataStore=memory)"
ANY_SEQUENCE = 1 << 63
"""Higher than any batch's sequence number."""
JournalItem = AppendRecord | LedgerRecord | CursorRecord


@dataclass(frozen=True, slots=True)
class Finding:
    """A damage, or a note if `is_damage` is False."""

    file: str
    offset: int | None
    positions: str
    reason: str
    is_damage: bool = True

    def line(self) -> str:
        where = "" if self.offset is None else f" at offset {self.offset}"
        positions = f", {self.positions}" if self.positions else ""
        return f"{'damage' if self.is_damage else 'note'}: {self.file}{where}{positions}: {self.reason}"


@dataclass(frozen=True, slots=True)
class LiveBatch:
    """A batch of the journal that a broker would apply at its start."""

    file: str
    header: BatchHeader
    records: list[JournalItem]


class StoredState:
    """The combined state, which `load_table` and then `read_journal` fill. `report` is called for each finding,
    `advance` with the number of processed bytes of each file.
    """

    def __init__(self, files: DataFiles, report: Callable[[Finding], None], advance: Callable[[int], None]) -> None:
        self.facts = Facts()
        self.extents: dict[int, LedgerExtent] = {}  # ledgers without index, as committed
        self.deleted: set[int] = set()  # by the journal
        self.appended: dict[int, int] = {}  # entries that only the journal has
        self.are_extents_known = True
        self.lacks_journal = False
        """Whether durable batches are lost or damaged."""
        self.is_end_unknown = False
        """Whether the last batches and the table's last transactions may be missing."""
        self.known = NOTHING_KNOWN
        """The store's data according to the metadata."""
        self.known_end: JournalEnd | None = None
        self.missing: list[str] = []
        """Descriptions of the missing parts of the journal and of all ledgers."""
        self._files = files
        self._report_to = report
        self._advance = advance
        self._are_facts_known = True
        self._is_table_damaged = False
        self._salvaged: SalvagedTable | None = None
        self._version = TABLE_VERSION
        self._stored_cursors: dict[str, tuple[tuple[int, bytes] | None, list[tuple[int, bytes]]]] = {}
        self._shelf = CursorRegistry(0)
        self._touched_cursors: set[str] = set()
        self._max_created_id = 0

    @property
    def are_facts_known(self) -> bool:
        return self._are_facts_known

    @property
    def next_ledger_id(self) -> int:
        return max(self.facts.ledger_id, self._max_created_id + 1)

    def cursor_ids(self) -> list[str]:
        return sorted(self._stored_cursors.keys() | self._touched_cursors)

    def cursor_records(self, cursor_id: str) -> tuple[bytes | None, list[bytes]]:
        return merge(self._stored_cursors.get(cursor_id, (None, [])), self._shelf.shelved(cursor_id))

    def may_lack_records(self, cursor_id: str, *, is_each_whole: bool = False) -> bool:
        """Return whether records on which the cursor's state depends may be lost. `is_each_whole`: each record replaces
        the earlier ones, as in transaction buffers.
        """
        if self.lacks_journal:
            return True
        if not self._is_table_damaged or (self._salvaged is not None and not self._salvaged.may_lack(cursor_id)):
            return False
        _, snapshot, deltas = self._shelf.shelved(cursor_id)
        has_whole = snapshot is not None or any(is_each_whole or is_whole_record(data) for _, data in deltas)
        return not (self._are_facts_known and has_whole)  # the live journal is newer than the table

    # The table

    def load_table(self) -> None:
        """Read `checkpoint.db` with SQLite and, if it is damaged, also page by page. Raises NotUsable if a newer
        version of the program wrote it.
        """
        name = self._files.directories.table.name
        if not self._files.has(name):
            self._lose_facts(name, f"is missing, although there are {self._files.what_is_there()}")
            return
        offset = find_log_damage(self._files.log_of(name))
        if offset is not None:
            self._report(Finding(f"{name}-wal", offset, "", "wrong checksum of a committed page"))
        try:
            connection = self._files.open_database(name)
            try:
                for (text,) in connection.execute("PRAGMA integrity_check"):
                    if text != "ok":
                        self._report(Finding(name, None, "", str(text)))
                self._version = schema_version(connection)
                if self._version == 0:
                    # Without other files, the first start was interrupted; the next start creates the table.
                    if what_is_there := self._files.what_is_there():
                        self._lose_facts(name, f"is empty, although there are {what_is_there}")
                else:
                    self._load_facts(connection, name)
                    self._load_extents(connection, name)
                    self._load_cursors(connection, name)
            finally:
                connection.close()
        except NewerTable as error:
            raise NotUsable(f"{name} cannot be opened: {error}") from error
        except (*SQLITE_FAILURES, DamagedTable) as error:
            self._lose_facts(name, f"cannot be read: {error}")
        if self._is_table_damaged:
            self._salvage(name)

    def _require_ledger_files(self) -> None:
        facts, end = self.facts, self.known_end
        is_table_last = self._are_facts_known and (end is None or end.commit <= facts.commit)
        if is_table_last and facts.is_clean and facts.segment_files and not self._files.segment_names():
            self._miss("ledgers", None, f"is empty; it contained {facts.segment_files} files when the broker stopped")

    def _miss(self, file: str, offset: int | None, text: str) -> None:
        finding = Finding(file, offset, "", text)
        self.missing.append(finding.line())
        self._report(finding)

    def _salvage(self, name: str) -> None:
        found = self._salvaged = SalvagedTable(self._files.content_of(name), self._files.log_of(name))
        if (version := found.facts.get("version", TABLE_VERSION)) > TABLE_VERSION:
            raise NotUsable(f"{name} cannot be opened: {version_text(version)}")
        for fact, value in found.facts.items():
            if hasattr(self.facts, fact):
                setattr(self.facts, fact, value)
        if "first_named_ledger_id" not in found.facts:
            self.facts.first_named_ledger_id = NAMES_NOT_CERTAIN if found.facts else 0
        self._are_facts_known = not missing_facts(set(found.facts)) and found.is_facts_page_certain
        self.extents, self.are_extents_known = found.extents, found.has_all_extents
        self._stored_cursors = {cursor_id: rows.stored() for cursor_id, rows in found.cursors.items()}

    def _report(self, finding: Finding) -> None:
        self._is_table_damaged |= finding.is_damage and finding.file.startswith(self._files.directories.table.name)
        self._report_to(finding)

    def _lose_facts(self, name: str, reason: str) -> None:
        self._are_facts_known = self.are_extents_known = False
        self._report(Finding(name, None, "", reason))

    def _load_facts(self, connection: sqlite3.Connection, name: str) -> None:
        found = set()
        for fact, value in self._rows(connection, name, "facts"):
            found.add(fact)
            if fact == "version" and value != self._version:
                raise NotUsable(f"{name} cannot be opened: {version_text(value)}")
            if hasattr(self.facts, fact):
                setattr(self.facts, fact, value)
        if found and "first_named_ledger_id" not in found:
            self.facts.first_named_ledger_id = NAMES_NOT_CERTAIN
        if self._are_facts_known and (missing := missing_facts(found)):
            what_is_there = self._files.what_is_there()
            if found or what_is_there:
                self._lose_facts(name, f"{missing}, although there are {what_is_there}")

    def _load_extents(self, connection: sqlite3.Connection, name: str) -> None:
        for ledger_id, *values in self._rows(connection, name, "unsealed"):
            self.extents[ledger_id] = LedgerExtent(*values)

    def _load_cursors(self, connection: sqlite3.Connection, name: str) -> None:
        for cursor_id, number, data in self._rows(connection, name, "snapshots"):
            self._stored_cursors[cursor_id] = ((number, data), [])
        for cursor_id, number, data in self._rows(connection, name, "deltas"):
            self._stored_cursors.setdefault(cursor_id, (None, []))[1].append((number, data))

    def _rows(self, connection: sqlite3.Connection, name: str, table: str) -> Iterator[list[Any]]:
        check = TableCheck(table)
        for values in read_rows(connection, table):
            checksum = values.pop()
            if self._version == FIRST_VERSION:
                is_right = checksum == first_version_checksum(*values)
            else:
                is_right = check.add(values, checksum)
            if is_right:
                yield values
                continue
            self._report(Finding(name, None, "", f"wrong checksum of {table} row {values[0]!r}"))
            self._forget(table)
        if self._version == TABLE_VERSION and table in DIGESTED_TABLES:
            problem = check.lost(read_digest(connection, table))
            if problem:
                self._forget(table)
                if not check.damaged:
                    self._report(Finding(name, None, "", problem))

    def _forget(self, table: str) -> None:
        self._are_facts_known &= table != "facts"
        self.are_extents_known &= table != "unsealed"

    # The journal

    def live_journal(self) -> dict[int, str]:
        names = self._files.journal_names()
        return {number: name for number, name in names.items() if number >= self.facts.first_generation}

    def read_journal(self) -> Iterator[LiveBatch]:
        """Apply and yield each batch that a broker would apply. Its payloads are valid until the next file is read.
        Raises NotUsable if a newer version of the program wrote the journal.
        """
        order = BatchOrder(self.facts.sequence, is_synced=True)
        for generation, name in self.live_journal().items():
            data = self._read(name)
            try:
                scanned = scan_file(data, generation, self.facts.sequence)
            except LayoutError as error:
                self._report(Finding(name, 0, "", str(error)))
                repaired = with_new_header(data, generation)
                if repaired is None and isinstance(error, UnknownVersion):
                    # Not damage: the batches are of the newer version, too.
                    raise NotUsable(f"{name} cannot be read: {error}") from error
                if repaired is None:
                    self.lacks_journal = True
                    continue
                data = repaired
                scanned = scan_file(data, generation, self.facts.sequence)
            for offset in scanned.covered_damage:
                self._report(
                    Finding(name, offset, "", "damaged batch; a checkpoint contains its records", is_damage=False)
                )
            live = scanned.batches
            if live and not self._are_facts_known and not order.next_sequence:
                order = BatchOrder(live[0].sequence, is_synced=True)  # the table's last batch is unknown
            try:
                live = order.live_batches(name, scanned)
            except DamagedJournal as error:
                self._lose_batches(Finding(name, error.offset or scanned.end_offset, "", str(error)))
            if self.lacks_journal or not self._are_facts_known:
                # All undamaged batches are used, even after damaged ones.
                live = [each for each in scan_file(data, generation, ANY_SEQUENCE).batches if self._counts(each)]
                next_sequence = live[-1].sequence + 1 if live else order.next_sequence
                order = BatchOrder(max(next_sequence, order.next_sequence), is_synced=True)
            view = memoryview(data)
            for batch in live:
                records = self._apply(name, view, batch)
                yield LiveBatch(name, batch, records)
            self._advance(len(data))
        self._check_journal_end(order)

    def _lose_batches(self, finding: Finding) -> None:
        self.lacks_journal = True
        self._report(finding)

    def _counts(self, batch: BatchHeader) -> bool:
        """Return whether a journal batch is used. Without the table's facts, every batch is used, because its data may
        be stored only there.
        """
        return not self._are_facts_known or batch.sequence >= self.facts.sequence

    def _check_journal_end(self, order: BatchOrder) -> None:
        """Check, as a broker start does, whether the journal is complete and which part of its end is cut off."""
        directories = self._files.directories
        directory, facts = directories.journal, self.facts
        self.known = self._files.known_data()
        noted = [read_journal_end(self._files.disk, path) for path in (directory, directories.table.parent)]
        in_table, in_metadata = known_ends(facts if self._are_facts_known else Facts(), self.known.mark)
        end = self.known_end = latest_end((*noted, in_table, in_metadata))
        self._require_ledger_files()
        if noted == [None, None] and _is_written(directory / JOURNAL_END_NAME):
            reason = "damaged: it is unknown whether the last stored data exists"
            self._report(Finding(JOURNAL_END_NAME, None, "", reason))
            self.is_end_unknown = True
        if end is not None and self.facts.commit < end.commit and self._are_facts_known:
            # The journal replaces the lost transactions if it continues from the table's last batch.
            lost = end.commit - self.facts.commit
            self._report_to(
                Finding(self._files.directories.table.name, None, "", f"the last {lost} transactions are lost")
            )
        try:
            if self._are_facts_known and facts.is_journal_made and not facts.is_clean:
                order.require_files(facts.first_generation, self._files.journal_names())
            order.check_end(end, self._files.journal_names())
        except DamagedJournal as error:
            self.lacks_journal = True
            self._miss(error.file_name, error.offset, str(error))
            return
        for cut in order.cut_tails:
            reason = f"{cut.reason}: a start removes {cut.size_bytes} bytes"
            self._report(Finding(cut.file_name, cut.offset, "", reason, is_damage=False))

    def _apply(self, name: str, view: memoryview, batch: BatchHeader) -> list[JournalItem]:
        records: list[JournalItem] = []
        try:
            for record in decode_records(view[batch.body_offset : batch.body_offset + batch.body_length]):
                records.append(record)
                if isinstance(record, CursorRecord):
                    self._touched_cursors.add(record.cursor_id)
                    self._shelf.apply(record)
                elif isinstance(record, LedgerRecord):
                    self._change_ledger(record)
                elif (problem := self._append(record)) and not self.lacks_journal:
                    self._report(Finding(name, batch.body_offset, "", problem))
        except StoreError as error:
            self._report(Finding(name, batch.body_offset, "", str(error)))
            self.lacks_journal = True
        return records

    def _change_ledger(self, record: LedgerRecord) -> None:
        if record.type is RecordType.LEDGER_CREATED:
            self.extents[record.ledger_id] = EMPTY_EXTENT
            self._max_created_id = max(self._max_created_id, record.ledger_id)
        else:
            self.deleted.add(record.ledger_id)
            self.extents.pop(record.ledger_id, None)
            self.appended.pop(record.ledger_id, None)

    def _append(self, record: AppendRecord) -> str:
        ledger_id = record.ledger_id
        extent = self.extents.get(ledger_id)
        if extent is None:
            return f"entries of ledger {ledger_id}, which does not exist" if self.are_extents_known else ""
        expected = extent.entry_count + self.appended.get(ledger_id, 0)
        end = record.first_entry_id + len(record.payloads)
        self.appended[ledger_id] = max(end, expected) - extent.entry_count
        if record.first_entry_id == expected or not self._are_facts_known:
            return ""
        return f"entry {ledger_id}:{record.first_entry_id} follows entry {ledger_id}:{expected - 1}"

    def _read(self, name: str) -> bytes:
        with self._files.disk.open_for_read(self._files.directories.journal / name) as file:
            return file.read_at(file.size(), 0)


def _is_written(path: Path) -> bool:
    """Return whether the file has content: a process may crash right after creating it."""
    return path.exists() and any(path.read_bytes())
