"""The lock of a data directory, which one process of one user may use at a time.

The directory itself is locked too, so replacing the file `LOCK` does not help. The kernel releases the locks when the
process ends. Only the owner can read the directory. A directory with foreign files is refused, because the broker would
change their permissions.
"""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

from pybroker.disk.database import OWNER_ONLY_FILE
from pybroker.disk.disk import Disk
from pybroker.errors import StoreError

try:
    import fcntl
except ImportError:
    _HAS_LOCKS = False  # on Windows
else:
    _HAS_LOCKS = True

LOCK_FILE_NAME = "LOCK"
RUN_ID_FILE_NAME = "run.id"
DIRECTORY_MARK_NAME = "directory.mark"
"""Contains its own inode number, which a copy of the directory does not have."""
INCOMPLETE_RESTORE_NAME = "restore.incomplete"
"""Exists while a restore has not copied all files; no broker uses the directory then."""
INCOMPLETE_COPY_NAME = "copy.incomplete"
"""Exists while topics are copied into the directory; no broker uses it then."""
_OTHERS = 0o077
_MAX_MARK_BYTES = 32
# A directory with one of these names is a data directory.
_OWN_NAMES = frozenset(
    {
        LOCK_FILE_NAME,
        RUN_ID_FILE_NAME,
        "checkpoint.db",
        "metadata.db",
        "metadata.end",
        "journal",
        "ledgers",
        INCOMPLETE_RESTORE_NAME,
    }
)
_NO_CONTENT = frozenset({"lost+found"})


class DataDirectoryInUse(Exception):
    """Another process uses the directory. The message contains its process id, if known."""


class ForeignDirectory(Exception):
    """The directory contains files, but is not a broker's data directory."""

    def __init__(self, directory: Path, name: str) -> None:
        super().__init__(
            f"{directory} is not empty and is not a broker's data directory (it contains {name}): use an empty or a new directory."
            f" A broker removes the permissions of other users from all files in its directory; to use this directory anyway,"
            f" create {directory / LOCK_FILE_NAME} as an empty file"
        )


class IncompleteRestore(StoreError):
    """A restore into the directory, or a copy of topics into it, was interrupted."""


class DataDirectoryLock:
    """Exclusive lock of a data directory, from construction to `release`.

    Construction raises DataDirectoryInUse, ForeignDirectory, IncompleteRestore and OSError.
    """

    def __init__(
        self,
        directory: Path,
        *,
        is_only_looked_at: bool = False,
        is_restored: bool = False,
        is_copied_into: bool = False,
    ) -> None:
        """`is_only_looked_at`: the caller only reads, so no file is created or changed; the lock file must exist.
        `is_restored`: the caller restores a backup into the directory; `is_copied_into`: the caller copies topics into
        it.
        """
        self._path = directory
        self._descriptors: list[int] = []
        self._is_only_looked_at = is_only_looked_at
        if not is_only_looked_at:
            _require_own(directory)
            Disk().make_directory(directory)
        flags = os.O_RDONLY if is_only_looked_at else os.O_RDWR | os.O_CREAT
        try:
            self._file = self._open(directory / LOCK_FILE_NAME, flags)
            self._hold(self._file)
            # The lock file can be deleted and created again while it is locked. A directory with content cannot.
            self._hold(self._open(directory, os.O_RDONLY), is_optional=True)
            if not is_copied_into and (directory / INCOMPLETE_COPY_NAME).exists():
                raise IncompleteRestore(
                    f"the directory {directory} contains an interrupted copy of topics ({INCOMPLETE_COPY_NAME}): run "
                    "`pybroker ledger copy` again to complete it, or use another directory"
                )
            if not is_restored and (directory / INCOMPLETE_RESTORE_NAME).exists():
                raise IncompleteRestore(
                    f"the directory {directory} contains an interrupted restore ({INCOMPLETE_RESTORE_NAME}): run `pybroker "
                    "restore` again to complete it, or use another directory"
                )
            if not is_only_looked_at:
                keep_to_owner(directory)
                os.ftruncate(self._file, 0)
                os.pwrite(self._file, f"{os.getpid()}\n".encode(), 0)
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        while self._descriptors:
            os.close(self._descriptors.pop())

    def _open(self, path: Path, flags: int) -> int:
        descriptor = os.open(path, flags | os.O_CLOEXEC, OWNER_ONLY_FILE)
        self._descriptors.append(descriptor)
        return descriptor

    def _hold(self, descriptor: int, *, is_optional: bool = False) -> None:
        """Lock the descriptor. With `is_optional`, ignore an OSError: some network file systems lock only files that
        are open for writing, and so no directories. Without `fcntl`, a second broker is not prevented.
        """
        if not _HAS_LOCKS:
            return
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._file, 32, 0).decode(errors="replace").strip()
            advice = "stop that process, or use --data with another directory"
            if self._is_only_looked_at:
                advice = (
                    "stop that broker first. While it runs, `pybroker explain` shows its problems, and this command can read a"
                    " file system snapshot of the directory"
                )
            raise DataDirectoryInUse(
                f"data directory {self._path} is in use by process {holder or 'unknown'}: {advice}"
            ) from None
        except OSError:
            if not is_optional:
                raise


def _require_own(directory: Path) -> None:
    if not directory.is_dir():
        return  # the caller creates it, or reports the error
    names = {path.name for path in directory.iterdir()} - _NO_CONTENT
    if names and not names & _OWN_NAMES:
        raise ForeignDirectory(directory, min(names))


def write_run_id(directory: Path, chance: Random) -> str:
    """Write a new random id of this run into the data directory, and return it. A tool that reads the same id from the
    broker's REST API knows that the directory is the broker's and no copy. Raises OSError.
    """
    run_id = f"{chance.getrandbits(128):032x}"
    descriptor = os.open(
        directory / RUN_ID_FILE_NAME, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, OWNER_ONLY_FILE
    )
    try:
        os.write(descriptor, run_id.encode())
    finally:
        os.close(descriptor)
    return run_id


def is_copied_directory(directory: Path) -> bool:
    """Return whether the directory was copied since a broker last used it; False if that is unknown. The mark file
    contains its own inode number, which differs from the inode number of a copied mark file. A file system snapshot
    does not count as a copy. Raises OSError.

    A copy of a directory in use contains files of different moments, so data may be missing without a trace.
    """
    try:
        with (directory / DIRECTORY_MARK_NAME).open("rb") as file:
            content = file.read(_MAX_MARK_BYTES)
            inode = os.fstat(file.fileno()).st_ino
    except FileNotFoundError:
        return False
    return content.isdigit() and int(content) != inode


def write_directory_mark(directory: Path) -> None:
    """Write the mark file, which contains its own inode number, by which `is_copied_directory` detects a copy. Raises
    OSError.
    """
    path = directory / DIRECTORY_MARK_NAME
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, OWNER_ONLY_FILE)
    try:
        content = b"%d" % os.fstat(descriptor).st_ino
        if os.pread(descriptor, _MAX_MARK_BYTES, 0) != content:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, content, 0)
    finally:
        os.close(descriptor)


def keep_to_owner(directory: Path) -> None:
    """Remove the permissions of other users from the files in the data directory. Raises OSError for files of other
    users.
    """
    for path in directory.iterdir():
        mode = path.lstat().st_mode
        if mode & _OTHERS and not path.is_symlink():
            path.chmod(mode & 0o700)
