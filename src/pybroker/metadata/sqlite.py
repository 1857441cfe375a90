"""MetadataStore in one SQLite file: the default of a single broker.

Layout: table `metadata(path, value, version)`, keyed by path, in WAL mode with `synchronous=FULL`, so that a commit
that returned survives power loss. `user_version` holds the layout's version; a newer one is refused.

Operation: the loop queues operations; one thread, the only one that ever touches the connection, runs all that is
queued as one transaction and so pays one disk flush for a burst of puts. Operations take effect in the order in which
they were called.

What must hold: no answer is given before the transaction that holds it is committed; when the commit fails, every
operation of the batch fails and none of it took effect. A version mismatch fails only the operation that met it.
Failure: without space an operation fails with StorageFull, and the next one is tried as ever.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from pybroker.errors import BadVersionError, StorageFull, StoreError
from pybroker.metadata.memory import require_version
from pybroker.metadata.store import ANY_VERSION, MetadataStore, Versioned, Watch
from pybroker.metadata.watches import Watches, prefix_below

LAYOUT_VERSION = 1
MAX_BATCH_OPERATIONS = 1000


# What SQLite calls no space: for the file itself, and for the memory that its processes share.
_NO_SPACE_CODES = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE})

OpenDatabase = Callable[[Path], sqlite3.Connection]


class _Outcome(NamedTuple):
    """What one operation answers, and the paths that it changed."""

    result: Any
    changed: Sequence[str] = ()


_Work = Callable[[sqlite3.Connection], _Outcome]


class _Operation(NamedTuple):
    """One queued call: what the thread does, and the future of the caller on the loop."""

    work: _Work
    writes: bool
    answer: asyncio.Future[Any]


class SqliteMetadataStore(MetadataStore):
    """Made by `open`; owns the thread and the connection until `close`."""

    def __init__(self, connection: sqlite3.Connection, thread: ThreadPoolExecutor) -> None:
        self._loop = asyncio.get_running_loop()
        self._connection = connection
        self._thread = thread
        self._watches = Watches()
        self._queue: list[_Operation] = []
        self._running: list[_Operation] = []
        self._flush_scheduled = False
        self._closing: asyncio.Future[None] | None = None

    @staticmethod
    async def open(path: Path, open_database: OpenDatabase | None = None) -> SqliteMetadataStore:
        """Open or create the file at `path`, whose directory exists. Raises StoreError.

        Tests give `open_database`, for a file that fails when it is told to.
        """
        thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="metadata")
        try:
            connection = await asyncio.get_running_loop().run_in_executor(
                thread, _connect, path, open_database or _open_file
            )
        except BaseException:
            thread.shutdown(wait=False)
            raise
        return SqliteMetadataStore(connection, thread)

    async def get(self, path: str) -> Versioned | None:
        def work(connection: sqlite3.Connection) -> _Outcome:
            row = connection.execute("SELECT value, version FROM metadata WHERE path = ?", (path,)).fetchone()
            return _Outcome(Versioned(*row) if row else None)

        found: Versioned | None = await self._submit(work, writes=False)
        return found

    async def put(self, path: str, value: bytes, expected_version: int = ANY_VERSION) -> int:
        assert path.startswith("/"), path
        assert not path.endswith("/"), path
        kept = bytes(value)  # The caller may reuse its buffer before the thread gets here.

        def work(connection: sqlite3.Connection) -> _Outcome:
            present = _version(connection, path)
            require_version(path, present, expected_version)
            version = 0 if present is None else present + 1
            connection.execute("REPLACE INTO metadata (path, value, version) VALUES (?, ?, ?)", (path, kept, version))
            return _Outcome(version, (path,))

        version: int = await self._submit(work, writes=True)
        return version

    async def delete(self, path: str, expected_version: int = ANY_VERSION) -> bool:
        def work(connection: sqlite3.Connection) -> _Outcome:
            present = _version(connection, path)
            require_version(path, present, expected_version)
            if present is None:
                return _Outcome(False)
            connection.execute("DELETE FROM metadata WHERE path = ?", (path,))
            return _Outcome(True, (path,))

        existed: bool = await self._submit(work, writes=True)
        return existed

    async def children(self, path: str) -> list[str]:
        prefix = prefix_below(path)

        def work(connection: sqlite3.Connection) -> _Outcome:
            # The set is made inside SQLite, which lets go of the interpreter meanwhile: 100,000 topics may lie below.
            rows = connection.execute(
                "SELECT DISTINCT substr(path, :skip, instr(substr(path, :skip) || '/', '/') - 1) FROM metadata"
                " WHERE path >= :first AND path < :end",
                {"skip": len(prefix) + 1, "first": prefix, "end": _end_of(prefix)},
            )
            return _Outcome(sorted(name for (name,) in rows))

        names: list[str] = await self._submit(work, writes=False)
        return names

    async def delete_tree(self, path: str) -> int:
        prefix = prefix_below(path)

        def work(connection: sqlite3.Connection) -> _Outcome:
            rows = connection.execute(
                "DELETE FROM metadata WHERE path = ? OR (path >= ? AND path < ?) RETURNING path",
                (path, prefix, _end_of(prefix)),
            ).fetchall()
            return _Outcome(len(rows), [name for (name,) in rows])

        count: int = await self._submit(work, writes=True)
        return count

    def watch(self, prefix: str, watch: Watch) -> None:
        self._watches.add(prefix, watch)

    async def close(self) -> None:
        """Finish what was queued, then release the file."""
        if self._closing is None:
            self._closing = self._loop.create_future()
            self._flush()
        await asyncio.shield(self._closing)

    async def _submit(self, work: _Work, *, writes: bool) -> Any:
        if self._closing is not None:
            raise StoreError("the metadata store is closed")
        answer: asyncio.Future[Any] = self._loop.create_future()
        self._queue.append(_Operation(work, writes, answer))
        if not self._flush_scheduled:
            # At the end of the turn, so that a burst of calls becomes one transaction.
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)
        return await answer

    def _flush(self) -> None:
        """Hand the queue to the thread unless it is busy; its completion calls again."""
        self._flush_scheduled = False
        if self._running:
            return
        if self._queue:
            self._running = self._queue[:MAX_BATCH_OPERATIONS]
            del self._queue[:MAX_BATCH_OPERATIONS]
            batch = self._loop.run_in_executor(self._thread, _run_batch, self._connection, self._running)
            batch.add_done_callback(self._batch_done)
        elif self._closing is not None:
            closed = self._loop.run_in_executor(self._thread, self._connection.close)
            closed.add_done_callback(self._connection_closed)

    def _batch_done(self, batch: asyncio.Future[list[_Outcome | Exception]]) -> None:
        operations, self._running = self._running, []
        changed: list[str] = []
        error = batch.exception()
        outcomes = [error] * len(operations) if error else batch.result()
        for operation, outcome in zip(operations, outcomes, strict=True):
            if isinstance(outcome, _Outcome):
                changed.extend(outcome.changed)
            if operation.answer.done():
                continue  # The caller was cancelled; what it asked for is done all the same.
            if isinstance(outcome, _Outcome):
                operation.answer.set_result(outcome.result)
            else:
                operation.answer.set_exception(outcome)
        self._watches.tell(changed)
        self._flush()

    def _connection_closed(self, closed: asyncio.Future[None]) -> None:
        self._thread.shutdown(wait=False)
        assert self._closing is not None
        error = closed.exception()
        if error is None:
            self._closing.set_result(None)
        else:
            self._closing.set_exception(StoreError(f"closing the metadata store failed: {error}"))


def _open_file(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, isolation_level=None)


def _connect(path: Path, open_database: OpenDatabase) -> sqlite3.Connection:
    try:
        connection = open_database(path)
        try:
            _prepare(connection)
        except BaseException:
            connection.close()
            raise
    except (sqlite3.Error, StoreError) as error:
        raise StoreError(f"the metadata store {path} cannot be opened: {error}") from error
    return connection


def _prepare(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    # Only macOS knows these two: there, a plain flush leaves the data in the drive's own cache.
    connection.execute("PRAGMA fullfsync = ON")
    connection.execute("PRAGMA checkpoint_fullfsync = ON")
    (found,) = connection.execute("PRAGMA user_version").fetchone()
    if found > LAYOUT_VERSION:
        raise StoreError(f"it has layout {found}, and this version reads {LAYOUT_VERSION} at most")
    if found == 0:
        connection.executescript(
            "BEGIN IMMEDIATE;"
            "CREATE TABLE metadata"
            " (path TEXT PRIMARY KEY, value BLOB NOT NULL, version INTEGER NOT NULL) WITHOUT ROWID;"
            f"PRAGMA user_version = {LAYOUT_VERSION};"
            "COMMIT;"
        )


def _run_batch(connection: sqlite3.Connection, operations: list[_Operation]) -> list[_Outcome | Exception]:
    """In the thread: run the operations in order, as one transaction when one of them writes."""
    try:
        transaction = any(operation.writes for operation in operations)
        if transaction:
            connection.execute("BEGIN IMMEDIATE")
        outcomes: list[_Outcome | Exception] = []
        for operation in operations:
            try:
                outcomes.append(operation.work(connection))
            except BadVersionError as error:  # Raised before the operation wrote anything.
                outcomes.append(error)
        if transaction:
            connection.execute("COMMIT")
        return outcomes
    except BaseException as error:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        if isinstance(error, sqlite3.Error):
            is_full = getattr(error, "sqlite_errorcode", None) in _NO_SPACE_CODES
            raise (StorageFull if is_full else StoreError)(f"the metadata store failed: {error}") from error
        raise


def _version(connection: sqlite3.Connection, path: str) -> int | None:
    row = connection.execute("SELECT version FROM metadata WHERE path = ?", (path,)).fetchone()
    return row[0] if row else None


def _end_of(prefix: str) -> str:
    """The first text behind everything that begins with `prefix`, in SQLite's order of bytes."""
    return prefix[:-1] + chr(ord(prefix[-1]) + 1)
