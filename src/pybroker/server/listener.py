"""The ports of the binary protocol: binds them, accepts connections, and closes stalled connections."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING

from pybroker.errors import CannotListen
from pybroker.server.connection import Connection
from pybroker.server.repeated_events import INTERVAL_S

if TYPE_CHECKING:
    from pybroker.runtime.network import Port
    from pybroker.server.server_context import ServerContext

KEEP_ALIVE_SLICES = 10
CLOSE_GRACE_S = 2.0


class Listener:
    """The bound ports of a broker, owned by the app."""

    def __init__(self, context: ServerContext, connect: Callable[[ServerContext], Connection] = Connection) -> None:
        self.context = context
        self._connect = connect
        self.port: int | None = None
        self.port_tls: int | None = None
        self._ports: list[tuple[Port, ssl.SSLContext | None]] = []

    def bind(self, host: str, port: int | None, port_tls: int | None, tls: ssl.SSLContext | None) -> None:
        """Bind the ports without accepting connections. Raises CannotListen; its text contains every port that could
        not be bound.
        """
        problems: list[str] = []
        if port is not None:
            try:
                self.port = self._bind_one(host, port, None)
            except OSError as error:
                problems += CannotListen.on(host, port, "brokerServicePort", error).problems
        if port_tls is not None:
            assert tls is not None, "port_tls requires a TLS context"
            try:
                self.port_tls = self._bind_one(host, port_tls, tls)
            except OSError as error:
                problems += CannotListen.on(host, port_tls, "brokerServicePortTls", error).problems
        if problems:
            self._close_ports()
            raise CannotListen(*problems)

    def _bind_one(self, host: str, port: int, tls: ssl.SSLContext | None) -> int:
        runtime = self.context.runtime
        bound = runtime.network.bind(host, port, runtime.config.broker_service_accept_queue_size)
        self._ports.append((bound, tls))
        return bound.number

    async def start(self) -> None:
        for bound, tls in self._ports:
            await bound.serve(lambda: self._connect(self.context), tls, self.context.connect_timeout_s)

    async def watch(self) -> None:
        """Send keep-alive pings, close stalled and late unauthenticated connections, and log summaries of repeated
        events, until cancelled.
        """
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watch_unauthenticated(), name="unauthenticated")
            group.create_task(self._keep_alive(), name="keep-alive")
            group.create_task(self._report_repeated_events(), name="repeated-events")

    async def _watch_unauthenticated(self) -> None:
        while True:
            await asyncio.sleep(self.context.connect_timeout_s / KEEP_ALIVE_SLICES)
            self.context.close_unauthenticated()

    async def _keep_alive(self) -> None:
        interval_s = self.context.runtime.config.keep_alive_interval_seconds
        while True:
            await asyncio.sleep(interval_s / KEEP_ALIVE_SLICES)
            now_s = self.context.now_s()
            for connection, due_s in list(self.context.connections.items()):
                if now_s >= due_s:
                    self.context.connections[connection] = now_s + interval_s
                    connection.keep_alive_tick()
            self.context.close_stalled(2 * interval_s)

    async def _report_repeated_events(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL_S)
            self.context.report_repeated_events()

    def stop_reading(self) -> None:
        """Refuse new connections and stop reading existing ones. Received commands are still answered.

        Otherwise clients would immediately recreate closed producers and consumers, and thousands of refusals take
        longer than closing the topics.
        """
        self._close_ports()
        self.context.is_stopping = True
        for connection in self.context.connections:
            connection.hold_for_stop()

    async def close(self) -> None:
        """Close all connections after their queued data is written."""
        self.stop_reading()
        self.context.is_closed = True
        for connection in list(self.context.connections):
            connection.close("the broker is stopping")
        try:
            async with asyncio.timeout(CLOSE_GRACE_S):
                await self.context.all_closed.wait()
        except TimeoutError:
            self.abort()  # clients that do not read must not delay the stop
            await self.context.all_closed.wait()
        self.context.report_repeated_events()

    def _close_ports(self) -> None:
        for bound, _ in self._ports:
            bound.close()

    def abort(self) -> None:
        """Close all connections at once, without the data that is queued for them."""
        self.context.is_closed = True
        for connection in list(self.context.connections):
            connection.abort("the broker is stopping")
