"""Credentials of a client at an identity provider: the client-credentials flow of OAuth 2.0 (RFC 6749, section 4.4).

`oauth2_tokens.py` requests tokens with them.
"""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass
from urllib.parse import unquote, unquote_to_bytes, urlsplit

from pybroker.client.secret import AccessRefused, Secret

_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_UNSUPPORTED = ("tokenEndpointAuthMethod", "tlsCertFile", "tlsKeyFile")


@dataclass(frozen=True)
class OAuth2:
    """Parameters of the client-credentials flow. Picklable; `repr` shows no secret."""

    issuer_url: str
    key: Secret
    """JSON with `client_id` and `client_secret`, as Pulsar's key files have it. Read at each request of a token."""
    audience: str = ""
    scope: str = ""
    trust_certs_file: str | None = None
    """PEM file of additional authorities for the identity provider's certificate."""


def oauth2_of(parameters: str) -> OAuth2:
    """Return the credentials in `parameters`, JSON as Pulsar's clients take it: `issuerUrl`, `privateKey` (`file:///path`,
    a path, or `data:application/json;base64,...`), `audience`, `scope`, and `trustCertsFilePath`. Raises AccessRefused.

    The names of the C++ and Python clients are accepted as well: `issuer_url`, `private_key`, `client_id` and
    `client_secret`.
    """
    try:
        values = json.loads(parameters)
    except ValueError:
        values = None
    if not isinstance(values, dict):  # the error does not repeat the text, which may contain a secret
        raise AccessRefused("the parameters of OAuth 2.0 are not a JSON object")
    texts = {name: value for name, value in values.items() if isinstance(value, str) and value}
    kind = texts.get("type", "client_credentials")
    unsupported = [name for name in _UNSUPPORTED if name in texts]
    if kind != "client_credentials" or unsupported:
        named = ", ".join(unsupported) or f"type={kind[:40]}"
        raise AccessRefused(f"the parameters of OAuth 2.0 contain {named}: only client credentials are supported")
    issuer_url = texts.get("issuerUrl") or texts.get("issuer_url") or ""
    check_url("issuerUrl", issuer_url)
    private_key = texts.get("privateKey") or texts.get("private_key") or ""
    if private_key:
        key = _key_secret(private_key)
    elif "client_id" in texts and "client_secret" in texts:
        key = Secret(text=json.dumps({name: texts[name] for name in ("client_id", "client_secret")}))
    else:
        raise AccessRefused("the parameters of OAuth 2.0 lack privateKey: set it to file:///path of the key file")
    return OAuth2(
        issuer_url,
        key,
        texts.get("audience", ""),
        texts.get("scope", ""),
        texts.get("trustCertsFilePath"),
    )


def check_url(name: str, url: str) -> None:
    """Refuse a URL that would send the secret without TLS to another machine. Raises AccessRefused."""
    try:
        parts = urlsplit(url)
        is_valid = bool(parts.hostname) and parts.port != 0 and parts.username is None
    except ValueError:
        is_valid = False
    if not is_valid or not (parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _LOOPBACK)):
        raise AccessRefused(
            f"{name} of OAuth 2.0 must be a URL of the form https://host/path, without user and password"
        )


def _key_secret(location: str) -> Secret:
    if location.startswith("data:"):
        media_type, _, payload = location.removeprefix("data:").partition(",")
        content = unquote_to_bytes(payload)
        try:
            text = (base64.b64decode(content, validate=True) if media_type.endswith(";base64") else content).decode()
        except (binascii.Error, UnicodeDecodeError):
            raise AccessRefused("privateKey of OAuth 2.0 is not valid: use data:application/json;base64,...") from None
        return Secret(text=text)
    path = unquote(urlsplit(location).path) if location.startswith("file:") else location
    if not path or (not location.startswith("file:") and "://" in location):
        raise AccessRefused("privateKey of OAuth 2.0 must be file:///path, a path, or data:application/json;base64,...")
    return Secret(in_file=path)
