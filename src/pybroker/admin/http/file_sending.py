"""Sends parts of files to a client by the kernel: from a thread, without the event loop and the interpreter.

Invariants: while a thread sends, no other code writes to the connection; the end of the request ends the thread. The thread has its
own descriptor of the socket, so a connection that is closed meanwhile never makes it write into another one.
docs/contributing/benchmarks.md has the comparison with copies through the event loop (200 MiB over the loopback interface).
"""

from __future__ import annotations

import asyncio
import os
import select
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import h11

from pybroker.admin.calls.call import ClientGone

if TYPE_CHECKING:
    from pybroker.ledgers.ledger_store import LedgerFile

FILE_SENDER_KEY = "file_sender"
"""Of `scope["state"]`: present where files can go past the transport, which a TLS connection cannot have."""
_DRAIN_STEP_S = 0.005
_POLL_MS = 200


class _Sent:
    """Stands for bytes that went out already, in the connection's own account of the body."""

    def __init__(self, size_bytes: int) -> None:
        self._size_bytes = size_bytes

    def __len__(self) -> int:
        return self._size_bytes


class FileSender:
    """Of one connection; made by its protocol."""

    def __init__(self, transport: asyncio.Transport, connection: h11.Connection) -> None:
        self._transport = transport
        self._connection = connection

    @asynccontextmanager
    async def sending(self, timeout_s: float) -> AsyncIterator[SocketWriter]:
        """Return the socket when earlier writes are complete. Raises ClientGone."""
        try:
            async with asyncio.timeout(timeout_s):
                while self._transport.get_write_buffer_size() and not self._transport.is_closing():  # noqa: ASYNC110
                    await asyncio.sleep(_DRAIN_STEP_S)
        except TimeoutError as error:
            raise ClientGone from error
        if self._transport.is_closing():
            raise ClientGone
        writer = SocketWriter(os.dup(self._transport.get_extra_info("socket").fileno()), timeout_s)
        try:
            yield writer
        finally:
            writer.release()

    def sent(self, size_bytes: int) -> None:
        """So many bytes of the answer's body went out. Raises ClientGone."""
        if self._transport.is_closing():
            raise ClientGone
        self._connection.send_with_data_passthrough(h11.Data(data=_Sent(size_bytes)))  # type: ignore[arg-type]


class SocketWriter:
    """A descriptor that a thread writes to. `send` runs in the thread, `release` ends it from the event loop.

    Invariant: the later one of both closes the descriptor, and never while the other uses it.
    """

    def __init__(self, descriptor: int, timeout_s: float) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._timeout_ms = timeout_s * 1000
        self._lock = threading.Lock()  # for the two flags; nothing is done under it that can wait
        self._is_busy = False
        self._released = threading.Event()

    def send(self, offset: int, length: int, file: LedgerFile) -> None:
        """Send that part of the file. Raises ClientGone when the client takes nothing for so long, or is gone."""
        with self._lock:
            if self._released.is_set():
                raise ClientGone
            self._is_busy = True
        try:
            self._send(offset, length, file)
        except ConnectionError as error:
            raise ClientGone from error
        finally:
            with self._lock:
                self._is_busy = False
                if self._released.is_set():
                    self._socket.close()

    def release(self) -> None:
        """Stop sending: a thread whose request was cancelled ends immediately and closes the descriptor."""
        with self._lock:
            self._released.set()
            if not self._is_busy:
                self._socket.close()
                return
            try:
                self._socket.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # the client was faster

    def _send(self, offset: int, length: int, file: LedgerFile) -> None:
        poll = select.poll()
        poll.register(self._socket, select.POLLOUT)
        waited_ms = 0
        while length:
            try:
                count = file.send_to(self._socket.fileno(), offset, length)
            except BlockingIOError:
                waited_ms += _POLL_MS
                if not poll.poll(_POLL_MS) and (self._released.is_set() or waited_ms >= self._timeout_ms):
                    raise ClientGone from None
                continue
            if not count:
                raise ClientGone  # the file was cut: the client sees that the answer is, too
            offset, length, waited_ms = offset + count, length - count, 0
