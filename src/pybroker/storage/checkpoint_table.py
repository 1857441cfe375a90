"""What a checkpoint leaves behind beside segment files: one SQLite file, changed by one transaction for each checkpoint.

It says, always together: up to which journal batch everything is in its place (`sequence`), how far the segment file of each
unsealed ledger is valid, and the snapshots and deltas of cursors. So a crash at any moment of a checkpoint leaves either the
state before it, with all its journal, or the state after it.
Every row carries a CRC32C of its content: SQLite itself does not notice flipped bits.

Concurrency: any thread, one at a time (a lock); commits come from the checkpoint thread, loads from the reading threads.
"""

from __future__ import annotations

import errno
import sqlite3
import threading
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from crc32c import crc32c

from pybroker import logs
from pybroker.errors import StoreError
from pybroker.storage.disk import Disk
from pybroker.storage.layout.segment import LedgerExtent

TABLE_VERSION = 1

# What SQLite calls no space: for the file itself, and for the memory that its processes share.
_NO_SPACE_CODES = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE})

_SCHEMA = """
CREATE TABLE IF NOT EXISTS facts(name TEXT PRIMARY KEY, value INTEGER NOT NULL, checksum INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS unsealed(
    ledger_id INTEGER PRIMARY KEY, end_offset INTEGER NOT NULL, entry_count INTEGER NOT NULL,
    message_count INTEGER NOT NULL, size_bytes INTEGER NOT NULL, checksum INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS snapshots(
    cursor_id TEXT PRIMARY KEY, number INTEGER NOT NULL, data BLOB NOT NULL, checksum INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS deltas(
    cursor_id TEXT NOT NULL, number INTEGER NOT NULL, data BLOB NOT NULL, checksum INTEGER NOT NULL,
    PRIMARY KEY(cursor_id, number)) WITHOUT ROWID;
"""


@dataclass(slots=True)
class Facts:
    """Numbers of the whole store."""

    version: int = TABLE_VERSION
    sequence: int = 0  # batches below are covered
    first_generation: int = 1  # of the present run's journal files: older ones are void
    cursor_number: int = 1  # not yet given to a cursor record
    ledger_id: int = 1  # not yet given to a ledger
    is_clean: int = 0  # closed in order: the journal holds nothing that is not here
    commit: int = 0  # how many transactions there were


# Stores that were written before do not have them.
_LATER_FACTS = frozenset({"commit"})


@dataclass(slots=True)
class CursorChange:
    """What is to be stored of one cursor: forget it first if deleted, then the snapshot, then the deltas after it."""

    cursor_id: str
    is_deleted: bool
    snapshot: tuple[int, bytes] | None
    deltas: list[tuple[int, bytes]]
    covered_number: int  # the last record that is in this


@dataclass(slots=True)
class TableChange:
    """One transaction."""

    facts: dict[str, int]  # those that change, by the names of `Facts`
    extents: dict[int, LedgerExtent] = field(default_factory=dict)  # of unsealed ledgers
    closed_ledgers: list[int] = field(default_factory=list)  # sealed or deleted
    cursors: list[CursorChange] = field(default_factory=list)


class LostFacts(StoreError):
    """The facts of a store are gone although it holds something: nothing is begun anew over it."""


