"""The table of the SQLite metadata store, with checksums that detect damaged, missing and outdated rows.

Each row has a checksum over its path, version, and value. `totals` has the number of rows, the sum of their checksums,
and the number of committed transactions; each transaction updates it.

`prepare` converts the tables of earlier layouts, in one transaction: layout 1 has no checksums, and the documents of
layouts 1 and 2 have other paths (`document_layout.py`).

Concurrency: only the thread that owns the connection calls these functions.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from typing import Final

from crc32c import crc32c

from pybroker.disk.database import page_damage, transaction
from pybroker.errors import StoreError
from pybroker.metadata.document_layout import DOCUMENTS, SCHEMAS, converted_documents
from pybroker.metadata.metadata_store import PAGE_VALUES
from pybroker.runtime import logs

LAYOUT_VERSION: Final = 3
SAME_TABLES_SINCE: Final = 2
"""From this layout on, only the paths and contents of documents differ."""
_SUM_BITS = (1 << 62) - 1
_HOW_TO_REPAIR = "Restore the data directory from a backup, or run `pybroker ledger repair`"
_CREATE_TOTALS = (
    "CREATE TABLE totals (id INTEGER PRIMARY KEY CHECK (id = 1), commits INTEGER NOT NULL, row_count INTEGER NOT NULL,"
    " row_sum INTEGER NOT NULL)"
)


def row_checksum(path: str, value: bytes, version: int) -> int:
    name = path.encode()
    return crc32c(value, crc32c(name, crc32c(b"%d %d " % (version, len(name)))))


@dataclass(slots=True)
class Totals:
    """The totals of the table: committed transactions, rows, and the sum of the checksums of the rows."""

    commits: int = 0
    row_count: int = 0
    row_sum: int = 0

    def added(self, checksum: int) -> None:
        self.row_count += 1
        self.row_sum = (self.row_sum + checksum) & _SUM_BITS

    def removed(self, checksum: int) -> None:
        self.row_count -= 1
        self.row_sum = (self.row_sum - checksum) & _SUM_BITS


def is_empty(connection: sqlite3.Connection) -> bool:
    return bool(connection.execute("PRAGMA user_version").fetchone()[0] == 0)


def require_layout(found: int) -> None:
    """Raise StoreError if a newer version of pybroker wrote the layout `found`."""
    if found > LAYOUT_VERSION:
        raise StoreError(
            f"the database has layout {found}, but this pybroker reads only layouts up to {LAYOUT_VERSION}: start the newer "
            "version that wrote it"
        )


def prepare(connection: sqlite3.Connection) -> Totals:
    """Create the tables in a new file, convert tables of an earlier layout, or check existing ones. Return the stored
    numbers of commits and rows, and the sum of the row checksums. Raises StoreError for damage and for a newer layout.
    """
    (found,) = connection.execute("PRAGMA user_version").fetchone()
    require_layout(found)
    if found == LAYOUT_VERSION:
        return check(connection)
    with transaction(connection):
        # The conversion is not counted as a commit, because the count is compared with the number of answered commits.
        totals = check(connection) if found >= SAME_TABLES_SINCE else _create_or_convert(connection, found)
        unreadable = _convert_documents(connection, totals) if found else []
        save_totals(connection, totals)
        connection.execute(f"PRAGMA user_version = {LAYOUT_VERSION}")
    if found:
        logs.info("metadata.converted", from_version=found, to_version=LAYOUT_VERSION)
    for path in unreadable:
        logs.warning(
            "metadata.document_not_converted",
            path=path,
            reason="the value is not the JSON document that belongs to its path",
        )
    return totals


def _create_or_convert(connection: sqlite3.Connection, found: int) -> Totals:
    """Create the tables, or convert them from layout `found` (0 for a new file). Called within a transaction."""
    if found == 0:
        connection.execute(
            "CREATE TABLE metadata (path TEXT PRIMARY KEY, value BLOB NOT NULL, version INTEGER NOT NULL,"
            " checksum INTEGER NOT NULL) WITHOUT ROWID"
        )
    else:
        check_pages(connection)
        connection.execute("ALTER TABLE metadata ADD COLUMN checksum INTEGER NOT NULL DEFAULT 0")
    connection.execute(_CREATE_TOTALS)
    totals = Totals(commits=1)
    for path, value, version in connection.execute("SELECT path, value, version FROM metadata").fetchall():
        checksum = row_checksum(path, value, version)
        totals.added(checksum)
        connection.execute("UPDATE metadata SET checksum = ? WHERE path = ?", (checksum, path))
    connection.execute("INSERT INTO totals VALUES (1, ?, ?, ?)", (totals.commits, totals.row_count, totals.row_sum))
    return totals


def _convert_documents(connection: sqlite3.Connection, totals: Totals) -> list[str]:
    """Convert the paths of documents from layout 2.

    Return the paths of documents that stay, because they cannot be read. Called within a transaction.
    """
    unreadable = _convert(connection, totals, _rows_below(connection, DOCUMENTS, "", -1))
    after = ""
    while rows := _rows_below(connection, SCHEMAS, after, PAGE_VALUES):  # Their values can be large.
        after = rows[-1][0]
        unreadable += _convert(connection, totals, rows)
    return unreadable


def _rows_below(
    connection: sqlite3.Connection, prefix: str, after: str, limit: int
) -> list[tuple[str, bytes, int, int]]:
    end = prefix[:-1] + "0"  # `0` follows `/`
    return connection.execute(
        "SELECT path, value, version, checksum FROM metadata WHERE path > ? AND path < ? ORDER BY path LIMIT ?",
        (max(prefix, after), end, limit),
    ).fetchall()


def _convert(connection: sqlite3.Connection, totals: Totals, rows: list[tuple[str, bytes, int, int]]) -> list[str]:
    checksums = {path: checksum for path, _, _, checksum in rows}
    conversion = converted_documents({path: (value, version) for path, value, version, _ in rows})
    for path in (*conversion.removed, *(path for path in conversion.written if path in checksums)):
        connection.execute("DELETE FROM metadata WHERE path = ?", (path,))
        totals.removed(checksums[path])
    for path, (value, version) in conversion.written.items():
        checksum = row_checksum(path, value, version)
        connection.execute("INSERT INTO metadata VALUES (?, ?, ?, ?)", (path, value, version, checksum))
        totals.added(checksum)
    return conversion.unreadable


def check(connection: sqlite3.Connection) -> Totals:
    """Read all rows, compare their number and checksums with the stored totals, and return these totals. Raises
    StoreError with a description of damage.
    """
    check_pages(connection)
    row = connection.execute("SELECT commits, row_count, row_sum FROM totals").fetchone()
    if row is None:
        raise StoreError(f"the database is damaged: its table of totals is empty. {_HOW_TO_REPAIR}")
    totals = Totals(*row)
    found = Totals(totals.commits)
    for path, value, version, checksum in connection.execute("SELECT path, value, version, checksum FROM metadata"):
        require_whole(path, value, version, checksum)
        found.added(checksum)
    if found != totals:
        raise StoreError(
            f"the database is damaged: {totals.row_count} values were stored, {found.row_count} are present, "
            f"and some of them are missing, changed or outdated. {_HOW_TO_REPAIR}"
        )
    return totals


def check_pages(connection: sqlite3.Connection) -> None:
    """Raise StoreError if SQLite's own check finds damage in the database file."""
    if found := page_damage(connection):
        raise StoreError(f"the database is damaged: SQLite reports {found}. {_HOW_TO_REPAIR}")


def require_whole(path: str, value: object, version: object, checksum: int) -> None:
    """Raise StoreError if the row at `path` does not match its checksum."""
    is_typed = isinstance(path, str) and isinstance(value, bytes) and isinstance(version, int)
    if not is_typed or row_checksum(path, value, version) != checksum:  # type: ignore[arg-type]
        raise StoreError(
            f"the database is damaged: the value of {path!r} differs from the value that was stored. {_HOW_TO_REPAIR}"
        )


def save_totals(connection: sqlite3.Connection, totals: Totals) -> None:
    connection.execute(
        "UPDATE totals SET commits = ?, row_count = ?, row_sum = ?",
        (totals.commits, totals.row_count, totals.row_sum),
    )
