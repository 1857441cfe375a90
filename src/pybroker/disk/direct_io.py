"""Durable background writes by Linux asynchronous IO, which bypasses the page cache and signals completion by an
eventfd.

The event loop submits the writes itself: a writer thread would compete with a busy event loop for the interpreter lock.

Concurrency: one thread; one write at a time. The file's blocks must be allocated and written beforehand, otherwise the
submission blocks. Offsets and lengths are multiples of `ALIGNMENT` (bytes).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import platform
import sys
from collections.abc import Sequence
from functools import partial
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


class _CompletionRing:
    """The results of completed writes, in memory that the kernel shares with the process (`struct aio_ring` of
    fs/aio.c). Reading them here saves a system call for each write.

    Layout: u32 id, event count, head, tail, magic, compatible and incompatible features, length of the header; then
    events of 32 bytes, with the result at byte 16.
    """

    _HEADER_BYTES = 32
    _EVENT_BYTES = 32
    _COUNT, _HEAD, _TAIL, _MAGIC, _INCOMPATIBLE, _HEADER_LENGTH = 1, 2, 3, 4, 6, 7
    _MAGIC_NUMBER = 0xA10A10A1

    def __init__(self, address: int) -> None:
        """`address`: the number of the context, which is the address of the ring. Raise OSError if the kernel does not
        share the ring in this layout.
        """
        fields = memoryview((ctypes.c_char * self._HEADER_BYTES).from_address(address)).cast("B").cast("I")
        known = (self._MAGIC_NUMBER, 0, self._HEADER_BYTES)
        if (fields[self._MAGIC], fields[self._INCOMPATIBLE], fields[self._HEADER_LENGTH]) != known:
            raise OSError(
                errno.ENOSYS,
                "the kernel does not support asynchronous IO with a shared ring of completed requests (io_setup)",
            )
        self._fields = fields
        self._count = fields[self._COUNT]
        size_bytes = self._HEADER_BYTES + self._count * self._EVENT_BYTES
        self._numbers = memoryview((ctypes.c_char * size_bytes).from_address(address)).cast("B").cast("q")

    def take(self) -> int | None:
        """Remove the oldest completed write and return its result: bytes, or a negative error number. Return None
        without a completed write.
        """
        fields = self._fields
        head = fields[self._HEAD]
        if head == fields[self._TAIL]:
            return None
        result: int = self._numbers[(self._HEADER_BYTES + head * self._EVENT_BYTES + 16) // 8]
        fields[self._HEAD] = (head + 1) % self._count
        return result


class DirectWriter:
    """Writes one batch at a time. When `event_descriptor` becomes readable, call `finish`.

    Invariant: between `submit` and a `finish` that returns True, the buffer belongs to the kernel.
    """

    def __init__(self) -> None:
        """Raise OSError if the system lacks or forbids asynchronous IO."""
        calls = _CALLS.get(platform.machine())
        if sys.platform != "linux" or sys.byteorder != "little" or calls is None or not hasattr(os, "eventfd"):
            raise OSError(errno.ENOSYS, "this system does not support asynchronous direct IO")
        setup, self._destroy, self._getevents, submit = map(ctypes.c_long, calls)
        # PyDLL keeps the interpreter lock: releasing it would cost more than these calls.
        self._call = ctypes.PyDLL(None, use_errno=True).syscall
        self._call.restype = ctypes.c_long
        self._context = ctypes.c_ulong(0)
        self._checked(self._call(setup, ctypes.c_long(1), ctypes.byref(self._context)))
        self.event_descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._block = _ControlBlock(
            operation=_WRITE,
            rw_flags=os.RWF_DSYNC,
            flags=_TELL_EVENT_DESCRIPTOR,
            event_descriptor=self.event_descriptor,
        )
        blocks = (ctypes.POINTER(_ControlBlock) * 1)(ctypes.pointer(self._block))
        self._submit_block = partial(self._call, submit, self._context, ctypes.c_long(1), blocks)
        self._events = (_Event * 1)()
        self._ring: _CompletionRing | None = None
        with contextlib.suppress(OSError):
            self._ring = _CompletionRing(self._context.value)
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
        self._checked(self._submit_block())
        self.is_busy = True

    def finish(self) -> bool:
        """Return whether the submitted write is complete on the device. Raises the OSError of a failed write."""
        try:
            os.eventfd_read(self.event_descriptor)
        except BlockingIOError:
            return False
        # The read of the event descriptor also orders the reads of the ring after the kernel's writes to it.
        written = self._completed() if self._ring is None else self._ring.take()
        if written is None:
            return False
        self.is_busy = False
        block = self._block
        if written < 0:
            raise OSError(-written, os.strerror(-written))
        if written < block.length:
            # A short write is no error: retry the rest until an error occurs.
            block.buffer += written
            block.length -= written
            block.offset += written
            self._checked(self._submit_block())
            self.is_busy = True
            return False
        return True

    def _completed(self) -> int | None:
        """Return the result of a completed write by a system call, as `_CompletionRing.take` does without one."""
        count = self._checked(
            self._call(self._getevents, self._context, ctypes.c_long(0), ctypes.c_long(1), self._events, None)
        )
        return int(self._events[0].result) if count else None

    def close(self) -> None:
        self._ring = None  # its memory ends with the context
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
