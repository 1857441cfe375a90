"""SQLite databases with durable commits: opening, transactions, checks for damage, and SQLite's write-ahead log.

Concurrency: one thread at a time for each connection.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from pybroker.runtime import logs

# UnicodeDecodeError: SQLite's messages quote a damaged schema, which may not be valid UTF-8.
SQLITE_FAILURES = (sqlite3.Error, UnicodeDecodeError)
# No space for the file, and none for the memory that SQLite's processes share.
_NO_SPACE_CODES = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE})
# The files may contain messages and secrets.
OWNER_ONLY_FILE = 0o600
_SETTINGS = (
    "journal_mode=WAL",
    "synchronous=FULL",
    # Only macOS has these two: there, a plain sync leaves data in the drive's cache.
    "fullfsync=ON",
    "checkpoint_fullfsync=ON",
)


class LogFiles(Protocol):
    """Operations on a database's log, which `Disk` implements."""

    def file_sizes(self, directory: Path) -> dict[str, int]: ...

    def rename(self, source: Path, target: Path) -> None: ...


class Database(sqlite3.Connection):
    """Connection that keeps a non-empty log at `close`.

    SQLite itself would copy the readable part of the log into the file and remove the log. If a start refuses the log
    as damaged, only that log can restore the data. A clean close calls `empty_log` first.
    """

    _disk: LogFiles | None = None
    _path = Path()

    def bind(self, disk: LogFiles, path: Path) -> None:
        """Set disk and path of a new connection, before any other call."""
        self._disk = disk
        self._path = path

    def set_up(self) -> None:
        try:
            for setting in _SETTINGS:
                self.execute(f"PRAGMA {setting}")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        disk, self._disk = self._disk, None
        log = log_of(self._path)
        is_kept = False
        if disk is not None:
            try:
                if disk.file_sizes(log.parent).get(log.name):
                    disk.rename(log, parked_log(log))
                    is_kept = True
            except OSError:
                is_kept = False  # SQLite removes the log; the file has all commits
        super().close()
        if disk is not None and is_kept:
            try:
                disk.rename(parked_log(log), log)
            except OSError as error:
                logs.error(
                    "database.log_aside",
                    file=parked_log(log).name,
                    error=str(error),
                    note="no data is lost: the next start of the broker restores the name",
                )


class DatabaseSnapshot:
    """The content of a database at one moment, while another connection continues to write.

    Operation: a read transaction that stays open. SQLite keeps the old pages until `close`, so its log grows meanwhile.
    Concurrency: any thread, one at a time.
    """

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None, check_same_thread=False
        )
        try:
            self._connection.execute("BEGIN")
            self._connection.execute("SELECT count(*) FROM sqlite_master").fetchone()  # begins the read transaction
        except BaseException:
            self._connection.close()
            raise

    def copy_to(self, path: Path) -> None:
        """Write the content of the snapshot into a new database file at `path`, and sync the file. Raises
        SQLITE_FAILURES and OSError.
        """
        make_private_file(path)
        target = sqlite3.connect(path, isolation_level=None)
        try:
            self._connection.backup(target)
        finally:
            target.close()
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def close(self) -> None:
        self._connection.close()


def make_private_file(path: Path) -> None:
    """Create the file if it does not exist, readable and writable only for its owner. (SQLite would create it, and its
    log, readable for others.)
    """
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, OWNER_ONLY_FILE))


def log_of(database: Path) -> Path:
    return database.with_name(database.name + "-wal")


def parked_log(log: Path) -> Path:
    """Return the name that the log has while its database is being closed, so that SQLite does not remove the log."""
    return log.with_name(log.name + ".aside")


def lacks_space(error: BaseException) -> bool:
    return getattr(error, "sqlite_errorcode", None) in _NO_SPACE_CODES


def failure_text(error: BaseException) -> str:
    """Return the error text for a database that cannot be opened. For a full disk, which SQLite may report as an I/O
    error, the text says so.
    """
    return f"the disk is full ({error}): free space, and start again" if lacks_space(error) else str(error)


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def page_damage(connection: sqlite3.Connection, *, max_findings: int = 1, with_indexes: bool = False) -> str:
    """Return the damage that SQLite's check of the database finds, in one line; "" without damage. Raises
    SQLITE_FAILURES if the check cannot begin.
    """
    check = "integrity_check" if with_indexes else "quick_check"
    texts: list[str] = []
    try:
        for (text,) in connection.execute(f"PRAGMA {check}({max_findings})"):
            texts.append(" ".join(str(text).split()))
    except SQLITE_FAILURES:
        if not texts:
            raise  # after a finding, the error adds nothing
    return "" if texts == ["ok"] else "; ".join(texts)


def empty_log(connection: sqlite3.Connection) -> str:
    """Copy the log into the database file and empty it. Return "" or, if this fails, the reason. The log is then kept,
    and nothing is lost.
    """
    try:
        ((is_busy, *_),) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    except SQLITE_FAILURES as error:
        return str(error)
    return "the database is in use" if is_busy else ""
