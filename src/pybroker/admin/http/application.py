"""Processing of HTTP requests: header limit, credentials, route, response, and conversion of exceptions.

For any exception of a handler, the client receives one response with Pulsar's status and `{"reason": ...}`; if the
response had already begun, the connection is closed. Only unexpected exceptions are logged. Only `/metrics`, health
probes and the console's files require no credentials.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Callable, Sequence
from email.utils import formatdate
from typing import TYPE_CHECKING, Protocol

import msgspec
from starlette.datastructures import Headers, QueryParams
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import Message, Receive, Scope, Send

from pybroker.admin.calls.call import BROKER_KEY, IDENTITY_KEY, SHARE_KEY, STREAMED_KEY, BadBody, ClientGone
from pybroker.admin.calls.http_limits import SMALL_BYTES, HttpLimits, Share
from pybroker.admin.http import audit
from pybroker.admin.http.accepted_hosts import AcceptedHosts
from pybroker.admin.http.request_limit import RequestLimit
from pybroker.admin.http.route_table import RouteTable
from pybroker.auth import provider_names
from pybroker.auth.authentication import Identity, RemoteClient
from pybroker.auth.proxied_role import ORIGINAL_PRINCIPAL_HEADER
from pybroker.errors import AdminError, AuthorizationError, BrokerError, StoreError
from pybroker.runtime import logs
from pybroker.waiting.request_holder import ASKING

if TYPE_CHECKING:
    from pybroker.broker.service import BrokerService
    from pybroker.runtime.runtime import Runtime

WRITE_BYTES = 64 * 1024
"""Bytes written before the writer waits for the client."""
METRICS_PATH = "/metrics"
PROBE_PATHS = frozenset({"/live", "/ready", "/status.html"})
"""Probes send no credentials; Pulsar requires none for `/status.html`."""
CONSOLE_PATHS = frozenset({"/console", "/docs"})
CONSOLE_FILES = "/console/"
"""Served without credentials, because these pages request them from the user."""

# Keys of `scope["state"]`, set by `protocol.py`.
PEER_CERTIFICATE_KEY = "peer_certificate"
TRANSPORT_KEY = "transport"
ANSWERED_KEY = "answered"  # called with each response's status

MAX_ADDRESS_CHARACTERS = 64
"""X-Forwarded-For can contain any text, which limits keep as the client's address."""

# Close the connection; otherwise the rest of the request would have to be read.
CLOSING_STATUSES = frozenset({408, 413, 431})

ANONYMOUS = Identity(None, "none", None)
INVALID_ORIGINAL_PRINCIPAL = "Invalid combination of Original principal cannot be empty if the request is via proxy."
"""Pulsar's text for all invalid combinations of the roles of proxy and client."""

# A request through a proxy may contain the server's address.
_ABSOLUTE = re.compile(r"^https?://[^/]*", re.IGNORECASE)
_READING_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_OWN_SITES = frozenset({"same-origin", "none"})


class SessionCredentials(Protocol):
    """The credentials of users who have signed in with their browser."""

    def add_credentials(self, scope: Scope) -> None:
        """Add the header Authorization to the request in `scope` if it belongs to a signed-in user's session."""


