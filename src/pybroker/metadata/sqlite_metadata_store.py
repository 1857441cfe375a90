"""The metadata store in one SQLite file: the default of a single broker.

Layout: the tables of `sqlite_table.py`, in WAL mode with `synchronous=FULL`, so a committed transaction survives power
loss. `user_version` has the version of the layout; a newer one is refused, an older one is converted. A start reads all
rows once and refuses damaged ones; a value is checked again at each read.

Operation: the event loop queues operations; one thread runs all queued operations as one transaction, so a burst of
puts costs one disk flush. Operations take effect in the order of their calls.

Invariants: no operation returns before its transaction is committed; if the commit fails, all operations of the batch
fail and none took effect. A version mismatch fails only its own operation. Failure: without disk space an operation
fails with StorageFull, and the next one is tried as usual. A commit that fails otherwise may have reached the log:
before the next transaction, an empty one is written over it, so a refused change never takes effect after a crash.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack, asynccontextmanager, closing, contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from pybroker.disk.database import SQLITE_FAILURES, empty_log, failure_text, lacks_space, transaction
from pybroker.disk.disk import Disk
from pybroker.errors import StorageFull, StoreError
from pybroker.metadata.commit_mark import CommitMark
from pybroker.metadata.memory_metadata_store import require_changes, require_countable, require_version
from pybroker.metadata.metadata_store import (
    ANY_VERSION,
    NOT_EXISTING,
    Change,
    Check,
    Delete,
    MetadataStore,
    Missed,
    Put,
    Versioned,
    Watch,
    Watches,
    prefix_below,
)
from pybroker.metadata.sqlite_table import (
    Totals,
    is_empty,
    prepare,
    require_layout,
    require_whole,
    row_checksum,
    save_totals,
)
from pybroker.runtime import logs
from pybroker.runtime.threads import Threads

MAX_BATCH_OPERATIONS = 1000


class _Outcome(NamedTuple):
    """The result of one operation, and the paths that it changed."""

    result: Any
    changed: Sequence[str] = ()


class _Table:
    """The database connection, and the state of its tables. Used only by the database thread."""

    def __init__(self, connection: sqlite3.Connection, totals: Totals, mark: CommitMark | None) -> None:
        self.connection = connection
        self.totals = totals  # including the changes of the transaction in progress
        self._stored = replace(totals)
        self._mark = mark
        self._must_undo = False
        self.companion: tuple[str, Callable[[], bytes]] | None = None  # path, and function that returns its value
        self.session_values: dict[str, Versioned] = {}  # not stored; replaced, never changed

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit the operations of the block as one transaction, or none of them. Raises sqlite3.Error."""
        session_values = self.session_values
        try:
            if self._must_undo:
                self._undo()
            with transaction(self.connection):
                yield
                if self.companion is not None:
                    path, value_of = self.companion
                    self.put(path, value_of(), 0)
                self._count_commit()
                self._must_undo = True  # until the result of the commit is known
        except BaseException:
            self.totals = replace(self._stored)
            self.session_values = session_values
            if self._must_undo:
                with suppress(sqlite3.Error):  # the next transaction tries again
                    self._undo()
            raise
        self._committed()

    def row(self, path: str) -> Versioned | None:
        """Return the value at `path` with its version; None without one. Raises StoreError if the row is damaged."""
        if path in self.session_values:
            return self.session_values[path]
        row = self.connection.execute(
            "SELECT value, version, checksum FROM metadata WHERE path = ?", (path,)
        ).fetchone()
        if row is None:
            return None
        require_whole(path, *row)
        return Versioned(*row[:2])

    def version(self, path: str) -> int | None:
        if path in self.session_values:
            return self.session_values[path].version
        row = self.connection.execute("SELECT version FROM metadata WHERE path = ?", (path,)).fetchone()
        return row[0] if row else None

    def put_next(self, path: str, value: bytes) -> int:
        return self.put_after(path, value, self.version(path))

    def put_after(self, path: str, value: bytes, present: int | None) -> int:
        """Store the value with the version after `present`, the current one (None without a value), and return the new
        version.
        """
        version = 0 if present is None else present + 1
        if path in self.session_values:
            self.put_for_session(path, value, version)
        else:
            self.put(path, value, version)
        return version

    def put_for_session(self, path: str, value: bytes, version: int) -> None:
        self.session_values = {**self.session_values, path: Versioned(value, version)}

    def session_paths(self, prefix: str) -> list[str]:
        return [path for path in self.session_values if path.startswith(prefix)]

    def put(self, path: str, value: bytes, version: int) -> None:
        self._forget(path)
        checksum = row_checksum(path, value, version)
        self.connection.execute("REPLACE INTO metadata VALUES (?, ?, ?, ?)", (path, value, version, checksum))
        self.totals.added(checksum)

    def delete(self, path: str) -> None:
        if path in self.session_values:
            self.session_values = {other: value for other, value in self.session_values.items() if other != path}
            return
        self._forget(path)
        self.connection.execute("DELETE FROM metadata WHERE path = ?", (path,))

    def close(self) -> None:
        if reason := empty_log(self.connection):
            logs.warning("metadata.log_kept", reason=reason)
        self.connection.close()
        if self._mark is not None:
            self._mark.close()

    def _forget(self, path: str) -> None:
        row = self.connection.execute("SELECT checksum FROM metadata WHERE path = ?", (path,)).fetchone()
        if row is not None:
            self.totals.removed(row[0])

    def _undo(self) -> None:
        """Commit an empty transaction in place of the refused one, so that a crash cannot restore it.

        Raises sqlite3.Error.
        """
        try:
            with transaction(self.connection):
                self._count_commit()
        except BaseException:
            self.totals = replace(self._stored)
            raise
        self._committed()

    def _count_commit(self) -> None:
        self.totals.commits += 1
        save_totals(self.connection, self.totals)

    def _committed(self) -> None:
        self._must_undo = False
        self._stored = replace(self.totals)
        if self._mark is not None:
            self._mark.write(self.totals.commits)


