"""Small JSON documents over HTTP, requested on the event loop: by a download, or by sending a form.

Limits: time, size of the document and of the header. Redirects are not followed, because the address is configured or
comes from a document of the identity provider. Proxies are not supported.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from typing import NamedTuple
from urllib.parse import urlsplit

import h11

MAX_DOCUMENT_BYTES = 1 << 20
MAX_HEADER_BYTES = 32 * 1024
_READ_BYTES = 64 * 1024
_SHOWN_CHARACTERS = 60


class DownloadFailed(Exception):
    """The document cannot be fetched. The text contains the address and the reason."""


class DownloadLimits(NamedTuple):
    """Maximum times in seconds: to connect including TLS, and to receive the whole response."""

    connect_s: float
    response_s: float


class Response(NamedTuple):
    """A response with status 200."""

    content_type: str
    body: bytes


async def download_json(url: str, limits: DownloadLimits, tls: ssl.SSLContext) -> dict[str, object]:
    """Return the JSON object at `url`, for which `url_problem` must be empty. Raises DownloadFailed."""
    return _json_object(url, await _download(url, limits, tls, None))


async def post_form(
    url: str, form: str, authorization: str, limits: DownloadLimits, tls: ssl.SSLContext
) -> dict[str, object]:
    """Send the URL-encoded `form` and return the JSON object of the answer. Raises DownloadFailed, whose text contains
    nothing of the form.
    """
    return _json_object(url, await _download(url, limits, tls, _Form(form.encode(), authorization)))


class _Form(NamedTuple):
    content: bytes
    authorization: str
    """The header Authorization; empty: none."""


def _json_object(url: str, response: Response) -> dict[str, object]:
    try:
        found = json.loads(response.body)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        shown = repr(response.content_type[:_SHOWN_CHARACTERS])
        raise DownloadFailed(f"{url}: the response is not a JSON object; its content type is {shown}")
    return found


def url_problem(url: str, *, requires_https: bool) -> str:
    """Return why `url` cannot be used; empty if it can."""
    try:
        parts = urlsplit(url)
        is_valid = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return "is not a valid URL"
    if not is_valid or not url.isascii() or not url.isprintable() or " " in url:
        return "is not a valid URL of the form https://host/path"
    if parts.username is not None or parts.fragment:
        return "contains a user or a fragment"
    if requires_https and parts.scheme != "https":
        return "does not use https (openIDRequireIssuersUseHttps)"
    return ""


async def _download(url: str, limits: DownloadLimits, tls: ssl.SSLContext, form: _Form | None) -> Response:
    parts = urlsplit(url)
    is_secure = parts.scheme == "https"
    port = parts.port or (443 if is_secure else 80)
    try:
        async with asyncio.timeout(limits.connect_s):
            reader, writer = await asyncio.open_connection(
                parts.hostname, port, ssl=tls if is_secure else None, limit=_READ_BYTES
            )
    except TimeoutError:
        raise DownloadFailed(f"{url}: no connection within {limits.connect_s:g} s") from None
    except ssl.SSLCertVerificationError as error:
        raise DownloadFailed(
            f"{url}: the certificate is not trusted ({error.verify_message}); see openIDTokenIssuerTrustCertsFilePath"
        ) from None
    except (OSError, UnicodeError) as error:
        raise DownloadFailed(f"{url}: {_reason(error)}") from None
    try:
        async with asyncio.timeout(limits.response_s):
            target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            return await _exchange(url, _Request(target, parts.netloc, form), reader, writer)
    except TimeoutError:
        raise DownloadFailed(f"{url}: no complete response within {limits.response_s:g} s") from None
    except h11.RemoteProtocolError as error:
        raise DownloadFailed(f"{url}: the response is not valid HTTP: {error}") from None
    except OSError as error:
        raise DownloadFailed(f"{url}: {_reason(error)}") from None
    finally:
        writer.transport.abort()  # a graceful end of TLS would wait for the server


class _Request(NamedTuple):
    target: str
    host: str
    form: _Form | None

    def write(self, connection: h11.Connection) -> bytes:
        """Return the bytes of the request."""
        headers = [
            ("host", self.host),
            ("accept", "application/json, application/jwk-set+json"),
            ("accept-encoding", "identity"),
            ("user-agent", "pybroker"),
            ("connection", "close"),
        ]
        form = self.form
        if form is not None:
            headers += [
                ("content-type", "application/x-www-form-urlencoded"),
                ("content-length", str(len(form.content))),
            ]
            headers += [("authorization", form.authorization)] if form.authorization else []
        method = "GET" if form is None else "POST"
        data = connection.send(h11.Request(method=method, target=self.target, headers=headers)) or b""
        if form is not None:
            data += connection.send(h11.Data(data=form.content)) or b""
        return data + (connection.send(h11.EndOfMessage()) or b"")


async def _exchange(
    url: str, request: _Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> Response:
    connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEADER_BYTES)
    writer.write(request.write(connection))
    content_type = ""
    body = bytearray()
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            received = await reader.read(_READ_BYTES)
            if not received and connection.their_state is h11.SEND_RESPONSE:
                raise DownloadFailed(f"{url}: the server closed the connection without a response")
            connection.receive_data(received)
        elif isinstance(event, h11.Response):
            if event.status_code != 200:
                what = "a redirect, which is not followed" if 300 <= event.status_code < 400 else "an error"
                raise DownloadFailed(f"{url}: the server responded with status {event.status_code}, {what}")
            content_type = dict(event.headers).get(b"content-type", b"").decode("latin-1")
        elif isinstance(event, h11.Data):
            body += event.data
            if len(body) > MAX_DOCUMENT_BYTES:
                raise DownloadFailed(f"{url}: the document is larger than {MAX_DOCUMENT_BYTES} bytes")
        elif isinstance(event, h11.EndOfMessage):
            return Response(content_type, bytes(body))


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
