"""The file `journal.end`, which says up to where the journal was durable, so that a start can tell a torn tail from a loss.

Operation: after each durable batch, and before anybody is told of it, its end is noted in mapped memory: no call of the system,
no sync. After `kill -9` the page cache still holds it. A checkpoint syncs it once it is committed, before journal files are used
again.
What must always hold: it is never ahead of what the device has. So it may be older than the truth (after a power cut, by what was
noted since the last checkpoint), and what cannot be read of it counts for nothing. With a journal that is not synced only what a
checkpoint covers is noted.
Where there is no room for it, or no memory can be mapped, the store works without.

Concurrency: `noted` by the journal's writer, `committed` by the checkpoint's thread; a lock for the bytes.
"""

from __future__ import annotations

import errno
import threading
from pathlib import Path

from pybroker import logs
from pybroker.storage.disk import Disk, MappedFile
from pybroker.storage.layout.journal_end import (
    JOURNAL_END_BYTES,
    JournalEnd,
    decode_journal_end,
    encode_slot,
    slot_offset,
)
from pybroker.storage.shortage import lacks_room

JOURNAL_END_NAME = "journal.end"
# What file systems say that cannot map memory for writing.
_NOT_MAPPED = frozenset({errno.ENODEV, errno.EOPNOTSUPP, errno.EINVAL, errno.EACCES})


class JournalEndFile:
    """Owned by the store that was opened; the journal notes, the checkpointer commits."""

    def __init__(self, disk: Disk, directory: Path, end: JournalEnd) -> None:
        """Begin with `end`, durably. Raises OSError."""
        self._lock = threading.Lock()
        self._end = end
        self._slot = 0
        self._file: MappedFile | None = None
        try:
            self._file = disk.open_mapped(directory / JOURNAL_END_NAME, JOURNAL_END_BYTES)
        except OSError as error:
            if not lacks_room(error) and error.errno not in _NOT_MAPPED:
                raise
            logs.warning("journal.end_not_kept", reason=error)
            return
        for _ in range(2):  # both slots: what an earlier run has left is older
            self._write(end)
        try:
            self._sync()
        except OSError:
            self._file.close()
            raise

    def noted(self, next_sequence: int, generation: int, end_offset: int) -> None:
        """The batch before `next_sequence`, which ends there, is durable."""
        with self._lock:
            self._write(JournalEnd(next_sequence, generation, end_offset, self._end.commit))

    def committed(self, commit: int, sequence: int) -> None:
        """That transaction of the table is durable and covers the batches below `sequence`; so is this then. Raises OSError."""
        with self._lock:
            end = self._end
            if sequence > end.next_sequence:
                end = JournalEnd(sequence, 0, 0, commit)
            self._write(end._replace(commit=commit))
        self._sync()

    def close(self) -> None:
        """No more notes."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, end: JournalEnd) -> None:
        self._end = end
        self._slot += 1
        if self._file is not None:
            self._file.write(encode_slot(end), slot_offset(self._slot))

    def _sync(self) -> None:
        if self._file is None:
            return
        try:
            self._file.sync()
        except OSError as error:
            # A file system that copies on write may have no room: what it has is older, and as true.
            if not lacks_room(error):
                raise


def read_journal_end(disk: Disk, directory: Path) -> JournalEnd | None:
    """What the last run has noted; None when there is nothing that holds. Raises OSError."""
    path = directory / JOURNAL_END_NAME
    if not disk.exists(path):
        return None
    with disk.open_for_read(path) as file:
        return decode_journal_end(file.read_at(JOURNAL_END_BYTES, 0))
