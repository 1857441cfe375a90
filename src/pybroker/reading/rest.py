"""REST calls from a plain thread: one connection that is kept, credentials, time-outs, and a second try where that is safe.

What must always hold: no error shows a credential; a request is sent again only when it changes nothing or says the same twice.
"""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, urlsplit

from pybroker.client.authorization import authorization_of
from pybroker.client.failures import ClientError, NotTrusted
from pybroker.client.tls import tls_context
from pybroker.reading.entry_source import ReadingFailed

if TYPE_CHECKING:
    from pybroker.reading.options import SourceOptions

BUSY_STATUSES = frozenset({429, 500, 503})
"""A later try may succeed; 500 is what a broker answers whose disk does not."""
FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 2.0
MAX_ANSWER_BYTES = 256 << 20
"""Of a document; more is no broker of ours."""
MAX_REDIRECTS = 5
_REDIRECTS = frozenset({301, 302, 307, 308})
_SHOWN_CHARACTERS = 300


class Refused(ReadingFailed):
    """The broker answered with a refusal, and this reason."""

    def __init__(self, text: str, status: int, reason: str = "") -> None:
        super().__init__(text)
        self.status = status
        self.reason = reason


class Unreachable(ReadingFailed):
    """Nobody answered, or not to the end."""


class RestClient:
    """One connection to one address, or where that leads. For one thread at a time; `close` when done."""

    def __init__(self, options: SourceOptions) -> None:
        self._access = options.access
        parts = urlsplit((self._access.admin_url or "").split(",")[0].strip())
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ReadingFailed("admin.url is not an address of the form http://host:port or https://host:port")
        self._patience_s = options.patience_s
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
        """The answer's document, None for none. Raises Refused, Unreachable."""
        data = None if body is None else json.dumps(body).encode()
        deadline_s = time.monotonic() + (self._patience_s if patience_s is None else patience_s)
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
                if not may_repeat or time.monotonic() + pause_s > deadline_s:
                    raise Unreachable(
                        f"{method} {path}: {self.where} did not answer to the end: {reason_of(error)}"
                    ) from error
            except ValueError as error:
                raise ReadingFailed(f"{method} {path}: {self.where} did not answer with JSON") from error
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def open(
        self, method: str, path: str, body: bytes | None = None, *, may_repeat: bool = True
    ) -> http.client.HTTPResponse:
        """The answer, to be read to its end before the next request. Raises Refused; OSError, HTTPException when nobody answers.

        A connection that was kept and has been closed meanwhile is made again once, if the request may be repeated.
        """
        was_kept = self._connection is not None
        try:
            return self._request(method, path, body)
        except (ConnectionError, http.client.HTTPException):
            self.close()
            if not (was_kept and may_repeat):
                raise
            return self._request(method, path, body)

    def close(self) -> None:
        """Idempotent."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _request(self, method: str, path: str, body: bytes | None) -> http.client.HTTPResponse:
        if self._connection is None:
            self._turn_to(self._home)  # where a redirection has led may be gone by now
        target = self._prefix + path
        for _ in range(MAX_REDIRECTS):
            connection = self._connection
            try:
                if connection is None:
                    connection = self._connection = self._connect()
                connection.request(method, target, body, self._headers(body))
                response = connection.getresponse()
            except BaseException:
                self.close()
                raise
            if response.status >= http.client.BAD_REQUEST:
                raise self._refusal(method, path, response)
            if response.status not in _REDIRECTS:
                return response
            target = self._redirected(method, path, response)
        raise Refused(
            f"{method} {path.partition('?')[0]}: redirected {MAX_REDIRECTS} times", 508, "redirected too often"
        )

    def _turn_to(self, address: SplitResult) -> None:
        """Ask there from now on."""
        assert address.hostname is not None, "checked by whoever took it"
        self._is_secure = address.scheme == "https"
        self._host = address.hostname
        self._port = address.port or (443 if self._is_secure else 80)
        self.where = f"{address.scheme}://{self._host}:{self._port}"

    def _redirected(self, method: str, path: str, response: http.client.HTTPResponse) -> str:
        """Turn to the broker that serves it, as one of several says, and tell what to ask there. It has done nothing itself."""
        location = response.getheader("location") or ""
        status = response.status
        response.close()
        self.close()
        try:
            parts = urlsplit(location)
            _ = parts.port  # which raises for one that is none
        except ValueError:
            parts = urlsplit("")
        if parts.scheme not in {"http", "https"} or not parts.hostname or (self._is_secure and parts.scheme == "http"):
            # Credentials that went over TLS so far are not sent without it.
            reason = "it names another broker that cannot be asked: give the address of that one"
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
            raise ReadingFailed(str(NotTrusted(self.where, error.verify_message))) from error  # final, as a refusal is
        connection.sock.settimeout(self._access.operation_timeout_s)
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def _tls(self) -> ssl.SSLContext:
        try:
            return tls_context(self._access)
        except ClientError as error:
            raise ReadingFailed(f"{self.where}: {error}") from None

    def _headers(self, body: bytes | None) -> Mapping[str, str]:
        headers = {"accept": "*/*"}
        if body is not None:
            headers["content-type"] = "application/json"
        try:
            authorization = authorization_of(self._access)
        except ValueError as error:
            raise ReadingFailed(str(error)) from None
        if authorization is not None:
            headers["authorization"] = authorization
        return headers

    def _refusal(self, method: str, path: str, response: http.client.HTTPResponse) -> Refused:
        try:
            reason = response.read(65536).decode(errors="replace").strip()
            if response.length:  # more than anybody would say
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
            401: "; give credentials that may consume the topic",
            403: "; give credentials that may consume the topic",
        }.get(response.status, "")
        # A page for browsers, as servers have for paths that they do not know, says no more than its status.
        text = response.reason if str(reason).lstrip().startswith("<") else str(reason)[:_SHOWN_CHARACTERS]
        text = text or response.reason
        return Refused(
            f"{method} {path.partition('?')[0]}: {self.where} answered {response.status}: {text}{advice}",
            response.status,
            text,
        )


def reason_of(error: BaseException) -> str:
    """What went wrong, in the system's words: nothing that was sent is in them."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return (error.strerror if isinstance(error, OSError) else None) or type(error).__name__
