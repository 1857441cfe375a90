"""A port that prepares its connections: the PROXY header of a TCP load balancer, and the TLS handshake."""

from __future__ import annotations

import asyncio
import functools
import ipaddress
import socket
import ssl
from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

from pybroker.model.counters import BrokerStats
from pybroker.runtime import logs
from pybroker.runtime.clock import Clock
from pybroker.runtime.network import Port
from pybroker.runtime.proxy_protocol import (
    MIN_BYTES,
    Address,
    Incomplete,
    InvalidProxyHeader,
    ProxyHeader,
    parse_proxy_header,
)
from pybroker.runtime.tasks import TaskOwner
from pybroker.waiting.slots import Slots

if TYPE_CHECKING:
    from pybroker.runtime.runtime import Runtime

MakeProtocol: TypeAlias = Callable[[Address | None], asyncio.BaseProtocol]
"""Gets the address of the client from the header, or None if the connection is direct."""
Networks: TypeAlias = tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]

Prepare: TypeAlias = Callable[[socket.socket, str], Coroutine[Any, Any, None]]

ACCEPTS_PER_ITERATION = 100
ACCEPT_RETRY_S = 1.0
"""Pause after an error of `accept`, which is usually a lack of file descriptors."""


def parse_networks(entries: Iterable[str]) -> Networks:
    """Parse addresses and networks such as `10.0.0.0/8`. Raises ValueError with the reason."""
    return tuple(ipaddress.ip_network(entry.strip()) for entry in entries)


def accepting_port(
    port: Port, runtime: Runtime, waiting: WaitingConnections, *, reads_header: bool, is_tls: bool
) -> Port | ProxiedPort:
    """Return the port that serves connections: `port` itself if they need neither a header nor a TLS handshake,
    otherwise a ProxiedPort with the limits and trusted addresses of the configuration.
    """
    if not reads_header and not is_tls:
        return port
    config = runtime.config
    return ProxiedPort(
        port,
        parse_networks(config.ha_proxy_protocol_trusted_addresses),
        reads_header=reads_header,
        waiting=waiting,
        header_timeout_s=config.connect_command_timeout_ms / 1000,
        stats=runtime.stats,
        clock=runtime.peer_clock,
    )


class WaitingConnections:
    """The tasks of connections that wait for their header or TLS handshake, at all ports of one server.

    Above `limit` tasks (0: no limit), or above the result of `room`, a newer task displaces the oldest. `room` returns
    the number of connections that the file descriptors allow in addition to those of the server.
    """

    def __init__(self, limit: int, room: Callable[[], int]) -> None:
        self._slots: Slots[asyncio.Task[None]] = Slots(limit, 0)
        self._room = room

    def admit(self, task: asyncio.Task[None], peer: str) -> asyncio.Task[None] | None:
        """Add the task of a connection from the address `peer`. Return the task that it displaces, which the caller
        must cancel; None if the limits are not exceeded.
        """
        displaced = self._slots.admit(task, peer).displaced
        if displaced is None and len(self._slots) > max(1, self._room()):
            displaced = self._slots.longest
            assert displaced is not None
            self._slots.leave(displaced)
        return displaced

    def leave(self, task: asyncio.Task[None]) -> None:
        self._slots.leave(task)


