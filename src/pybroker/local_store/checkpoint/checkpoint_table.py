"""`checkpoint.db`: the state that checkpoints commit, in one SQLite file with one transaction for each checkpoint.

A transaction contains `sequence` (all journal batches below it are in their final files), the valid length of each
unsealed ledger's segment file, and the snapshots and deltas of cursors. A crash leaves either the old state with the
whole journal, or the new state. To distinguish a new cursor from a lost one, the table remembers which cursors have
rows.

Concurrency: any thread, one at a time (a lock).
"""

from __future__ import annotations

import errno
import threading
from dataclasses import dataclass, field, fields
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

from pyroaring import BitMap64

from pybroker.disk.database import SQLITE_FAILURES, empty_log, failure_text, lacks_space, page_damage, transaction
from pybroker.disk.disk import Disk
from pybroker.errors import StoreError
from pybroker.ledgers.known_data import HOW_TO_REPAIR
from pybroker.local_store.checkpoint.checkpoint_rows import (
    COLUMNS,
    DIGESTED_TABLES,
    TABLE_VERSION,
    DamagedTable,
    NewerTable,
    TableCheck,
    convert_first_version,
    create_tables,
    read_digest,
    read_rows,
    row_checksum,
    schema_version,
    version_text,
)
from pybroker.runtime import logs
from pybroker.storage_format.segment_layout import LedgerExtent


@dataclass(slots=True)
class Facts:
    """Values that apply to the whole store, stored with each checkpoint."""

    version: int = TABLE_VERSION
    sequence: int = 0  # batches below this number are in their final files
    first_generation: int = 1  # generation of the current run's first journal file: files of older generations are void
    cursor_number: int = 1  # first unused number of a cursor record
    ledger_id: int = 1  # first unused ledger id
    is_clean: int = 0  # 1 after a clean stop: the table covers the whole journal
    commit: int = 0  # number of transactions so far
    first_named_ledger_id: int = (
        0  # ledgers from this id on that no metadata lists are empty; the deletion of a lower one may be lost
    )
    journal_end: int = 0  # lower batches were durable at this commit; never below `sequence`
    is_journal_made: int = 0  # 1 while this run has a journal file from `first_generation` on; 0 after a clean stop
    first_own_ledger_id: int = 0  # earlier runs created the lower ids, so the journal does not contain their creation
    segment_files: int = 0  # number of files in ledgers/ at the last clean stop


# Stores of earlier versions lack these.
_LATER_FACTS = frozenset(
    {"commit", "first_named_ledger_id", "journal_end", "is_journal_made", "first_own_ledger_id", "segment_files"}
)
NAMES_NOT_CERTAIN = 1 << 62
"""Value of `first_named_ledger_id` if the metadata of no ledger is certain."""


@dataclass(slots=True)
class CursorChange:
    """Change of one cursor, applied in this order: deletion, snapshot, deltas."""

    cursor_id: str
    is_deleted: bool
    snapshot: tuple[int, bytes] | None
    deltas: list[tuple[int, bytes]]
    covered_number: int  # number of the last record that this change includes


@dataclass(slots=True)
class TableChange:
    """The changes of one checkpoint's transaction."""

    facts: dict[str, int]  # changed values, by field name of `Facts`
    extents: dict[int, LedgerExtent] = field(default_factory=dict)  # of unsealed ledgers
    closed_ledgers: list[int] = field(default_factory=list)  # sealed or deleted
    cursors: list[CursorChange] = field(default_factory=list)


class DamagedCursor(StoreError):
    """The stored state of one cursor is damaged or missing; other cursors are not affected."""


class LostFacts(StoreError):
    """An existing store has no valid facts. It must not be initialized as a new store."""