_Work = Callable[[_Table], _Outcome]


class _Operation(NamedTuple):
    """One queued call: the work of the thread, and the future of the caller on the event loop."""

    work: _Work
    writes: bool
    answer: asyncio.Future[Any]


class SqliteMetadataStore(MetadataStore):
    """A metadata store in one file. Created by `open`; owns the thread and the connection until `close`."""

    def __init__(self, table: _Table, thread: Executor) -> None:
        self._loop = asyncio.get_running_loop()
        self._table = table
        self._thread = thread
        self._watches = Watches()
        self._queue: list[_Operation] = []
        self._running: list[_Operation] = []
        self._flush_scheduled = False
        self._is_paused = False
        self._idle: asyncio.Future[None] | None = None
        """Set while `paused` waits for the running batch."""
        self._closing: asyncio.Future[None] | None = None

    @staticmethod
    async def open(
        path: Path,
        disk: Disk | None = None,
        mark: Path | None = None,
        threads: Threads | None = None,
    ) -> SqliteMetadataStore:
        """Open or create the database file in an existing directory. Raises StoreError, also for damage.

        `mark`: the path of the commit mark (`CommitMark`), None for no mark. `disk`: by default the file system.
        """
        thread = (threads or Threads()).pool("metadata")
        try:
            table = await asyncio.get_running_loop().run_in_executor(thread, _open_table, path, disk or Disk(), mark)
        except BaseException:
            thread.shutdown(wait=False)
            raise
        return SqliteMetadataStore(table, thread)

    async def keep_beside(self, path: str, value_of: Callable[[], bytes]) -> None:
        """From now on, each transaction that writes also stores the result of `value_of` at `path`. This needs no
        additional sync and notifies no watch. `value_of` is called in the metadata thread.
        """

        def work(table: _Table) -> _Outcome:
            table.companion = path, value_of
            return _Outcome(None)

        await self._submit(work, writes=False)

    async def get(self, path: str) -> Versioned | None:
        def work(table: _Table) -> _Outcome:
            return _Outcome(table.row(path))

        found: Versioned | None = await self._submit(work, writes=False)
        return found

    async def put(self, path: str, value: bytes, expected_version: int = ANY_VERSION) -> int:
        assert path.startswith("/"), path
        assert not path.endswith("/"), path
        kept = bytes(value)  # the caller may reuse its buffer before the thread reads it

        def work(table: _Table) -> _Outcome:
            present = table.version(path)
            require_version(path, present, expected_version)
            return _Outcome(table.put_after(path, kept, present), (path,))

        version: int = await self._submit(work, writes=True)
        return version

    async def delete(self, path: str, expected_version: int = ANY_VERSION) -> bool:
        def work(table: _Table) -> _Outcome:
            present = table.version(path)
            require_version(path, present, expected_version)
            if present is None:
                return _Outcome(False)
            table.delete(path)
            return _Outcome(True, (path,))

        existed: bool = await self._submit(work, writes=True)
        return existed

    async def children(self, path: str) -> list[str]:
        prefix = prefix_below(path)

        def work(table: _Table) -> _Outcome:
            # SQLite builds the set, and releases the interpreter lock meanwhile: 100,000 topics may lie below.
            rows = table.connection.execute(
                "SELECT DISTINCT substr(path, :skip, instr(substr(path, :skip) || '/', '/') - 1) FROM metadata"
                " WHERE path >= :first AND path < :end",
                {"skip": len(prefix) + 1, "first": prefix, "end": _end_of(prefix)},
            )
            names = [name for (name,) in rows]
            if of_session := table.session_paths(prefix):
                names = list({*names, *(path[len(prefix) :].partition("/")[0] for path in of_session)})
            return _Outcome(sorted(names))

        names: list[str] = await self._submit(work, writes=False)
        return names

    async def values_below(self, path: str, after: str, limit: int) -> list[tuple[str, Versioned]]:
        prefix = prefix_below(path)

        def work(table: _Table) -> _Outcome:
            rows = table.connection.execute(
                "SELECT path, value, version, checksum FROM metadata WHERE path > ? AND path < ? ORDER BY path LIMIT ?",
                (max(prefix, after), _end_of(prefix), limit),
            ).fetchall()
            for row in rows:
                require_whole(*row)
            values = [(path, Versioned(value, version)) for path, value, version, _ in rows]
            if of_session := [path for path in table.session_paths(prefix) if path.encode() > after.encode()]:
                values += [(path, table.session_values[path]) for path in of_session]
                values = sorted(values, key=lambda found: found[0].encode())[:limit]
            return _Outcome(values)

        found: list[tuple[str, Versioned]] = await self._submit(work, writes=False)
        return found

    async def delete_tree(self, path: str) -> int:
        prefix = prefix_below(path)

        def work(table: _Table) -> _Outcome:
            rows = table.connection.execute(
                "DELETE FROM metadata WHERE path = ? OR (path >= ? AND path < ?) RETURNING path, checksum",
                (path, prefix, _end_of(prefix)),
            ).fetchall()
            for _, checksum in rows:
                table.totals.removed(checksum)
            names = [name for name, _ in rows]
            for of_session in [each for each in table.session_values if each == path or each.startswith(prefix)]:
                table.delete(of_session)
                names.append(of_session)
            return _Outcome(len(names), names)

        count: int = await self._submit(work, writes=True)
        return count

    async def values_of(self, paths: Sequence[str]) -> list[Versioned | None]:
        def work(table: _Table) -> _Outcome:
            return _Outcome([table.row(path) for path in paths])

        found: list[Versioned | None] = await self._submit(work, writes=False)
        return found

    async def change_together(self, changes: Sequence[Change]) -> list[int | None]:
        kept = [each._replace(value=bytes(each.value)) if isinstance(each, Put) else each for each in changes]

        def work(table: _Table) -> _Outcome:
            require_changes(kept, table.version)
            versions: list[int | None] = []
            for change in kept:
                versions.append(table.put_next(change.path, change.value) if isinstance(change, Put) else None)
                if isinstance(change, Delete):
                    table.delete(change.path)
            return _Outcome(versions, [change.path for change in kept if not isinstance(change, Check)])

        versions: list[int | None] = await self._submit(work, writes=True)
        return versions

    async def put_for_session(self, path: str, value: bytes) -> int:
        """Store a session value in memory only, not in the file."""

        def work(table: _Table) -> _Outcome:
            require_version(path, table.version(path), NOT_EXISTING)
            table.put_for_session(path, bytes(value), 0)
            return _Outcome(0, (path,))

        version: int = await self._submit(work, writes=True)
        return version

    async def create_sequential(self, path: str, value: bytes, *, for_session: bool) -> str:
        parent = path.rpartition("/")[0]

        def work(table: _Table) -> _Outcome:
            require_countable(parent, table.row(parent))
            created = f"{path}{table.put_next(parent, b''):010d}"
            if for_session:
                table.put_for_session(created, bytes(value), 0)
            else:
                table.put_next(created, bytes(value))
            return _Outcome(created, (parent, created))

        created: str = await self._submit(work, writes=True)
        return created

    def watch(self, prefix: str, watch: Watch, missed: Missed | None = None) -> None:
        self._watches.add(prefix, watch)

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """Pause the store for the duration of the block: all calls wait, and none takes effect. One block at a time.

        The caller must limit the duration, because every request that needs metadata waits, and so does `close`.
        """
        assert not self._is_paused, "the metadata store is paused once at a time"
        self._is_paused = True
        try:
            if self._running:
                self._idle = self._loop.create_future()
                await self._idle
            yield
        finally:
            self._is_paused = False
            self._idle = None
            self._flush()

    async def close(self) -> None:
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
            # At the end of the iteration, so a burst of calls becomes one transaction.
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)
        return await answer

    def _flush(self) -> None:
        """Hand the queue to the thread, unless the thread is busy or the store is paused.

        Called again when that ends.
        """
        self._flush_scheduled = False
        if self._running or self._is_paused:
            return
        if self._queue:
            self._running = self._queue[:MAX_BATCH_OPERATIONS]
            del self._queue[:MAX_BATCH_OPERATIONS]
            batch = self._loop.run_in_executor(self._thread, _run_batch, self._table, self._running)
            batch.add_done_callback(self._batch_done)
        elif self._closing is not None:
            closed = self._loop.run_in_executor(self._thread, self._table.close)
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
                continue  # the caller was cancelled; the operation is performed
            if isinstance(outcome, _Outcome):
                operation.answer.set_result(outcome.result)
            else:
                operation.answer.set_exception(outcome)
        self._watches.tell(changed)
        if self._idle is not None and not self._idle.done():
            self._idle.set_result(None)
        self._flush()

    def _connection_closed(self, closed: asyncio.Future[None]) -> None:
        self._thread.shutdown(wait=False)
        assert self._closing is not None
        error = closed.exception()
        if error is None:
            self._closing.set_result(None)
        else:
            self._closing.set_exception(StoreError(f"closing the metadata store failed: {error}"))


