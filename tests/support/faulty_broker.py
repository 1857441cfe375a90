"""`pybroker serve` on a real file system with faults: `python -m tests.support.faulty_broker serve ...`.

While the file named by FAULT_FILE exists, the operation that is its content fails with EIO: `write` and `sync` of
segment files, `append` of the journal (both writers), `read` of segment files. `slow` makes a journal append take 0.8
s; with `full` the file system reports no free space.
"""

from __future__ import annotations

import errno
import functools
import os
import sys
import threading
import time
from pathlib import Path

from pybroker import broker_process, cli
from pybroker.disk.direct_io import DirectWriter
from pybroker.disk.disk import Disk, DiskFile, Pieces, SpaceFigures

FAULT_FILE = Path(os.environ["FAULT_FILE"])
SLOW_S = 0.8


def wanted() -> str:
    """Return the operation that must fail now."""
    return FAULT_FILE.read_text() if FAULT_FILE.exists() else ""


def fail(operation: str) -> None:
    """Raise if `operation` must fail now."""
    if wanted() == operation:
        raise OSError(errno.EIO, os.strerror(errno.EIO))


class FaultyDisk(Disk):
    """The file system with faults."""

    def open_for_write(self, path: Path) -> DiskFile:
        return FaultyFile(super().open_for_write(path), path)

    def open_for_read(self, path: Path) -> DiskFile:
        return FaultyFile(super().open_for_read(path), path)

    def direct_writer(self) -> DirectWriter:
        return FaultyWriter()

    def space(self, directory: Path) -> SpaceFigures | None:
        figures = super().space(directory)
        return figures._replace(free_bytes=0) if figures is not None and wanted() == "full" else figures


class FaultyFile(DiskFile):
    """A file with faults."""

    def __init__(self, file: DiskFile, path: Path) -> None:
        super().__init__(file._descriptor)
        self._is_segment = path.suffix == ".ledger"

    def write_at(self, pieces: Pieces, offset: int, *, durable: bool) -> None:
        if durable or self._is_segment:
            if durable and wanted() == "slow":
                time.sleep(SLOW_S)
            fail("append" if durable else "write")
        super().write_at(pieces, offset, durable=durable)

    def read_at(self, length: int, offset: int) -> bytes:
        if self._is_segment:
            fail("read")
        return super().read_at(length, offset)

    def sync(self) -> None:
        if self._is_segment:
            fail("sync")
        super().sync()


class FaultyWriter(DirectWriter):
    """A background writer that reports errors, or reports late, after the write."""

    def __init__(self) -> None:
        super().__init__()
        self._is_late = False

    def finish(self) -> bool:
        if self._is_late:
            os.eventfd_read(self.event_descriptor)
            self._is_late = False
            return True
        if not super().finish():
            return False
        if wanted() == "slow":
            self._is_late = True
            threading.Timer(SLOW_S, os.eventfd_write, (self.event_descriptor, 1)).start()
            return False
        fail("append")
        return True


if __name__ == "__main__":
    broker_process.run = functools.partial(broker_process.run, disk=FaultyDisk())
    sys.exit(cli.main())
