"""The ports of the binary protocol: binds them, accepts connections, and closes stalled connections."""

from __future__ import annotations

import asyncio
import functools
import ssl
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from pybroker.errors import CannotListen
from pybroker.runtime.proxied_port import ProxiedPort, WaitingConnections, accepting_port
from pybroker.runtime.repeated_events import INTERVAL_S
from pybroker.server.connection import Connection

if TYPE_CHECKING:
    from pybroker.runtime.network import Port
    from pybroker.runtime.proxy_protocol import Address
    from pybroker.server.bind_addresses import BindAddress
    from pybroker.server.server_context import ServerContext

KEEP_ALIVE_SLICES = 10
CLOSE_GRACE_S = 2.0


class Listener:
    """The bound ports of a broker. The broker process creates and closes it."""

    def __init__(self, context: ServerContext, connect: Callable[[ServerContext], Connection] = Connection) -> None:
        self.context = context
        self._connect = connect
        self.port: int | None = None
        """Port number of `brokerServicePort`."""
        self.port_tls: int | None = None
        self.listener_ports: list[tuple[str, int]] = []
        """Listener name and port number of each entry of `bindAddresses`."""
        self._ports: list[tuple[Port | ProxiedPort, BindAddress, ssl.SSLContext | None]] = []
        self._waiting = WaitingConnections(context.runtime.config.max_connections_before_connect, context.room)

    def bind(self, addresses: Iterable[BindAddress], tls: ssl.SSLContext | None) -> None:
        """Bind the ports without accepting connections. Raises CannotListen, whose text contains every port that could
        not be bound.
        """
        problems: list[str] = []
        for address in addresses:
            assert tls is not None or not address.is_tls, "a TLS port requires a TLS context"
            try:
                number = self._bind_one(address, tls if address.is_tls else None)
            except OSError as error:
                problems += CannotListen.on(address.host, address.port, address.setting, error).problems
                continue
            if address.listener_name is not None:
                self.listener_ports.append((address.listener_name, number))
            elif address.is_tls:
                self.port_tls = number
            else:
                self.port = number
        if problems:
            self._close_ports()
            raise CannotListen(*problems)

    def _bind_one(self, address: BindAddress, tls: ssl.SSLContext | None) -> int:
        runtime = self.context.runtime
        bound = runtime.network.bind(address.host, address.port, runtime.config.broker_service_accept_queue_size)
        reads_header = runtime.config.ha_proxy_protocol_enabled
        port = accepting_port(bound, runtime, self._waiting, reads_header=reads_header, is_tls=tls is not None)
        self._ports.append((port, address, tls))
        return bound.number

    async def start(self) -> None:
        for port, address, tls in self._ports:
            connect = functools.partial(self._accepted, address.listener_name)
            await port.serve(connect, tls, self.context.connect_timeout_s)

    def _accepted(self, listener_name: str | None, client: Address | None = None) -> Connection:
        connection = self._connect(self.context)
        connection.listener_name = listener_name
        connection.proxied_client = client
        return connection

    async def watch(self) -> None:
        """Send keep-alive pings, close stalled connections and connections that do not authenticate in time, and log
        summaries of repeated events. Runs until cancelled.
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
        """Reject new connections and stop reading existing ones, so that clients cannot recreate closed producers and
        consumers while the broker closes its topics. Received commands are still answered.
        """
        self._close_ports()
        self.context.is_stopping = True
        for connection in self.context.connections:
            connection.hold_for_stop()

    async def close(self) -> None:
        self.stop_reading()
        for port, _, _ in self._ports:
            if isinstance(port, ProxiedPort):
                await port.finish()
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
        for port, _, _ in self._ports:
            port.close()

    def abort(self) -> None:
        """Close all connections at once, without the data that is queued for them."""
        self.context.is_closed = True
        for connection in list(self.context.connections):
            connection.abort("the broker is stopping")
