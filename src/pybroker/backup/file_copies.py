"""Durable, verified copies of files in chunks, with a rate limit and progress reports.

Blocking. A written file is synced, dropped from the page cache where possible, and read again, so that the checksum
verifies the data on the device.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

from crc32c import crc32c

from pybroker.backup.backup_layout import BackupError
from pybroker.disk.database import OWNER_ONLY_FILE
from pybroker.disk.disk import Disk

CHUNK_BYTES = 1 << 20
_DROP = getattr(os, "POSIX_FADV_DONTNEED", None)


class Progress(Protocol):
    """Receiver of progress reports. It may raise to stop the operation."""

    def begin(self, total_bytes: int, what: str) -> None: ...

    def copied(self, size_bytes: int) -> None: ...


class RateLimit:
    """Delays the caller so that the average rate is at most `bytes_per_s`; None for no limit."""

    def __init__(
        self,
        bytes_per_s: float | None,
        clock_s: Callable[[], float],
        sleep_s: Callable[[float], None],
    ) -> None:
        self._bytes_per_s = bytes_per_s
        self._clock_s = clock_s
        self._sleep_s = sleep_s
        self._free_at_s = 0.0

    def spend(self, size_bytes: int) -> None:
        if not self._bytes_per_s:
            return
        now_s = self._clock_s()
        if self._free_at_s > now_s:
            self._sleep_s(self._free_at_s - now_s)
            now_s = self._free_at_s
        self._free_at_s = now_s + size_bytes / self._bytes_per_s


class FileCopier:
    """Copies parts of files, with a shared rate limit and progress report."""

    def __init__(self, rate: RateLimit, progress: Progress) -> None:
        self._rate = rate
        self._progress = progress

    def copy(self, source: Path, target: Path, offset: int, length: int, crc: int) -> int:
        """Copy the bytes from `offset` up to `length` of `source` to the same position in `target`, and truncate
        `target` to `length` bytes. `crc`: the CRC32C of the bytes before `offset`. Return the CRC32C of the first
        `length` bytes of `source`. To verify the copy, the caller compares this with the result of `checksum`.

        Raises OSError, and BackupError if the source is too short.
        """
        written_crc = crc
        with open(target, "r+b" if target.exists() else "w+b", opener=private, buffering=0) as to:
            with source.open("rb", buffering=0) as file:
                for chunk in _chunks(file.fileno(), offset, length, source):
                    self._rate.spend(len(chunk))
                    _write_all(to.fileno(), chunk, offset)
                    offset += len(chunk)
                    written_crc = crc32c(chunk, written_crc)
                    self._progress.copied(len(chunk))
            to.truncate(length)
            os.fsync(to.fileno())
        return written_crc

    def checksum(self, path: Path, offset: int, length: int, crc: int) -> int:
        """Return the CRC32C of the first `length` bytes of a file. `crc` is the CRC32C of the bytes before `offset`,
        which are not read again. Reads from the device, not from the system's cache.
        """
        with path.open("rb", buffering=0) as file:
            if _DROP is not None:
                os.posix_fadvise(file.fileno(), 0, 0, _DROP)
            for chunk in _chunks(file.fileno(), offset, length, path):
                self._rate.spend(len(chunk))
                crc = crc32c(chunk, crc)
                self._progress.copied(len(chunk))
        return crc


def write_durably(path: Path, data: bytes) -> None:
    partial = path.with_name(path.name + ".new")
    with open(partial, "wb", opener=private) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
    Disk().sync_directory(path.parent)


def private(path: str, flags: int) -> int:
    """Open a file and return its descriptor. A new file gets the permissions 0600. For use as `opener` of `open`."""
    return os.open(path, flags | os.O_CLOEXEC, OWNER_ONLY_FILE)


def _chunks(descriptor: int, offset: int, length: int, path: Path) -> Iterator[bytes]:
    while offset < length:
        chunk = os.pread(descriptor, min(CHUNK_BYTES, length - offset), offset)
        if not chunk:
            raise BackupError(f"the file {path} has only {offset} bytes, although {length} bytes are expected")
        yield chunk
        offset += len(chunk)


def _write_all(descriptor: int, data: bytes, offset: int) -> None:
    rest = memoryview(data)
    while rest:
        written = os.pwrite(descriptor, rest, offset)
        rest = rest[written:]
        offset += written
