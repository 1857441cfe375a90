"""The tables and rows of `checkpoint.db`, and the detection of damage in them.

Invariants: each row's `checksum` matches its key and values. For each table of ledgers or cursors, `digests` contains
the number of rows and the sum of their checksums, maintained by SQLite triggers. The checksum detects a changed row,
and the digest a missing or reappeared row, which SQLite itself does not detect.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from crc32c import crc32c

from pybroker.errors import StoreError

TABLE_VERSION = 2
FIRST_VERSION = 1
DIGESTED_TABLES = ("unsealed", "snapshots", "deltas")

_LOW_BITS = 32
_LOW_MASK = (1 << _LOW_BITS) - 1
# SQLite's integers are signed.
_KEY_MASK = 0x7FFFFFFF

_TABLES = {
    "facts": "CREATE TABLE facts(name TEXT PRIMARY KEY, value INTEGER NOT NULL, checksum INTEGER NOT NULL)",
    "unsealed": "CREATE TABLE unsealed(ledger_id INTEGER PRIMARY KEY, end_offset INTEGER NOT NULL, "
    "entry_count INTEGER NOT NULL, message_count INTEGER NOT NULL, size_bytes INTEGER NOT NULL, checksum INTEGER NOT NULL)",
    "snapshots": "CREATE TABLE snapshots(cursor_id TEXT PRIMARY KEY, number INTEGER NOT NULL, data BLOB NOT NULL, "
    "checksum INTEGER NOT NULL) WITHOUT ROWID",
    "deltas": "CREATE TABLE deltas(cursor_id TEXT NOT NULL, number INTEGER NOT NULL, data BLOB NOT NULL, "
    "checksum INTEGER NOT NULL, PRIMARY KEY(cursor_id, number)) WITHOUT ROWID",
    "digests": "CREATE TABLE digests(name TEXT PRIMARY KEY, row_count INTEGER NOT NULL, key_sum INTEGER NOT NULL, "
    "row_sum INTEGER NOT NULL) WITHOUT ROWID",
}


COLUMNS = {
    "unsealed": ("ledger_id", "end_offset", "entry_count", "message_count", "size_bytes", "checksum"),
    "snapshots": ("cursor_id", "number", "data", "checksum"),
    "deltas": ("cursor_id", "number", "data", "checksum"),
}


class DamagedTable(StoreError):
    """The tables are damaged, or of an unknown version."""


class NewerTable(StoreError):
    """A newer version of pybroker wrote the tables. They are intact and are not changed."""


def _trigger(table: str, event: str) -> tuple[str, str]:
    added = "" if event == "DELETE" else "NEW"
    removed = "" if event == "INSERT" else "OLD"

    def changed(column: str, part: str) -> str:
        plus = f" + {part.format(added)}" if added else ""
        minus = f" - {part.format(removed)}" if removed else ""
        return f"{column} = {column}{plus}{minus}"

    name = f"{table}_{event.lower()}"
    key_sum = changed("key_sum", f"({{}}.checksum >> {_LOW_BITS})")
    row_sum = changed("row_sum", f"({{}}.checksum & {_LOW_MASK})")
    row_count = f"row_count = row_count + {int(bool(added)) - int(bool(removed))}"
    return name, (
        f"CREATE TRIGGER {name} AFTER {event} ON {table} BEGIN "
        f"UPDATE digests SET {row_count}, {key_sum}, {row_sum} WHERE name = '{table}'; END"
    )


SCHEMA = {
    **_TABLES,
    **dict(_trigger(table, event) for table in DIGESTED_TABLES for event in ("INSERT", "UPDATE", "DELETE")),
}


def row_checksum(key: object, *values: object) -> int:
    """Return the checksum of a row: the upper half covers the key, the lower half the whole row. If only the lower half
    is wrong, the key of the damaged row is intact.
    """
    key_checksum = crc32c(f"{key}|".encode())
    return (key_checksum & _KEY_MASK) << _LOW_BITS | _checksum_of(values, key_checksum)


def is_key_right(key: object, checksum: object) -> bool:
    """Return whether the key of a row with a wrong `checksum` is intact, so that only the data of this key is damaged."""
    return isinstance(checksum, int) and checksum >> _LOW_BITS == crc32c(f"{key}|".encode()) & _KEY_MASK


def first_version_checksum(*values: object) -> int:
    return _checksum_of(values, 0)


def _checksum_of(values: tuple[object, ...], checksum: int) -> int:
    for value in values:
        checksum = crc32c(value if isinstance(value, bytes) else f"{value}|".encode(), checksum)
    return checksum


def schema_version(connection: sqlite3.Connection) -> int:
    """Return the version of the tables in the database, 0 without tables. Raises NewerTable if a newer version of
    pybroker created them, DamagedTable for other unknown tables, and sqlite3.Error.
    """
    found = dict(connection.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL"))
    if not found:
        return 0
    if found == SCHEMA:
        return TABLE_VERSION
    if found.keys() == _TABLES.keys() - {"digests"}:
        return FIRST_VERSION
    if (version := _newer_version(connection)) is not None:
        raise NewerTable(version_text(version))
    wrong = sorted(name for name in found.keys() | SCHEMA.keys() if found.get(name) != SCHEMA.get(name))
    raise DamagedTable(
        f"these tables are missing, unknown, or have other columns than in version {TABLE_VERSION}: {', '.join(wrong)}"
    )


def version_text(version: int) -> str:
    cause = ": start the newer version that wrote it" if version > TABLE_VERSION else ""
    return f"it has version {version}, but this version of pybroker reads only versions up to {TABLE_VERSION}{cause}"


def _newer_version(connection: sqlite3.Connection) -> int | None:
    """Return the stored version if it is newer than this one and its checksum is right, else None.

    Every version of pybroker stores this row in the same format.
    """
    try:
        row = connection.execute("SELECT value, checksum FROM facts WHERE name = 'version'").fetchone()
    except sqlite3.Error:
        return None
    if row is None or row[1] != row_checksum("version", row[0]) or row[0] <= TABLE_VERSION:
        return None
    return int(row[0])


def create_tables(connection: sqlite3.Connection) -> None:
    """Create empty tables, inside the caller's transaction. Raises sqlite3.Error."""
    for statement in SCHEMA.values():
        connection.execute(statement)
    connection.executemany("INSERT INTO digests VALUES (?, 0, 0, 0)", [(table,) for table in DIGESTED_TABLES])


