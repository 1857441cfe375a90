"""File system operations of the stores. No other module opens files of ledgers, the journal, checkpoints or metadata.

A call that promises durability returns only when the device has the bytes, or raises. It retries nothing: after a
failed sync the kernel may have dropped the bytes. `tests/support/fault_disk.py` is a replacement that loses, tears,
refuses and delays writes.

Concurrency: any thread; one thread at a time writes to a handle.
"""

from __future__ import annotations

import ctypes
import os
import sqlite3
import sys
from collections.abc import Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import NamedTuple, Self

from pybroker.disk.database import OWNER_ONLY_FILE, Database, log_of, make_private_file, parked_log
from pybroker.disk.device_sync import sync_to_device
from pybroker.disk.direct_io import DirectFile, DirectWriter, open_direct
from pybroker.disk.marker_file import MappedFile
from pybroker.disk.shortage import lacks_room
from pybroker.runtime.threads import Threads

Pieces = Sequence["bytes | memoryview"]

_OWNER_ONLY_DIRECTORY = 0o700
# The kernel accepts at most this many in one call; more are joined first.
_MAX_PIECES = 1000
_DURABLE_WRITE = getattr(os, "RWF_DSYNC", None)
_WILL_NEED = getattr(os, "POSIX_FADV_WILLNEED", None)
_HAS_SYNC_FILE_SYSTEM = sys.platform == "linux"
_ALLOCATE = getattr(os, "posix_fallocate", None)
_ZEROS = bytes(1 << 20)


