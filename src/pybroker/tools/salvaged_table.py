"""Reads undamaged rows of a damaged `checkpoint.db`, and determines which cursors may have lost rows.

Every row with a correct checksum is used, also from older versions of a page, because a cursor record never changes.
The digests show whether rows are missing; the b-trees show between which keys.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pybroker.local_store.checkpoint.checkpoint_rows import (
    DIGESTED_TABLES,
    Digest,
    first_version_checksum,
    is_key_right,
    row_checksum,
)
from pybroker.storage_format.segment_layout import LedgerExtent
from pybroker.tools.sqlite_pages import DatabasePages, Row

CURSOR_TABLES = ("snapshots", "deltas")
_CURSOR_COLUMNS = 4
_COLUMNS = {"facts": 3, "unsealed": 6, "snapshots": _CURSOR_COLUMNS, "deltas": _CURSOR_COLUMNS, "digests": 4}
_KIND_OFFSET, _WHOLE = 1, 0
"""Offset and value of the record kind "whole state" in records of cursors and delayed entries."""

Key = tuple[str, int]


@dataclass(slots=True)
class CursorRows:
    """The records of one cursor by number. If a change and a record with the complete state have the same number, the
    complete state is the later one.
    """

    records: dict[tuple[int, bool], bytes] = field(default_factory=dict)

    def add(self, number: int, data: bytes, *, is_snapshot: bool) -> None:
        """Add a record. A record with the complete state (`is_snapshot`) replaces another one with the same number."""
        is_whole = is_snapshot or is_whole_record(data)
        if is_snapshot or (number, is_whole) not in self.records:
            self.records[number, is_whole] = data

    def stored(self) -> tuple[tuple[int, bytes] | None, list[tuple[int, bytes]]]:
        """Return the last complete state with its number (None without any), and the later records."""
        keys = sorted(self.records)
        whole = max((index for index, (_, is_whole) in enumerate(keys) if is_whole), default=-1)
        snapshot = None if whole < 0 else (keys[whole][0], self.records[keys[whole]])
        return snapshot, [(key[0], self.records[key]) for key in keys[whole + 1 :]]


class SalvagedTable:
    """The rows of a `checkpoint.db`, from the bytes of the file and its write-ahead log."""

    def __init__(self, data: bytes, log: bytes) -> None:
        self.facts: dict[str, int] = {}
        self.extents: dict[int, LedgerExtent] = {}
        self.cursors: dict[str, CursorRows] = {}
        self.has_all_extents = True
        self.lost: list[tuple[Key | None, Key | None]] = []
        """Pairs of keys (exclusive) between which cursor records are lost; None: the end of the table."""
        self.lost_records: int | None = 0
        self._pages = DatabasePages(data, log, _is_whole)
        self._roots = self._pages.roots()
        self._copies = list(self._pages.every_row())
        self._read_facts()
        self._read_extents()
        self._read_cursors()

    @property
    def is_facts_page_certain(self) -> bool:
        """Whether the newest version of the table `facts`, which describes the whole checkpoint, was found. A damaged
        write-ahead log may contain a newer version.
        """
        return not self._pages.has_damaged_log

    def may_lack(self, cursor_id: str) -> bool:
        return any(_is_between(cursor_id, *span) for span in self.lost)

    def _tree(self, table: str) -> list[Row | None]:
        root = self._roots.get(table)
        if root is None:
            return [None]
        return [row if row is not None and len(row) == _COLUMNS[table] else None for row in self._pages.tree(root)]

    def _read_facts(self) -> None:
        # Facts only increase, so the highest value of all versions is the newest.
        for row in self._copies:
            if len(row) == _COLUMNS["facts"] and isinstance(row[0], str) and isinstance(row[1], int):
                self.facts[row[0]] = max(row[1], self.facts.get(row[0], 0))

    def _read_extents(self) -> None:
        found: list[Row] = []
        for row in self._tree("unsealed"):
            if row is not None and _is_whole(row):
                ledger_id, *values, _ = row
                assert isinstance(ledger_id, int)
                self.extents[ledger_id] = LedgerExtent(*values)  # type: ignore[arg-type]
                found.append(row)
            else:
                self.has_all_extents = False
        self.has_all_extents &= self._missing("unsealed", found) == 0

    def _read_cursors(self) -> None:
        for copy in self._copies:
            if _is_cursor_row(copy):
                self._add(copy, is_snapshot=False)
        for table in CURSOR_TABLES:
            rows = self._tree(table)
            for each in rows:
                if each is not None and _is_cursor_row(each) and _is_whole(each):
                    self._add(each, is_snapshot=table == "snapshots")
            healed = [self._healed(row) for row in rows]
            missing = self._missing(table, [row for row in healed if row is not None])
            if missing == 0:
                continue
            is_narrow = missing is not None and not self._pages.has_damaged_log
            self.lost += (is_narrow and _spans(healed)) or [(None, None)]
            self.lost_records = None if missing is None or self.lost_records is None else self.lost_records + missing

    def _add(self, row: Row, *, is_snapshot: bool) -> None:
        cursor_id, number, data, _ = row
        assert isinstance(cursor_id, str)
        assert isinstance(number, int)
        assert isinstance(data, bytes)
        self.cursors.setdefault(cursor_id, CursorRows()).add(number, data, is_snapshot=is_snapshot)

    def _missing(self, table: str, rows: list[Row]) -> int | None:
        digest = next((row for row in self._tree("digests") if row is not None and row[0] == table), None)
        if digest is None:
            return None
        found = Digest()
        for row in rows:
            found.add(row[-1])
        if (found.row_count, found.key_sum, found.row_sum) == digest[1:]:
            return 0
        count = digest[1]
        return count - len(rows) if isinstance(count, int) and count > len(rows) else None

    def _healed(self, row: Row | None) -> Row | None:
        if row is None or not _is_cursor_row(row):
            return None
        if _is_whole(row):
            return row
        cursor_id, number, _, checksum = row
        found = self.cursors.get(str(cursor_id))
        copies = [] if found is None else [data for key, data in found.records.items() if key[0] == number]
        whole = ((cursor_id, number, data, row_checksum(cursor_id, number, data)) for data in copies)
        return next((each for each in whole if is_key_right(cursor_id, checksum)), None)


def _spans(rows: list[Row | None]) -> list[tuple[Key | None, Key | None]]:
    spans: list[tuple[Key | None, Key | None]] = []
    before: Key | None = None
    is_open = False
    for row in rows:
        if row is None:
            is_open = True
            continue
        if is_open:
            spans.append((before, _key(row)))
        before, is_open = _key(row), False
    return [*spans, (before, None)] if is_open else spans


def is_whole_record(data: bytes) -> bool:
    """Return whether a record contains the complete state of a cursor, or of a cursor's delayed entries, and so replaces
    all earlier records of this state.
    """
    return data[_KIND_OFFSET : _KIND_OFFSET + 1] == bytes((_WHOLE,))


def _is_between(cursor_id: str, low: Key | None, high: Key | None) -> bool:
    return (low is None or low[0] <= cursor_id) and (high is None or cursor_id <= high[0])


def _key(row: Row) -> Key:
    cursor_id, number, *_ = row
    assert isinstance(cursor_id, str)
    assert isinstance(number, int)
    return cursor_id, number


def _is_cursor_row(row: Row) -> bool:
    if len(row) != _CURSOR_COLUMNS:
        return False
    return isinstance(row[0], str) and isinstance(row[1], int) and isinstance(row[2], bytes)


def _is_whole(row: Row) -> bool:
    """Return whether the checksum is correct. Rows of `digests` have none and are always accepted."""
    if len(row) not in _COLUMNS.values() or not isinstance(row[-1], int):
        return False
    if len(row) == _COLUMNS["digests"] and row[0] in DIGESTED_TABLES:
        return True
    *values, checksum = row
    return checksum in (row_checksum(*values), first_version_checksum(*values))