def value_before_conversion(path: Path, key: str) -> bytes | None:
    """Read the value at `key` from a database file of any layout, without changing the file. No store may have the file
    open.

    Return None if the file or the value does not exist, and if the file is damaged: `open` then refuses the file. This
    function blocks. Raises StoreError for a layout of a newer version.
    """
    if not path.exists():
        return None
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
            require_layout(connection.execute("PRAGMA user_version").fetchone()[0])
            row = connection.execute("SELECT value FROM metadata WHERE path = ?", (key,)).fetchone()
    except SQLITE_FAILURES:
        return None
    except StoreError as error:
        raise StoreError(f"the metadata store {path} cannot be opened: {error}") from error
    return None if row is None else bytes(row[0])


def _open_table(path: Path, disk: Disk, mark_path: Path | None) -> _Table:
    with ExitStack() as opened:
        try:
            mark = None if mark_path is None else CommitMark(disk, mark_path)
            if mark is not None:
                opened.callback(mark.close)
            connection = disk.open_database(path)
            opened.callback(connection.close)
            answered = 0 if mark is None else mark.read()
            if is_empty(connection):
                _require_as_far_as(answered, Totals(), mark_path)  # before it is made into a new one
            totals = prepare(connection)
            _require_as_far_as(answered, totals, mark_path)
        except (*SQLITE_FAILURES, StoreError, OSError) as error:
            raise StoreError(f"the metadata store {path} cannot be opened: {failure_text(error)}") from error
        opened.pop_all()
    return _Table(connection, totals, mark)


