"""Tokens of an identity provider for the credentials in `oauth2.py`.

Works in a plain thread. A token is shared by all connections of the process with the same credentials, and replaced
when most of its lifetime has passed. No error shows a secret or a token.
"""

from __future__ import annotations

import http.client
import json
import ssl
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlencode, urlsplit

from pybroker.client.failures import ClientError, ConnectionLost, NotTrusted
from pybroker.client.oauth2 import OAuth2, check_url
from pybroker.client.secret import AccessRefused, Secret

DISCOVERY_PATH = "/.well-known/openid-configuration"
MAX_ANSWER_BYTES = 1 << 20
MAX_CACHED = 100
"""Maximum number of credentials whose tokens are kept."""
USED_PART = 0.8
"""Part of the lifetime of a token after which a new one is requested."""
DEFAULT_LIFETIME_S = 60.0
"""Lifetime of a token for which the identity provider states none."""
_SHOWN_CHARACTERS = 200


def access_token(credentials: OAuth2, trust_certs_file: str | None, timeout_s: float) -> str:
    """Return a valid token, from the cache or from the identity provider. May wait for the network.

    `trust_certs_file`: PEM file of the authorities that sign the broker's certificate; they are trusted for the
    identity provider, too. Raises AccessRefused, NotTrusted, and ConnectionLost if the identity provider does not
    answer.
    """
    with _lock:
        kept = _tokens.get(credentials)
        if kept is None:
            while len(_tokens) >= MAX_CACHED:
                del _tokens[next(iter(_tokens))]
            kept = _tokens[credentials] = _KeptToken()
    with kept.lock:
        if kept.text is None or time.monotonic() >= kept.renewed_s:
            kept.text, lifetime_s = _request_token(credentials, trust_certs_file, timeout_s)
            kept.renewed_s = time.monotonic() + USED_PART * lifetime_s
        return kept.text


class _KeptToken:
    """The last token of some credentials. The lock is held while a new token is requested."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.text: str | None = None
        self.renewed_s = 0.0


_lock = threading.Lock()
_tokens: dict[OAuth2, _KeptToken] = {}


def _request_token(credentials: OAuth2, trust_certs_file: str | None, timeout_s: float) -> tuple[str, float]:
    """Return a new token and its lifetime in seconds."""
    client_id, client_secret = _client(credentials.key)
    tls = _tls_context(credentials.trust_certs_file, trust_certs_file)
    issuer = credentials.issuer_url.rstrip("/")
    endpoint = _exchange(issuer + DISCOVERY_PATH, None, tls, timeout_s).get("token_endpoint")
    if not isinstance(endpoint, str):
        raise AccessRefused(f"the identity provider {issuer} has no token_endpoint in its discovery document")
    check_url("token_endpoint", endpoint)
    form = {
        "grant_type": "client_credentials",
        "client_id": client_id,
        "client_secret": client_secret,
        "audience": credentials.audience,
        "scope": credentials.scope,
    }
    answer = _exchange(endpoint, {name: value for name, value in form.items() if value}, tls, timeout_s)
    token, lifetime_s = answer.get("access_token"), answer.get("expires_in", DEFAULT_LIFETIME_S)
    if isinstance(lifetime_s, str) and lifetime_s.isdigit():
        lifetime_s = int(lifetime_s)
    if not isinstance(token, str) or not token or not isinstance(lifetime_s, int | float):
        raise AccessRefused(f"the identity provider {issuer} returned no access_token with a lifetime")
    return token, float(lifetime_s)


def _client(key: Secret) -> tuple[str, str]:
    try:
        values = json.loads(key.reveal())
    except ValueError as error:
        if isinstance(error, AccessRefused):
            raise
        values = None
    found = values if isinstance(values, dict) else {}
    client_id, client_secret = found.get("client_id"), found.get("client_secret")
    if not isinstance(client_id, str) or not isinstance(client_secret, str):
        raise AccessRefused("the key file of OAuth 2.0 (privateKey) is not JSON with client_id and client_secret")
    return client_id, client_secret


def _exchange(url: str, form: dict[str, str] | None, tls: ssl.SSLContext, timeout_s: float) -> dict[str, Any]:
    """Send a GET, or a POST with `form`, and return the JSON object of the response."""
    parts = urlsplit(url)
    assert parts.hostname is not None, "checked by check_url"
    where = f"{parts.scheme}://{parts.netloc}"
    connection: http.client.HTTPConnection
    if parts.scheme == "https":
        connection = http.client.HTTPSConnection(parts.hostname, parts.port, timeout=timeout_s, context=tls)
    else:
        connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=timeout_s)
    body = None if form is None else urlencode(form).encode()
    headers = {"accept": "application/json", "user-agent": "pybroker"}
    if body is not None:
        headers["content-type"] = "application/x-www-form-urlencoded"
    try:
        connection.request("GET" if body is None else "POST", _target(parts), body, headers)
        response = connection.getresponse()
        content = response.read(MAX_ANSWER_BYTES)
    except ssl.SSLCertVerificationError as error:
        raise NotTrusted(where, error.verify_message) from error
    except (OSError, http.client.HTTPException) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
        raise ConnectionLost(f"the identity provider {where} cannot be reached: {reason}") from error
    finally:
        connection.close()
    if response.status >= http.client.INTERNAL_SERVER_ERROR:
        raise ConnectionLost(f"the identity provider {where} answered with status {response.status}")
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        found = None
    document = found if isinstance(found, dict) else {}
    if response.status != http.client.OK:
        named = " ".join(str(document[name]) for name in ("error", "error_description") if document.get(name))
        raise AccessRefused(
            f"the identity provider {where} answered with status {response.status}: "
            f"{named[:_SHOWN_CHARACTERS] or response.reason}. Check issuerUrl, the key file, audience and scope"
        )
    if not document:
        raise AccessRefused(f"the identity provider {where} did not answer with a JSON object at {parts.path}")
    return document


def _target(parts: SplitResult) -> str:
    return (parts.path or "/") + (f"?{parts.query}" if parts.query else "")


def _tls_context(*trust_certs_files: str | None) -> ssl.SSLContext:
    context = ssl.create_default_context()
    for path in trust_certs_files:
        if path is None:
            continue
        try:
            context.load_verify_locations(Path(path))
        except (OSError, ssl.SSLError) as error:
            raise ClientError(f"the certificates in {path} cannot be loaded: {error}") from error
    return context
