"""A disk in memory with faults: the replacement for `disk.py` in crash tests.

It keeps what a process sees (the page cache) separate from what the device has. `after_power_loss` returns the disk
after a power cut: synced bytes, and a random part of the others (`fault_content.py`). `after_kill` returns the disk
after the loss of the process only. Names are durable after a sync of their directory; until then they survive in the
order of their creation, or each independently, at random. Databases are SQLite's own, on these files
(`disk_database.py`).

`plan` is called before every operation. It may raise (no space, IO errors, a power cut during the operation), or
wait, as a slow disk does. With `capacity_bytes` the disk can become full. With `writes_direct` the journal is written
in the background, as by a kernel with direct IO, with the same faults.

Invariant: nothing that was promised durable is ever lost; otherwise the tests would prove nothing.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any, NoReturn

from tests.support.disk_database import open_on_disk
from tests.support.fault_content import Content

from pybroker.disk.database import Database
from pybroker.disk.direct_io import ALIGNMENT, DirectFile, DirectWriter
from pybroker.disk.disk import Disk, DiskFile, FileSystemSync, Pieces, SpaceFigures
from pybroker.disk.marker_file import MappedFile
from pybroker.disk.shortage import lacks_room
from pybroker.runtime.threads import Threads

# Called with operation and file name. Raises to make the operation fail.
FaultPlan = Callable[[str, str], None]


class PowerLoss(OSError):
    """The power is off; all later operations of this disk fail, too."""

    def __init__(self, kept_bytes: int | None = None) -> None:
        """`kept_bytes` of the current write have arrived; None: random."""
        super().__init__(errno.EIO, "power lost")
        self.kept_bytes = kept_bytes


class PartialWrite(OSError):
    """Raised by plans: the write fails after this number of bytes."""

    def __init__(self, number: int, kept_bytes: int) -> None:
        super().__init__(number, os.strerror(number))
        self.kept_bytes = kept_bytes


# The atomic name changes of one call; a rename is two changes.
_NameChanges = tuple[tuple[Path, Content | None], ...]


class FaultDisk(Disk):
    """A file system with one flat table of names."""

    def __init__(self, *, writes_direct: bool = False, capacity_bytes: int | None = None) -> None:
        self.plan: FaultPlan | None = None
        self.capacity_bytes = capacity_bytes
        self.delay_s = 0.0  # of every operation except name changes
        self._writes_direct = writes_direct
        self._lock = threading.RLock()
        self._names: dict[Path, Content] = {}
        self._durable_names: dict[Path, Content] = {}
        self._pending_names: list[_NameChanges] = []
        self._random = Random(0)  # for writes that have arrived when a sync fails
        self.is_off = False

    def cut_power(self, kept_bytes: int | None = None) -> NoReturn:
        """Called by a plan: this operation and all later ones fail."""
        self.is_off = True
        raise PowerLoss(kept_bytes)

    def cut_power_after(self, operations: int, kept_bytes: int | None = None, *, of: str | None = None) -> None:
        """Cut the power after `operations` more operations (`cut_power`). Replaces `plan`.

        `of`: count only operations of this name; others, such as those of background threads, continue until then.
        """
        left = operations

        def plan(operation: str, _name: str) -> None:
            nonlocal left
            left -= of is None or operation == of
            if left < 0:
                self.cut_power(kept_bytes)

        self.plan = plan

    def step(self, operation: str, path: Path) -> None:
        """Called first by every operation."""
        self.require_power()
        if self.delay_s:
            time.sleep(self.delay_s)
        if self.plan is not None:
            self.plan(operation, path.name)

    def require_power(self) -> None:
        """Raises PowerLoss once the machine is off."""
        if self.is_off:
            raise PowerLoss

    def require_space(self, growth_bytes: int) -> None:
        """Raise ENOSPC if a file cannot grow by that size."""
        if self.capacity_bytes is not None and growth_bytes > self.capacity_bytes - self._used_bytes():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _used_bytes(self) -> int:
        return sum(content.size_bytes for content in self._names.values())

    def after_kill(self) -> FaultDisk:
        """Return the disk that the next process finds: everything written, synced or not."""
        self.is_off = True
        with self._lock:
            other = FaultDisk(writes_direct=self._writes_direct, capacity_bytes=self.capacity_bytes)
            other._names = dict(self._names)
            other._durable_names = dict(self._durable_names)
            other._pending_names = list(self._pending_names)
            return other

    def after_power_loss(self, random: Random) -> FaultDisk:
        """Return the disk after a power loss."""
        self.is_off = True
        with self._lock:
            names = dict(self._durable_names)
            for changes in self._surviving_changes(random):
                _set_names(names, changes)
            contents = {id(content): content.after_power_loss(random) for content in names.values()}
            other = FaultDisk(writes_direct=self._writes_direct, capacity_bytes=self.capacity_bytes)
            other._random.seed(random.random())
            other._names = {path: contents[id(content)] for path, content in names.items()}
            other._durable_names = dict(other._names)
            return other

    def _surviving_changes(self, random: Random) -> list[_NameChanges]:
        """Return the unsynced name changes that survive: in order on a journalling file system, otherwise any of
        them.
        """
        pending = self._pending_names
        if random.random() < 0.5:
            return pending[: random.randint(0, len(pending))]
        return [changes for changes in pending if random.random() < 0.5]

    def read_whole(self, name: str) -> bytes:
        """Return the content of a file."""
        return bytes(next(content for path, content in self._names.items() if path.name == name).cached)

    def flip_bit(self, name: str, offset: int) -> None:
        """Flip one bit on the device and in the cache."""
        content = next(content for path, content in self._names.items() if path.name == name)
        content.cached[offset] ^= 1
        if offset < len(content.durable):
            content.durable[offset] ^= 1

    # What `Disk` promises

    def open_for_write(self, path: Path) -> DiskFile:
        self.step("open", path)
        if path not in self._names:
            self.step("create", path)
        with self._lock:
            if path not in self._names:
                self.require_power()
                self._change_names((path, Content()))
            return FaultFile(self, path, self._names[path], self._lock)

    def open_for_read(self, path: Path) -> DiskFile:
        self.step("open", path)
        with self._lock:
            if path not in self._names:
                raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
            return FaultFile(self, path, self._names[path], self._lock)

    def open_direct(self, path: Path) -> DirectFile | None:
        if not self._writes_direct:
            return None
        self.step("open", path)
        with self._lock:
            return FaultDirectFile(FaultFile(self, path, self._names[path], self._lock))

    def map_file(self, path: Path, size: int) -> MappedFile:
        return FaultMappedFile(FaultFile(self, path, self._names[path], self._lock))

    def direct_writer(self) -> DirectWriter:
        return FaultDirectWriter()

    def space(self, directory: Path) -> SpaceFigures | None:
        if self.capacity_bytes is None:
            return None
        self.require_power()
        with self._lock:
            return SpaceFigures(self.capacity_bytes, max(0, self.capacity_bytes - self._used_bytes()))

    def expect_read(self, path: Path) -> None:
        """Do nothing: it is only a hint."""

    def thread_of(self, threads: Threads, name: str) -> Executor:
        """Return no thread: with one order of operations, a plan is deterministic."""
        return InlineExecutor()

    def make_directory(self, path: Path) -> None:
        self.step("make_directory", path)

    def list_names(self, directory: Path) -> list[str]:
        with self._lock:
            return [path.name for path in self._names if path.parent == directory]

    def file_sizes(self, directory: Path) -> dict[str, int]:
        with self._lock:
            return {path.name: content.size_bytes for path, content in self._names.items() if path.parent == directory}

    def exists(self, path: Path) -> bool:
        with self._lock:
            return path in self._names

    def rename(self, source: Path, target: Path) -> None:
        self.step("rename", source)
        with self._lock:
            content = self._names[source]
            self._change_names((target, content), (source, None))

    def unlink(self, path: Path) -> None:
        self.step("unlink", path)
        with self._lock:
            if path in self._names:
                self._change_names((path, None))

    def sync_directory(self, directory: Path) -> None:
        self.step("sync_directory", directory)
        with self._lock:
            self._sync_names(directory)

    def open_file_system(self, directory: Path) -> FileSystemSync | None:
        return FaultFileSystemSync(self)

    def sync_all(self) -> None:
        """Every file and every name."""
        with self._lock:
            self.require_power()
            for content in self._names.values():
                content.sync()
            self._sync_names(None)

    def fail_sync_of_all(self) -> None:
        """Fail a sync of everything; of each file, any part may have arrived."""
        with self._lock:
            for content in self._names.values():
                content.fail_sync(self._random)

    def fail_sync(self, content: Content) -> None:
        """A sync of one file fails."""
        with self._lock:
            content.fail_sync(self._random)

    def open_database(self, path: Path) -> sqlite3.Connection:
        connection = open_on_disk(self, path, _FaultConnection)
        assert isinstance(connection, _FaultConnection)
        connection.has_plan = True
        return connection

    def _change_names(self, *changes: tuple[Path, Content | None]) -> None:
        _set_names(self._names, changes)
        self._pending_names.append(changes)

    def _sync_names(self, directory: Path | None) -> None:
        """Sync the names of one directory, or of all."""
        kept = []
        for changes in self._pending_names:
            if directory is None or all(path.parent == directory for path, _ in changes):
                _set_names(self._durable_names, changes)
            else:
                kept.append(changes)
        self._pending_names = kept


class FaultFile(DiskFile):
    """A file of a FaultDisk."""

    def __init__(self, disk: FaultDisk, path: Path, content: Content, lock: Any) -> None:
        self._disk = disk
        self._path = path
        self._content = content
        self._lock = lock

    def write_at(self, pieces: Pieces, offset: int, *, durable: bool) -> None:
        data = b"".join(pieces)
        try:
            # Outside of the lock, so that a slow operation does not block others.
            self._disk.step("write_durably" if durable else "write", self._path)
        except PowerLoss as loss:
            # Any part of the bytes may arrive.
            with self._lock:
                self._content.arrive_in_part(offset, data, loss.kept_bytes)
            raise
        except PartialWrite as fault:
            self._put(offset, data[: fault.kept_bytes], durable=False)
            raise
        self._put(offset, data, durable=durable)

    def _put(self, offset: int, data: bytes, *, durable: bool) -> None:
        with self._lock:
            self._disk.require_power()
            self._disk.require_space(max(0, offset + len(data) - len(self._content.cached)))
            self._content.write(offset, data, durable=durable)

    def put_in_memory(self, offset: int, data: bytes) -> None:
        """Write without a disk operation; does nothing after a power loss."""
        with self._lock:
            if not self._disk.is_off:
                self._content.write(offset, data, durable=False)

    def bytes_in_memory(self) -> bytes:
        """Read without a disk operation."""
        with self._lock:
            return bytes(self._content.cached)

    def allocate(self, size: int) -> None:
        self._disk.step("write", self._path)
        with self._lock:
            self._disk.require_power()
            self._disk.require_space(size - self._content.size_bytes)
            self._content.allocated_bytes = size
        self.sync()

    def read_at(self, length: int, offset: int) -> bytes:
        self._disk.step("read", self._path)
        with self._lock:
            return bytes(self._content.cached[offset : offset + length])

    def read_into(self, buffer: bytearray) -> int:
        data = self.read_at(len(buffer), 0)
        buffer[: len(data)] = data
        return len(data)

    def sync(self) -> None:
        try:
            self._disk.step("sync", self._path)
        except PowerLoss:
            raise
        except OSError:
            self._disk.fail_sync(self._content)
            raise
        with self._lock:
            self._disk.require_power()
            self._content.sync()

    def size(self) -> int:
        return self._content.size_bytes

    def truncate(self, size: int) -> None:
        self._disk.step("truncate", self._path)
        with self._lock:
            self._disk.require_power()
            self._disk.require_space(size - len(self._content.cached))
            self._content.truncate(size)

    def close(self) -> None:
        """Nothing is held."""


class FaultMappedFile(MappedFile):
    """Memory of a FaultDisk. Writes never fail; unsynced ones may be lost or torn in a crash."""

    def __init__(self, file: FaultFile) -> None:
        self._file = file

    def content(self) -> bytes:
        return self._file.bytes_in_memory()

    def write(self, data: bytes, offset: int) -> None:
        self._file.put_in_memory(offset, data)

    def sync(self) -> None:
        self._file.sync()

    def close(self) -> None:
        """Nothing is held."""


class FaultDirectFile(DirectFile):
    """A file of a FaultDisk for background writes."""

    def __init__(self, file: FaultFile) -> None:
        super().__init__(-1)
        self.file = file

    def close(self) -> None:
        """Nothing is held."""


class FaultDirectWriter(DirectWriter):
    """A thread in place of the kernel. It calls `plan`, whose exception is the result of the write."""

    def __init__(self) -> None:
        self.event_descriptor, self._told = os.pipe()
        os.set_blocking(self.event_descriptor, False)
        self.is_busy = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="fault-disk")
        self._write: Future[None]

    def submit(self, file: DirectFile, pieces: Sequence[bytes], offset: int) -> None:
        assert isinstance(file, FaultDirectFile)
        assert not self.is_busy, "one write at a time"
        data = b"".join(pieces)
        padded = data.ljust(-(-len(data) // ALIGNMENT) * ALIGNMENT, b"\0")
        self.is_busy = True
        self._write = self._thread.submit(file.file.write_at, (padded,), offset, durable=True)
        self._write.add_done_callback(lambda _: os.write(self._told, b"."))

    def finish(self) -> bool:
        try:
            os.read(self.event_descriptor, 1)
        except BlockingIOError:
            return False
        self.is_busy = False
        self._write.result()
        return True

    def close(self) -> None:
        self._thread.shutdown()
        os.close(self.event_descriptor)
        os.close(self._told)


class InlineExecutor(Executor):
    """A pool that runs work when it is submitted."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - as an executor does
            future.set_exception(error)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Nothing runs."""


class FaultFileSystemSync(FileSystemSync):
    """A sync of everything, which fails like that of one file: the operation's name is `sync_all`."""

    def __init__(self, disk: FaultDisk) -> None:
        self._disk = disk

    def sync(self) -> None:
        try:
            self._disk.step("sync_all", Path("/"))
        except PowerLoss:
            raise
        except OSError:
            self._disk.fail_sync_of_all()
            raise
        self._disk.sync_all()

    def close(self) -> None:
        """Nothing is held."""


class _FaultConnection(Database):
    """A connection whose statements call the disk's plan: `read` before each SELECT, and `commit`."""

    has_plan = False  # not before it is open

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        if self.has_plan and isinstance(self._disk, FaultDisk):
            if sql.startswith("SELECT"):
                self._step(self._disk, "read")
            if sql == "COMMIT":
                self._step(self._disk, "commit")
        return super().execute(sql, parameters)

    def _step(self, disk: FaultDisk, operation: str) -> None:
        try:
            disk.step(operation, self._path)
        except OSError as error:
            failure = sqlite3.OperationalError(str(error))
            failure.sqlite_errorcode = sqlite3.SQLITE_FULL if lacks_room(error) else sqlite3.SQLITE_IOERR
            raise failure from error


def _set_names(names: dict[Path, Content], changes: _NameChanges) -> None:
    for path, content in changes:
        if content is None:
            names.pop(path, None)
        else:
            names[path] = content
