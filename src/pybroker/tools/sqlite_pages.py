"""Reading of a damaged SQLite file page by page, without SQLite. Pure.

SQLite stops at the first unreadable page or cell. This module reads each page of the file and of its write-ahead log
separately, and returns each row that the caller accepts by its checksum.

Limitations: no UTF-16 databases, no encryption.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

from pybroker.tools.sqlite_log import LogFrame, log_frames, log_page_size

Value = int | float | str | bytes | None
Row = tuple[Value, ...]
IsWhole = Callable[[Row], bool]

_FILE_HEADER_BYTES = 100
_DEFAULT_PAGE_BYTES = 4096
_INTERIOR_INDEX, _INTERIOR_TABLE, _LEAF_INDEX, _LEAF_TABLE = 2, 5, 10, 13
_INDEX_PAGES = (_INTERIOR_INDEX, _LEAF_INDEX)
_INTERIOR_PAGES = (_INTERIOR_INDEX, _INTERIOR_TABLE)
_KINDS = (*_INTERIOR_PAGES, _LEAF_INDEX, _LEAF_TABLE)
_SCHEMA_COLUMNS = 5
_INDEX_COLUMNS = 2
_MAX_HEADER_BYTES = 64
"""Maximum size of a record's header. Tables with a dozen columns need less."""
_NUMBER_BYTES = (0, 1, 2, 3, 4, 6, 8, 8, 0, 0)  # by type
_FLOAT_TYPE, _ZERO_TYPE, _ONE_TYPE, _FIRST_BLOB_TYPE = 7, 8, 9, 12
_RESERVED_TYPES = (10, 11)


class Unreadable(Exception):
    """The bytes are not a valid page, cell or record."""


class _Cell(NamedTuple):
    row: Row | None  # None in interior table pages, which contain row ids only
    child: int  # page number; 0 on leaves


class _Page(NamedTuple):
    cells: list[_Cell | None]
    last_child: int


