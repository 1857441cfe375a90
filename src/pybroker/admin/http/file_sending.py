"""Sending of parts of files with `sendfile`, in a thread.

While a thread sends, no other code writes to the connection. The thread uses its own duplicate of the socket
descriptor; otherwise it could write to a new connection that reuses the descriptor number.
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
"""Key in `scope["state"]`; absent with TLS."""
_DRAIN_STEP_S = 0.005
_POLL_MS = 200


class _Sent:
    """Placeholder for body bytes that were already sent. h11 uses only its length, to check Content-Length."""

    def __init__(self, size_bytes: int) -> None:
        self._size_bytes = size_bytes

    def __len__(self) -> int:
        return self._size_bytes


class FileSender:
    """Sends parts of files as response bodies of one connection."""

    def __init__(self, transport: asyncio.Transport, connection: h11.Connection) -> None:
        self._transport = transport
        self._connection = connection

    @asynccontextmanager
    async def sending(self, timeout_s: float) -> AsyncIterator[SocketWriter]:
        """Wait until earlier writes are complete, then yield a writer that one thread may use. Raises ClientGone if the
        client has disconnected, or if the wait exceeds `timeout_s` seconds. The writer's `send` has the same timeout.
        """
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
        """Report to the HTTP parser (h11) that `size_bytes` of the body were sent. Raises ClientGone."""
        if self._transport.is_closing():
            raise ClientGone
        self._connection.send_with_data_passthrough(h11.Data(data=_Sent(size_bytes)))  # type: ignore[arg-type]


class SocketWriter:
    """Socket descriptor for one thread. The thread calls `send`; the event loop calls `release`.

    The later of both calls closes the descriptor.
    """

    def __init__(self, descriptor: int, timeout_s: float) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._timeout_ms = timeout_s * 1000
        self._lock = threading.Lock()  # for the flags; never waits
        self._is_busy = False
        self._released = threading.Event()

    def send(self, offset: int, length: int, file: LedgerFile) -> None:
        """Send `length` bytes of `file` from `offset`. Raises ClientGone if the client has disconnected, or has read
        nothing for the timeout.
        """
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
        """Close the descriptor. A `send` that still runs, because its request was cancelled, is stopped."""
        with self._lock:
            self._released.set()
            if not self._is_busy:
                self._socket.close()
                return
            try:
                self._socket.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # already disconnected

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
                raise ClientGone  # a truncated file; the client detects the missing bytes
            offset, length, waited_ms = offset + count, length - count, 0