class CheckpointTable:
    """The SQLite file."""

    def __init__(self, disk: Disk, path: Path, what_is_there: str) -> None:
        """Open the file; it is made, and may be without facts, only where nothing else is.

        `what_is_there` names what the store's directory holds beside, empty for nothing. Raises StoreError.
        """
        self._path = path
        self._lock = threading.Lock()
        self.commit_count = 0
        """Transactions that are durable, through all runs."""
        if what_is_there and not disk.exists(path):
            raise _lost_facts(path, "is missing", what_is_there)
        try:
            self._connection = disk.open_database(path)
            if what_is_there and not self._connection.execute("SELECT 1 FROM sqlite_master").fetchall():
                self._connection.close()
                raise _lost_facts(path, "is empty", what_is_there)
            self._connection.execute("BEGIN")
            for statement in _SCHEMA.split(";"):
                self._connection.execute(statement)
            self._connection.execute("COMMIT")
            disk.sync_directory(path.parent)
        except sqlite3.Error as error:
            raise StoreError(f"{path.name} cannot be opened: {error}") from error

    def load_facts(self, what_is_there: str) -> Facts:
        """Those of the last commit, or those of a new store. Raises StoreError when any is lost."""
        facts = Facts()
        found = set()
        for name, value, checksum in self._query("SELECT name, value, checksum FROM facts"):
            self._check(checksum, row_checksum(name, value), f"fact {name}")
            if name == "version" and value != TABLE_VERSION:
                raise StoreError(f"{self._path.name} has version {value}, this program knows {TABLE_VERSION}")
            setattr(facts, name, value)
            found.add(name)
        if not found and what_is_there:
            raise _lost_facts(self._path, "holds no facts", what_is_there)
        if found and (missing := missing_facts(found)):
            raise StoreError(f"{self._path.name} is damaged: {missing}")
        self.commit_count = facts.commit
        return facts

    def load_extents(self) -> dict[int, LedgerExtent]:
        """How far each unsealed ledger was stored."""
        extents = {}
        for ledger_id, *values, checksum in self._query("SELECT * FROM unsealed"):
            self._check(checksum, row_checksum(ledger_id, *values), f"extent of ledger {ledger_id}")
            extents[ledger_id] = LedgerExtent(*values)
        return extents

    def load_cursor(self, cursor_id: str) -> tuple[tuple[int, bytes] | None, list[tuple[int, bytes]]]:
        """Snapshot and later deltas, each with its number."""
        what = f"cursor {cursor_id}"
        snapshot = None
        deltas = []
        for number, data, checksum in self._query(
            "SELECT number, data, checksum FROM snapshots WHERE cursor_id = ?", cursor_id
        ):
            self._check(checksum, row_checksum(cursor_id, number, data), what)
            snapshot = (number, data)
        for number, data, checksum in self._query(
            "SELECT number, data, checksum FROM deltas WHERE cursor_id = ? ORDER BY number", cursor_id
        ):
            self._check(checksum, row_checksum(cursor_id, number, data), what)
            deltas.append((number, data))
        return snapshot, deltas

    def commit(self, change: TableChange) -> None:
        """Store `change`, all of it or nothing. Raises OSError when there is no room, StoreError otherwise."""
        with self._lock:
            change.facts["commit"] = self.commit_count + 1
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                try:
                    self._apply(change)
                    self._connection.execute("COMMIT")
                except BaseException:
                    if self._connection.in_transaction:
                        self._connection.execute("ROLLBACK")
                    raise
            except sqlite3.Error as error:
                if getattr(error, "sqlite_errorcode", None) in _NO_SPACE_CODES:
                    raise OSError(errno.ENOSPC, str(error)) from error
                raise StoreError(f"{self._path.name} cannot be written: {error}") from error
            self.commit_count += 1

    def close(self) -> None:
        """Move what the log holds into the file, and close it."""
        with self._lock:
            try:
                ((is_busy, *_),) = self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
                if is_busy:
                    logs.warning("checkpoint.log_kept", file=self._path.name)
            except sqlite3.Error as error:
                logs.warning("checkpoint.log_kept", file=self._path.name, reason=str(error))  # it counts as it is
            self._connection.close()

    def _apply(self, change: TableChange) -> None:
        execute, execute_many = self._connection.execute, self._connection.executemany
        facts = [(*fact, row_checksum(*fact)) for fact in change.facts.items()]
        execute_many("INSERT OR REPLACE INTO facts VALUES (?, ?, ?)", facts)
        rows = [
            (ledger_id, extent.end_offset, extent.entry_count, extent.message_count, extent.size_bytes)
            for ledger_id, extent in change.extents.items()
        ]
        execute_many(
            "INSERT OR REPLACE INTO unsealed VALUES (?, ?, ?, ?, ?, ?)", [(*row, row_checksum(*row)) for row in rows]
        )
        execute_many("DELETE FROM unsealed WHERE ledger_id = ?", [(ledger_id,) for ledger_id in change.closed_ledgers])
        for cursor in change.cursors:
            cursor_id = cursor.cursor_id
            if cursor.is_deleted:
                execute("DELETE FROM snapshots WHERE cursor_id = ?", (cursor_id,))
                execute("DELETE FROM deltas WHERE cursor_id = ?", (cursor_id,))
            if cursor.snapshot is not None:
                row = (cursor_id, *cursor.snapshot)
                execute("INSERT OR REPLACE INTO snapshots VALUES (?, ?, ?, ?)", (*row, row_checksum(*row)))
                execute("DELETE FROM deltas WHERE cursor_id = ? AND number <= ?", (cursor_id, cursor.snapshot[0]))
            execute_many(
                "INSERT OR REPLACE INTO deltas VALUES (?, ?, ?, ?)",
                [(cursor_id, number, data, row_checksum(cursor_id, number, data)) for number, data in cursor.deltas],
            )

    def _query(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        with self._lock:
            try:
                return self._connection.execute(statement, values).fetchall()
            except sqlite3.Error as error:
                raise StoreError(f"{self._path.name} cannot be read: {error}") from error

    def _check(self, stored: object, computed: int, what: str) -> None:
        if stored != computed:
            raise StoreError(f"{self._path.name} is damaged: wrong checksum of {what}")


def missing_facts(found: set[str]) -> str:
    """Which facts are not among those that were found, in words; empty for none."""
    missing = sorted({field.name for field in fields(Facts)} - found - _LATER_FACTS)
    return f"the facts {', '.join(missing)} are missing" if missing else ""


def _lost_facts(path: Path, what: str, what_is_there: str) -> LostFacts:
    return LostFacts(
        f"{path.name} {what}, but {path.parent} holds {what_is_there}: what they mean stood in it. Put it back, with "
        f"{path.name}-wal if there was one, from a copy of the same moment; or, to begin anew without what is there, move "
        f"all of {path.parent} away"
    )


def row_checksum(*values: object) -> int:
    """What the last column of a row must hold: a checksum of those before it."""
    checksum = 0
    for value in values:
        checksum = crc32c(value if isinstance(value, bytes) else f"{value}|".encode(), checksum)
    return checksum