class ProxiedPort:
    """Serves a bound port. With `reads_header`, each connection first waits for its header. If it begins with other
    data, it is a direct connection without a header.

    Limits: `waiting` bounds the connections that wait; each waits at most `header_timeout_s` for its header. A header
    from an address outside `trusted` ends the connection; empty: every address is trusted.
    """

    def __init__(
        self,
        port: Port,
        trusted: Networks,
        *,
        reads_header: bool,
        waiting: WaitingConnections,
        header_timeout_s: float,
        stats: BrokerStats,
        clock: Clock,
    ) -> None:
        self._port = port
        self._trusted = trusted
        self._reads_header = reads_header
        self._header_timeout_s = header_timeout_s
        self._stats = stats
        self._clock = clock
        self._waiting = waiting
        self._tasks = TaskOwner("proxied-port")
        self._loop: asyncio.AbstractEventLoop | None = None
        """While the port accepts connections."""

    async def serve(
        self, make_protocol: MakeProtocol, tls: ssl.SSLContext | None = None, handshake_timeout_s: float | None = None
    ) -> None:
        """Accept connections until `close`. The TLS handshake follows the header."""
        loop = asyncio.get_running_loop()
        prepare = functools.partial(self._prepare, make_protocol, tls, handshake_timeout_s)
        loop.add_reader(self._port.socket, self._accept, loop, prepare)
        self._loop = loop

    @property
    def number(self) -> int:
        return self._port.number

    def close(self) -> None:
        """Stop accepting. Connections that wait for their header continue until `finish`. Idempotent."""
        if self._loop is not None:
            self._loop.remove_reader(self._port.socket)
            self._loop = None
        self._port.close()

    async def finish(self) -> None:
        """Close the connections that still wait for their header or TLS handshake."""
        await self._tasks.close()

    def _accept(self, loop: asyncio.AbstractEventLoop, prepare: Prepare) -> None:
        for _ in range(ACCEPTS_PER_ITERATION):
            try:
                connection, address = self._port.socket.accept()
            except BlockingIOError:
                return
            except OSError as error:
                logs.warning("listener.accept_failed", port=self._port.number, error=str(error))
                loop.remove_reader(self._port.socket)
                loop.call_later(ACCEPT_RETRY_S, self._accept_again, loop, prepare)
                return
            connection.setblocking(False)
            self._tasks.start(prepare(connection, address[0]), "header")

    def _accept_again(self, loop: asyncio.AbstractEventLoop, prepare: Prepare) -> None:
        if self._loop is not None:
            loop.add_reader(self._port.socket, self._accept, loop, prepare)

    async def _prepare(
        self,
        make_protocol: MakeProtocol,
        tls: ssl.SSLContext | None,
        handshake_timeout_s: float | None,
        connection: socket.socket,
        peer: str,
    ) -> None:
        """Read the header, and give the connection to its protocol."""
        task = asyncio.current_task()
        assert task is not None
        displaced = self._waiting.admit(task, peer)
        if displaced is not None:
            self._stats.connections_displaced += 1
            displaced.cancel()
        try:
            client = None
            if self._reads_header:
                async with asyncio.timeout(self._header_timeout_s):
                    client = await self._read_header(connection, peer)
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: make_protocol(client),
                connection,
                ssl=tls,
                ssl_handshake_timeout=handshake_timeout_s if tls is not None else None,
            )
        except InvalidProxyHeader as error:
            self._refuse(peer, str(error))
            connection.close()
        except OSError:  # includes TimeoutError and, for a failed handshake, ssl.SSLError
            connection.close()
        except BaseException:
            connection.close()
            raise
        finally:
            self._waiting.leave(task)

    async def _read_header(self, connection: socket.socket, peer: str) -> Address | None:
        """Read exactly the header, so that TLS or frames start with the next byte."""
        needed = MIN_BYTES
        while True:
            await _readable(connection, needed)
            data = connection.recv(needed, socket.MSG_PEEK)
            found = parse_proxy_header(data)
            if isinstance(found, Incomplete) and len(data) >= needed:
                needed = found.needed_bytes
                continue
            if isinstance(found, Incomplete):
                raise InvalidProxyHeader("the connection ended within the header of the PROXY protocol")
            break
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
        if found is None:
            return None
        if self._trusted and not self._is_trusted(peer):
            raise InvalidProxyHeader(
                f"the header of the PROXY protocol comes from {peer}, which is not in haProxyProtocolTrustedAddresses"
            )
        assert isinstance(found, ProxyHeader)
        connection.recv(found.length_bytes)
        return found.client

    def _is_trusted(self, peer: str) -> bool:
        address = ipaddress.ip_address(peer.partition("%")[0])
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        return any(address in network for network in self._trusted)

    def _refuse(self, peer: str, reason: str) -> None:
        unlogged = self._stats.refusals.add("CONNECT", "haProxyProtocol", 1, self._clock.monotonic_ms() / 1000)
        if unlogged:
            logs.warning(
                "client.refused",
                command="CONNECT",
                cause="haProxyProtocol",
                reason=reason,
                topic="none",
                connection=peer,
                client="unknown",
                role="none",
                count=unlogged,
            )


def _set(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


async def _readable(connection: socket.socket, count: int) -> None:
    """Wait until `count` bytes can be read, or the connection ended."""
    # Without this option, a peer that sends half a header would wake the event loop without end.
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, count)
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_reader(connection, _set, ready)
    try:
        await ready
    finally:
        loop.remove_reader(connection)
