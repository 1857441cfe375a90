"""The journal's files: written in advance, used one after the other, and used again once a checkpoint covers them.

    spare-*.journal             not in use, any content
    <generation>.journal        in use or ready to be: header durable before it gets this name

What must always hold: a file named by its generation has a valid header of that generation; generations rise and are never
given twice; a file becomes spare only when every batch in it is covered by a committed checkpoint.

Concurrency: `take_next` and `release` may be called from any thread; files are made and retired by one background thread,
because writing 64 MiB of zeros must not delay an append.
"""

from __future__ import annotations

import os
import secrets
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from pybroker.storage.disk import Disk, DiskFile
from pybroker.storage.layout.journal import FILE_HEADER_BYTES, FileHeader, encode_file_header

# The very first file of a data directory is short, so that a cold start does not wait for a long one.
FIRST_FILE_BYTES = 4 << 20
MAX_SPARE_FILES = 2
_SUFFIX = ".journal"
_SPARE_PREFIX = "spare-"
_ZEROS = bytes(1 << 20)
_SYNC_EVERY_BYTES = 8 << 20


def journal_file_name(generation: int) -> str:
    return f"{generation:020d}{_SUFFIX}"


def parse_journal_file_name(name: str) -> int | None:
    """The generation in a name, None for spare files and others."""
    stem = name.removesuffix(_SUFFIX)
    return int(stem) if stem != name and stem.isdecimal() else None


class JournalFile:
    """A file that takes batches: the writer owns `offset` and `last_sequence`."""

    __slots__ = ("capacity_bytes", "direct_descriptor", "file", "header", "last_sequence", "offset", "path")

    def __init__(
        self, path: Path, file: DiskFile, direct_descriptor: int | None, header: FileHeader, capacity_bytes: int
    ) -> None:
        """`direct_descriptor` is for writes past the page cache; None where the disk has no such thing."""
        self.path = path
        self.file = file
        self.direct_descriptor = direct_descriptor
        self.header = header
        self.capacity_bytes = capacity_bytes
        self.offset = FILE_HEADER_BYTES
        self.last_sequence = -1

    def close(self) -> None:
        """No more batches."""
        if self.direct_descriptor is not None:
            os.close(self.direct_descriptor)
            self.direct_descriptor = None
        self.file.close()


class JournalFiles:
    """Gives the writer its next file, and takes files back."""

    def __init__(self, disk: Disk, directory: Path, file_bytes: int, next_generation: int) -> None:
        self._disk = disk
        self._directory = directory
        self._file_bytes = file_bytes
        self._next_generation = next_generation
        self._spares: list[Path] = []
        self._full: deque[JournalFile] = deque()
        self._current: JournalFile | None = None
        self._background = ThreadPoolExecutor(1, thread_name_prefix="journal-files")
        self._next: Future[JournalFile] | None = None

    def adopt(self, names: list[str]) -> None:
        """Files of earlier runs whose batches are all covered: keep some as spares, remove the others."""
        for name in names:
            path = self._directory / name
            if not name.endswith(_SUFFIX):
                continue
            self._retire(path, self._size(path))
        self._disk.sync_directory(self._directory)

    @property
    def current(self) -> JournalFile:
        """The file that takes batches now; made by `start`."""
        assert self._current is not None, "started"
        return self._current

    def start(self) -> None:
        """Make the first file of this run, now; the next one is made ready behind it."""
        size = self._file_bytes if self._spares else min(FIRST_FILE_BYTES, self._file_bytes)
        self._current = self._prepare(size)
        self._next = self._background.submit(self._prepare, self._file_bytes)

    def take_next(self) -> JournalFile:
        """The file after the current one; waits until it is ready. Raises OSError when it cannot be made (now)."""
        current = self.current
        ready = self._next or self._background.submit(self._prepare, self._file_bytes)
        self._next = None
        # After an error the next call tries again: space may have come back.
        file = ready.result()
        self._full.append(current)
        self._current = file
        self._next = self._background.submit(self._prepare, self._file_bytes)
        return file

    def release(self, sequence: int) -> None:
        """A checkpoint covers every batch before `sequence`: files that hold nothing else are free."""
        self._background.submit(self._release, sequence)

    def close(self) -> None:
        """Finish what runs and close the files. Called when no writer and no checkpoint is left."""
        self._background.shutdown(wait=True)
        if self._next is not None and self._next.exception() is None:
            self._next.result().close()
        for file in (*self._full, *([self._current] if self._current else [])):
            file.close()
        self._full.clear()
        self._current = None

    def _release(self, sequence: int) -> None:
        freed = 0
        while self._full and self._full[0].last_sequence < sequence:
            file = self._full.popleft()
            file.close()
            self._retire(file.path, file.capacity_bytes)
            freed += 1
        if freed:
            # Before a spare gets a new header: no name of a generation may ever stand over the header of another.
            self._disk.sync_directory(self._directory)

    def _retire(self, path: Path, size_bytes: int) -> None:
        if size_bytes != self._file_bytes or len(self._spares) >= MAX_SPARE_FILES:
            self._disk.unlink(path)
            return
        spare = self._directory / (_SPARE_PREFIX + path.name.removeprefix(_SPARE_PREFIX))
        if spare != path:
            self._disk.rename(path, spare)
        self._spares.append(spare)

    def _prepare(self, size_bytes: int) -> JournalFile:
        generation = self._next_generation
        self._next_generation += 1
        path = self._directory / journal_file_name(generation)
        is_reused = bool(self._spares)
        spare = self._spares.pop() if is_reused else self._directory / (_SPARE_PREFIX + path.name)
        file = self._disk.open_for_write(spare)
        try:
            if not is_reused:
                self._fill(file, size_bytes)
            # The salt makes an old batch invalid even if its generation were seen again.
            header = FileHeader(generation, secrets.randbits(32))
            file.write_at((encode_file_header(header),), 0, durable=False)
            file.sync()
            self._disk.rename(spare, path)
            self._disk.sync_directory(self._directory)
            direct_descriptor = self._disk.open_direct(path)
        except OSError:
            file.close()
            self._disk.unlink(spare)
            raise
        return JournalFile(path, file, direct_descriptor, header, size_bytes)

    def _fill(self, file: DiskFile, size_bytes: int) -> None:
        """Write the file once: a durable write into allocated, written blocks changes no metadata of the file system."""
        for offset in range(0, size_bytes, len(_ZEROS)):
            file.write_at((_ZEROS[: size_bytes - offset],), offset, durable=False)
            if offset % _SYNC_EVERY_BYTES == 0:
                file.sync()  # in steps: one sync of the whole file would stand in the way of the appends

    def _size(self, path: Path) -> int:
        with self._disk.open_for_read(path) as file:
            return file.size()
