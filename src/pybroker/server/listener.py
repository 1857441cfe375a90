"""Binds the binary protocol's ports, accepts, and owns the connections: what they share and what bounds them together.

Invariants: `connections` are those between `connection_made` and `connection_lost`; the receive buffer is only used inside one
`buffer_updated` at a time, so that one buffer serves all connections of the loop.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import Counter
from typing import TYPE_CHECKING

from pybroker import logs
from pybroker.errors import CannotListen
from pybroker.model.places import Places
from pybroker.server.connection import Connection

if TYPE_CHECKING:
    from pybroker.broker.service import BrokerService
    from pybroker.server.command_table import CommandTable

RECEIVE_BUFFER_BYTES = 64 * 1024
KEEP_ALIVE_SLICES = 10
CLOSE_GRACE_S = 2.0
REFUSALS_TOLD_EVERY_S = 10.0
"""Who floods the broker does not flood its log."""


class ServerContext:
    """What all connections of the binary protocol share."""

    def __init__(self, broker: BrokerService, command_table: CommandTable) -> None:
        config = broker.surroundings.config
        self.broker = broker
        self.surroundings = broker.surroundings
        self.command_table = command_table
        self.loop = asyncio.get_running_loop()
        self.receive_buffer = memoryview(bytearray(RECEIVE_BUFFER_BYTES))
        self.read_budget_bytes = min(config.connection_read_budget_bytes, RECEIVE_BUFFER_BYTES)
        self.max_message_bytes = config.max_message_size
        self.max_batch_messages = config.max_messages_in_batch
        self.max_fields = config.max_fields_in_command
        self.max_outbound_bytes = config.max_outbound_bytes_per_connection
        self.max_pending_publishes = config.max_pending_publish_requests_per_connection
        self.max_not_stored_at_once = config.max_concurrent_non_persistent_message_per_connection
        self.max_concurrent_requests = config.max_concurrent_requests_per_connection
        self.liveness_timeout_ms = config.connection_liveness_check_timeout_millis
        self.connections: dict[Connection, float] = {}  # and when each is due for keep-alive
        self.all_closed = asyncio.Event()
        self.all_closed.set()
        self.is_stopping = False
        """Nothing is read any more."""
        self._is_publish_held = False
        self.strangers: Places[Connection] = Places(
            config.max_connections_before_connect, config.max_connections_before_connect_per_ip
        )
        """Those that have not said CONNECT yet."""
        self.connect_timeout_s = config.connect_command_timeout_ms / 1000
        self.max_pings_before_connect = config.max_pings_before_connect
        self._by_host: Counter[str] = Counter()
        self._stalled: dict[Connection, tuple[float, int]] = {}  # since when, and with how many bytes
        self._refusal_told_s = -REFUSALS_TOLD_EVERY_S

    # --- connections -------------------------------------------------------------------------------------------------

    def opened(self, connection: Connection) -> None:
        """A connection was accepted."""
        stats = self.surroundings.stats
        stats.connections_created += 1
        stats.active_connections += 1
        self.connections[connection] = self.loop.time() + self.surroundings.config.keep_alive_interval_seconds
        self.all_closed.clear()
        self._by_host[connection.host] += 1
        if self._is_publish_held:
            connection.hold_publish_memory(True)
        if self.is_stopping:
            connection.hold_for_stop()
        longest = self.strangers.longest
        displaced = self.strangers.admit(connection, connection.host).displaced
        if displaced is None and len(self.connections) > self.broker.descriptors.max_clients:
            displaced = longest
            if displaced is None:
                self._refuse(connection)
        if displaced is not None:
            self.surroundings.stats.connections_displaced += 1
            self.strangers.leave(displaced)
            displaced.abort("makes way for others: it has not said CONNECT")

    def introduced(self, connection: Connection) -> None:
        """It has said CONNECT."""
        self.strangers.leave(connection)

    def close_strangers(self) -> None:
        """Close those that have not said CONNECT in time."""
        latest_s = self.loop.time() - self.connect_timeout_s
        while (longest := self.strangers.longest) is not None and longest.opened_s <= latest_s:
            self.surroundings.stats.connections_displaced += 1
            self.strangers.leave(longest)
            longest.abort("no CONNECT within connectCommandTimeoutMs")

    def _refuse(self, connection: Connection) -> None:
        """There is no descriptor for it that files could do without."""
        self.surroundings.stats.connections_refused += 1
        now_s = self.loop.time()
        if now_s >= self._refusal_told_s + REFUSALS_TOLD_EVERY_S:
            self._refusal_told_s = now_s
            logs.warning(
                "connection.refused",
                reason="fileDescriptorsReserve",
                connections=len(self.connections) - 1,
                refused=self.surroundings.stats.connections_refused,
            )
        connection.abort("as many connections as file descriptors allow (fileDescriptorsReserve, ulimit -n)")

    def closed(self, connection: Connection, reason: str) -> None:
        """A connection has ended, whoever ended it."""
        stats = self.surroundings.stats
        stats.connections_closed += 1
        stats.active_connections -= 1
        self.connections.pop(connection, None)
        self.strangers.leave(connection)
        if not self.connections:
            self.all_closed.set()
        self._stalled.pop(connection, None)
        host = connection.host
        self._by_host[host] -= 1
        if not self._by_host[host]:
            del self._by_host[host]
        self.broker.tasks.start(connection.tasks.close(), f"close {connection.address}")
        logs.info("connection.closed", connection=connection.address, reason=reason)

    def connection_limit(self, connection: Connection) -> str:
        """The name of the limit that `connection` exceeds, empty when there is none; strangers take nobody's place."""
        config = self.surroundings.config
        if 0 < config.broker_max_connections < len(self.connections) - len(self.strangers):
            return "brokerMaxConnections"
        at_host = self._by_host[connection.host] - self.strangers.count_of(connection.host)
        if 0 < config.broker_max_connections_per_ip < at_host:
            return "brokerMaxConnectionsPerIp"
        return ""

    # --- bounds ------------------------------------------------------------------------------------------------------

    def publish_started(self, size_bytes: int) -> bool:
        """Count unanswered sends; True when their bytes are over the broker's bound."""
        stats = self.surroundings.stats
        stats.pending_publish_bytes += size_bytes
        return 0 < self._max_publish_buffer_bytes() <= stats.pending_publish_bytes

    def hold_all_publishers(self) -> None:
        """Read from nobody until half of the unanswered sends are answered."""
        if not self._is_publish_held:
            self._is_publish_held = True
            self.surroundings.stats.throttled_connections = len(self.connections)
            for connection in self.connections:
                connection.hold_publish_memory(True)

    def publish_completed(self, size_bytes: int) -> None:
        """Count answered sends."""
        stats = self.surroundings.stats
        stats.pending_publish_bytes -= size_bytes
        assert stats.pending_publish_bytes >= 0, "answered more than was published"
        if self._is_publish_held and stats.pending_publish_bytes <= self._max_publish_buffer_bytes() // 2:
            self._is_publish_held = False
            stats.throttled_connections = 0
            for connection in self.connections:
                connection.hold_publish_memory(False)

    def _max_publish_buffer_bytes(self) -> int:
        """May be changed while the broker runs."""
        return self.surroundings.config.max_message_publish_buffer_size_in_mb * 1024 * 1024

    def stalled(self, connection: Connection) -> None:
        """The client does not read what it is sent."""
        self._stalled[connection] = self.loop.time(), connection.outbound_bytes

    def unstalled(self, connection: Connection) -> None:
        """It reads again."""
        self._stalled.pop(connection, None)

    def close_stalled(self, longest_s: float) -> None:
        """Drop connections that have read nothing for `longest_s`: what waits for them is memory. Slow ones stay."""
        now_s = self.loop.time()
        for connection, (since_s, bytes_then) in list(self._stalled.items()):
            if connection.outbound_bytes < bytes_then:
                self.stalled(connection)
            elif now_s - since_s > longest_s:
                connection.abort("the client does not read what it is sent")


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
