"""A disk in memory that forgets: the twin of `disk.py` under crash tests.

It keeps, apart from each other, what a process sees (the page cache) and what the device has. `after_power_loss` gives the
disk that a machine finds afterwards: synced bytes, and of the rest whatever the random source says, torn at any byte;
`after_kill` the one that only the process lost. `plan` is asked before every operation and may raise: no space, IO errors, or
the end of power in the middle of one.
What must always hold: nothing that was promised durable is ever forgotten, or the tests would prove nothing.
"""

from __future__ import annotations

import errno
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, NoReturn

from pybroker.storage.disk import Disk, DiskFile, FileSystemSync, Pieces

# Operation and file name; raises to make the operation fail.
FaultPlan = Callable[[str, str], None]


class PowerLoss(OSError):
    """The machine is off; every later operation of this disk fails as well."""

    def __init__(self) -> None:
        super().__init__(errno.EIO, "power lost")


class _Content:
    """Bytes of one file: as the process sees them, as the device has them, and the writes in between."""

    def __init__(self) -> None:
        self.cached = bytearray()
        self.durable = bytearray()
        # Offset, bytes, whether durable; offset -1: a truncation to the length that the bytes tell.
        self.pending: list[tuple[int, bytes, bool]] = []

    def copy_as_durable(self) -> _Content:
        other = _Content()
        other.cached = bytearray(self.durable)
        other.durable = bytearray(self.durable)
        return other


class FaultDisk(Disk):
    """A file system with one flat table of names."""

    def __init__(self) -> None:
        self.plan: FaultPlan | None = None
        self._lock = threading.RLock()
        self._names: dict[Path, _Content] = {}
        self._durable_names: dict[Path, _Content] = {}
        self._pending_names: list[tuple[Path, _Content | None]] = []
        self._databases: dict[Path, bytes] = {}
        self._is_off = False

    def cut_power(self) -> NoReturn:
        """To be called by a plan: this operation does not return, and no later one does anything."""
        self._is_off = True
        raise PowerLoss

    def step(self, operation: str, path: Path) -> None:
        """Every operation passes here first."""
        if self._is_off:
            raise PowerLoss
        if self.plan is not None:
            self.plan(operation, path.name)

    def after_kill(self) -> FaultDisk:
        """The disk as the next process finds it: everything that was written, synced or not."""
        self._is_off = True
        with self._lock:
            other = FaultDisk()
            other._names = dict(self._names)
            other._durable_names = dict(self._durable_names)
            other._pending_names = list(self._pending_names)
            other._databases = dict(self._databases)
            return other

    def after_power_loss(self, random: Random) -> FaultDisk:
        """The disk as the next start of the machine finds it."""
        self._is_off = True
        with self._lock:
            names = dict(self._durable_names)
            # A journalling file system keeps the order of what it does to a directory.
            kept = self._pending_names[: random.randint(0, len(self._pending_names))]
            for path, content in kept:
                _set_name(names, path, content)
            contents = {id(content): _survivor(content, random) for content in names.values()}
            other = FaultDisk()
            other._names = {path: contents[id(content)] for path, content in names.items()}
            other._durable_names = dict(other._names)
            other._databases = dict(self._databases)
            return other

    def read_whole(self, name: str) -> bytes:
        """For tests: the content of the file with that name."""
        return bytes(next(content for path, content in self._names.items() if path.name == name).cached)

    def flip_bit(self, name: str, offset: int) -> None:
        """For tests: damage one byte, on the device and in the cache."""
        content = next(content for path, content in self._names.items() if path.name == name)
        content.cached[offset] ^= 1
        if offset < len(content.durable):
            content.durable[offset] ^= 1

    # What `Disk` promises

    def open_for_write(self, path: Path) -> DiskFile:
        self.step("open", path)
        with self._lock:
            if path not in self._names:
                self.step("create", path)
                self._change_name(path, _Content())
            return FaultFile(self, path, self._names[path], self._lock)

    def open_for_read(self, path: Path) -> DiskFile:
        self.step("open", path)
        with self._lock:
            if path not in self._names:
                raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
            return FaultFile(self, path, self._names[path], self._lock)

    def open_direct(self, path: Path) -> None:
        """There is no kernel below that could write in the background."""

    def make_directory(self, path: Path) -> None:
        self.step("make_directory", path)

    def list_names(self, directory: Path) -> list[str]:
        with self._lock:
            return [path.name for path in self._names if path.parent == directory]

    def exists(self, path: Path) -> bool:
        with self._lock:
            return path in self._names

    def rename(self, source: Path, target: Path) -> None:
        self.step("rename", source)
        with self._lock:
            content = self._names[source]
            self._change_name(target, content)
            self._change_name(source, None)

    def unlink(self, path: Path) -> None:
        self.step("unlink", path)
        with self._lock:
            if path in self._names:
                self._change_name(path, None)

    def sync_directory(self, directory: Path) -> None:
        self.step("sync_directory", directory)
        with self._lock:
            for path, content in self._pending_names:
                _set_name(self._durable_names, path, content)
            self._pending_names.clear()

    def open_file_system(self, directory: Path) -> FileSystemSync | None:
        return None

    def open_database(self, path: Path) -> sqlite3.Connection:
        self.step("open", path)
        connection = sqlite3.connect(
            ":memory:", isolation_level=None, check_same_thread=False, factory=_FaultConnection
        )
        if path in self._databases:
            connection.deserialize(self._databases[path])
        connection.bind(self, path)
        return connection

    def committed(self, path: Path, database: bytes) -> None:
        """A transaction of the database is durable."""
        self._databases[path] = database

    def _change_name(self, path: Path, content: _Content | None) -> None:
        _set_name(self._names, path, content)
        self._pending_names.append((path, content))


