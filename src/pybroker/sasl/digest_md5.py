"""The client's side of SASL DIGEST-MD5 (RFC 2831), with quality of protection `auth` (no encryption of later messages).

It protects the password against eavesdroppers only as far as MD5 does: use it over TLS, or in a trusted network.
"""

from __future__ import annotations

import hmac
import re
from hashlib import md5

_PAIR = re.compile(r'\s*([\w-]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^",\s]+))\s*(?:,|$)', re.DOTALL)
_EMPTY = re.compile(r"[\s,]*$")
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_COUNT = "00000001"


class SaslError(Exception):
    """The server's challenge is invalid, or the server does not know the password."""


class DigestMd5:
    """One authentication: `respond` to the challenge, then `verify` the server's answer.

    `service` and `host` form the digest URI. `client_nonce` is random text of 16 characters or more, used once.
    """

    def __init__(self, username: str, password: str, service: str, host: str, client_nonce: str) -> None:
        self._username = username
        self._password = password
        self._uri = f"{service}/{host}"
        self._client_nonce = client_nonce
        self._expected: str | None = None

    def respond(self, challenge: bytes) -> bytes:
        """Return the response to the server's challenge. Raises SaslError."""
        found = _parsed(challenge)
        nonce, realm = found.get("nonce"), found.get("realm", "")
        if not nonce or found.get("algorithm") != "md5-sess":
            raise SaslError("the challenge is not one of DIGEST-MD5")
        if "auth" not in re.split(r"[,\s]+", found.get("qop", "auth")):
            raise SaslError(f"the server demands the quality of protection {found['qop']}; auth is supported")
        user = b":".join(map(_hashed_bytes, (self._username, realm, self._password)))
        session = md5(user, usedforsecurity=False).digest()
        key = _hex(session + f":{nonce}:{self._client_nonce}".encode())
        middle = f"{nonce}:{_COUNT}:{self._client_nonce}:auth"
        response = _hex(f"{key}:{middle}:{_hex(f'AUTHENTICATE:{self._uri}'.encode())}".encode())
        self._expected = _hex(f"{key}:{middle}:{_hex(f':{self._uri}'.encode())}".encode())
        pairs = [
            "charset=utf-8",
            f"username={_quoted(self._username)}",
            f"realm={_quoted(realm)}",
            f"nonce={_quoted(nonce)}",
            f"nc={_COUNT}",
            f"cnonce={_quoted(self._client_nonce)}",
            f"digest-uri={_quoted(self._uri)}",
            "maxbuf=65536",
            f"response={response}",
            "qop=auth",
        ]
        return ",".join(pairs).encode()

    def verify(self, answer: bytes) -> None:
        """Check the server's last message, which proves that it knows the password. Raises SaslError."""
        found = _parsed(answer).get("rspauth", "")
        if self._expected is None or not hmac.compare_digest(found.encode(), self._expected.encode()):
            raise SaslError("the server does not know the password")


def _parsed(message: bytes) -> dict[str, str]:
    """Return the first value of each name. Raises SaslError."""
    try:
        text = message.decode()
    except UnicodeDecodeError as error:
        raise SaslError("a message of the server is not UTF-8") from error
    found: dict[str, str] = {}
    at = 0
    while _EMPTY.match(text, at) is None:
        pair = _PAIR.match(text, at)
        if pair is None:
            raise SaslError("a message of the server cannot be read")
        name, quoted, plain = pair.groups()
        found.setdefault(name.lower(), plain if quoted is None else _ESCAPED.sub(r"\1", quoted))
        at = pair.end()
    return found


def _hashed_bytes(text: str) -> bytes:
    """Return the bytes that are hashed: ISO 8859-1 where it has all characters, otherwise UTF-8."""
    try:
        return text.encode("iso-8859-1")
    except UnicodeEncodeError:
        return text.encode()


def _hex(data: bytes) -> str:
    return md5(data, usedforsecurity=False).hexdigest()


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
