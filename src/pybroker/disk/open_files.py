"""Cache of open segment files, of bounded size: opening a file costs as much as a small read.

Invariants: a dropped file is closed when its last read ends, so that the space of a deleted ledger is freed; no closed
file is read. Concurrency: any thread; a lock protects the bookkeeping, not the reads.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pybroker.disk.disk import Disk, DiskFile
from pybroker.disk.shortage import lacks_descriptors


class _OpenFile:
    """A descriptor, its number of current reads, and whether it is closed after them."""

    __slots__ = ("file", "is_dropped", "users")

    def __init__(self, file: DiskFile) -> None:
        self.file = file
        self.users = 0
        self.is_dropped = False


class OpenFiles:
    """A cache of open files. The least recently used file is closed first; files in use are not limited."""

    def __init__(self, disk: Disk, max_files: int) -> None:
        self._disk = disk
        self._max_files = max_files
        self._lock = threading.Lock()
        self._files: OrderedDict[Path, _OpenFile] = OrderedDict()
        self._drop_count = 0

    @contextmanager
    def reading(self, path: Path) -> Iterator[DiskFile]:
        opened = self._take(path)
        try:
            yield opened.file
        except OSError:
            opened.is_dropped = True  # after an error, the next read opens the file again
            raise
        finally:
            self._give_back(path, opened)

    def drop(self, path: Path) -> None:
        with self._lock:
            self._drop_count += 1
            opened = self._files.pop(path, None)
            if opened is not None:
                self._retire(opened)

    def close(self) -> None:
        with self._lock:
            while self._files:
                self._retire(self._files.popitem()[1])

    def _take(self, path: Path) -> _OpenFile:
        with self._lock:
            opened = self._files.get(path)
            if opened is not None:
                opened.users += 1
                self._files.move_to_end(path)
                return opened
            drop_count = self._drop_count
        # Opened without the lock: a slow disk must not delay reads of open files.
        opened = _OpenFile(self._open(path))
        opened.users = 1
        with self._lock:
            # If the file was removed meanwhile, or another thread opened it first, this descriptor serves only this
            # read.
            opened.is_dropped = drop_count != self._drop_count or path in self._files
            if not opened.is_dropped:
                self._files[path] = opened
        return opened

    def _open(self, path: Path) -> DiskFile:
        try:
            return self._disk.open_for_read(path)
        except OSError as error:
            if not lacks_descriptors(error):
                raise
        self.close()  # closes cached files to free descriptors
        return self._disk.open_for_read(path)

    def _give_back(self, path: Path, opened: _OpenFile) -> None:
        with self._lock:
            opened.users -= 1
            if opened.is_dropped:
                if self._files.get(path) is opened:
                    del self._files[path]
                self._retire(opened)
            while len(self._files) > self._max_files:
                self._retire(self._files.popitem(last=False)[1])

    def _retire(self, opened: _OpenFile) -> None:
        opened.is_dropped = True
        if opened.users == 0:
            opened.file.close()
