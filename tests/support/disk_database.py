"""SQLite on the files of any `Disk`, so that fake disks receive the real writes of a database.

ctypes functions forward SQLite's VFS calls to a `Disk`. So the log, its checksums and the times of its syncs are
those of SQLite, and a fault of the disk meets the production code. Invariants, as in SQLite's VFS for Unix: the first
sync of a log or journal that it may create also syncs the directory; a deletion does so only at SQLite's request;
failures are reported with SQLite's error code. Limitation: no locks and no shared memory, so a file has one
connection at a time.

Concurrency: as SQLite; the functions are called in the thread that uses the connection.
"""

from __future__ import annotations

import atexit
import ctypes
import itertools
import sqlite3
from collections.abc import Callable
from ctypes import CFUNCTYPE, POINTER, Structure, byref, c_char_p, c_int, c_int64, c_void_p
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote

from pybroker.disk.database import Database
from pybroker.disk.disk import Disk, DiskFile
from pybroker.disk.shortage import lacks_room

_OPEN_CREATE = 0x4
_OPEN_SIDE_FILE = 0x80000 | 0x4000 | 0x800  # WAL, super-journal, rollback journal
_OK = 0
_FULL = 13
_CANNOT_OPEN = 14
_NOT_FOUND = 12
_SHORT_READ = 522
_NO_SUCH_FILE = 5898
_READ, _WRITE, _SYNC, _SYNC_DIRECTORY, _TRUNCATE, _SIZE, _DELETE = 266, 778, 1034, 1290, 1546, 1802, 2570
_POWERSAFE_OVERWRITE = 0x1000
_SECTOR_BYTES = 4096


class _File(Structure):
    _fields_ = (("methods", c_void_p), ("number", c_int64))


_FILE = POINTER(_File)
_METHODS: dict[str, Any] = {
    "xClose": CFUNCTYPE(c_int, _FILE),
    "xRead": CFUNCTYPE(c_int, _FILE, c_void_p, c_int, c_int64),
    "xWrite": CFUNCTYPE(c_int, _FILE, c_void_p, c_int, c_int64),
    "xTruncate": CFUNCTYPE(c_int, _FILE, c_int64),
    "xSync": CFUNCTYPE(c_int, _FILE, c_int),
    "xFileSize": CFUNCTYPE(c_int, _FILE, POINTER(c_int64)),
    "xLock": CFUNCTYPE(c_int, _FILE, c_int),
    "xUnlock": CFUNCTYPE(c_int, _FILE, c_int),
    "xCheckReservedLock": CFUNCTYPE(c_int, _FILE, POINTER(c_int)),
    "xFileControl": CFUNCTYPE(c_int, _FILE, c_int, c_void_p),
    "xSectorSize": CFUNCTYPE(c_int, _FILE),
    "xDeviceCharacteristics": CFUNCTYPE(c_int, _FILE),
    "xShmMap": CFUNCTYPE(c_int, _FILE, c_int, c_int, c_int, POINTER(c_void_p)),
    "xShmLock": CFUNCTYPE(c_int, _FILE, c_int, c_int, c_int),
    "xShmBarrier": CFUNCTYPE(None, _FILE),
    "xShmUnmap": CFUNCTYPE(c_int, _FILE, c_int),
}
_FILE_SYSTEM_METHODS: dict[str, Any] = {
    "xOpen": CFUNCTYPE(c_int, c_void_p, c_char_p, _FILE, c_int, POINTER(c_int)),
    "xDelete": CFUNCTYPE(c_int, c_void_p, c_char_p, c_int),
    "xAccess": CFUNCTYPE(c_int, c_void_p, c_char_p, c_int, POINTER(c_int)),
    "xFullPathname": CFUNCTYPE(c_int, c_void_p, c_char_p, c_int, c_void_p),
}


# A single connection needs no locks. These functions may be called while a Python exception is propagating and its
# cursor is destroyed; no Python function can be called then.
_CALLED_IN_FAILURE = frozenset({"xLock", "xUnlock", "xShmLock", "xShmBarrier", "xShmUnmap"})


class _Methods(Structure):
    _fields_ = (("iVersion", c_int), *_METHODS.items())


