"""What checkpoint table and journal say together, read without changing anything, and all damage met on the way.

The same rules as those of a start: batches from the table's sequence number on count, in order, and records behind extents.
But where a start refuses, this notes the damage and goes on as far as something can be told.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pybroker.errors import StoreError
from pybroker.storage.checkpoint_rows import (
    DIGESTED_TABLES,
    FIRST_VERSION,
    TABLE_VERSION,
    DamagedTable,
    TableCheck,
    first_version_checksum,
    read_digest,
    read_rows,
    schema_version,
)
from pybroker.storage.checkpoint_table import NAMES_NOT_CERTAIN, SQLITE_FAILURES, Facts, missing_facts
from pybroker.storage.cursor_shelf import CursorShelf, merge
from pybroker.storage.journal_end import JOURNAL_END_NAME, read_journal_end
from pybroker.storage.layout.fields import LayoutError
from pybroker.storage.layout.journal import (
    AppendRecord,
    BatchHeader,
    CursorRecord,
    LedgerRecord,
    RecordType,
    decode_records,
)
from pybroker.storage.layout.segment import EMPTY_EXTENT, LedgerExtent
from pybroker.storage.recovery import BatchOrder, DamagedJournal, scan_file
from pybroker.tools.data_files import DataFiles, NotUsable
from pybroker.tools.sqlite_log import find_log_damage

NO_NAME = "no topic names it, so metadata is lost"
"""Of a ledger with entries."""
NO_TOPIC = "names no topic, although there are ledgers with entries"
NO_METADATA = (
    "is missing, although there are ledgers with entries (only with metadataStore=memory that is as it should be)"
)
JournalItem = AppendRecord | LedgerRecord | CursorRecord


@dataclass(frozen=True, slots=True)
class Finding:
    """Something wrong, or, when it is no damage, worth a line."""

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
    """A batch of the journal that a start would apply."""

    file: str
    header: BatchHeader
    records: list[JournalItem]


class StoredState:
    """Filled by `load`; `report` hears of every finding at once, `advance` of every file's bytes that are done."""

    def __init__(self, files: DataFiles, report: Callable[[Finding], None], advance: Callable[[int], None]) -> None:
        self.facts = Facts()
        self.extents: dict[int, LedgerExtent] = {}  # of ledgers without index, as committed
        self.deleted: set[int] = set()  # by the journal
        self.appended: dict[int, int] = {}  # entries that are in the journal only
        self.are_extents_known = True
        self._files = files
        self._report = report
        self._advance = advance
        self._are_facts_known = True
        self._version = TABLE_VERSION
        self._stored_cursors: dict[str, tuple[tuple[int, bytes] | None, list[tuple[int, bytes]]]] = {}
        self._shelf = CursorShelf(0)
        self._touched_cursors: set[str] = set()
        self._max_created_id = 0

    @property
    def are_facts_known(self) -> bool:
        return self._are_facts_known

    @property
    def next_ledger_id(self) -> int:
        """As facts and journal say: ids from it on were never given."""
        return max(self.facts.ledger_id, self._max_created_id + 1)

    def cursor_ids(self) -> list[str]:
        return sorted(self._stored_cursors.keys() | self._touched_cursors)

    def cursor_records(self, cursor_id: str) -> tuple[bytes | None, list[bytes]]:
        """Snapshot and deltas of a cursor as a start would find them."""
        return merge(self._stored_cursors.get(cursor_id, (None, [])), self._shelf.shelved(cursor_id))

    # The table

    def load_table(self) -> None:
        """Read checkpoint.db. Raises NotUsable when it is of a newer version."""
        name = self._files.directories.table.name
        if not self._files.has(name):
            self._lose_facts(name, f"is missing, beside {self._files.what_is_there()}")
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
                    # Alone it was cut off in its first start, and the next one makes it.
                    if what_is_there := self._files.what_is_there():
                        self._lose_facts(name, f"is empty, beside {what_is_there}")
                    return
                self._load_facts(connection, name)
                self._load_extents(connection, name)
                self._load_cursors(connection, name)
            finally:
                connection.close()
        except (*SQLITE_FAILURES, DamagedTable) as error:
            self._lose_facts(name, f"cannot be read: {error}")

    def _lose_facts(self, name: str, reason: str) -> None:
        self._are_facts_known = self.are_extents_known = False
        self._report(Finding(name, None, "", reason))

    def _load_facts(self, connection: sqlite3.Connection, name: str) -> None:
        found = set()
        for fact, value in self._rows(connection, name, "facts"):
            found.add(fact)
            if fact == "version" and value != self._version:
                raise NotUsable(f"{name} has version {value}, this program knows {TABLE_VERSION}")
            if hasattr(self.facts, fact):
                setattr(self.facts, fact, value)
        if found and "first_named_ledger_id" not in found:
            self.facts.first_named_ledger_id = NAMES_NOT_CERTAIN
        if self._are_facts_known and (missing := missing_facts(found)):
            what_is_there = self._files.what_is_there()
            if found or what_is_there:
                self._lose_facts(name, f"{missing}, beside {what_is_there}")

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
        """The files that a start would read."""
        names = self._files.journal_names()
        return {number: name for number, name in names.items() if number >= self.facts.first_generation}

    def read_journal(self) -> Iterator[LiveBatch]:
        """Apply every live batch, each given to the caller as well. Payloads are valid until the next file is read."""
        order = BatchOrder(self.facts.sequence, is_synced=True)
        for generation, name in self.live_journal().items():
            data = self._read(name)
            try:
                scanned = scan_file(data, generation, self.facts.sequence)
            except LayoutError as error:
                self._report(Finding(name, 0, "", str(error)))
                continue
            for offset in scanned.covered_damage:
                self._report(Finding(name, offset, "", "damaged batch, which the checkpoint covers", is_damage=False))
            live = scanned.batches
            try:
                live = order.live_batches(name, scanned) if self._are_facts_known else live
            except DamagedJournal as error:
                self._report(Finding(name, scanned.end_offset, "", str(error)))
                live = [batch for batch in live if batch.sequence >= self.facts.sequence]
                order = BatchOrder(live[-1].sequence + 1 if live else order.next_sequence, is_synced=True)
            view = memoryview(data)
            for batch in live:
                records = self._apply(name, view, batch)
                yield LiveBatch(name, batch, records)
            self._advance(len(data))
        self._check_journal_end(order)

    def _check_journal_end(self, order: BatchOrder) -> None:
        """As a start does: whether the journal goes as far as it was durable, and what of its end is cut."""
        directory = self._files.directories.journal
        end = read_journal_end(self._files.disk, directory) if self._are_facts_known else None
        if end is None and self._are_facts_known and _is_written(directory / JOURNAL_END_NAME):
            reason = "damaged: whether the last that was stored is there is not known"
            self._report(Finding(JOURNAL_END_NAME, None, "", reason))
        if end is not None and self.facts.commit < end.commit:
            lost = end.commit - self.facts.commit
            self._report(
                Finding(self._files.directories.table.name, None, "", f"its last {lost} transactions are lost")
            )
        try:
            order.check_end(end, self._files.journal_names())
        except DamagedJournal as error:
            self._report(Finding(error.file_name, error.offset, "", str(error)))
            return
        for cut in order.cut_tails:
            reason = f"{cut.reason}: a start cuts {cut.size_bytes} bytes"
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
                else:
                    self._append(record)
        except StoreError as error:
            self._report(Finding(name, batch.body_offset, "", str(error)))
        return records

    def _change_ledger(self, record: LedgerRecord) -> None:
        if record.type is RecordType.LEDGER_CREATED:
            self.extents[record.ledger_id] = EMPTY_EXTENT
            self._max_created_id = max(self._max_created_id, record.ledger_id)
        else:
            self.deleted.add(record.ledger_id)
            self.extents.pop(record.ledger_id, None)
            self.appended.pop(record.ledger_id, None)

    def _append(self, record: AppendRecord) -> None:
        ledger_id = record.ledger_id
        extent = self.extents.get(ledger_id)
        if extent is None:
            if self.are_extents_known:
                raise LayoutError(f"entries of ledger {ledger_id}, which does not exist")
            return
        expected = extent.entry_count + self.appended.get(ledger_id, 0)
        self.appended[ledger_id] = record.first_entry_id + len(record.payloads) - extent.entry_count
        if record.first_entry_id != expected:
            raise LayoutError(f"entry {ledger_id}:{record.first_entry_id} follows on {ledger_id}:{expected - 1}")

    def _read(self, name: str) -> bytes:
        with self._files.disk.open_for_read(self._files.directories.journal / name) as file:
            return file.read_at(file.size(), 0)


def _is_written(path: Path) -> bool:
    """Whether anything ever was: a process may die behind the creation of a file."""
    return path.exists() and any(path.read_bytes())
