"""Binds the binary protocol's ports, accepts connections, watches and ends them."""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import TYPE_CHECKING

from pybroker.errors import CannotListen
from pybroker.server.connection import Connection

if TYPE_CHECKING:
    from pybroker.server.context import ServerContext

KEEP_ALIVE_SLICES = 10
CLOSE_GRACE_S = 2.0


class Listener:
    """The bound ports of the binary protocol. Owned by the app."""

    def __init__(self, context: ServerContext) -> None:
        self.context = context
        self.port: int | None = None
        self.port_tls: int | None = None
        self._sockets: list[tuple[socket.socket, ssl.SSLContext | None]] = []
        self._servers: list[asyncio.Server] = []
        self._accept_queue_size = context.surroundings.config.broker_service_accept_queue_size

    def bind(self, host: str, port: int | None, port_tls: int | None, tls: ssl.SSLContext | None) -> None:
        """Bind the ports without serving them yet. Raises CannotListen, which names all that cannot be bound."""
        problems: list[str] = []
        if port is not None:
            try:
                self.port = self._bind_one(host, port, None)
            except OSError as error:
                problems += CannotListen.on(host, port, "brokerServicePort", error).problems
        if port_tls is not None:
            assert tls is not None, "a TLS port without a TLS context"
            try:
                self.port_tls = self._bind_one(host, port_tls, tls)
            except OSError as error:
                problems += CannotListen.on(host, port_tls, "brokerServicePortTls", error).problems
        if problems:
            self._close_sockets()
            raise CannotListen(*problems)

    def _bind_one(self, host: str, port: int, tls: ssl.SSLContext | None) -> int:
        bound = _bind(host, port, self._accept_queue_size)
        self._sockets.append((bound, tls))
        number: int = bound.getsockname()[1]
        return number

    async def start(self) -> None:
        """Serve what was bound."""
        for bound, tls in self._sockets:
            server = await self.context.loop.create_server(
                lambda: Connection(self.context),
                sock=bound,
                ssl=tls,
                backlog=self._accept_queue_size,
                ssl_handshake_timeout=self.context.connect_timeout_s if tls is not None else None,
            )
            self._servers.append(server)

    async def watch(self) -> None:
        """Tick keep-alive, drop stalled connections and those that say nothing, for as long as the broker runs."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watch_strangers(), name="strangers")
            group.create_task(self._keep_alive(), name="keep-alive")

    async def _watch_strangers(self) -> None:
        while True:
            await asyncio.sleep(self.context.connect_timeout_s / KEEP_ALIVE_SLICES)
            self.context.close_strangers()

    async def _keep_alive(self) -> None:
        """Spread over the interval."""
        interval_s = self.context.surroundings.config.keep_alive_interval_seconds
        while True:
            await asyncio.sleep(interval_s / KEEP_ALIVE_SLICES)
            now_s = self.context.loop.time()
            for connection, due_s in list(self.context.connections.items()):
                if now_s >= due_s:
                    self.context.connections[connection] = now_s + interval_s
                    connection.keep_alive_tick()
            self.context.close_stalled(2 * interval_s)

    def stop_reading(self) -> None:
        """Refuse new connections, and take nothing more from those that are there; what they sent is still answered.

        Clients that are told that their producers and consumers are closed ask for them again at once. To answer thousands of
        these questions, all in vain, takes longer than to close the topics.
        """
        for server in self._servers:
            server.close()
        self.context.is_stopping = True
        for connection in self.context.connections:
            connection.hold_for_stop()

    async def close(self) -> None:
        """Close all connections, writing out what is queued for them."""
        self.stop_reading()
        for connection in list(self.context.connections):
            connection.close("the broker is stopping")
        try:
            async with asyncio.timeout(CLOSE_GRACE_S):
                await self.context.all_closed.wait()
        except TimeoutError:
            self.abort()  # who does not read what is queued must not keep the broker from ending
            await self.context.all_closed.wait()
        self._close_sockets()

    def _close_sockets(self) -> None:
        for bound, _ in self._sockets:
            bound.close()

    def abort(self) -> None:
        """Drop all connections at once."""
        for connection in list(self.context.connections):
            connection.abort("the broker is stopping")


def _bind(host: str, port: int, accept_queue_size: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # For the connections that are accepted: asyncio's own loop leaves Nagle's algorithm on for sockets it did not make.
        bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        bound.bind((host, port))
        bound.listen(accept_queue_size)
        bound.setblocking(False)
    except OSError:
        bound.close()
        raise
    return bound