class _FileSystem(Structure):
    """`sqlite3_vfs` of version 2. Functions without a type here are copied from SQLite's own VFS."""

    _fields_ = (
        ("iVersion", c_int),
        ("szOsFile", c_int),
        ("mxPathname", c_int),
        ("pNext", c_void_p),
        ("zName", c_char_p),
        ("pAppData", c_void_p),
        *_FILE_SYSTEM_METHODS.items(),
        *((name, c_void_p) for name in ("xDlOpen", "xDlError", "xDlSym", "xDlClose", "xRandomness", "xSleep")),
        *((name, c_void_p) for name in ("xCurrentTime", "xGetLastError", "xCurrentTimeInt64")),
    )


def open_on_disk(disk: Disk, path: Path, factory: type[Database] = Database) -> sqlite3.Connection:
    """Open a connection like `Disk.open_database`, on files of `disk`. Raises sqlite3.Error and OSError."""
    disk.open_for_write(
        path
    ).close()  # as `open_database` does: creates the file with the common mode before SQLite does
    disk.rewrite_log(path)
    vfs = _DiskFiles.of(disk)
    try:
        connection = sqlite3.connect(
            f"file:{quote(str(path))}?vfs={vfs.name}",
            isolation_level=None,
            check_same_thread=False,
            factory=factory,
            uri=True,
        )
    except BaseException:
        if vfs.is_new:
            vfs.release()
        raise
    connection.bind(disk, path)
    try:
        connection.execute("PRAGMA temp_store=MEMORY")
    except BaseException:
        connection.close()
        raise
    connection.set_up()
    return connection


class _OpenFile:
    """An open file of SQLite."""

    def __init__(self, path: Path, file: DiskFile, place: Any, *, is_side_file: bool) -> None:
        self.path = path
        self.file = file
        self.place = place
        self.must_sync_directory = is_side_file
        self.memory: list[Any] = []  # shared memory for other processes


