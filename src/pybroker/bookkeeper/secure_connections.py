"""Connections to bookies with TLS and authentication: `SecureConnector` is the client's `open_transport`.

Both begin with messages of protocol version 3: START_TLS over the plain connection, then TLS, AUTH messages, and a read
that shows whether the bookie accepts the client. The bookie accepts version 2 after that, because a connection has
version 3 only until its first frame of version 2. So `BookieConnection` does not depend on TLS or authentication.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable
from typing import cast

from pybroker.bookkeeper.bookkeeper_pb2 import Response
from pybroker.bookkeeper.errors import BookKeeperError
from pybroker.bookkeeper.ledger_paths import MAX_LEDGER_ID
from pybroker.bookkeeper.metadata_store import BookieAddress
from pybroker.bookkeeper.protocol.messages_v3 import (
    FrameReader,
    Operation,
    auth_payload,
    auth_request,
    decode_response,
    read_lac_request,
    require_accepted,
    require_tls_started,
    start_tls_request,
)
from pybroker.zookeeper.digest_md5 import DigestLogin, SaslCredentials
from pybroker.zookeeper.errors import AuthFailed

_MAX_FRAME_BYTES = 64 * 1024
_MAX_ANSWERS = 4
"""Maximum number of responses that wait for the handshake. A bookie sends one for each request, and START_TLS twice."""
_TLS, _FIRST_AUTH, _SECOND_AUTH, _PROBE = range(4)
"""Request numbers of the handshake."""
_DIGEST_URI = "bookkeeper/bookkeeper"
"""Service and host name as bookies expect them in SASL, whatever their address is."""


class HandshakeFailed(ConnectionError):
    """The bookie refused TLS or the authentication."""


class SecureConnector:
    """Opens connections to bookies. `tls`: the context for TLS, or None. `credentials`: the user of SASL DIGEST-MD5, or
    None (bookies with SASLBookieAuthProviderFactory and a DigestLoginModule). `nonce` returns random text.

    `answer_timeout_ms`: a bookie that does not respond to an authentication within this time has refused it.
    """

    def __init__(
        self,
        tls: ssl.SSLContext | None,
        credentials: SaslCredentials | None,
        nonce: Callable[[], str],
        answer_timeout_ms: float = 5_000,
    ) -> None:
        self._answer_timeout_ms = answer_timeout_ms
        self._tls = tls
        self._credentials = credentials
        self._nonce = nonce

    async def __call__(self, address: BookieAddress, protocol: asyncio.Protocol) -> None:
        """Connect to the address, and pass the connection to `protocol`. Raises OSError; the caller must set a timeout."""
        loop = asyncio.get_running_loop()
        handshake = _Handshake()
        transport: asyncio.Transport
        transport, _ = await loop.create_connection(lambda: handshake, address.host, address.port)
        try:
            if self._tls is not None:
                transport = await self._start_tls(transport, handshake, address.host)
            if self._credentials is not None:
                await self._authenticate(handshake, self._credentials)
            require_accepted(await handshake.call(read_lac_request(_PROBE, MAX_LEDGER_ID)))
        except (BookKeeperError, AuthFailed) as error:
            transport.abort()
            raise HandshakeFailed(str(error)) from error
        except BaseException:
            transport.abort()
            raise
        if handshake.failure is not None:
            transport.abort()
            raise HandshakeFailed(handshake.failure)
        transport.set_protocol(protocol)
        protocol.connection_made(transport)

    async def _start_tls(self, transport: asyncio.Transport, handshake: _Handshake, host: str) -> asyncio.Transport:
        assert self._tls is not None
        require_tls_started(await handshake.call(start_tls_request(_TLS)))
        loop = asyncio.get_running_loop()
        secured = await loop.start_tls(transport, handshake, self._tls, server_hostname=host)
        assert secured is not None
        handshake.transport = secured
        return secured

    async def _authenticate(self, handshake: _Handshake, credentials: SaslCredentials) -> None:
        """Authenticate the connection: send an empty message, then the response to the bookie's challenge.

        The bookie's reply ends the authentication. A bookie does not reply to a wrong response.
        """
        login = DigestLogin(credentials, self._nonce(), _DIGEST_URI)
        challenge = auth_payload(await handshake.call(auth_request(_FIRST_AUTH, b"")))
        response = login.step(challenge)
        assert response is not None, "a login has two steps"
        try:
            async with asyncio.timeout(self._answer_timeout_ms / 1000):
                login.step(auth_payload(await handshake.call(auth_request(_SECOND_AUTH, response))))
        except TimeoutError as error:
            raise HandshakeFailed(
                f"the bookie did not respond to the login of user {credentials.user}: check user and password"
            ) from error


class _Handshake(asyncio.Protocol):
    """The connection during the handshake, with one request at a time."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.failure: str | None = None
        self._frames = FrameReader(_MAX_FRAME_BYTES)
        self._answers: deque[Response] = deque()
        self._changed = asyncio.Event()

    async def call(self, frame: bytes) -> Response:
        """Send a request and return its answer. Raises HandshakeFailed.

        A bookie with SASL answers START_TLS once more after TLS has begun, with an error, because the client is not
        authenticated yet. This answer is skipped.
        """
        assert self.transport is not None
        self.transport.write(frame)
        while True:
            while self._answers:
                answer = self._answers.popleft()
                if answer.header.operation != Operation.START_TLS or not self._has_tls():
                    return answer
            if self.failure is not None:
                raise HandshakeFailed(self.failure)
            self._changed.clear()
            await self._changed.wait()

    def _has_tls(self) -> bool:
        assert self.transport is not None
        return self.transport.get_extra_info("ssl_object") is not None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        try:
            self._answers.extend(decode_response(body) for body in self._frames.feed(data))
        except BookKeeperError as error:
            self.failure = str(error)
        if len(self._answers) > _MAX_ANSWERS:
            self.failure = "the bookie sent too many answers"
        self._changed.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.failure = f"the bookie ended the handshake{f': {exc}' if exc is not None else ''}"
        self._changed.set()
