"""A network without sockets: a connection is a pair of transports in this process, which deliver in the next loop
iteration.

Invariant: bytes arrive in order and once; bytes that the other side does not read count as unsent.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from itertools import count
from typing import Any, cast

from pybroker.runtime.network import MakeProtocol, Network, Port

SLICE_BYTES = 64 * 1024


class MemoryTransport(asyncio.Transport):
    """One side of a connection."""

    def __init__(self, protocol: asyncio.BaseProtocol, own: tuple[str, int], other: tuple[str, int]) -> None:
        super().__init__({"sockname": own, "peername": other})
        self._loop = asyncio.get_running_loop()
        self._protocol = protocol
        self._unsent = bytearray()
        self._is_reading = True
        self._is_closing = False
        self.is_lost = False
        self._is_cut_off = False
        """Whether the other side has ended. The protocol may not know this yet, and may write."""
        self._is_held = False
        self._high = SLICE_BYTES
        self.peer: MemoryTransport

    def tell(self, method: Callable[..., object], *arguments: object) -> None:
        """Call the protocol. All calls of it are made here, or within one of its own calls."""
        method(*arguments)

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    # --- writing -----------------------------------------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        if self._is_cut_off:
            return  # As with a socket, what is written is lost.
        assert not self._is_closing or self.is_lost, "written after it was closed"
        self._unsent += data
        self._cross_soon()
        if len(self._unsent) > self._high and not self._is_held:
            self._is_held = True
            self._protocol.pause_writing()

    def _cross_soon(self) -> None:
        """Schedule the delivery of unsent data or of the end."""
        self._loop.call_soon(self._cross)

    def _cross(self) -> None:
        """Deliver the data that the other side accepts."""
        while self._unsent and self.peer.takes():
            self._hand_over(SLICE_BYTES)
        self._settle()

    def _hand_over(self, most_bytes: int) -> None:
        data = bytes(self._unsent[:most_bytes])
        del self._unsent[: len(data)]
        self.peer.arrived(data)

    def _settle(self) -> None:
        """Update flow control after data has left or the connection is closing."""
        if self._is_held and len(self._unsent) <= self._high // 4:
            self._is_held = False
            self.tell(self._protocol.resume_writing)
        if self._is_closing and not self._unsent:
            self._lose()

    def get_write_buffer_size(self) -> int:
        return len(self._unsent)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = SLICE_BYTES if high is None else high

    # --- reading -----------------------------------------------------------------------------------------------------

    def takes(self) -> bool:
        return self._is_reading and not self._is_closing

    def arrived(self, data: bytes) -> None:
        self.tell(self._take, data)

    def _take(self, data: bytes) -> None:
        if not isinstance(self._protocol, asyncio.BufferedProtocol):
            cast(asyncio.Protocol, self._protocol).data_received(data)
            return
        while data and not self._is_closing:
            buffer = self._protocol.get_buffer(len(data))
            size = min(len(buffer), len(data))  # type: ignore[arg-type]
            memoryview(buffer)[:size] = data[:size]
            self._protocol.buffer_updated(size)
            data = data[size:]

    def pause_reading(self) -> None:
        self._is_reading = False

    def resume_reading(self) -> None:
        self._is_reading = True
        self.peer._cross_soon()

    def is_reading(self) -> bool:
        return self._is_reading

    # --- the end -----------------------------------------------------------------------------------------------------

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        """Close after all written data is delivered."""
        self._is_closing = True
        self._cross_soon()

    def abort(self) -> None:
        self._unsent.clear()
        self.close()

    def _lose(self) -> None:
        if not self.is_lost:
            self.is_lost = True
            self.tell(self._protocol.connection_lost, None)
            self.peer.cut_off()

    def cut_off(self) -> None:
        """End this side, because the other side has ended."""
        self._is_cut_off = True
        self.abort()


class MemoryPort(Port):
    """A port of a `MemoryNetwork`."""

    def __init__(self, network: MemoryNetwork, number: int) -> None:
        self.number = number
        self._network = network
        self._make_protocol: MakeProtocol | None = None

    async def serve(
        self, make_protocol: MakeProtocol, tls: ssl.SSLContext | None = None, handshake_timeout_s: float | None = None
    ) -> None:
        assert tls is None, "nothing is encrypted in memory"
        self._make_protocol = make_protocol

    def close(self) -> None:
        self._network.ports.pop(self.number, None)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect like `asyncio.open_connection`. Raises ConnectionRefusedError if the port is not served."""
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        client = self.join(protocol)
        return reader, asyncio.StreamWriter(client, protocol, reader, asyncio.get_running_loop())

    def join(self, protocol: asyncio.Protocol) -> MemoryTransport:
        """Connect `protocol` and return its transport. Raises ConnectionRefusedError if the port is not served."""
        if self._make_protocol is None or self.number not in self._network.ports:
            raise ConnectionRefusedError(self.number)
        own, other = ("10.0.0.2", next(self._network.numbers)), ("10.0.0.1", self.number)
        client, served = self._network.pair(protocol, self._make_protocol, own, other)
        client.peer, served.peer = served, client
        served.tell(cast(asyncio.Protocol, served.get_protocol()).connection_made, served)
        client.tell(protocol.connection_made, client)
        return client


class MemoryNetwork(Network):
    """Ports by number."""

    def __init__(self) -> None:
        self.ports: dict[int, MemoryPort] = {}
        self.numbers = count(49152)

    def pair(
        self, protocol: asyncio.Protocol, make_served: MakeProtocol, own: tuple[str, int], other: tuple[str, int]
    ) -> tuple[MemoryTransport, MemoryTransport]:
        """Return client and server transport of a new connection."""
        return MemoryTransport(protocol, own, other), MemoryTransport(make_served(), other, own)

    def bind(self, address: str, number: int, accept_queue_size: int) -> Port:
        number = number or next(self.numbers)
        if number in self.ports:
            raise OSError(98, "Address already in use")
        self.ports[number] = MemoryPort(self, number)
        return self.ports[number]