class Application:
    """ASGI application of the HTTP server."""

    def __init__(self, broker: BrokerService, routes: Sequence[BaseRoute], sessions: SessionCredentials) -> None:
        self._broker = broker
        self._runtime = broker.runtime
        self._sessions = sessions
        self._table = RouteTable(routes, _unknown_path)
        config = broker.runtime.config
        self.limits = HttpLimits(config, broker.runtime.memory)
        is_limited = config.http_requests_limit_enabled
        self._limit = RequestLimit(config.http_requests_max_per_second) if is_limited else None
        self._accepted_hosts = AcceptedHosts.of(config)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http", "lifespan and WebSocket are disabled"
        started_ms = self._runtime.clock.monotonic_ms()
        share = Share(self.limits, _client_address(scope))
        answer = _Answer(scope, receive, send, share, self._runtime)
        failure: Exception | None = None
        try:
            scope[SHARE_KEY] = share
            try:
                # Routes match the raw path: `%2F` in a name is not a separator. A trailing slash is ignored.
                path = _ABSOLUTE.sub("", scope["raw_path"].decode("ascii"))
                scope["path"] = path.removesuffix("/") or "/"
                scope["app"] = self  # makes the router raise for 405
                if self._limit is not None:
                    self._limit.take(_client_address(scope), self._runtime.clock.monotonic_ms())
                self._check_header_size(scope)
                _check_site(scope)
                scope[BROKER_KEY] = self._broker
                self._sessions.add_credentials(scope)
                scope[IDENTITY_KEY] = await self._authenticate(scope)
                if self._accepted_hosts is not None and scope[IDENTITY_KEY].method == provider_names.NONE:
                    self._accepted_hosts.check(Headers(scope=scope).get("host"))
                authorization = self._broker.broker_context.authorization
                await authorization.learn(scope[IDENTITY_KEY].principal)
                share.holder = authorization.holder(scope[IDENTITY_KEY].principal, share.holder.name)
                ASKING.set(share.holder)
                await self._table.router(scope["path"])(scope, answer.receive, answer.send)
            except ClientGone:
                raise
            except Exception as error:  # noqa: BLE001  (the fault boundary of a request)
                failure = error
                response = self._error_response(error, scope)
                if answer.started:
                    answer.abort()
                else:
                    await response(scope, answer.receive, answer.send)
        except ClientGone:
            answer.abort()
        finally:
            self._audit(scope, answer.status, failure)
            # Measure until the response starts: bulk reads and event streams may take any time after that.
            took_ms = (answer.started_ms or self._runtime.clock.monotonic_ms()) - started_ms
            self._runtime.slow_operations.took("http", took_ms, method=scope["method"], path=scope["path"])
            await share.close()

    def _audit(self, scope: Scope, status: int, failure: Exception | None) -> None:
        """Write the request into the audit log, if it was refused or can change something."""
        address = _client_address(scope)
        if status in audit.REFUSED_STATUSES:
            identity = scope.get(IDENTITY_KEY)
            self._broker.refused_accesses.record(audit.refused_access(scope, identity, address, status, failure))
        elif audit.is_act(scope["method"], audit.route_path(scope)):
            audit.write_down(scope, scope[IDENTITY_KEY], address, status)  # authentication precedes routing

    def _check_header_size(self, scope: Scope) -> None:
        limit = self._runtime.config.http_max_request_header_size
        size = len(scope["raw_path"]) + len(scope["query_string"])
        size += sum(len(name) + len(value) + 4 for name, value in scope["headers"])
        if size > limit:
            raise AdminError(431, f"The request headers are larger than httpMaxRequestHeaderSize ({limit} bytes)")

    async def _authenticate(self, scope: Scope) -> Identity:
        config = self._runtime.config
        path = scope["path"]
        if path in PROBE_PATHS or (path == METRICS_PATH and not config.authenticate_metrics_endpoint):
            return ANONYMOUS
        if is_of_console(path) or (path == "/" and "text/html" in Headers(scope=scope).get("accept", "")):
            return ANONYMOUS
        client = RemoteClient(_client_address(scope), scope["state"][PEER_CERTIFICATE_KEY])
        # Clients that cannot set headers pass the token in the URL.
        query_token = QueryParams(scope["query_string"]).get("token", "")
        headers = Headers(scope=scope)
        identity = await self._broker.authentication.authenticate_http(headers, client, query_token)
        scope[IDENTITY_KEY] = identity  # for the audit log, if the original principal is refused
        named = set(headers.getlist(ORIGINAL_PRINCIPAL_HEADER))
        if len(named) > 1:  # A proxy may add its header to the one of its client.
            raise AdminError(401, f"{INVALID_ORIGINAL_PRINCIPAL} (the request names several original principals)")
        original = "".join(named)
        authorization = self._broker.broker_context.authorization
        try:
            principal = authorization.with_original_principal(identity.role, original, may_be_equal=True)
        except AuthorizationError as error:
            raise AdminError(401, f"{INVALID_ORIGINAL_PRINCIPAL} ({error})") from error
        return identity.of_client(principal) if original else identity

    def _error_response(self, error: Exception, scope: Scope) -> Response:
        match error:
            case AdminError():
                return _reason(error.status, error.reason, error.retry_after_s)
            case BrokerError():
                return _reason(type(error).http_status, str(error))
            case BadBody():
                return Response(str(error), status_code=400, media_type="text/plain")
            case StoreError():
                logs.error("http.store_failed", method=scope["method"], path=scope["path"], error=str(error))
                return _reason(error.told_as.http_status, f"The broker's storage failed: {error}")
            case HTTPException():
                return Response(status_code=error.status_code, headers=error.headers)
            case _:
                self._runtime.stats.bugs += 1
                logs.error("http.failed", method=scope["method"], path=scope["path"], exc_info=error)
                return _reason(500, f"Internal error: {type(error).__name__}; see http.failed in the broker's log")


