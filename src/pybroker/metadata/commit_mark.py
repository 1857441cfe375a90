"""How many transactions the metadata store has answered, in a small file of mapped memory beside the database.

SQLite takes the first damaged frame of its log for the log's end, and a database that was replaced by an older or an empty one for
what it always was. The mark is written after each commit and before anybody is told of it, without a sync: it survives the
process, and is never ahead of what the device has (so it is not written at a start, which may see what no sync has covered). A
database that is behind its mark has lost something; what cannot be read of the mark counts for nothing.

Concurrency: the thread that owns the database.
"""

from __future__ import annotations

import mmap
import os
import struct
from pathlib import Path

from crc32c import crc32c

from pybroker import logs

_RECORD = struct.Struct("<8sQI")
_MAGIC = b"PYBMETA1"
_BYTES = 4096


def decode_mark(data: bytes) -> int | None:
    """How many commits were answered; 0 when nothing was ever written, None when what was written is damaged."""
    if not any(data):
        return 0
    if len(data) != _BYTES:
        return None
    magic, commits, checksum = _RECORD.unpack_from(data)
    is_right = magic == _MAGIC and checksum == crc32c(magic + commits.to_bytes(8, "little"))
    return int(commits) if is_right else None


class CommitMark:
    """Owned by the store; the file is made when it is missing. Raises OSError."""

    def __init__(self, path: Path) -> None:
        self._name = path.name
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if os.fstat(descriptor).st_size != _BYTES:
                os.ftruncate(descriptor, _BYTES)
                # Room for it is taken now: memory of a file without any would end the process on a full disk.
                os.pwrite(descriptor, os.pread(descriptor, _BYTES, 0).ljust(_BYTES, b"\0"), 0)
            self._memory = mmap.mmap(descriptor, _BYTES)
        finally:
            os.close(descriptor)

    def read(self) -> int:
        """How many commits were answered, as far as is known; 0 when nothing is, which is logged if the mark is damaged."""
        commits = decode_mark(self._memory[:])
        if commits is None:
            logs.warning(
                "metadata.mark_damaged", file=self._name, note="a loss of the last changes would not be noticed"
            )
        return commits or 0

    def write(self, commits: int) -> None:
        """So many are committed."""
        _RECORD.pack_into(self._memory, 0, _MAGIC, commits, crc32c(_MAGIC + commits.to_bytes(8, "little")))

    def close(self) -> None:
        self._memory.close()