def _require_as_far_as(answered: int, totals: Totals, mark_path: Path | None) -> None:
    if totals.commits < answered:
        raise StoreError(
            f"the database contains only {totals.commits} of {answered} confirmed transactions: its write-ahead log (the file "
            "with the suffix -wal) is damaged or missing, or the database is an older copy. Restore both files from the "
            f"same backup. To continue without the lost changes, remove {mark_path}"
        )


def _run_batch(table: _Table, operations: list[_Operation]) -> list[_Outcome | Exception]:
    """Run the operations in order in the database thread, as one transaction if one of them writes.

    Return a result or an error for each.
    """
    is_writing = any(operation.writes for operation in operations)
    try:
        with table.transaction() if is_writing else nullcontext():
            return [_outcome(operation, table) for operation in operations]
    except SQLITE_FAILURES as error:
        raise (StorageFull if lacks_space(error) else StoreError)(f"the metadata store failed: {error}") from error


def _outcome(operation: _Operation, table: _Table) -> _Outcome | Exception:
    try:
        return operation.work(table)
    except StoreError as error:  # a version mismatch or a damaged value: raised before the operation wrote anything
        return error


def _end_of(prefix: str) -> str:
    """Return the first text after all texts that begin with `prefix`, in SQLite's order of bytes."""
    return prefix[:-1] + chr(ord(prefix[-1]) + 1)
