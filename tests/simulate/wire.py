"""A client's side of one connection: whole frames in, whole frames out, and what happens to the connection.

PINGs are answered by the wire itself as long as it reads, as every client's own loop does.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple, Protocol, cast

from tests.simulate.network import SimulatedNetwork, WeatherTransport
from tests.support.raw_client import all_frames

from pybroker.client.frames import FrameReader, command_and_rest
from pybroker.errors import ProtocolViolation
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.replies import PONG


class WireClosed(ConnectionError):
    """The connection has ended, and everything that came before was received."""


class Frame(NamedTuple):
    """A command and what follows it in its frame: metadata and payload of a message, with everything in front of them."""

    command: pb.BaseCommand
    payload: bytes


class WireListener(Protocol):
    """Who is told of everything that goes over a wire."""

    def command_sent(self, wire: Wire, command: pb.BaseCommand) -> None: ...

    def command_received(self, wire: Wire, command: pb.BaseCommand) -> None: ...

    def wire_closed(self, wire: Wire) -> None: ...


class Wire(asyncio.Protocol):
    """Made by `Simulation.connect`. Frames are taken by one task at a time."""

    def __init__(self, number: int, network: SimulatedNetwork, listener: WireListener) -> None:
        self.number = number
        self.is_open = False
        self._network = network
        self._listener = listener
        self._reader = all_frames()
        self._frames: deque[Frame] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._transport: WeatherTransport

    def send(self, frames: bytes) -> None:
        """Whole frames, or anything else; nothing once the connection has ended."""
        if not self.is_open or self._transport.is_closing():
            return
        for command in _commands(frames):
            self._listener.command_sent(self, command)
        self._transport.write(frames)

    async def receive(self) -> Frame:
        """The next frame but PINGs. Raises WireClosed at the end."""
        while not self._frames:
            if not self.is_open:
                raise WireClosed(f"wire {self.number}")
            assert self._waiter is None, "two tasks wait for the next frame"
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return self._frames.popleft()

    def take(self) -> Frame | None:
        """The next frame if it has come."""
        return self._frames.popleft() if self._frames else None

    def cut(self, *, silently: bool = False) -> None:
        """Something between breaks it; silently: the broker does not see it, until nobody answers its PING.

        What has come and was not received yet is lost with it.
        """
        self._frames.clear()
        if self.is_open:
            self._network.cut(self._transport, silently=silently)

    def close(self) -> None:
        """The client closes it, with everything sent before."""
        if self.is_open:
            self.is_open = False
            self._transport.close()
            self._listener.wire_closed(self)
            self._wake()

    def stall(self) -> None:
        """The client does not read."""
        if self.is_open:
            self._transport.pause_reading()

    def go_on(self) -> None:
        """It reads again."""
        if self.is_open:
            self._transport.resume_reading()

    # What a transport calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(WeatherTransport, transport)
        self.is_open = True

    def connection_lost(self, error: Exception | None) -> None:
        if self.is_open:
            self.is_open = False
            self._listener.wire_closed(self)
        self._wake()

    def data_received(self, data: bytes) -> None:
        for command, payload in self._reader.feed(data):
            if not self.is_open:
                return
            if command.type == pb.BaseCommand.PING:
                self._transport.write(PONG)
                continue
            self._listener.command_received(self, command)
            self._frames.append(Frame(command, payload))
        if self._frames:
            self._wake()

    def pause_writing(self) -> None:
        """What it sends waits in the transport."""

    def resume_writing(self) -> None:
        """As above."""

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def _commands(data: bytes) -> list[pb.BaseCommand]:
    """Those that `data` begins with, as far as they can be read."""
    found: list[pb.BaseCommand] = []
    reader = FrameReader(lambda frames, start, end: found.append(command_and_rest(frames, start, end)[0]))
    with suppress(ProtocolViolation):
        reader.feed(data)
    return found


Connect = Callable[[], Wire]
