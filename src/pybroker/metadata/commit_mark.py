"""The commit mark: the number of confirmed transactions of the metadata store, in a file beside the database. It shows
whether the database has lost confirmed transactions.

SQLite takes the first damaged frame of its log for the end of the log, and does not notice that a database was replaced
by an older or an empty one. The mark is written after each commit and before the caller gets the result, without a
sync. So it survives the end of the process, and is never ahead of the device. An unreadable mark counts as 0.

    0        8         16
    | PYBMETA1 | commits | crc32c |
    | 8 bytes  | u64     | u32    |

Concurrency: used only by the thread that owns the database.
"""

from __future__ import annotations

from pathlib import Path

from pybroker.disk.disk import Disk
from pybroker.disk.marker_file import MarkerFile
from pybroker.runtime import logs
from pybroker.storage_format.marker_layout import MARKER_BYTES, MarkerLayout

_LAYOUT = MarkerLayout(b"PYBMETA1", 1, slot_count=1, slot_bytes=MARKER_BYTES)


def decode_mark(data: bytes) -> int | None:
    """Return the number of confirmed transactions in the mark file's content; 0 for an empty file, None if the mark is
    damaged.
    """
    if not any(data):
        return 0
    values = _LAYOUT.decode(data) if len(data) == MARKER_BYTES else None
    return None if values is None else values[0]


class CommitMark:
    """The open marker file, owned by the store. A missing file is created. Raises OSError."""

    def __init__(self, disk: Disk, path: Path) -> None:
        self._name = path.name
        self._file = MarkerFile(disk.open_mapped(path, MARKER_BYTES), _LAYOUT)

    def read(self) -> int:
        """Return the number of confirmed transactions; 0 without a valid mark. A damaged mark is logged."""
        commits = decode_mark(self._file.content())
        if commits is None:
            logs.warning(
                "metadata.mark_damaged", file=self._name, note="a loss of the last changes would not be detected"
            )
        return commits or 0

    def write(self, commits: int) -> None:
        self._file.write(commits)

    def close(self) -> None:
        self._file.close()