def convert_first_version(connection: sqlite3.Connection) -> None:
    """Convert tables of version 1 to the current version, inside the caller's transaction. Raises DamagedTable and
    sqlite3.Error.
    """
    rows: dict[str, list[tuple[Any, ...]]] = {}
    for table in ("facts", *DIGESTED_TABLES):
        rows[table] = []
        for *values, checksum in connection.execute(f"SELECT * FROM {table}"):
            if checksum != first_version_checksum(*values):
                raise DamagedTable(
                    f"row {values[0]!r} of table {table} has a wrong checksum, so the database was not converted from version 1"
                )
            if values[0] == "version" and table == "facts":
                if values[1] != FIRST_VERSION:
                    raise DamagedTable(
                        f"the tables have the layout of version 1, but the stored version is {values[1]}"
                    )
                values[1] = TABLE_VERSION
            rows[table].append((*values, row_checksum(*values)))
    for table in rows:
        connection.execute(f"DROP TABLE {table}")
    create_tables(connection)
    for table, found in rows.items():
        for row in found:
            connection.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", row)


@dataclass(frozen=True, slots=True)
class DamagedRow:
    """A row of which the checksum is wrong."""

    table: str
    key: object
    is_key_right: bool

    def __str__(self) -> str:
        return f"wrong checksum of {self.table} row {self.key!r}"


@dataclass(slots=True)
class Digest:
    """The number of rows of a table, and the sums of the upper and of the lower halves of their checksums."""

    row_count: int = 0
    key_sum: int = 0
    row_sum: int = 0

    def add(self, checksum: object) -> None:
        """Add the checksum of one row. A damaged checksum that is not a number adds nothing."""
        self.row_count += 1
        if isinstance(checksum, int):
            self.key_sum += checksum >> _LOW_BITS
            self.row_sum += checksum & _LOW_MASK


@dataclass(slots=True)
class TableCheck:
    """Check of one table: call `add` for each row, then `lost` for the comparison with the digest."""

    table: str
    damaged: list[DamagedRow] = field(default_factory=list)
    _found: Digest = field(default_factory=Digest)

    def add(self, values: list[Any], checksum: object) -> bool:
        computed = row_checksum(*values)
        self._found.add(checksum)
        if checksum == computed:
            return True
        self.damaged.append(DamagedRow(self.table, values[0], is_key_right(values[0], checksum)))
        return False

    def lost(self, digest: Digest | None) -> str:
        """Compare the added rows with the stored digest. Return a description of the damage if rows are lost, outdated,
        or have a damaged key; otherwise "". Damaged rows with an intact key are only in `damaged`.
        """
        if digest is None:
            return f"the digest of {self.table} is missing"
        found = self._found
        if (found.row_count, found.key_sum) != (digest.row_count, digest.key_sum):
            return f"rows of {self.table} are lost or changed: {digest.row_count} were stored, {found.row_count} were found"
        if found.row_sum != digest.row_sum and not self.damaged:
            return f"rows of {self.table} are older than those that were stored last"
        return "; ".join(str(row) for row in self.damaged if not row.is_key_right)


def read_rows(connection: sqlite3.Connection, table: str) -> Iterator[list[Any]]:
    """Yield all rows of a table in page order, including rows that a damaged index hides from a search by key."""
    yield from map(list, connection.execute(f"SELECT * FROM {table}"))


def read_digest(connection: sqlite3.Connection, table: str) -> Digest | None:
    """Return the digest of a table (row count and sums of checksums), as SQLite triggers have stored it; None if it is
    missing. Raises sqlite3.Error.
    """
    statement = "SELECT row_count, key_sum, row_sum FROM digests WHERE name = ?"
    found = connection.execute(statement, (table,)).fetchone()
    return None if found is None else Digest(*found)
