"""Durable background writes by Linux asynchronous IO, which bypasses the page cache and signals completion by an
eventfd.

The event loop submits the writes itself: a writer thread would compete with a busy event loop for the interpreter lock.

Concurrency: one thread; one write at a time. The file's blocks must be allocated and written beforehand, otherwise the
submission blocks. Offsets and lengths are multiples of `ALIGNMENT` (bytes).
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path

ALIGNMENT = 512
_WRITE = 1  # IOCB_CMD_PWRITE
_TELL_EVENT_DESCRIPTOR = 1  # IOCB_FLAG_RESFD
_GROW_BYTES = 1 << 20
_CALLS = {"x86_64": (206, 207, 208, 209), "aarch64": (0, 1, 4, 2)}


class DirectFile:
    """A file that is open for writes that bypass the page cache."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def close(self) -> None:
        os.close(self.descriptor)


class _ControlBlock(ctypes.Structure):
    """struct iocb of linux/aio_abi.h, little-endian."""

    _fields_ = (
        ("data", ctypes.c_uint64),
        ("key", ctypes.c_uint32),
        ("rw_flags", ctypes.c_uint32),
        ("operation", ctypes.c_uint16),
        ("priority", ctypes.c_int16),
        ("descriptor", ctypes.c_uint32),
        ("buffer", ctypes.c_uint64),
        ("length", ctypes.c_uint64),
        ("offset", ctypes.c_int64),
        ("reserved", ctypes.c_uint64),
        ("flags", ctypes.c_uint32),
        ("event_descriptor", ctypes.c_uint32),
    )


class _Event(ctypes.Structure):
    """struct io_event of linux/aio_abi.h."""

    _fields_ = (
        ("data", ctypes.c_uint64),
        ("control_block", ctypes.c_uint64),
        ("result", ctypes.c_int64),
        ("result2", ctypes.c_int64),
    )


class DirectWriter:
    """Writes one batch at a time. When `event_descriptor` becomes readable, call `finish`.

    Invariant: between `submit` and a `finish` that returns True, the buffer belongs to the kernel.
    """

    def __init__(self) -> None:
        """Raise OSError if the system lacks or forbids asynchronous IO."""
        calls = _CALLS.get(platform.machine())
        if sys.platform != "linux" or sys.byteorder != "little" or calls is None or not hasattr(os, "eventfd"):
            raise OSError(errno.ENOSYS, "this system does not support asynchronous direct IO")
        self._setup, self._destroy, self._getevents, self._submit = map(ctypes.c_long, calls)
        # PyDLL keeps the interpreter lock: releasing it would cost more than these calls.
        self._call = ctypes.PyDLL(None, use_errno=True).syscall
        self._call.restype = ctypes.c_long
        self._context = ctypes.c_ulong(0)
        self._checked(self._call(self._setup, ctypes.c_long(1), ctypes.byref(self._context)))
        self.event_descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._block = _ControlBlock(
            operation=_WRITE,
            rw_flags=os.RWF_DSYNC,
            flags=_TELL_EVENT_DESCRIPTOR,
            event_descriptor=self.event_descriptor,
        )
        self._blocks = (ctypes.POINTER(_ControlBlock) * 1)(ctypes.pointer(self._block))
        self._events = (_Event * 1)()
        self._buffer = mmap.mmap(-1, _GROW_BYTES)
        self._locate_buffer()
        self.is_busy = False

    def submit(self, file: DirectFile, pieces: Sequence[bytes], offset: int) -> None:
        """Start a write of `pieces`, zero-padded to the alignment, at `offset`. Raises OSError."""
        assert not self.is_busy, "one write at a time"
        assert offset % ALIGNMENT == 0
        length = sum(map(len, pieces))
        padded = -(-length // ALIGNMENT) * ALIGNMENT
        if padded > len(self._buffer):
            self._buffer = mmap.mmap(-1, -(-padded // _GROW_BYTES) * _GROW_BYTES)
            self._locate_buffer()
        end = 0
        for piece in pieces:
            self._buffer[end : end + len(piece)] = piece
            end += len(piece)
        self._buffer[end:padded] = bytes(padded - end)
        block = self._block
        block.descriptor = file.descriptor
        block.buffer = self._address
        block.length = padded
        block.offset = offset
        self._checked(self._call(self._submit, self._context, ctypes.c_long(1), self._blocks))
        self.is_busy = True

    def finish(self) -> bool:
        """Return whether the submitted write is complete on the device. Raises the OSError of a failed write."""
        try:
            os.eventfd_read(self.event_descriptor)
        except BlockingIOError:
            return False
        count = self._checked(
            self._call(self._getevents, self._context, ctypes.c_long(0), ctypes.c_long(1), self._events, None)
        )
        if not count:
            return False
        self.is_busy = False
        block = self._block
        written = int(self._events[0].result)
        if written < 0:
            raise OSError(-written, os.strerror(-written))
        if written < block.length:
            # A short write is no error: retry the rest until an error occurs.
            block.buffer += written
            block.length -= written
            block.offset += written
            self._checked(self._call(self._submit, self._context, ctypes.c_long(1), self._blocks))
            self.is_busy = True
            return False
        return True

    def close(self) -> None:
        if self._context.value:
            self._call(self._destroy, self._context)
            self._context.value = 0
            os.close(self.event_descriptor)

    def _locate_buffer(self) -> None:
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._buffer))

    def _checked(self, result: int) -> int:
        if result < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return result


def open_direct(path: Path) -> DirectFile | None:
    flag = getattr(os, "O_DIRECT", None)
    if flag is None:
        return None
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | flag)
    except OSError:
        return None
    try:
        with mmap.mmap(-1, ALIGNMENT) as probe:
            os.preadv(descriptor, (probe,), 0)
    except OSError:
        os.close(descriptor)
        return None
    return DirectFile(descriptor)
