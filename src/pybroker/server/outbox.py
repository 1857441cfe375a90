"""Unsent data of one connection, written once per event loop iteration.

Parts below 16 KiB are joined, because a copy costs less than a system call for each. Larger parts are not copied.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pybroker.broker.context.pumps import PumpList

JOIN_BELOW_BYTES = 16 * 1024
FLUSH_NOW_BYTES = 256 * 1024


class Outbox:
    """The unsent data of a connection.

    Invariant: a flush is scheduled exactly while `_parts` is not empty.

    In a cluster, another broker may own the topics when the data is written, if the process was frozen after it had
    dispatched the messages. The connection is then aborted in place of the write.
    """

    __slots__ = ("_has_large_part", "_has_messages", "_loop", "_parts", "_pumps", "_size_bytes", "_transport")

    def __init__(self, loop: asyncio.AbstractEventLoop, transport: asyncio.Transport, pumps: PumpList) -> None:
        self._loop = loop
        self._transport = transport
        self._pumps = pumps
        self._has_messages = False
        self._parts: list[bytes] = []
        self._size_bytes = 0
        self._has_large_part = False

    @property
    def size_bytes(self) -> int:
        """The number of bytes that the transport has not sent."""
        return self._size_bytes + self._transport.get_write_buffer_size()

    def add(self, data: bytes) -> None:
        if not self._parts:
            self._loop.call_soon(self.flush)
        self._parts.append(data)
        self._size_bytes += len(data)

    def add_parts(self, parts: list[bytes], size_bytes: int, largest_bytes: int) -> None:
        """Queue `parts` of messages, which have `size_bytes` in total; the largest payload has `largest_bytes`. When
        FLUSH_NOW_BYTES are queued, write immediately so that back-pressure acts within this iteration of the event
        loop.
        """
        if not self._parts:
            self._loop.call_soon(self.flush)
        self._parts += parts
        self._size_bytes += size_bytes
        self._has_messages = True
        if largest_bytes >= JOIN_BELOW_BYTES:
            self._has_large_part = True
        if self._size_bytes >= FLUSH_NOW_BYTES:
            self.flush()

    def flush(self) -> None:
        if not self._parts:
            return
        parts = self._parts
        self._parts = []
        self._size_bytes = 0
        if self._transport.is_closing():
            return
        if self._has_messages:
            self._has_messages = False
            may_dispatch = self._pumps.may_dispatch
            if may_dispatch is not None and not may_dispatch():
                self._transport.abort()
                return
        if self._has_large_part:
            self._has_large_part = False
            self._transport.writelines(_joined(parts))
        else:
            self._transport.write(b"".join(parts))


def _joined(parts: list[bytes]) -> list[bytes]:
    out: list[bytes] = []
    small: list[bytes] = []
    for part in parts:
        if len(part) < JOIN_BELOW_BYTES:
            small.append(part)
            continue
        if small:
            out.append(b"".join(small))
            small = []
        out.append(part)
    if small:
        out.append(b"".join(small))
    return out
