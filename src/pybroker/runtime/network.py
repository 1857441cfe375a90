"""Ports of a broker: sockets of this machine, or replacements by a test or simulator."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Callable
from typing import TypeAlias

MakeProtocol: TypeAlias = Callable[[], asyncio.BaseProtocol]


class Port:
    """A bound port. Connections wait in the system's queue until `serve`, and are refused after `close`. The caller of
    `bind` closes it.
    """

    def __init__(self, bound: socket.socket, accept_queue_size: int) -> None:
        self.socket = bound
        self.number: int = bound.getsockname()[1]
        self._accept_queue_size = accept_queue_size
        self._server: asyncio.Server | None = None

    async def serve(
        self, make_protocol: MakeProtocol, tls: ssl.SSLContext | None = None, handshake_timeout_s: float | None = None
    ) -> None:
        """Accept connections on the running event loop, each with its own protocol. Call at most once.
        `handshake_timeout_s` limits the TLS handshake.
        """
        assert self._server is None, "served twice"
        self._server = await asyncio.get_running_loop().create_server(
            make_protocol,
            sock=self.socket,
            ssl=tls,
            backlog=self._accept_queue_size,
            ssl_handshake_timeout=handshake_timeout_s if tls is not None else None,
        )

    def close(self) -> None:
        """Stop accepting; accepted connections continue. Idempotent."""
        if self._server is not None:
            self._server.close()
        self.socket.close()


class Network:
    """Network of this machine; tests and simulators pass another."""

    def bind(self, address: str, number: int, accept_queue_size: int) -> Port:
        """Bind a port at `address`, IPv6 with or without brackets (`::` also accepts IPv4). Port 0 selects a free one.

        `accept_queue_size` connections may wait to be accepted. Raises OSError.
        """
        is_ipv6 = ":" in address
        try:
            bound = socket.create_server(
                (address.strip("[]"), number),
                family=socket.AF_INET6 if is_ipv6 else socket.AF_INET,
                backlog=accept_queue_size,
                dualstack_ipv6=is_ipv6 and socket.has_dualstack_ipv6(),
            )
        except OSError as error:
            # `create_server` adds the address to the system's text.
            code = error.errno or 0
            raise OSError(code, os.strerror(code) if code > 0 else error.strerror) from error
        bound.setblocking(False)
        # Set for accepted connections: asyncio leaves Nagle's algorithm on for sockets that it did not create, and a
        # response of two writes would wait 40 ms for the client's delayed acknowledgement.
        bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return Port(bound, accept_queue_size)