class CheckpointTable:
    """The file `checkpoint.db`."""

    def __init__(self, disk: Disk, path: Path, what_is_there: str) -> None:
        """Open the file. `what_is_there`: a description of the other files of the store; "" if there are none, and only
        then may the file be missing or empty. Raises StoreError.
        """
        self._path = path
        self._lock = threading.Lock()
        self.commit_count = 0
        """Durable transactions of all runs."""
        if what_is_there and not disk.exists(path):
            raise _lost_facts(path, "is missing", what_is_there)
        try:
            self._connection = disk.open_database(path)
        except SQLITE_FAILURES as error:
            raise StoreError(f"{path.name} cannot be opened: {failure_text(error)}") from error
        try:
            version = schema_version(self._connection)
            if version == 0 and what_is_there:
                raise _lost_facts(path, "is empty", what_is_there)
            if version != TABLE_VERSION:
                with transaction(self._connection):
                    (create_tables if version == 0 else convert_first_version)(self._connection)
                if version:
                    logs.info("checkpoint.converted", file=path.name, from_version=version, to_version=TABLE_VERSION)
            disk.sync_directory(path.parent)
        except SQLITE_FAILURES as error:
            self.abandon()
            raise StoreError(f"{path.name} cannot be opened: {failure_text(error)}") from error
        except NewerTable as error:
            self.abandon()
            raise StoreError(f"{path.name} cannot be opened: {error}") from error
        except DamagedTable as error:
            self.abandon()
            raise self._damaged(str(error)) from error
        except BaseException:
            self.abandon()
            raise
        # Hashes of the cursors that have rows: about 16 MB for a million cursors.
        self._stored_cursors = BitMap64()

    def check(self) -> list[str]:
        """Check all rows. Return the ids of the cursors with damaged rows. Must run once, before `load_cursor` and
        `commit`. Raises StoreError for any other damage.
        """
        damaged: dict[str, None] = {}
        try:
            if found := page_damage(self._connection, max_findings=3, with_indexes=True):
                raise self._damaged(found)
            for table in DIGESTED_TABLES:
                check = TableCheck(table)
                for values in read_rows(self._connection, table):
                    checksum = values.pop()
                    check.add(values, checksum)
                    if table != "unsealed":
                        self._stored_cursors.add(_hash_of(values[0]))
                problem = check.lost(read_digest(self._connection, table))
                if not problem and table == "unsealed":
                    problem = "; ".join(map(str, check.damaged))
                if problem:
                    raise self._damaged(problem)
                damaged.update(dict.fromkeys(str(row.key) for row in check.damaged))
        except SQLITE_FAILURES as error:
            raise StoreError(f"{self._path.name} cannot be read: {error}") from error
        return list(damaged)

    def load_facts(self, what_is_there: str) -> Facts:
        """Return the facts (values of the whole store) that are stored, or those of a new store if none are stored.
        `what_is_there`: a description of the store's other files; "" if there are none. Raises StoreError for damaged
        facts, and if other files exist without facts.
        """
        facts = Facts()
        found = set()
        for name, value, checksum in self._query("SELECT name, value, checksum FROM facts"):
            self._check(checksum, row_checksum(name, value), f"fact {name}")
            if name == "version" and value != TABLE_VERSION:
                raise StoreError(f"{self._path.name} cannot be opened: {version_text(value)}")
            if not hasattr(facts, name):
                raise StoreError(
                    f"{self._path.name} cannot be opened: this version of pybroker does not know its value "
                    f"{name}: start the newer version that wrote it"
                )
            setattr(facts, name, value)
            found.add(name)
        if not found and what_is_there:
            raise _lost_facts(self._path, "has an empty table of facts", what_is_there)
        if found and (missing := missing_facts(found)):
            raise self._damaged(missing)
        if found and "first_named_ledger_id" not in found:
            facts.first_named_ledger_id = NAMES_NOT_CERTAIN  # unknown whether its journal was synced
        self.commit_count = facts.commit
        return facts

    def load_extents(self) -> dict[int, LedgerExtent]:
        extents = {}
        for ledger_id, *values, checksum in self._query("SELECT * FROM unsealed"):
            self._check(checksum, row_checksum(ledger_id, *values), f"extent of ledger {ledger_id}")
            extents[ledger_id] = LedgerExtent(*values)
        return extents

    def load_cursor(self, cursor_id: str) -> tuple[tuple[int, bytes] | None, list[tuple[int, bytes]]]:
        """Return the stored snapshot of a cursor (None without one) and its later deltas, each with its record number.
        Raises DamagedCursor, or StoreError for a failed read.
        """
        with self._lock:
            snapshots = self._read("SELECT number, data, checksum FROM snapshots WHERE cursor_id = ?", cursor_id)
            deltas = self._read(
                "SELECT number, data, checksum FROM deltas WHERE cursor_id = ? ORDER BY number", cursor_id
            )
            is_stored = _hash_of(cursor_id) in self._stored_cursors
        if is_stored and not snapshots and not deltas:
            # Not treated as a new cursor, because that would undo every acknowledgement.
            raise DamagedCursor(
                f"{self._path.name} is damaged: the state of cursor {cursor_id} is missing. {HOW_TO_REPAIR}"
            )
        for number, data, checksum in (*snapshots, *deltas):
            if checksum != row_checksum(cursor_id, number, data):
                raise DamagedCursor(
                    f"{self._path.name} is damaged: the state of cursor {cursor_id} has a wrong checksum. {HOW_TO_REPAIR}"
                )
        snapshot = snapshots[0][:2] if snapshots else None
        return snapshot, [(number, data) for number, data, _ in deltas]

    def commit(self, change: TableChange) -> None:
        """Commit `change` completely or not at all. Raises OSError without disk space, and StoreError for any other
        failure.
        """
        with self._lock:
            change.facts["commit"] = self.commit_count + 1
            try:
                with transaction(self._connection):
                    self._apply(change)
            except SQLITE_FAILURES as error:
                if lacks_space(error):
                    raise OSError(errno.ENOSPC, str(error)) from error
                raise StoreError(f"{self._path.name} cannot be written: {error}") from error
            self.commit_count += 1
            for cursor in change.cursors:
                if cursor.snapshot is not None or cursor.deltas:
                    self._stored_cursors.add(_hash_of(cursor.cursor_id))
                elif cursor.is_deleted:
                    self._stored_cursors.discard(_hash_of(cursor.cursor_id))

    def close(self) -> None:
        with self._lock:
            if reason := empty_log(self._connection):
                logs.warning("checkpoint.log_kept", file=self._path.name, reason=reason)
            self._connection.close()

    def abandon(self) -> None:
        """Close the file after a refused start, without changing the file or its log, which a repair may need."""
        with self._lock:
            self._connection.close()

    def _apply(self, change: TableChange) -> None:
        execute, execute_many = self._connection.execute, self._connection.executemany
        facts = [(*fact, row_checksum(*fact)) for fact in change.facts.items()]
        execute_many("INSERT OR REPLACE INTO facts VALUES (?, ?, ?)", facts)
        rows = [
            (ledger_id, extent.end_offset, extent.entry_count, extent.message_count, extent.size_bytes)
            for ledger_id, extent in change.extents.items()
        ]
        execute_many(_upsert("unsealed", "ledger_id"), [(*row, row_checksum(*row)) for row in rows])
        execute_many("DELETE FROM unsealed WHERE ledger_id = ?", [(ledger_id,) for ledger_id in change.closed_ledgers])
        for cursor in change.cursors:
            cursor_id = cursor.cursor_id
            if cursor.is_deleted:
                execute("DELETE FROM snapshots WHERE cursor_id = ?", (cursor_id,))
                execute("DELETE FROM deltas WHERE cursor_id = ?", (cursor_id,))
            if cursor.snapshot is not None:
                row = (cursor_id, *cursor.snapshot)
                execute(_upsert("snapshots", "cursor_id"), (*row, row_checksum(*row)))
                execute("DELETE FROM deltas WHERE cursor_id = ? AND number <= ?", (cursor_id, cursor.snapshot[0]))
            execute_many(
                _upsert("deltas", "cursor_id", "number"),
                [(cursor_id, number, data, row_checksum(cursor_id, number, data)) for number, data in cursor.deltas],
            )

    def _query(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        with self._lock:
            return self._read(statement, *values)

    def _read(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """The caller holds the lock."""
        try:
            return self._connection.execute(statement, values).fetchall()
        except SQLITE_FAILURES as error:
            raise StoreError(f"{self._path.name} cannot be read: {error}") from error

    def _check(self, stored: object, computed: int, what: str) -> None:
        if stored != computed:
            raise self._damaged(f"wrong checksum of {what}")

    def _damaged(self, what: str) -> StoreError:
        name = self._path.name
        return StoreError(
            f"{name} is damaged: {what}. Restore {name}, with {name}-wal if it existed, from the same backup as the "
            "ledgers and the journal, or run `pybroker ledger repair`"
        )


@cache
def _upsert(table: str, *keys: str) -> str:
    """Return a statement that inserts or updates a row. REPLACE would not subtract the replaced row from the digest."""
    columns = COLUMNS[table]
    changes = ", ".join(f"{column} = excluded.{column}" for column in columns if column not in keys)
    places = ", ".join("?" * len(columns))
    return f"INSERT INTO {table} VALUES ({places}) ON CONFLICT({', '.join(keys)}) DO UPDATE SET {changes}"


def _hash_of(cursor_id: object) -> int:
    return int.from_bytes(blake2b(str(cursor_id).encode(), digest_size=8).digest(), "little")


def missing_facts(found: set[str]) -> str:
    missing = sorted({field.name for field in fields(Facts)} - found - _LATER_FACTS)
    return f"the values {', '.join(missing)} are missing" if missing else ""


def _lost_facts(path: Path, what: str, what_is_there: str) -> LostFacts:
    return LostFacts(
        f"{path.name} {what}, but {path.parent} contains {what_is_there}, which cannot be read without it. Restore {path.name}, "
        f"with {path.name}-wal if it existed, from the same backup; or, to start with empty data, move the content of "
        f"{path.parent} away"
    )
