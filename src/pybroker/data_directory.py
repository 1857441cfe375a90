"""The data directory belongs to one process, and to one user: locks on it and on a file in it say whose it is.

Invariants: while a `DataDirectoryLock` is held, no other broker opens the directory, whatever happens to the file `LOCK`: the
directory itself is locked too. The kernel drops the locks with the process, so that nothing is left to clean up after a crash.
What is in the directory can be read by its owner only.
"""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

from pybroker.storage.disk import OWNER_ONLY_FILE, Disk

try:
    import fcntl
except ImportError:
    _HAS_LOCKS = False  # such as on Windows
else:
    _HAS_LOCKS = True

LOCK_FILE_NAME = "LOCK"
RUN_ID_FILE_NAME = "run.id"
_OTHERS = 0o077


class DataDirectoryInUse(Exception):
    """Another process has the directory; the text says which."""


class DataDirectoryLock:
    """Held from construction to `release`. Raises DataDirectoryInUse, and OSError when the directory cannot be made."""

    def __init__(self, directory: Path, *, is_only_looked_at: bool = False) -> None:
        """`is_only_looked_at`: nothing is made or changed, not even the lock file, which must exist."""
        self._path = directory
        self._descriptors: list[int] = []
        if not is_only_looked_at:
            Disk().make_directory(directory)
        flags = os.O_RDONLY if is_only_looked_at else os.O_RDWR | os.O_CREAT
        try:
            self._file = self._open(directory / LOCK_FILE_NAME, flags)
            self._hold(self._file)
            # A file can be removed and made again under its holder, the directory cannot be without what is in it.
            self._hold(self._open(directory, os.O_RDONLY), is_optional=True)
            if not is_only_looked_at:
                keep_to_owner(directory)
                os.ftruncate(self._file, 0)
                os.pwrite(self._file, f"{os.getpid()}\n".encode(), 0)
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Let others open the directory."""
        while self._descriptors:
            os.close(self._descriptors.pop())

    def _open(self, path: Path, flags: int) -> int:
        descriptor = os.open(path, flags | os.O_CLOEXEC, OWNER_ONLY_FILE)
        self._descriptors.append(descriptor)
        return descriptor

    def _hold(self, descriptor: int, *, is_optional: bool = False) -> None:
        """`is_optional`: some network file systems lock files that are open for writing only, and so no directories. Where the
        system has no such locks, nothing keeps a second broker out."""
        if not _HAS_LOCKS:
            return
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._file, 32, 0).decode(errors="replace").strip()
            raise DataDirectoryInUse(
                f"data directory {self._path} is in use by process {holder or 'unknown'}:"
                " stop it, or use --data with another one"
            ) from None
        except OSError:
            if not is_optional:
                raise


def write_run_id(directory: Path, chance: Random) -> str:
    """A new name for this run of a broker, in a file of the directory: who reads the same name there and from the broker knows
    that it is the broker's directory, and no copy. Raises OSError."""
    run_id = f"{chance.getrandbits(128):032x}"
    descriptor = os.open(
        directory / RUN_ID_FILE_NAME, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, OWNER_ONLY_FILE
    )
    try:
        os.write(descriptor, run_id.encode())
    finally:
        os.close(descriptor)
    return run_id


def keep_to_owner(directory: Path) -> None:
    """Take the rights of others from what an earlier version has left. Raises OSError for what is not this user's."""
    for path in directory.iterdir():
        mode = path.lstat().st_mode
        if mode & _OTHERS and not path.is_symlink():
            path.chmod(mode & 0o700)
