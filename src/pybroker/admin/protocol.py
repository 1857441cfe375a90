"""One HTTP connection: uvicorn's HTTP/1.1 protocol with our limits around it.

Adds what uvicorn leaves open: a limit on connections, a deadline for the head of a request (uvicorn's only timer runs
while nothing at all arrives), the client's certificate in the scope, and logs of our own. Bytes in, requests to the
application.
"""

from __future__ import annotations

import asyncio
import http
import logging
import sys
from typing import Any

from h11 import RemoteProtocolError
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from pybroker.admin.application import PEER_CERTIFICATE_KEY, TRANSPORT_KEY
from pybroker.auth.tls import peer_certificate

HEAD_DEADLINE_S = 10.0

# uvicorn reports what clients do wrong; each client is told itself, the operator's log is not the place for it.
_silent = logging.getLogger("pybroker.uvicorn")
_silent.addHandler(logging.NullHandler())
_silent.propagate = False


class Connections(ServerState):
    """The open connections and the requests in progress.

    Invariant: `all_closed` is set exactly when no connection is open.
    """

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit = limit
        self.all_closed = asyncio.Event()
        self.all_closed.set()


class HttpProtocol(H11Protocol):
    """A connection. Owned by `Connections` while it is open."""

    def __init__(self, config: Config, connections: Connections) -> None:
        super().__init__(config, connections, {}, asyncio.get_running_loop())
        self.logger = _silent
        self.access_log = False
        self._all = connections
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._all.all_closed.clear()
        # uvicorn copies this state into the scope of each request.
        ssl_object = transport.get_extra_info("ssl_object")
        certificate = peer_certificate(ssl_object) if ssl_object is not None else None
        self.app_state: dict[str, Any] = {PEER_CERTIFICATE_KEY: certificate, TRANSPORT_KEY: transport}
        if len(self._all.connections) > self._all.limit:
            transport.write(b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")
            transport.close()
            return
        self._start_head_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        self._stop_head_timer()
        if not self._all.connections:
            self._all.all_closed.set()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        # Bytes outside a request in progress are the head of the next one, or a body that nobody reads any more: both
        # have to come to an end.
        if self.cycle is None or self.cycle.response_complete:
            self._start_head_timer()
        else:
            self._stop_head_timer()

    def send_400_response(self, msg: str) -> None:
        """Answer bytes that are no HTTP request, and close."""
        error = sys.exception()
        status = error.error_status_hint if isinstance(error, RemoteProtocolError) else 400
        if self.transport.is_closing():
            return
        reason = http.HTTPStatus(status).phrase
        # Written by hand: h11 refuses to build an answer when a request was malformed in the middle of another answer.
        self.transport.write(f"HTTP/1.1 {status} {reason}\r\nconnection: close\r\ncontent-length: 0\r\n\r\n".encode())
        self.transport.close()

    def _start_head_timer(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_DEADLINE_S, self.transport.abort)

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