class DatabasePages:
    """The pages of a database file and its write-ahead log. The function `is_whole` decides whether a row is
    undamaged.
    """

    def __init__(self, data: bytes, log: bytes, is_whole: IsWhole) -> None:
        self._is_whole = is_whole
        self._page_bytes = _page_bytes(data, log)
        # SQLite can reserve bytes at the end of each page; the broker's databases do not.
        self._usable_bytes = self._page_bytes
        frames = log_frames(log, self._page_bytes)
        self.has_damaged_log = any(not frame.is_whole for frame in frames)
        """Whether a page in the log is damaged, so that any page may be outdated."""
        self._versions: dict[int, list[bytes]] = {}  # by page number, oldest first
        self._overflow: set[int] = set()  # pages with the ends of long rows
        for number in range(1, len(data) // self._page_bytes + (len(data) % self._page_bytes > 0) + 1):
            page = data[(number - 1) * self._page_bytes : number * self._page_bytes]
            self._versions[number] = [page.ljust(self._page_bytes, b"\0")]
        self._add_frames(frames)

    def _add_frames(self, frames: list[LogFrame]) -> None:
        committed = max((index for index, frame in enumerate(frames) if frame.is_commit), default=-1)
        for index, frame in enumerate(frames):
            versions = self._versions.setdefault(frame.page_number, [])
            if index <= committed:
                versions.append(frame.data)
            else:
                versions.insert(0, frame.data)  # not committed: only its rows may be used

    def roots(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for cell in self._schema_rows(1, set()):
            kind, name, _, root = cell[:4] if len(cell) == _SCHEMA_COLUMNS else (None,) * 4
            if kind == "table" and isinstance(name, str) and isinstance(root, int):
                found[name] = root
        return found

    def _schema_rows(self, number: int, seen: set[int]) -> Iterator[Row]:
        page = self._parsed(number)
        if page is None or number in seen:
            return
        seen.add(number)
        for cell in page.cells:
            if cell is not None and cell.child:
                yield from self._schema_rows(cell.child, seen)
            elif cell is not None and cell.row is not None:
                yield cell.row
        if page.last_child:
            yield from self._schema_rows(page.last_child, seen)

    def tree(self, root: int) -> list[Row | None]:
        """Return the rows of the b-tree with root page `root` in key order, from the newest version of each page.
        Damaged rows are included; None stands for an unreadable cell or page.
        """
        found: list[Row | None] = []
        self._walk(root, found, set())
        return found

    def _walk(self, number: int, found: list[Row | None], seen: set[int]) -> None:
        page = None if number in seen else self._parsed(number)
        seen.add(number)
        if page is None:
            found.append(None)
            return
        for cell in page.cells:
            if cell is None:
                found.append(None)
                continue
            if cell.child:
                self._walk(cell.child, found, seen)
            if cell.row is not None:
                found.append(cell.row)
        if page.last_child:
            self._walk(page.last_child, found, seen)

    def every_row(self) -> Iterator[Row]:
        """Yield the undamaged rows of all pages, including older versions and freed pages. Rows may repeat."""
        unsound: list[tuple[int, bytes]] = []
        for number, versions in self._versions.items():
            for data in versions:
                rows, is_sound = self._rows_by_pointers(number, data)
                yield from rows
                if not is_sound and data is versions[-1]:
                    unsound.append((number, data))
        overflow = frozenset(self._overflow)
        for number, data in unsound:
            if number not in overflow:
                yield from self._rows_anywhere(number, data)

    def _rows_by_pointers(self, number: int, data: bytes) -> tuple[list[Row], bool]:
        try:
            cells = self._parse(number, data).cells
        except Unreadable:
            return [], False
        rows = [cell.row for cell in cells if cell is not None and cell.row is not None and not _is_inner(cell.row)]
        whole = [row for row in rows if self._is_whole(row)]
        return whole, len(whole) == len(rows) and None not in cells

    def _rows_anywhere(self, number: int, data: bytes) -> Iterator[Row]:
        for offset in range(_FILE_HEADER_BYTES if number == 1 else 0, self._page_bytes):
            for read in (self._index_row, self._table_row):
                try:
                    row = read(data, offset)
                except Unreadable:
                    continue
                if self._is_whole(row):
                    yield row

    # --- pages -------------------------------------------------------------------------------------------------------

    def _parsed(self, number: int) -> _Page | None:
        versions = self._versions.get(number)
        if not versions:
            return None
        try:
            return self._parse(number, versions[-1])
        except Unreadable:
            return None

    def _parse(self, number: int, data: bytes) -> _Page:
        start = _FILE_HEADER_BYTES if number == 1 else 0
        kind, _, count, _, _ = struct.unpack_from(">BHHHB", data, start)
        if kind not in _KINDS:
            raise Unreadable
        is_interior = kind in _INTERIOR_PAGES
        pointers = start + (12 if is_interior else 8)
        if pointers + 2 * count > len(data):
            raise Unreadable
        cells: list[_Cell | None] = []
        for (offset,) in struct.iter_unpack(">H", data[pointers : pointers + 2 * count]):
            try:
                cells.append(self._cell(kind, data, offset))
            except Unreadable:
                cells.append(None)
        (last_child,) = struct.unpack_from(">I", data, start + 8) if is_interior else (0,)
        return _Page(cells, last_child)

    def _cell(self, kind: int, data: bytes, offset: int) -> _Cell:
        child = 0
        if kind in _INTERIOR_PAGES:
            if offset + 4 > len(data):
                raise Unreadable
            (child,) = struct.unpack_from(">I", data, offset)
            offset += 4
            if not child:
                raise Unreadable
        if kind == _INTERIOR_TABLE:
            return _Cell(None, child)
        row = self._index_row(data, offset) if kind in _INDEX_PAGES else self._table_row(data, offset)
        return _Cell(row, child)

    # --- records -----------------------------------------------------------------------------------------------------

    def _index_row(self, data: bytes, offset: int) -> Row:
        size, offset = _varint(data, offset)
        return self._record(data, offset, size, (self._usable_bytes - 12) * 64 // 255 - 23)

    def _table_row(self, data: bytes, offset: int) -> Row:
        size, offset = _varint(data, offset)
        row_id, offset = _varint(data, offset)
        values = self._record(data, offset, size, self._usable_bytes - 35)
        return (row_id, *values[1:]) if values[0] is None else values

    def _record(self, data: bytes, offset: int, size: int, most_bytes: int) -> Row:
        types, header_bytes = _column_types(data, offset)
        if header_bytes + sum(map(_size_of, types)) != size:
            raise Unreadable
        payload = self._payload(data, offset, size, most_bytes)
        values: list[Value] = []
        at = header_bytes
        for kind in types:
            end = at + _size_of(kind)
            values.append(_value(payload[at:end], kind))
            at = end
        return tuple(values)

    def _payload(self, data: bytes, offset: int, size: int, most_bytes: int) -> bytes:
        if size <= most_bytes:
            if offset + size > len(data):
                raise Unreadable
            return data[offset : offset + size]
        usable = self._usable_bytes
        least_bytes = (usable - 12) * 32 // 255 - 23
        local_bytes = least_bytes + (size - least_bytes) % (usable - 4)
        if local_bytes > most_bytes:
            local_bytes = least_bytes
        if offset + local_bytes + 4 > len(data):
            raise Unreadable
        parts = [data[offset : offset + local_bytes]]
        (number,) = struct.unpack_from(">I", data, offset + local_bytes)
        left = size - local_bytes
        if left > (usable - 4) * len(self._versions):
            raise Unreadable
        while left > 0:
            versions = self._versions.get(number)
            if not versions:
                raise Unreadable
            page = versions[-1]
            self._overflow.add(number)
            parts.append(page[4 : 4 + min(left, usable - 4)])
            left -= len(parts[-1])
            (number,) = struct.unpack_from(">I", page)
        return b"".join(parts)


def _is_inner(row: Row) -> bool:
    return len(row) == _INDEX_COLUMNS or (len(row) == _SCHEMA_COLUMNS and row[0] in ("table", "index", "trigger"))


def _page_bytes(data: bytes, log: bytes) -> int:
    found: list[int] = []
    if len(data) >= _FILE_HEADER_BYTES:
        (said,) = struct.unpack_from(">H", data, 16)
        found.append(65536 if said == 1 else said)
    found.append(log_page_size(log))
    sizes = [size for size in found if 512 <= size <= 65536 and size & (size - 1) == 0]
    return sizes[0] if sizes else _DEFAULT_PAGE_BYTES


def _varint(data: bytes, offset: int) -> tuple[int, int]:
    value = 0
    for index in range(9):
        if offset >= len(data):
            raise Unreadable
        byte = data[offset]
        offset += 1
        if index == 8:
            return value << 8 | byte, offset
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            break
    return value, offset


def _column_types(data: bytes, offset: int) -> tuple[list[int], int]:
    header_bytes, at = _varint(data, offset)
    end = offset + header_bytes
    if not at < end <= len(data) or header_bytes > _MAX_HEADER_BYTES:
        raise Unreadable
    types = []
    while at < end:
        kind, at = _varint(data, at)
        if kind in _RESERVED_TYPES:
            raise Unreadable
        types.append(kind)
    if at != end:
        raise Unreadable
    return types, header_bytes


def _size_of(kind: int) -> int:
    return _NUMBER_BYTES[kind] if kind < _FIRST_BLOB_TYPE else (kind - _FIRST_BLOB_TYPE) // 2


def _value(data: bytes, kind: int) -> Value:
    if kind >= _FIRST_BLOB_TYPE:
        return data if kind % 2 == 0 else data.decode(errors="replace")
    if kind in (_ZERO_TYPE, _ONE_TYPE):
        return kind - _ZERO_TYPE
    if kind == 0:
        return None
    if kind == _FLOAT_TYPE:
        return float(struct.unpack(">d", data)[0])
    return int.from_bytes(data, "big", signed=True)
