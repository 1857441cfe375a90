"""The only module that opens files of ledgers, the journal, checkpoints and metadata: what the stores need of a file system, and
no more.

What must always hold: a call that promises durability returns only when the device has the bytes, or raises. Nothing is
retried here: after a failed sync the kernel may have dropped the bytes, so only the caller can know what that means.
`tests/support/fault_disk.py` is the twin that loses, tears, refuses and is slow; both are used through these classes.

Concurrency: every method may be called from any thread; one handle is written by one thread at a time.
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

from pybroker.disk.database import Database, log_of, parked_log
from pybroker.disk.device_sync import sync_to_device
from pybroker.disk.direct_io import DirectFile, DirectWriter, open_direct
from pybroker.disk.marker_file import MappedFile
from pybroker.disk.shortage import lacks_room
from pybroker.runtime.threads import Threads

Pieces = Sequence["bytes | memoryview"]

# Messages and secrets of others may be in these files.
OWNER_ONLY_FILE = 0o600
_OWNER_ONLY_DIRECTORY = 0o700
# More pieces are joined first: the kernel takes at most this many in one call.
_MAX_PIECES = 1000
_DURABLE_WRITE = getattr(os, "RWF_DSYNC", None)
_WILL_NEED = getattr(os, "POSIX_FADV_WILLNEED", None)
_HAS_SYNC_FILE_SYSTEM = sys.platform == "linux"
_ALLOCATE = getattr(os, "posix_fallocate", None)
_ZEROS = bytes(1 << 20)


def make_private(path: Path) -> None:
    """Make the file, empty, if it is missing: what SQLite makes itself, others may read. Its side files have its mode."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, OWNER_ONLY_FILE))