class DiskFile:
    """One open file, with durable writes."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def write_at(self, pieces: Pieces, offset: int, *, durable: bool) -> None:
        """Write all pieces consecutively at `offset`. With `durable`, return when the device has them."""
        if len(pieces) > _MAX_PIECES:
            pieces = (b"".join(pieces),)
        flags = _DURABLE_WRITE if durable and _DURABLE_WRITE is not None else 0
        total = sum(map(len, pieces))
        written = os.pwritev(self._descriptor, pieces, offset, flags)
        if written < total:
            # A short write is no error: retry the rest until an error occurs.
            rest = memoryview(b"".join(pieces))
            while written < total:
                written += os.pwritev(self._descriptor, (rest[written:],), offset + written, flags)
        if durable and _DURABLE_WRITE is None:
            self.sync()

    def read_at(self, length: int, offset: int) -> bytes:
        """Return `length` bytes from `offset` on, fewer only at the end of the file."""
        data = os.pread(self._descriptor, length, offset)
        if len(data) == length or not data:
            return data
        parts = [data]
        done = len(data)
        while done < length and (data := os.pread(self._descriptor, length - done, offset + done)):
            parts.append(data)
            done += len(data)
        return b"".join(parts)

    def read_into(self, buffer: bytearray) -> int:
        """Read the beginning of the file into `buffer`, and return the number of bytes."""
        view = memoryview(buffer)
        done = 0
        while done < len(view) and (count := os.preadv(self._descriptor, (view[done:],), done)):
            done += count
        return done

    def send_to(self, descriptor: int, offset: int, length: int) -> int:
        """Copy up to `length` bytes, beginning at `offset`, to a socket inside the kernel. Return the number of copied
        bytes. Raises OSError, including BlockingIOError.
        """
        return os.sendfile(descriptor, self._descriptor, offset, length)

    def sync(self) -> None:
        sync_to_device(self._descriptor)

    def allocate(self, size: int) -> None:
        if _ALLOCATE is not None:
            _ALLOCATE(self._descriptor, 0, size)
        else:
            for offset in range(0, size, len(_ZEROS)):
                self.write_at((_ZEROS[: size - offset],), offset, durable=False)
        self.sync()

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def truncate(self, size: int) -> None:
        os.ftruncate(self._descriptor, size)

    def close(self) -> None:
        os.close(self._descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class SpaceFigures(NamedTuple):
    """Size of a file system, and the space that this process may still use."""

    total_bytes: int
    free_bytes: int


class Disk:
    """The real file system. Tests replace it."""

    def open_for_write(self, path: Path) -> DiskFile:
        return DiskFile(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, OWNER_ONLY_FILE))

    def open_for_read(self, path: Path) -> DiskFile:
        return DiskFile(os.open(path, os.O_RDONLY | os.O_CLOEXEC))

    def open_mapped(self, path: Path, size: int) -> MappedFile:
        """Map a file into memory. A file of another size is first truncated or extended with zeros, durably."""
        with self.open_for_write(path) as file:
            if file.size() != size:
                # Zeros are written: a mapped page without a disk block could not be stored on a full disk, and the
                # kernel would kill the process.
                file.write_at((file.read_at(size, 0).ljust(size, b"\0"),), 0, durable=False)
                file.truncate(size)
                file.sync()
                self.sync_directory(path.parent)
        return self.map_file(path, size)

    def map_file(self, path: Path, size: int) -> MappedFile:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            return MappedFile(descriptor, size)
        except BaseException:
            os.close(descriptor)
            raise

    def open_direct(self, path: Path) -> DirectFile | None:
        return open_direct(path)

    def direct_writer(self) -> DirectWriter:
        return DirectWriter()

    def space(self, directory: Path) -> SpaceFigures | None:
        figures = os.statvfs(directory)
        return SpaceFigures(figures.f_blocks * figures.f_frsize, figures.f_bavail * figures.f_frsize)

    def expect_read(self, path: Path) -> None:
        """Advise the kernel that the whole file will be read soon."""
        if _WILL_NEED is not None:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.posix_fadvise(descriptor, 0, 0, _WILL_NEED)
            finally:
                os.close(descriptor)

    def thread_of(self, threads: Threads, name: str) -> Executor:
        return threads.pool(name)

    def make_directory(self, path: Path) -> None:
        """Create the directory and its parents durably, accessible only for the owner. It may exist already."""
        missing = [parent for parent in (path, *path.parents) if not parent.exists()]
        for parent in reversed(
            missing or [path]
        ):  # raises for a file at this path; an earlier start may have been interrupted
            parent.mkdir(mode=_OWNER_ONLY_DIRECTORY, exist_ok=True)
            self.sync_directory(parent.parent)

    def list_names(self, directory: Path) -> list[str]:
        return [entry.name for entry in os.scandir(directory)]

    def file_sizes(self, directory: Path) -> dict[str, int]:
        return {entry.name: entry.stat().st_size for entry in os.scandir(directory)}

    def exists(self, path: Path) -> bool:
        return path.exists()

    def rename(self, source: Path, target: Path) -> None:
        source.rename(target)

    def unlink(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def sync_directory(self, directory: Path) -> None:
        descriptor = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def open_file_system(self, directory: Path) -> FileSystemSync | None:
        """Return an object that syncs the whole file system of `directory`; None if the system cannot. Open it before
        the writes that it must cover.
        """
        return FileSystemSync(os.open(directory, os.O_RDONLY | os.O_CLOEXEC)) if _HAS_SYNC_FILE_SYSTEM else None

    def rewrite_log(self, database: Path) -> None:
        """Write the content of SQLite's log of `database`, if any, to the device again.

        After a failed sync, reads return data that the device never received, and no later sync writes it. SQLite would
        treat such data as committed and append to it, and a power failure would lose all of it.
        """
        path = log_of(database)
        if self.exists(aside := parked_log(path)):
            self.rename(aside, path)  # an earlier close was interrupted
        if not self.exists(path):
            return
        with self.open_for_write(path) as file:
            try:
                for offset in range(0, file.size(), len(_ZEROS)):
                    file.write_at((file.read_at(len(_ZEROS), offset),), offset, durable=False)
                file.sync()
            except OSError as error:
                # Only copy-on-write file systems may lack space here.
                if not lacks_room(error):
                    raise

    def open_database(self, path: Path) -> sqlite3.Connection:
        """Open a SQLite file with durable commits, for one thread at a time."""
        make_private_file(path)
        self.rewrite_log(path)
        connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, factory=Database)
        connection.bind(self, path)
        connection.set_up()
        return connection


class FileSystemSync:
    """syncfs(2), which is much faster than a sync of each of many files: 0.02 s against 0.29 s for a thousand."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._library = ctypes.CDLL(None, use_errno=True)

    def sync(self) -> None:
        if self._library.syncfs(self._descriptor) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    def close(self) -> None:
        os.close(self._descriptor)
