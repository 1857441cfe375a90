"""One HTTP connection: uvicorn's HTTP/1.1 protocol with additional limits.

The limits are: connections in total and per address, time for a request head, time in which a client reads nothing, and
bytes read per event loop iteration. A connection can be handed over to another protocol, such as WebSocket.
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

from pybroker.admin.http.application import ANSWERED_KEY, PEER_CERTIFICATE_KEY, TRANSPORT_KEY
from pybroker.admin.http.file_sending import FILE_SENDER_KEY, FileSender
from pybroker.admin.http.strict_head import StrictConnection
from pybroker.admin.http.upgrade import UPGRADE_KEY, Reading, Upgrade, UpgradedConnection
from pybroker.auth.server_tls import peer_certificate
from pybroker.runtime.proxy_protocol import Address
from pybroker.waiting.slots import Slots

READ_BYTES = 16 * 1024
"""Bytes read from a connection per event loop iteration."""
WRITE_BUFFER_BYTES = 64 * 1024
"""Unsent bytes above which writers wait."""

# uvicorn logs client errors, which the client receives anyway.
_silent = logging.getLogger("pybroker.uvicorn")
_silent.addHandler(logging.NullHandler())
_silent.propagate = False


class Connections(ServerState):
    """Open connections and running requests. `all_closed` is set while no connection is open."""

    def __init__(self, limit: int, limit_per_address: int, head_timeout_s: float) -> None:
        super().__init__()
        self.slots: Slots[HttpProtocol] = Slots(limit, limit_per_address)
        self.head_timeout_s = head_timeout_s
        self.is_closing = False
        self.all_closed = asyncio.Event()
        self.all_closed.set()
        self.refused = 0
        self.receive_buffer = memoryview(bytearray(READ_BYTES))

    def close_stalled(self, now_s: float, longest_s: float) -> None:
        for connection in list(self.connections):
            if isinstance(connection, HttpProtocol):
                connection.close_if_stalled(now_s, longest_s)


class HttpProtocol(H11Protocol, Upgrade):
    """One HTTP connection, which `Connections` lists while it is open."""

    def __init__(self, config: Config, connections: Connections, proxied_client: Address | None = None) -> None:
        """`proxied_client` is the address of the client from the PROXY header of a load balancer."""
        super().__init__(config, connections, {}, asyncio.get_running_loop())
        self._proxied_client = proxied_client
        self.logger = _silent
        self.access_log = False
        assert config.h11_max_incomplete_event_size is not None
        self.conn = StrictConnection(config.h11_max_incomplete_event_size)
        self._all = connections
        self._head_timer: asyncio.TimerHandle | None = None
        self._owed_bytes = 0  # unsent at the last check
        self._owed_since_s = 0.0
        self._is_served = False
        self._upgraded: UpgradedConnection | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.client = self._proxied_client or self.client
        self._all.all_closed.clear()
        transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        # uvicorn copies this state into each request's scope.
        ssl_object = transport.get_extra_info("ssl_object")
        certificate = peer_certificate(ssl_object) if ssl_object is not None else None
        self.app_state: dict[str, Any] = {
            PEER_CERTIFICATE_KEY: certificate,
            TRANSPORT_KEY: transport,
            ANSWERED_KEY: self._answered,
            UPGRADE_KEY: self,
        }
        if ssl_object is None and transport.get_extra_info("socket") is not None:
            self.app_state[FILE_SENDER_KEY] = FileSender(transport, self.conn)
        admission = self._all.slots.admit(self, self.client[0] if self.client else "")
        if self._all.is_closing or not admission.is_admitted:
            self.refuse()
            return
        if admission.displaced is not None:
            admission.displaced.refuse()
        self._start_head_timer()

    def refuse(self) -> None:
        """Send 503 and close the connection, because the connection limit is reached or a newer connection displaced
        this one.
        """
        self._all.refused += 1
        if not self.transport.is_closing():
            self.transport.write(
                b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
            )
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._all.slots.leave(self)
        if self.timeout_keep_alive_task is not None:  # uvicorn keeps it after an error
            self.timeout_keep_alive_task.cancel()
        self._stop_head_timer()
        upgraded, self._upgraded = self._upgraded, None
        if upgraded is not None:
            upgraded.connection_lost()
        # Requests refer to this object by their scope. Without these cycles, it is freed before the next full collection.
        self.app_state = {}
        self.scope = self.cycle = None  # type: ignore[assignment]
        if not self._all.connections:
            self._all.all_closed.set()

    def data_received(self, data: bytes) -> None:
        if self._upgraded is not None:
            self._upgraded.data_received(data)
            return
        super().data_received(data)
        # Outside of a request, these bytes are the next head or an unread body. Both have a deadline.
        if self.cycle is None or self.cycle.response_complete:
            self._start_head_timer()
        else:
            self._all.slots.settle(self)
            self._stop_head_timer()

    def hand_over(self, connection: UpgradedConnection, head: bytes) -> None:
        assert self._upgraded is None
        self.cycle.response_started = self.cycle.response_complete = True
        self._is_served = True
        self._stop_head_timer()
        early, _ = self.conn.trailing_data
        self._upgraded = connection
        self.transport.write(head)
        connection.connection_made(self.transport, Reading(self.flow.pause_reading, self.flow.resume_reading))
        self.flow.resume_reading()
        if early:
            connection.data_received(early)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._upgraded is not None:
            self._upgraded.pause_writing()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._upgraded is not None:
            self._upgraded.resume_writing()

    def shutdown(self) -> None:
        if self._upgraded is not None:
            self._upgraded.shutdown()
        else:
            super().shutdown()

    def _answered(self, status: int) -> None:
        self._is_served = status < http.HTTPStatus.BAD_REQUEST

    def on_response_complete(self) -> None:
        if not self._is_served:
            self._all.slots.unsettle(self)
        super().on_response_complete()

    def close_if_stalled(self, now_s: float, longest_s: float) -> None:
        """Close the connection if its client has read nothing for `longest_s` seconds. While a response is generated,
        the writer of the response enforces the deadline instead; after an upgrade, the other protocol has its own
        deadlines.
        """
        if self._upgraded is not None:
            return
        is_answering = self.cycle is not None and not self.cycle.response_complete
        owed_bytes = self.transport.get_write_buffer_size()
        if not owed_bytes or is_answering or owed_bytes != self._owed_bytes:
            self._owed_bytes, self._owed_since_s = owed_bytes, now_s
        elif now_s - self._owed_since_s >= longest_s:
            self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        error = sys.exception()
        status = error.error_status_hint if isinstance(error, RemoteProtocolError) else 400
        if self.transport.is_closing():
            return
        reason = http.HTTPStatus(status).phrase
        # h11 cannot create a response if the malformed request arrived during another response.
        self.transport.write(f"HTTP/1.1 {status} {reason}\r\nconnection: close\r\ncontent-length: 0\r\n\r\n".encode())
        self.transport.close()

    def _start_head_timer(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self._all.head_timeout_s, self.transport.abort)

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


class Reader(asyncio.BufferedProtocol):
    """Limits how many bytes a connection reads per event loop iteration."""

    def __init__(self, config: Config, connections: Connections, proxied_client: Address | None = None) -> None:
        self._connection = HttpProtocol(config, connections, proxied_client)
        self._buffer = connections.receive_buffer
        self._transport: asyncio.Transport
        self.connection_lost = self._connection.connection_lost  # type: ignore[method-assign]
        self.pause_writing = self._connection.pause_writing  # type: ignore[method-assign]
        self.resume_writing = self._connection.resume_writing  # type: ignore[method-assign]
        self.eof_received = self._connection.eof_received  # type: ignore[method-assign]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        self._connection.connection_made(transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        if nbytes == READ_BYTES and not self._transport.is_closing():
            # Pause, or the event loop would continue with this connection.
            self._transport.pause_reading()
            self._connection.loop.call_soon(self._read_on)
        self._connection.data_received(bytes(self._buffer[:nbytes]))

    def _read_on(self) -> None:
        if not self._connection.flow.read_paused and not self._transport.is_closing():
            self._transport.resume_reading()
