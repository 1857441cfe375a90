"""The file `journal.end`: a record of the end of the durable journal, by which a start distinguishes an interrupted
write from lost data.

Operation: after each durable batch, and before its callers are notified, the journal writes its end to mapped memory,
without a sync. After `kill -9` the page cache still contains it. A checkpoint syncs the file in `journal/` after its
commit, before journal files are reused.

Invariant: the recorded end is never ahead of the durable journal. After a power failure it may be older, by the batches
since the last checkpoint; `checkpoint.db` contains the end at its last commit, too. Unreadable content is ignored. If
the journal is not synced, only batches that a checkpoint covers are recorded.

Concurrency: the journal's writer calls `noted`, the checkpoint thread `committed`; a lock protects the bytes.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterable
from pathlib import Path

from pybroker.disk.disk import Disk
from pybroker.disk.marker_file import MarkerFile
from pybroker.disk.shortage import lacks_room
from pybroker.runtime import logs
from pybroker.storage_format.journal_end_layout import JOURNAL_END_LAYOUT, JournalEnd, decode_journal_end
from pybroker.storage_format.marker_layout import MARKER_BYTES

JOURNAL_END_NAME = "journal.end"
# Errors of file systems that cannot map a file for writing.
_NOT_MAPPED = frozenset({errno.ENODEV, errno.EOPNOTSUPP, errno.EINVAL, errno.EACCES})


class JournalEndFile:
    """The open file `journal.end` of a store. The journal calls `noted`, the checkpointer `committed`."""

    def __init__(self, disk: Disk, directory: Path, end: JournalEnd, copy_directory: Path | None = None) -> None:
        """Write `end` durably to `directory`, and to the copy in `copy_directory`. Raises OSError."""
        self._lock = threading.Lock()
        self._end = end
        self._file = _open(disk, directory)
        self._copy: MarkerFile | None = None
        try:
            if copy_directory is not None:
                self._copy = _open(disk, copy_directory)
            for _ in range(2):  # overwrites both slots of an earlier run
                self._write(end)
            self._sync()
        except OSError:
            self.close()
            raise

    @property
    def noted_end(self) -> JournalEnd:
        return self._end

    def noted(self, next_sequence: int, generation: int, end_offset: int) -> None:
        """Record that all batches below sequence number `next_sequence` are durable. The last of them ends at
        `end_offset` of the journal file with number `generation`.
        """
        with self._lock:
            self._write(JournalEnd(next_sequence, generation, end_offset, self._end.commit))

    def committed(self, commit: int, sequence: int) -> None:
        """Record durably that transaction number `commit` of `checkpoint.db` covers the batches below `sequence`.
        Raises OSError.
        """
        with self._lock:
            end = self._end
            if sequence > end.next_sequence:
                end = JournalEnd(sequence, 0, 0, commit)
            self._write(end._replace(commit=commit))
        self._sync()

    def close(self) -> None:
        for file in (self._file, self._copy):
            if file is not None:
                file.close()
        self._file = self._copy = None

    def _write(self, end: JournalEnd) -> None:
        self._end = end
        slot = JOURNAL_END_LAYOUT.encode(*end)
        if self._file is not None:
            self._file.write_slot(slot)
        if self._copy is not None:
            self._copy.write_slot(slot)

    def _sync(self) -> None:
        if self._file is None:
            return
        try:
            self._file.sync()
        except OSError as error:
            # A copy-on-write file system may be full. The recorded end is then older, and still valid.
            if not lacks_room(error):
                raise


def _open(disk: Disk, directory: Path) -> MarkerFile | None:
    """Open the file. Return None if the file system is full or cannot map memory. Raises other OSErrors."""
    try:
        return MarkerFile(disk.open_mapped(directory / JOURNAL_END_NAME, MARKER_BYTES), JOURNAL_END_LAYOUT)
    except OSError as error:
        if not lacks_room(error) and error.errno not in _NOT_MAPPED:
            raise
        logs.warning("journal.end_file_unavailable", file=str(directory / JOURNAL_END_NAME), reason=error)
        return None


def read_journal_end(disk: Disk, directory: Path) -> JournalEnd | None:
    """Return the end of the journal that the last run recorded in `directory`; None without a valid one. Raises
    OSError.
    """
    path = directory / JOURNAL_END_NAME
    if not disk.exists(path):
        return None
    with disk.open_for_read(path) as file:
        return decode_journal_end(file.read_at(MARKER_BYTES, 0))


def latest_end(ends: Iterable[JournalEnd | None]) -> JournalEnd | None:
    """Return the end with the highest sequence number, as a copy with the highest commit number of all `ends`; None if
    there is no end.
    """
    known = [end for end in ends if end is not None and (end.next_sequence or end.commit)]
    if not known:
        return None
    return max(known)._replace(commit=max(end.commit for end in known))
