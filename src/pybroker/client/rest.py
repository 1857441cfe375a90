"""The few calls that a client makes over HTTP, where the binary protocol has none: with the same access, on a thread.

What must hold: no error shows a credential.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import ssl
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pybroker.client.authorization import authorization_of
from pybroker.client.failures import ClientError, ConnectionLost, NotTrusted
from pybroker.client.tls import tls_context
from pybroker.errors import AuthenticationError, AuthorizationError, ServiceNotReady

if TYPE_CHECKING:
    from pybroker.client.access import Access

_MAX_ANSWER_BYTES = 1 << 20
_SHOWN_CHARACTERS = 600
_LATER = {HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.INTERNAL_SERVER_ERROR, HTTPStatus.SERVICE_UNAVAILABLE}


class Refused(ClientError):
    """The broker answered with a refusal."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status


async def call(access: Access, method: str, path: str, body: object = None) -> Any:
    """The answer's document, None for none. Not repeated here: whoever calls knows whether it may be.

    Raises Refused, also for a redirection; AuthenticationError and AuthorizationError; ServiceNotReady for what a later try may be
    answered; ConnectionLost when nobody answers to the end; NotTrusted; ClientError for an access that cannot be used.
    """
    if access.admin_url is None:
        raise ClientError(
            "this is asked for over HTTP: give admin_url, such as http://host:8080, beside the service URL"
        )
    return await asyncio.to_thread(_call, access, method, path, body)


def _call(access: Access, method: str, path: str, body: object) -> Any:
    parts = urlsplit((access.admin_url or "").split(",")[0].strip())
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ClientError("admin_url is not an address of the form http://host:port or https://host:port")
    where = f"{parts.scheme}://{parts.hostname}:{parts.port or (443 if parts.scheme == 'https' else 80)}"
    try:
        authorization = authorization_of(access)
    except ValueError as error:
        raise ClientError(str(error)) from None
    headers = {"accept": "application/json", "content-type": "application/json"}
    if authorization is not None:
        headers["authorization"] = authorization
    connection: http.client.HTTPConnection
    timeout_s = access.connection_timeout_s
    if parts.scheme == "https":
        context = tls_context(access)
        connection = http.client.HTTPSConnection(parts.hostname, parts.port, timeout=timeout_s, context=context)
    else:
        connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=timeout_s)
    data = None if body is None else json.dumps(body).encode()
    try:
        connection.connect()
        connection.sock.settimeout(access.operation_timeout_s)
        connection.request(method, parts.path.rstrip("/") + path, data, headers)
        response = connection.getresponse()
        answer = response.read(_MAX_ANSWER_BYTES)
    except ssl.SSLCertVerificationError as error:
        raise NotTrusted(where, error.verify_message) from error
    except (OSError, http.client.HTTPException) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or type(error).__name__
        raise ConnectionLost(f"{method} {path}: {where} did not answer to the end: {reason}") from error
    finally:
        connection.close()
    if HTTPStatus.MULTIPLE_CHOICES <= response.status < HTTPStatus.BAD_REQUEST:
        answer = b"another broker serves this: give the address of that one as admin_url"
    if response.status >= HTTPStatus.MULTIPLE_CHOICES:
        raise _refusal(f"{method} {path}: {where} answered {response.status}", response.status, answer)
    try:
        return json.loads(answer) if answer.strip() else None
    except ValueError as error:
        raise ClientError(f"{method} {path}: {where} did not answer with JSON") from error


def _refusal(what: str, status: int, answer: bytes) -> Exception:
    reason = answer.decode(errors="replace").strip()
    try:
        reason = json.loads(reason)["reason"]
    except (ValueError, KeyError, TypeError):
        pass
    text = f"{what}: {str(reason)[:_SHOWN_CHARACTERS]}"
    if status == HTTPStatus.UNAUTHORIZED:
        return AuthenticationError(text)
    if status == HTTPStatus.FORBIDDEN:
        return AuthorizationError(text)
    return ServiceNotReady(text) if status in _LATER else Refused(text, status)