class _DiskFiles:
    """The functions that SQLite calls. Registered under `name` while the process lives, because open files need them.

    Serves one connection at a time, and can serve another disk's connection after the last file is closed.
    """

    kept: ClassVar[list[_DiskFiles]] = []
    _idle: ClassVar[list[_DiskFiles]] = []
    _numbers = itertools.count(1)

    @classmethod
    def of(cls, disk: Disk) -> _DiskFiles:
        """Return the functions for a new connection."""
        try:
            found = cls._idle.pop()
        except IndexError:
            return cls(disk)
        found.disk, found.is_new = disk, True
        return found

    def release(self) -> None:
        """Release the disk after the connection is closed, so that a disk in memory can be freed."""
        self.disk = _NO_DISK
        self._idle.append(self)

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.is_new = True  # nothing was opened yet
        self.opened: dict[int, _OpenFile] = {}
        self.name = f"disk-{next(self._numbers)}"
        methods = {
            name: ctypes.cast(_nothing(), kind)
            if name in _CALLED_IN_FAILURE
            else kind(_answers(getattr(self, name[1:].lower())))
            for name, kind in _METHODS.items()
        }
        self._methods = _Methods(2, **methods)
        library = _library()
        own = _FileSystem.from_address(library.sqlite3_vfs_find(None))
        functions = {
            name: kind(_answers(getattr(self, name[1:].lower()))) for name, kind in _FILE_SYSTEM_METHODS.items()
        }
        self._vfs = _FileSystem()
        for name, *_ in _FileSystem._fields_:
            setattr(self._vfs, name, functions.get(name, getattr(own, name)))
        self._vfs.iVersion = 2
        self._vfs.szOsFile = ctypes.sizeof(_File)
        self._vfs.zName = self.name.encode()
        self.kept.append(self)
        if library.sqlite3_vfs_register(byref(self._vfs), 0):
            raise OSError(f"SQLite does not take {self.name}")

    # Of the file system

    def open(self, _vfs: object, name: bytes | None, file: Any, flags: int, flags_set: Any) -> int:
        file.contents.methods = None  # SQLite closes only files with methods
        if name is None:
            return _CANNOT_OPEN
        path = Path(name.decode())
        may_create = bool(flags & _OPEN_CREATE)
        if not may_create and not self.disk.exists(path):
            return _CANNOT_OPEN
        try:
            opened = self.disk.open_for_write(path)
        except OSError:
            return _CANNOT_OPEN
        number = next(self._numbers)
        self.is_new = False
        self.opened[number] = _OpenFile(path, opened, file, is_side_file=may_create and bool(flags & _OPEN_SIDE_FILE))
        file.contents.number = number
        file.contents.methods = ctypes.addressof(self._methods)
        if flags_set:
            flags_set[0] = flags
        return _OK

    def delete(self, _vfs: object, name: bytes, must_sync_directory: int) -> int:
        path = Path(name.decode())
        if not self.disk.exists(path):
            return _NO_SUCH_FILE
        try:
            self.disk.unlink(path)
        except OSError:
            return _DELETE
        return self._sync_directory(path) if must_sync_directory else _OK

    def access(self, _vfs: object, name: bytes, _flags: int, found: Any) -> int:
        path = Path(name.decode())
        found[0] = int(self.disk.exists(path) and self.disk.file_sizes(path.parent).get(path.name, 0) > 0)
        return _OK

    def fullpathname(self, _vfs: object, name: bytes, length: int, place: int) -> int:
        if len(name) >= length:
            return _CANNOT_OPEN
        ctypes.memmove(place, name + b"\0", len(name) + 1)
        return _OK

    # Of a file

    def close(self, file: Any) -> int:
        self.opened.pop(file.contents.number).file.close()
        if not self.opened:
            self.release()
        return _OK

    def read(self, file: Any, place: int, length: int, offset: int) -> int:
        try:
            data = self._opened(file).file.read_at(length, offset)
        except OSError:
            return _READ
        ctypes.memmove(place, data.ljust(length, b"\0"), length)
        return _OK if len(data) == length else _SHORT_READ

    def write(self, file: Any, place: int, length: int, offset: int) -> int:
        try:
            self._opened(file).file.write_at((ctypes.string_at(place, length),), offset, durable=False)
        except OSError as error:
            return _FULL if lacks_room(error) else _WRITE
        return _OK

    def truncate(self, file: Any, size: int) -> int:
        try:
            self._opened(file).file.truncate(size)
        except OSError:
            return _TRUNCATE
        return _OK

    def sync(self, file: Any, _flags: int) -> int:
        opened = self._opened(file)
        try:
            opened.file.sync()
        except OSError:
            return _SYNC
        if not opened.must_sync_directory:
            return _OK
        opened.must_sync_directory = False
        return self._sync_directory(opened.path)

    def filesize(self, file: Any, size: Any) -> int:
        try:
            size[0] = self._opened(file).file.size()
        except OSError:
            return _SIZE
        return _OK

    def checkreservedlock(self, _file: Any, is_held: Any) -> int:
        is_held[0] = 0
        return _OK

    def filecontrol(self, _file: Any, _operation: int, _value: object) -> int:
        return _NOT_FOUND

    def sectorsize(self, _file: Any) -> int:
        return _SECTOR_BYTES

    def devicecharacteristics(self, _file: Any) -> int:
        return _POWERSAFE_OVERWRITE

    def shmmap(self, file: Any, region: int, region_bytes: int, may_extend: int, place: Any) -> int:
        memory = self._opened(file).memory
        while may_extend and len(memory) <= region:
            memory.append(ctypes.create_string_buffer(region_bytes))
        place[0] = ctypes.addressof(memory[region]) if region < len(memory) else None
        return _OK

    def _opened(self, file: Any) -> _OpenFile:
        return self.opened[file.contents.number]

    def _sync_directory(self, path: Path) -> int:
        # The system's VFS ignores a directory that cannot be opened; here every failure is reported.
        try:
            self.disk.sync_directory(path.parent)
        except OSError:
            return _SYNC_DIRECTORY
        return _OK


def _answers(function: Callable[..., int | None]) -> Callable[..., int | None]:
    """Print exceptions and return success, because none may escape a ctypes function."""

    def answer(*arguments: Any) -> int | None:
        try:
            return function(*arguments)
        except Exception:  # noqa: BLE001 - a mistake in the twin fails the statement, and the test with it
            return 10  # SQLITE_IOERR

    return answer


@atexit.register
def _let_go() -> None:
    """Prevent Python calls from connections that are closed during interpreter shutdown."""
    for files in _DiskFiles.kept:
        for opened in files.opened.values():
            opened.place.contents.methods = ctypes.addressof(_NO_METHODS)


def _nothing() -> Any:
    """Return a system function that does nothing and returns 0 for any arguments."""
    return ctypes.CDLL(None).sched_yield


def _library() -> Any:
    """Return the SQLite library that `sqlite3` uses."""
    import _sqlite3

    library = ctypes.CDLL(getattr(_sqlite3, "__file__", None))
    library.sqlite3_vfs_find.restype = c_void_p
    library.sqlite3_vfs_find.argtypes = (c_char_p,)
    return library


_NO_DISK = Disk()
_NO_METHODS = _Methods(2, **{name: ctypes.cast(_nothing(), kind) for name, kind in _METHODS.items()})
