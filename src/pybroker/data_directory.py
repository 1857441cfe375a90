"""The data directory belongs to one process: a lock file says whose it is.

Invariant: while a `DataDirectoryLock` is held, no other broker opens the directory. The kernel drops the lock with the process,
so that nothing is left to clean up after a crash.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

LOCK_FILE_NAME = "LOCK"


class DataDirectoryInUse(Exception):
    """Another process has the directory; the text says which."""


class DataDirectoryLock:
    """Held from construction to `release`. Raises DataDirectoryInUse, and OSError when the directory cannot be made."""

    def __init__(self, directory: Path, *, is_only_looked_at: bool = False) -> None:
        """`is_only_looked_at`: nothing is made or changed, not even the lock file, which must exist."""
        if not is_only_looked_at:
            directory.mkdir(parents=True, exist_ok=True)
        flags = os.O_RDONLY if is_only_looked_at else os.O_RDWR | os.O_CREAT
        self._file = os.open(directory / LOCK_FILE_NAME, flags | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.read(self._file, 32).decode(errors="replace").strip()
            os.close(self._file)
            raise DataDirectoryInUse(
                f"data directory {directory} is in use by process {holder or 'unknown'}: stop it, or use --data with another one"
            ) from None
        if not is_only_looked_at:
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Let others open the directory."""
        os.close(self._file)
