"""The journal's files: filled in advance, used one after the other, and reused when a checkpoint covers them.

    spare-*.journal             not in use, any content
    <generation>.journal        in use or ready; its header was durable before the file got this name

Invariants: a file named by its generation has a valid header of that generation; generations rise and are never used
twice; a file becomes spare only when a committed checkpoint covers every batch in it.

Failure: without disk space a short file is created, in the last resort in place of the reserve file. The next
`take_next` raises any other error, which ends the journal.

Zeros: a new file is written with zeros once. So that these are at most a few times as many as the bytes of the batches,
the next file is created when the current one is half full, and without a spare file it is at most twice as large.

Concurrency: any thread. One background thread creates and retires files, because writing 64 MiB of zeros must not delay
an append.
"""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Future
from pathlib import Path

from pybroker.disk.direct_io import DirectFile
from pybroker.disk.disk import DiskFile
from pybroker.disk.shortage import lacks_room
from pybroker.local_store.free_space import StorageSpace
from pybroker.local_store.journal.journal_batcher import JournalLocation
from pybroker.local_store.store_environment import StoreEnvironment
from pybroker.runtime import logs
from pybroker.storage_format.journal_layout import FileHeader, encode_file_header

# Size of the first file of a data directory, so that the first start is fast, and of files when disk space is scarce.
SHORT_FILE_BYTES = 4 << 20
# Without a spare file, the next file is at most this many times as large as the current one.
_GROWTH = 2
MAX_SPARE_FILES = 2
JOURNAL_SUFFIX = ".journal"
_SPARE_PREFIX = "spare-"
_ZEROS = bytes(1 << 20)
_SYNC_EVERY_BYTES = 8 << 20


def journal_file_name(generation: int) -> str:
    return f"{generation:020d}{JOURNAL_SUFFIX}"


def parse_journal_file_name(name: str) -> int | None:
    """Return the number (generation) of a journal file in use; None for other files, including spare ones."""
    stem = name.removesuffix(JOURNAL_SUFFIX)
    return int(stem) if stem != name and stem.isdecimal() else None


def file_number(name: str) -> int | None:
    """Return the number in the name of a journal file or spare file. No new journal file may get this number."""
    return parse_journal_file_name(name.removeprefix(_SPARE_PREFIX))


class JournalFile:
    """A journal file that is open for writing batches."""

    __slots__ = ("direct", "file", "path", "place")

    def __init__(self, path: Path, file: DiskFile, direct: DirectFile | None, place: JournalLocation) -> None:
        """`direct` is the file opened for direct IO; None if the disk does not support it."""
        self.path = path
        self.file = file
        self.direct = direct
        self.place = place

    def close(self) -> None:
        if self.direct is not None:
            self.direct.close()
        self.file.close()