def _check_site(scope: Scope) -> None:
    """Reject changes by web pages of other sites, which would use the permissions of the browser's user. Raises
    AdminError 403.

    Only browsers send the header Sec-Fetch-Site, and pages cannot change it.
    """
    site = Headers(scope=scope).get("sec-fetch-site", "none")
    if scope["method"] not in _READING_METHODS and site not in _OWN_SITES:
        raise AdminError(
            403,
            f"Web pages of other sites ({site}) may not send requests to this broker: use the console of the "
            "broker, or a program that is not a browser",
        )


class _Answer:
    """Response to one request, with a deadline for each write.

    A response starts only after the request body has arrived, unless the body exceeds its limit. Otherwise late bytes
    could reset the connection before the client has read the response.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send, share: Share, runtime: Runtime) -> None:
        config = runtime.config
        self._clock = runtime.clock
        self.started = False
        self.started_ms = 0.0
        self.status = 0
        """HTTP status; 0 until the response starts."""
        self._has_body_left = True
        self._is_head = scope["method"] == "HEAD"
        self._waits_to_be_asked = any(name == b"expect" for name, _ in scope["headers"])
        self._max_body_bytes = config.max_http_request_body_bytes
        self._body_timeout_s = config.http_body_timeout_ms / 1000
        self._write_timeout_s = config.http_write_timeout_ms / 1000
        self._share = share
        self._receive = receive
        self._send = send
        self._transport: asyncio.Transport = scope["state"][TRANSPORT_KEY]
        self._answered: Callable[[int], None] = scope["state"][ANSWERED_KEY]

    async def receive(self) -> Message:
        message = await self._receive()
        self._has_body_left = message["type"] == "http.request" and message.get("more_body", False)
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            if not self._waits_to_be_asked and message["status"] not in CLOSING_STATUSES:
                await self._pass_over_body()
            is_in_memory = not (self._is_head or message.get(STREAMED_KEY))
            size_bytes = _content_length(message) if is_in_memory else 0
            if size_bytes > SMALL_BYTES:
                await self._share.of_answers(size_bytes)
            self.started = True
            self.started_ms = self._clock.monotonic_ms()
            self.status = message["status"]
            self._answered(message["status"])
            date = (b"date", formatdate(self._clock.wall_ms() / 1000, usegmt=True).encode())
            await self._write({**message, "headers": [date, *message["headers"]]})
            return
        body, has_more = message.get("body", b""), message.get("more_body", False)
        if self._is_head or len(body) <= WRITE_BYTES:
            await self._write(message)
            return
        for start in range(0, len(body), WRITE_BYTES):
            end = start + WRITE_BYTES
            await self._write({**message, "body": body[start:end], "more_body": has_more or end < len(body)})

    async def _write(self, message: Message) -> None:
        if self._transport.is_closing():
            raise ClientGone
        try:
            # A write waits while the client does not read.
            async with asyncio.timeout(self._write_timeout_s):
                await self._send(message)
        except TimeoutError as error:
            raise ClientGone from error

    async def _pass_over_body(self) -> None:
        passed_bytes = 0
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._body_timeout_s):
                while self._has_body_left and passed_bytes <= self._max_body_bytes:
                    passed_bytes += len((await self.receive()).get("body", b""))

    def abort(self) -> None:
        self._transport.abort()


def is_of_console(path: str) -> bool:
    return path in CONSOLE_PATHS or (path.startswith(CONSOLE_FILES) and path.count("/") == 2)


def _client_address(scope: Scope) -> str:
    client = scope["client"]
    return client[0][:MAX_ADDRESS_CHARACTERS] if client else ""


def _content_length(start: Message) -> int:
    return next((int(value) for name, value in start["headers"] if name == b"content-length"), 0)


def _reason(status: int, reason: str, retry_after_s: int | None = None) -> Response:
    headers = {"connection": "close"} if status in CLOSING_STATUSES else {}
    if retry_after_s is not None:
        headers["retry-after"] = str(retry_after_s)
    body = msgspec.json.encode({"reason": reason})
    return Response(body, status_code=status, headers=headers, media_type="application/json")


async def _unknown_path(scope: Scope, *_: object) -> None:
    raise AdminError(404, f"No such path: {scope['path']}")
