"""A file system that records its operations, to reconstruct states after a power cut (`cut_states.py`).

The files, the threads and the kernel's background writes are real; databases are SQLite's (`disk_database.py`). The
record is one list in call order: a write is recorded before it begins, because any part of it may arrive from then
on. A sync covers the record up to its beginning, and counts when it has returned. `note` adds what clients were told.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.disk_database import open_on_disk

from pybroker.disk.direct_io import DirectFile, DirectWriter
from pybroker.disk.disk import Disk, DiskFile, FileSystemSync, Pieces
from pybroker.disk.marker_file import MappedFile

DIRECTORY = -1  # replaces a file number for directories


@dataclass(frozen=True, slots=True)
class Write:
    """Bytes of a file; durable when `Synced` covers them."""

    file: int
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Resized:
    """A file was truncated, or extended by zeros."""

    file: int
    size: int


@dataclass(frozen=True, slots=True)
class Renamed:
    """Atomic name changes: each path, and the file that it names from now on."""

    changes: tuple[tuple[Path, int | None], ...]


@dataclass(frozen=True, slots=True)
class Synced:
    """Everything of a file in the record before `covers` is durable; only one write if `write` is set."""

    file: int
    covers: int
    write: int | None = None


@dataclass(frozen=True, slots=True)
class SyncedNames:
    """The names in a directory are durable; without a directory, all names and files."""

    directory: Path | None
    covers: int


@dataclass(frozen=True, slots=True)
class Note:
    """A fact that a client was told."""

    kind: str
    value: Any


Event = Write | Resized | Renamed | Synced | SyncedNames | Note


class RecordedDisk(Disk):
    """Records one directory, beginning with its current content."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.events: list[Event] = []
        self.lock = threading.RLock()
        self._files: dict[Path, int] = {}
        self._adopt()
        self.begin = len(self.events)

    def _adopt(self) -> None:
        """Treat the existing content as durable."""
        for path in sorted(self.root.rglob("*")):
            if path.is_dir():
                self._files[path] = DIRECTORY
                self.events.append(Renamed(((path, DIRECTORY),)))
            else:
                self.events.append(Write(self._number(path), 0, path.read_bytes()))
        self.events.append(SyncedNames(None, len(self.events)))

    def note(self, kind: str, value: object) -> None:
        with self.lock:
            self.log(Note(kind, value))

    def log(self, event: Event) -> int:
        """Append to the record, with or without the lock held. Return the event's index."""
        with self.lock:
            self.events.append(event)
            return len(self.events) - 1

    def end_of_record(self) -> int:
        with self.lock:
            return len(self.events)

    def _number(self, path: Path) -> int:
        """Return the number of a file; a new one if it is unknown."""
        number = self._files.get(path)
        if number is None:
            number = self._files[path] = len(self.events)
            self.events.append(Renamed(((path, number),)))
        return number

    # What `Disk` promises

    def open_for_write(self, path: Path) -> DiskFile:
        with self.lock:
            file = super().open_for_write(path)
            return RecordedFile(self, self._number(path), file)

    def map_file(self, path: Path, size: int) -> MappedFile:
        with self.lock:
            return RecordedMemory(self, self._number(path), os.open(path, os.O_RDWR | os.O_CLOEXEC), size)

    def open_direct(self, path: Path) -> DirectFile | None:
        file = super().open_direct(path)
        if file is None:
            return None
        recorded = RecordedDirectFile(file.descriptor)
        with self.lock:
            recorded.number = self._number(path)
        return recorded

    def direct_writer(self) -> DirectWriter:
        return RecordedDirectWriter(self)

    def make_directory(self, path: Path) -> None:
        with self.lock:
            for parent in reversed((path, *path.parents)):
                if self.root in parent.parents and parent not in self._files:
                    self._files[parent] = DIRECTORY
                    self.log(Renamed(((parent, DIRECTORY),)))
        super().make_directory(path)

    def rename(self, source: Path, target: Path) -> None:
        with self.lock:
            super().rename(source, target)
            number = self._files[target] = self._files.pop(source)
            self.log(Renamed(((target, number), (source, None))))

    def unlink(self, path: Path) -> None:
        with self.lock:
            super().unlink(path)
            if self._files.pop(path, None) is not None:
                self.log(Renamed(((path, None),)))

    def sync_directory(self, directory: Path) -> None:
        covers = self.end_of_record()
        super().sync_directory(directory)
        self.log(SyncedNames(directory, covers))

    def open_file_system(self, directory: Path) -> FileSystemSync | None:
        return RecordedFileSystem(self, os.open(directory, os.O_RDONLY | os.O_CLOEXEC))

    def open_database(self, path: Path) -> sqlite3.Connection:
        return open_on_disk(self, path)


class RecordedFile(DiskFile):
    """A recorded file."""

    def __init__(self, disk: RecordedDisk, number: int, file: DiskFile) -> None:
        super().__init__(file._descriptor)
        self._disk = disk
        self._number = number

    def write_at(self, pieces: Pieces, offset: int, *, durable: bool) -> None:
        data = b"".join(pieces)
        with self._disk.lock:
            place = self._disk.log(Write(self._number, offset, data))
            if not durable:
                super().write_at((data,), offset, durable=False)
                return
        super().write_at((data,), offset, durable=True)
        self._disk.log(Synced(self._number, 0, place))

    def truncate(self, size: int) -> None:
        with self._disk.lock:
            super().truncate(size)
            self._disk.log(Resized(self._number, size))

    def allocate(self, size: int) -> None:
        with self._disk.lock:
            self._disk.log(Resized(self._number, max(size, self.size())))
        super().allocate(size)

    def sync(self) -> None:
        covers = self._disk.end_of_record()
        super().sync()
        self._disk.log(Synced(self._number, covers))


class RecordedMemory(MappedFile):
    """A recorded mapped file."""

    def __init__(self, disk: RecordedDisk, number: int, descriptor: int, size: int) -> None:
        super().__init__(descriptor, size)
        self._disk = disk
        self._number = number

    def write(self, data: bytes, offset: int) -> None:
        with self._disk.lock:
            self._disk.log(Write(self._number, offset, data))
            super().write(data, offset)

    def sync(self) -> None:
        covers = self._disk.end_of_record()
        super().sync()
        self._disk.log(Synced(self._number, covers))


class RecordedDirectFile(DirectFile):
    """A recorded file for direct IO."""

    number: int


class RecordedDirectWriter(DirectWriter):
    """Recorded background writes of the kernel."""

    def __init__(self, disk: RecordedDisk) -> None:
        super().__init__()
        self._disk = disk
        self._under_way = (0, 0)

    def submit(self, file: DirectFile, pieces: Sequence[bytes], offset: int) -> None:
        assert isinstance(file, RecordedDirectFile)
        data = b"".join(pieces)
        padded = data.ljust(-(-len(data) // 512) * 512, b"\0")
        self._under_way = (file.number, self._disk.log(Write(file.number, offset, padded)))
        super().submit(file, pieces, offset)

    def finish(self) -> bool:
        if not super().finish():
            return False
        number, place = self._under_way
        self._disk.log(Synced(number, 0, place))
        return True


class RecordedFileSystem(FileSystemSync):
    """A recorded sync of everything."""

    def __init__(self, disk: RecordedDisk, descriptor: int) -> None:
        super().__init__(descriptor)
        self._disk = disk

    def sync(self) -> None:
        # Does not wait for other files on this machine: only the record counts.
        self._disk.log(SyncedNames(None, self._disk.end_of_record()))
