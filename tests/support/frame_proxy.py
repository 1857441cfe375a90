"""A TCP proxy for protocols whose frames begin with their length (u32): it cuts, freezes and delays connections.

For ZooKeeper and BookKeeper. A test places it between a client and a server, on the test's own event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from enum import Enum

_CHUNK_BYTES = 1 << 16


class Direction(Enum):
    REQUEST = "request"
    ANSWER = "answer"


Cut = Callable[[Direction, bytes], bool]


class FrameProxy:
    """One target. `cut_at` decides for each frame: True drops it and ends its connection on both sides."""

    def __init__(self, host: str, port: int) -> None:
        self._target = host, port
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._open = asyncio.Event()
        self._open.set()
        self.delay_s = 0.0
        self.cut_at: Cut | None = None
        self.connections = 0
        """Accepted since the start."""
        self.port = 0

    async def start(self) -> None:
        """Accept connections, on the same port as before after `refuse`."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    @property
    def is_refusing(self) -> bool:
        return self._server is None

    def freeze(self) -> None:
        """Forward nothing, and accept connections without an answer."""
        self._open.clear()

    def thaw(self) -> None:
        self._open.set()

    def cut(self) -> None:
        """End all connections at once."""
        for writer in tuple(self._writers):
            writer.transport.abort()

    def refuse(self) -> None:
        """End all connections and accept none until `start`."""
        if self._server is not None:
            self._server.close()
            self._server = None
        self.cut()

    def changed(self, direction: Direction, frame: bytes) -> bytes:
        """Return the frame to forward. Overridden by tests of hostile peers."""
        return frame

    async def close(self) -> None:
        self.refuse()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        self._writers.add(writer)
        server_writer: asyncio.StreamWriter | None = None
        try:
            await self._open.wait()
            server_reader, server_writer = await asyncio.open_connection(*self._target)
            self._writers.add(server_writer)
            forwarding = [
                asyncio.ensure_future(self._forward(reader, server_writer, Direction.REQUEST)),
                asyncio.ensure_future(self._forward(server_reader, writer, Direction.ANSWER)),
            ]
            try:
                await asyncio.wait(forwarding, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for each in forwarding:
                    each.cancel()
                await asyncio.wait(forwarding)
        except (OSError, asyncio.CancelledError):
            pass  # the client sees the end of its connection
        finally:
            for each_writer in (writer, server_writer):
                if each_writer is not None:
                    self._writers.discard(each_writer)
                    each_writer.transport.abort()
            self._tasks.discard(task)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: Direction) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readexactly(4)
                body = await reader.readexactly(int.from_bytes(head, "big"))
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                await self._open.wait()
                if self.cut_at is not None and self.cut_at(direction, body):
                    return
                body = self.changed(direction, body)
                writer.write(len(body).to_bytes(4, "big") + body)
                await writer.drain()


class StreamProxy(FrameProxy):
    """A proxy for any protocol: it forwards bytes as they come, which costs less. `cut_at` and `changed` have no effect."""

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: Direction) -> None:
        with suppress(OSError):
            while data := await reader.read(_CHUNK_BYTES):
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                await self._open.wait()
                writer.write(data)
                await writer.drain()


@asynccontextmanager
async def frame_proxy(host: str, port: int) -> AsyncIterator[FrameProxy]:
    proxy = FrameProxy(host, port)
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.close()