class JournalFiles:
    """The journal files of a store: provides the next file for the writer, and takes back covered files."""

    def __init__(
        self,
        environment: StoreEnvironment,
        directory: Path,
        file_bytes: int,
        next_generation: int,
        space: StorageSpace,
    ) -> None:
        self.disk = environment.disk
        self._random = environment.random
        self._space = space
        self._directory = directory
        self._file_bytes = file_bytes
        self._next_generation = next_generation
        self._spares: list[Path] = []
        self._full: deque[JournalFile] = deque()
        self._current: JournalFile | None = None
        self._background = environment.threads.pool("journal-files")
        self._lock = threading.Lock()
        self._next: Future[JournalFile] | None = None
        self._failure: OSError | None = None

    def adopt(self, names: list[str]) -> None:
        """Take over the files of earlier runs, whose data is all in segment files. Some become spare files, the rest is
        deleted.
        """
        for name in names:
            path = self._directory / name
            if not name.endswith(JOURNAL_SUFFIX):
                continue
            self._retire(path, self._size(path))
        self.disk.sync_directory(self._directory)

    @property
    def current(self) -> JournalFile:
        assert self._current is not None, "started"
        return self._current

    def start(self) -> None:
        """Create the first file of this run."""
        self._current = self._prepare(min(SHORT_FILE_BYTES, self._file_bytes))

    def written_to(self, offset: int) -> None:
        """Begin to create the next file if the current file, which is written up to `offset`, is half full."""
        if self._next is None and offset >= self.current.place.capacity_bytes // 2:
            self.next_file()

    def next_file(self) -> Future[JournalFile]:
        with self._lock:
            if self._next is None:
                self._next = self._background.submit(self._prepare, self._next_bytes())
            return self._next

    def _next_bytes(self) -> int:
        return min(self._file_bytes, _GROWTH * self.current.place.capacity_bytes)

    def take_next(self) -> JournalFile:
        """Wait for the next journal file, make it the current file, and return it. Raises OSError if it could not be
        created.
        """
        ready = self.next_file()
        with self._lock:
            # The next call tries again: space may be available then.
            self._next = None
        file = ready.result()
        self._full.append(self.current)
        self._current = file
        return file

    def make_room(self) -> Future[None]:
        """Release the reserved disk space in the background. The future completes when it is released, or with the
        error.
        """
        return self._background.submit(self._space.no_room)

    def try_again(self) -> None:
        with self._lock:
            if self._next is not None and self._next.done() and self._next.exception() is not None:
                self._next = self._background.submit(self._prepare, self._next_bytes())

    def release(self, sequence: int) -> None:
        """Release each full journal file for reuse or deletion, in the background, if a checkpoint covers all its
        batches: if the sequence numbers of all of them are below `sequence`.
        """
        self._background.submit(self._release, sequence)
        self.try_again()

    def close(self, *, is_covered: bool) -> None:
        """Wait for the background thread and close the files, after the last write and the last checkpoint.
        `is_covered`: the next start needs no journal, so the files may be reused or deleted.
        """
        self._background.shutdown(wait=True)
        files = [*self._full, *([self._current] if self._current else [])]
        if self._next is not None and self._next.exception() is None:
            files.append(self._next.result())
        self._full.clear()
        self._current = None
        for file in files:
            file.close()
        if is_covered:
            try:
                for file in files:
                    self._retire(file.path, file.place.capacity_bytes)
                self.disk.sync_directory(self._directory)
            except OSError as error:
                logs.warning("journal.release_failed", error=str(error))  # the next start reads these files

    def _release(self, sequence: int) -> None:
        spare_count = len(self._spares)
        freed = 0
        try:
            while self._full and self._full[0].place.last_sequence < sequence:
                file = self._full.popleft()
                file.close()
                self._retire(file.path, file.place.capacity_bytes)
                freed += 1
            if freed:
                # Before a spare file gets a new header: a file named by a generation must never have another header.
                self.disk.sync_directory(self._directory)
                self._space.measure()
        except OSError as error:
            logs.error("journal.release_failed", error=str(error))
            # After a crash, the new names may or may not exist.
            del self._spares[spare_count:]
            if not lacks_room(error):
                self._failure = error

    def _retire(self, path: Path, size_bytes: int) -> None:
        if size_bytes != self._file_bytes or len(self._spares) >= MAX_SPARE_FILES:
            self.disk.unlink(path)
            return
        spare = self._directory / (_SPARE_PREFIX + path.name.removeprefix(_SPARE_PREFIX))
        if spare != path:
            self.disk.rename(path, spare)
        self._spares.append(spare)

    def _prepare(self, size_bytes: int) -> JournalFile:
        if self._failure is not None:
            raise self._failure
        if not self._spares and not self._space.has_room_for(size_bytes):
            size_bytes = min(size_bytes, SHORT_FILE_BYTES)
        try:
            return self._make(size_bytes)
        except OSError as error:
            if not lacks_room(error):
                raise
            self._space.no_room(error)
        return self._make(min(size_bytes, SHORT_FILE_BYTES))

    def _make(self, size_bytes: int) -> JournalFile:
        generation = self._next_generation
        self._next_generation += 1
        path = self._directory / journal_file_name(generation)
        is_reused = bool(self._spares)
        spare = self._spares.pop() if is_reused else self._directory / (_SPARE_PREFIX + path.name)
        file = self.disk.open_for_write(spare)
        try:
            if is_reused:
                size_bytes = self._file_bytes
            else:
                self._fill(file, size_bytes)
            # The salt makes old batches invalid even if a generation were repeated.
            header = FileHeader(generation, self._random.getrandbits(32))
            file.write_at((encode_file_header(header),), 0, durable=False)
            file.sync()
            self.disk.rename(spare, path)
            self.disk.sync_directory(self._directory)
            direct = self.disk.open_direct(path)
        except OSError:
            file.close()
            self.disk.unlink(spare)
            self.disk.unlink(path)
            raise
        self._space.measure()
        return JournalFile(path, file, direct, JournalLocation(header, size_bytes))

    def _fill(self, file: DiskFile, size_bytes: int) -> None:
        """Write the file once: a durable write into allocated, written blocks changes no metadata of the file
        system.
        """
        for offset in range(0, size_bytes, len(_ZEROS)):
            file.write_at((_ZEROS[: size_bytes - offset],), offset, durable=False)
            if offset % _SYNC_EVERY_BYTES == 0:
                file.sync()  # in steps, because one sync of the whole file would delay appends

    def _size(self, path: Path) -> int:
        with self.disk.open_for_read(path) as file:
            return file.size()