class FaultFile(DiskFile):
    """A file of a FaultDisk."""

    def __init__(self, disk: FaultDisk, path: Path, content: _Content, lock: Any) -> None:
        self._disk = disk
        self._path = path
        self._content = content
        self._lock = lock

    def write_at(self, pieces: Pieces, offset: int, *, durable: bool) -> None:
        data = b"".join(pieces)
        with self._lock:
            try:
                self._disk.step("write_durably" if durable else "write", self._path)
            except PowerLoss:
                # The bytes were on their way: any part of them may arrive.
                self._content.pending.append((offset, data, False))
                raise
            _write(self._content.cached, offset, data)
            self._content.pending.append((offset, data, durable))

    def read_at(self, length: int, offset: int) -> bytes:
        self._disk.step("read", self._path)
        with self._lock:
            return bytes(self._content.cached[offset : offset + length])

    def sync(self) -> None:
        with self._lock:
            self._disk.step("sync", self._path)
            self._content.durable[:] = self._content.cached
            self._content.pending.clear()

    def size(self) -> int:
        return len(self._content.cached)

    def truncate(self, size: int) -> None:
        with self._lock:
            self._disk.step("truncate", self._path)
            _truncate(self._content.cached, size)
            self._content.pending.append((-1, size.to_bytes(8, "little"), False))

    def close(self) -> None:
        """Nothing is held."""


class _FaultConnection(sqlite3.Connection):
    """SQLite in memory whose commits the disk remembers."""

    _disk: FaultDisk | None = None
    _path = Path()

    def bind(self, disk: FaultDisk, path: Path) -> None:
        self._disk = disk
        self._path = path

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        if sql != "COMMIT" or self._disk is None:
            return super().execute(sql, parameters)
        try:
            self._disk.step("commit", self._path)
        except OSError as error:
            raise sqlite3.OperationalError(str(error)) from error
        cursor = super().execute(sql, parameters)
        self._disk.committed(self._path, self.serialize())
        try:
            self._disk.step("committed", self._path)
        except OSError as error:
            raise sqlite3.OperationalError(str(error)) from error
        return cursor


def _set_name(names: dict[Path, _Content], path: Path, content: _Content | None) -> None:
    if content is None:
        names.pop(path, None)
    else:
        names[path] = content


def _write(target: bytearray, offset: int, data: bytes) -> None:
    if len(target) < offset:
        target.extend(bytes(offset - len(target)))
    target[offset : offset + len(data)] = data


def _truncate(target: bytearray, size: int) -> None:
    if len(target) > size:
        del target[size:]
    else:
        target.extend(bytes(size - len(target)))


def _survivor(content: _Content, random: Random) -> _Content:
    """The device's bytes and, of each write that was not synced, all, a torn part, or nothing."""
    survivor = content.copy_as_durable()
    for offset, data, is_durable in content.pending:
        fate = "whole" if is_durable else random.choice(("lost", "torn", "torn", "whole"))
        if offset < 0:
            if fate != "lost":
                _truncate(survivor.cached, int.from_bytes(data, "little"))
        elif fate != "lost":
            kept = data if fate == "whole" else data[: random.randint(0, len(data))]
            _write(survivor.cached, offset, kept)
    survivor.durable = bytearray(survivor.cached)
    return survivor