class DiskFile:
    """One open file."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def write_at(self, pieces: Pieces, offset: int, *, durable: bool) -> None:
        """Write all pieces, one after the other, at `offset`; with `durable`, onto the device (one call where possible)."""
        if len(pieces) > _MAX_PIECES:
            pieces = (b"".join(pieces),)
        flags = _DURABLE_WRITE if durable and _DURABLE_WRITE is not None else 0
        total = sum(map(len, pieces))
        written = os.pwritev(self._descriptor, pieces, offset, flags)
        if written < total:
            # A short write is no error; the rest is tried until there is one.
            rest = memoryview(b"".join(pieces))
            while written < total:
                written += os.pwritev(self._descriptor, (rest[written:],), offset + written, flags)
        if durable and _DURABLE_WRITE is None:
            self.sync()

    def read_at(self, length: int, offset: int) -> bytes:
        """Up to `length` bytes; fewer only at the end of the file."""
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
        """Fill `buffer` from the start of the file; how many bytes came, fewer only at the end of the file.

        For large files one after the other: touching new memory costs more than the copy.
        """
        view = memoryview(buffer)
        done = 0
        while done < len(view) and (count := os.preadv(self._descriptor, (view[done:],), done)):
            done += count
        return done

    def send_to(self, descriptor: int, offset: int, length: int) -> int:
        """Hand up to `length` bytes to a socket, in the kernel; how many. Raises OSError, BlockingIOError among it."""
        return os.sendfile(descriptor, self._descriptor, offset, length)

    def sync(self) -> None:
        """Everything written so far is on the device, and the size with it."""
        sync_to_device(self._descriptor)

    def allocate(self, size: int) -> None:
        """Take `size` bytes of the file system, whatever they hold."""
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
    """How large a file system is, and how much of it this process may still use."""

    total_bytes: int
    free_bytes: int


class Disk:
    """The file system."""

    def open_for_write(self, path: Path) -> DiskFile:
        """Open for reading and writing; a missing file is made, empty."""
        return DiskFile(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, OWNER_ONLY_FILE))

    def open_for_read(self, path: Path) -> DiskFile:
        return DiskFile(os.open(path, os.O_RDONLY | os.O_CLOEXEC))

    def open_mapped(self, path: Path, size: int) -> MappedFile:
        """Open a file as memory. A file of another size is first cut, or filled up with zeros, durably."""
        with self.open_for_write(path) as file:
            if file.size() != size:
                # Written and not only extended: a page without a block would need space when it is first written, and without
                # space the process would end.
                file.write_at((file.read_at(size, 0).ljust(size, b"\0"),), 0, durable=False)
                file.truncate(size)
                file.sync()
                self.sync_directory(path.parent)
        return self.map_file(path, size)

    def map_file(self, path: Path, size: int) -> MappedFile:
        """For `open_mapped`: a file that is there and has that size, as memory. Raises OSError."""
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            return MappedFile(descriptor, size)
        except BaseException:
            os.close(descriptor)
            raise

    def open_direct(self, path: Path) -> DirectFile | None:
        """For writes past the page cache (see `direct_io.py`); None where the file system has no such thing."""
        return open_direct(path)

    def direct_writer(self) -> DirectWriter:
        """What writes files of `open_direct` in the background. Raises OSError when this system has no such IO."""
        return DirectWriter()

    def space(self, directory: Path) -> SpaceFigures | None:
        """Of the file system that holds `directory`; None when it has no such figures."""
        figures = os.statvfs(directory)
        return SpaceFigures(figures.f_blocks * figures.f_frsize, figures.f_bavail * figures.f_frsize)

    def expect_read(self, path: Path) -> None:
        """A hint: the whole file will be read soon, the system may begin now."""
        if _WILL_NEED is not None:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.posix_fadvise(descriptor, 0, 0, _WILL_NEED)
            finally:
                os.close(descriptor)

    def thread_of(self, threads: Threads, name: str) -> Executor:
        """One of `threads` for operations beside those of the caller."""
        return threads.pool(name)

    def make_directory(self, path: Path) -> None:
        """Make the directory and those above it, durably and for their owner only; an existing one is fine."""
        missing = [parent for parent in (path, *path.parents) if not parent.exists()]
        for parent in reversed(
            missing or [path]
        ):  # a file in its place raises, and an earlier start may have been cut off
            parent.mkdir(mode=_OWNER_ONLY_DIRECTORY, exist_ok=True)
            self.sync_directory(parent.parent)

    def list_names(self, directory: Path) -> list[str]:
        return [entry.name for entry in os.scandir(directory)]

    def file_sizes(self, directory: Path) -> dict[str, int]:
        """The files in `directory` by name."""
        return {entry.name: entry.stat().st_size for entry in os.scandir(directory)}

    def exists(self, path: Path) -> bool:
        return path.exists()

    def rename(self, source: Path, target: Path) -> None:
        source.rename(target)

    def unlink(self, path: Path) -> None:
        """Remove the file; a missing one is fine."""
        path.unlink(missing_ok=True)

    def sync_directory(self, directory: Path) -> None:
        """Files made, renamed and removed in `directory` stay so."""
        descriptor = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def open_file_system(self, directory: Path) -> FileSystemSync | None:
        """A way to sync all files at once, where the system has one: to be opened before the writes it shall cover."""
        return FileSystemSync(os.open(directory, os.O_RDONLY | os.O_CLOEXEC)) if _HAS_SYNC_FILE_SYSTEM else None

    def rewrite_log(self, database: Path) -> None:
        """Put SQLite's log of `database`, as far as there is one, onto the device as it is read now.

        After a sync that failed the system shows what the device never got, and no later sync brings it there. SQLite would take
        such a frame for committed and put the next ones behind it, all of which a power cut would take away again.
        """
        path = log_of(database)
        if self.exists(aside := parked_log(path)):
            self.rename(aside, path)  # a close was cut off
        if not self.exists(path):
            return
        with self.open_for_write(path) as file:
            try:
                for offset in range(0, file.size(), len(_ZEROS)):
                    file.write_at((file.read_at(len(_ZEROS), offset),), offset, durable=False)
                file.sync()
            except OSError as error:
                # Only where a block is written to another place each time there may be no room for it.
                if not lacks_room(error):
                    raise

    def open_database(self, path: Path) -> sqlite3.Connection:
        """A SQLite file whose commits are durable, usable from any one thread at a time."""
        make_private(path)
        self.rewrite_log(path)
        connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, factory=Database)
        connection.bind(self, path)
        connection.set_up()
        return connection


class FileSystemSync:
    """syncfs(2): for many dirty files far cheaper than a sync of each, 0.02 s against 0.29 s for a thousand."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._library = ctypes.CDLL(None, use_errno=True)

    def sync(self) -> None:
        if self._library.syncfs(self._descriptor) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    def close(self) -> None:
        os.close(self._descriptor)
