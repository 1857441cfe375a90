"""The REST client of the Python client, the command line, and the analytics packages.

It works in a plain thread, with one persistent connection. It does not import asyncio, which would slow down the start
of each command.

Invariants: no error shows a credential; a request is repeated only if it changes nothing or is idempotent.
"""

from __future__ import annotations

import base64
import http.client
import json
import socket
import ssl
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, urlsplit

from pybroker.client.client_tls import tls_context
from pybroker.client.failures import ClientError, ConnectionLost, NotTrusted

if TYPE_CHECKING:
    from pybroker.client.access import Access

BUSY_STATUSES = frozenset({429, 500, 503})
"""A retry may succeed. A broker returns 500 if its disk fails."""
FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 2.0
MAX_ANSWER_BYTES = 256 << 20
"""Maximum length of a response. No broker of this project sends a longer one."""
MAX_REDIRECTS = 5
_REDIRECTS = frozenset({301, 302, 307, 308})
_SHOWN_CHARACTERS = 300


class Refused(ClientError):
    """The broker answered the request with an HTTP error status."""

    def __init__(self, text: str, status: int, reason: str = "") -> None:
        super().__init__(text)
        self.status = status
        self.reason = reason


class Unreachable(ConnectionLost):
    """The broker did not answer, or the connection ended before the end of the response."""


class Interrupted(Unreachable):
    """The request failed without a complete response. The broker may have executed it."""


