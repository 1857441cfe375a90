"""Where ports come from: sockets of this machine, or what a test or a simulator gives instead.

Owns nothing: a port belongs to who opened it. Connections are served on the running loop.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Callable
from typing import TypeAlias

MakeProtocol: TypeAlias = Callable[[], asyncio.BaseProtocol]


class Port:
    """A port that is bound. Who connects waits in the system's queue until `serve`; after `close` nobody can connect."""

    def __init__(self, bound: socket.socket, accept_queue_size: int) -> None:
        self.socket = bound
        self.number: int = bound.getsockname()[1]
        self._accept_queue_size = accept_queue_size
        self._server: asyncio.Server | None = None

    async def serve(
        self, make_protocol: MakeProtocol, tls: ssl.SSLContext | None = None, handshake_timeout_s: float | None = None
    ) -> None:
        """Accept connections, each with a protocol of its own; once at most. With `tls` a handshake has to end in time."""
        assert self._server is None, "served twice"
        self._server = await asyncio.get_running_loop().create_server(
            make_protocol,
            sock=self.socket,
            ssl=tls,
            backlog=self._accept_queue_size,
            ssl_handshake_timeout=handshake_timeout_s if tls is not None else None,
        )

    def close(self) -> None:
        """Accept nobody more; those that were accepted stay. Idempotent."""
        if self._server is not None:
            self._server.close()
        self.socket.close()


class Network:
    """The network of this machine; tests and simulators give another."""

    def bind(self, address: str, number: int, accept_queue_size: int) -> Port:
        """A port at `address`, an IPv6 one with or without brackets (`::` takes IPv4, too); 0 takes one that is free.

        `accept_queue_size` connections may wait to be accepted. Raises OSError, in the system's words only: who asked knows
        what it asked for.
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
            # `create_server` adds the address to the system's words.
            code = error.errno or 0
            raise OSError(code, os.strerror(code) if code > 0 else error.strerror) from error
        bound.setblocking(False)
        # For the connections that are accepted: asyncio's own loop leaves Nagle's algorithm on for sockets it did not make,
        # and an answer of two writes would wait 40 ms for the client's delayed acknowledgement.
        bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return Port(bound, accept_queue_size)