class RestClient:
    """One connection to the admin URL of `access`, or to the broker to which this URL redirects. Not thread-safe."""

    def __init__(self, access: Access, patience_s: float, contact_patience_s: float | None = None) -> None:
        """Create a client without connecting. Requests to a busy or unreachable broker are repeated for `patience_s`
        seconds; for an address that has never responded, which may be wrong, for `contact_patience_s` seconds.

        Raises ClientError if `access` has no valid admin URL.
        """
        self._access = access
        parts = urlsplit((access.admin_url or "").split(",")[0].strip())
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ClientError(
                "this request needs the broker's HTTP address: set admin_url (option admin.url) to "
                "http://host:port or https://host:port"
            )
        self._patience_s = patience_s
        self._contact_patience_s = contact_patience_s
        self._has_answered = False
        self._home = parts
        self._prefix = parts.path.rstrip("/")
        self._connection: http.client.HTTPConnection | None = None
        self._turn_to(parts)

    def json(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        may_repeat: bool = True,
        patience_s: float | None = None,
    ) -> Any:
        """Send a request and return the JSON document of the response; None if the response is empty. Raises Refused,
        Unreachable, NotTrusted, and other ClientErrors.

        A request that a busy broker refused is repeated for `patience_s` seconds (default: the value of the
        constructor). With `may_repeat`, a request whose connection failed is repeated, too.
        """
        data = None if body is None else json.dumps(body).encode()
        begun_s = time.monotonic()
        deadline_s = begun_s + (self._patience_s if patience_s is None else patience_s)
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                with self.open(method, path, data, may_repeat=may_repeat) as response:
                    answer = response.read(MAX_ANSWER_BYTES)
                return json.loads(answer) if answer.strip() else None
            except Refused as error:
                if error.status not in BUSY_STATUSES or time.monotonic() + pause_s > deadline_s:
                    raise
            except (OSError, http.client.HTTPException) as error:
                self.close()
                if self._is_unknown and time.monotonic() + pause_s > begun_s + (self._contact_patience_s or 0):
                    raise Unreachable(
                        f"{method} {path} failed: no broker answers at {self.where} ({reason_of(error)}). "
                        "Check host and port of admin.url: it must be the HTTP address of the broker "
                        "(webServicePort, 8080 by default), not service.url"
                    ) from error
                if not may_repeat or time.monotonic() + pause_s > deadline_s:
                    raise Interrupted(
                        f"{method} {path} failed: no complete response from {self.where}: {reason_of(error)}"
                    ) from error
            except ValueError as error:
                raise ClientError(f"{method} {path} failed: {self.where} sent a response that is not JSON") from error
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def open(
        self, method: str, path: str, body: bytes | None = None, *, may_repeat: bool = True
    ) -> http.client.HTTPResponse:
        """Send a request and return the response, which the caller must read to its end before the next request. Raises
        Refused, and OSError or HTTPException if the connection fails.

        With `may_repeat`, the request is sent once more if the broker has closed the persistent connection.
        """
        was_kept = self._connection is not None
        try:
            return self._request(method, path, body)
        except (ConnectionError, http.client.HTTPException):
            self.close()
            if not (was_kept and may_repeat):
                raise
            return self._request(method, path, body)

    @property
    def _is_unknown(self) -> bool:
        return self._contact_patience_s is not None and not self._has_answered

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _request(self, method: str, path: str, body: bytes | None) -> http.client.HTTPResponse:
        if self._connection is None:
            self._turn_to(self._home)  # the broker of an earlier redirect may be gone
        target = self._prefix + path
        for _ in range(MAX_REDIRECTS):
            connection = self._connection
            try:
                if connection is None:
                    connection = self._connection = self._connect()
                connection.request(method, target, body, self._headers(body))
                response = connection.getresponse()
                self._has_answered = True
            except BaseException:
                self.close()
                raise
            if response.status >= http.client.BAD_REQUEST:
                raise self._refusal(method, path, response)
            if response.status not in _REDIRECTS:
                return response
            target = self._redirected(method, path, response)
        raise Refused(
            f"{method} {path.partition('?')[0]} failed: the request was redirected {MAX_REDIRECTS} times",
            508,
            "redirected too often",
        )

    def _turn_to(self, address: SplitResult) -> None:
        assert address.hostname is not None, "checked by the caller"
        self._is_secure = address.scheme == "https"
        self._host = address.hostname
        self._port = address.port or (443 if self._is_secure else 80)
        self.where = f"{address.scheme}://{self._host}:{self._port}"

    def _redirected(self, method: str, path: str, response: http.client.HTTPResponse) -> str:
        """Connect to the broker to which the response redirects, and return the request target there. Raises
        Refused.
        """
        location = response.getheader("location") or ""
        status = response.status
        response.close()
        self.close()
        try:
            parts = urlsplit(location)
            _ = parts.port  # raises ValueError for an invalid port
        except ValueError:
            parts = urlsplit("")
        if parts.scheme not in {"http", "https"} or not parts.hostname or (self._is_secure and parts.scheme == "http"):
            # Credentials that were sent over TLS are not sent without it.
            reason = "it redirects without TLS or to an invalid URL: set admin.url to the address of the other broker"
            raise Refused(
                f"{method} {path.partition('?')[0]}: {self.where} answered {status}: {reason}", status, reason
            )
        self._turn_to(parts)
        return parts.path + (f"?{parts.query}" if parts.query else "")

    def _connect(self) -> http.client.HTTPConnection:
        timeout_s = self._access.connection_timeout_s
        connection: http.client.HTTPConnection
        if self._is_secure:
            connection = http.client.HTTPSConnection(self._host, self._port, timeout=timeout_s, context=self._tls())
        else:
            connection = http.client.HTTPConnection(self._host, self._port, timeout=timeout_s)
        try:
            connection.connect()
        except ssl.SSLCertVerificationError as error:
            connection.close()
            raise NotTrusted(self.where, error.verify_message) from error
        connection.sock.settimeout(self._access.operation_timeout_s)
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def _tls(self) -> ssl.SSLContext:
        try:
            return tls_context(self._access)
        except ClientError as error:
            raise ClientError(f"{self.where}: {error}") from None

    def _headers(self, body: bytes | None) -> Mapping[str, str]:
        headers = {"accept": "*/*"}
        if body is not None:
            headers["content-type"] = "application/json"
        try:
            authorization = _authorization(self._access)
        except ValueError as error:
            raise ClientError(str(error)) from None
        if authorization is not None:
            headers["authorization"] = authorization
        return headers

    def _refusal(self, method: str, path: str, response: http.client.HTTPResponse) -> Refused:
        try:
            reason = response.read(65536).decode(errors="replace").strip()
            if response.length:  # too long for a reason
                self.close()
        except (OSError, http.client.HTTPException):
            reason = ""
            self.close()
        finally:
            response.close()
        try:
            reason = json.loads(reason)["reason"]
        except (ValueError, KeyError, TypeError):
            pass
        advice = {
            401: "; use valid credentials",
            403: "; use credentials of a role that has the permission",
        }.get(response.status, "")
        # An HTML page, as web servers return for unknown paths, adds nothing to the status.
        text = response.reason if str(reason).lstrip().startswith("<") else str(reason)[:_SHOWN_CHARACTERS]
        text = text or response.reason
        return Refused(
            f"{method} {path.partition('?')[0]}: {self.where} answered {response.status}: {text}{advice}",
            response.status,
            text,
        )


def reason_of(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return (error.strerror if isinstance(error, OSError) else None) or type(error).__name__


def _authorization(access: Access) -> str | None:
    data = access.auth_data()
    if access.method == "token":
        if not data.isascii() or not data.decode().isprintable():  # the error of http.client would show the token
            raise ValueError("the token contains characters that are not allowed in an HTTP header: check its source")
        return f"Bearer {data.decode()}"
    if access.method == "basic":
        return f"Basic {base64.b64encode(data).decode()}"
    return None
