"""SASL login with DIGEST-MD5 (RFC 2831), as ZooKeeper servers with a JAAS file support it. No IO.

    client: empty token --> server: challenge --> client: response --> server: proof that it knows the password too

The proof (`rspauth`) is verified before the connection is used. The size of a challenge is limited. Each of its values
on which the response depends must occur once and be supported by this client.
"""

from __future__ import annotations

import hmac
import re
from hashlib import md5
from typing import Final, NamedTuple

from pybroker.zookeeper.errors import AuthFailed

MAX_CHALLENGE_BYTES: Final = 2048
"""Maximum size of a challenge in bytes, as in the RFC."""
DIGEST_URI: Final = "zookeeper/zk-sasl-md5"
"""Service and host name as ZooKeeper servers expect them, whatever their real host name is."""
_NONCE_COUNT = "00000001"
_DIRECTIVE = re.compile(r'\s*([!#$%&\'*+.^_`|~0-9A-Za-z-]+)\s*=\s*("(?:[^"\\]|\\.)*"|[^\s,"]+)\s*(?:,|$)')


class SaslCredentials(NamedTuple):
    """User and password. `repr` does not show the password."""

    user: str
    password: str

    def __repr__(self) -> str:
        return f"SaslCredentials(user={self.user!r})"


class DigestLogin:
    """One login. Call `step` with each token of the server in order. `client_nonce` is unpredictable text without
    quotes.
    """

    def __init__(self, credentials: SaslCredentials, client_nonce: str, digest_uri: str = DIGEST_URI) -> None:
        self._digest_uri = digest_uri
        self._credentials = credentials
        self._client_nonce = client_nonce
        self._expected_proof: str | None = None

    @property
    def user(self) -> str:
        return self._credentials.user

    def step(self, token: bytes) -> bytes | None:
        """Return the next SASL token for the server; None if the login is complete. Raises AuthFailed."""
        if self._expected_proof is None:
            return self._response(token)
        proof = _single(_directives(token), "rspauth")
        if proof is None or not hmac.compare_digest(proof.encode(), self._expected_proof.encode()):
            raise AuthFailed(
                "the ZooKeeper server did not prove that it knows the password: check user and password in the JAAS files of "
                "broker and server"
            )
        return None

    def _response(self, challenge: bytes) -> bytes:
        if not challenge:
            raise AuthFailed("the ZooKeeper server offers no SASL login: it has no JAAS file with a section `Server`")
        found = _directives(challenge)
        nonce = _single(found, "nonce")
        if not nonce:
            raise AuthFailed("the SASL challenge of ZooKeeper has no nonce: the server does not support DIGEST-MD5")
        if _single(found, "algorithm") != "md5-sess":
            raise AuthFailed("the SASL challenge of ZooKeeper requires another algorithm than md5-sess")
        qop = _single(found, "qop")
        if qop is not None and "auth" not in [each.strip() for each in qop.split(",")]:
            raise AuthFailed(
                "the SASL challenge of the server requires protected messages (auth-int or auth-conf), which ZooKeeper "
                "does not support: check that the address belongs to a ZooKeeper server"
            )
        is_utf8 = _single(found, "charset") == "utf-8"
        realm = found.get("realm", [""])[0]
        user, password = self._credentials
        try:
            secret = b":".join([_hashed(user, is_utf8), _hashed(realm, is_utf8), _hashed(password, is_utf8)])
        except UnicodeEncodeError:
            raise AuthFailed(
                "the server accepts only characters of ISO 8859-1 in the user name and the password"
            ) from None
        session = b":".join([_md5(secret), nonce.encode(), self._client_nonce.encode()])
        self._expected_proof = self._digest(session, nonce, f":{self._digest_uri}")
        parts = [
            f"username={_quoted(user)}",
            f"realm={_quoted(realm)}",
            f"nonce={_quoted(nonce)}",
            f"cnonce={_quoted(self._client_nonce)}",
            f"nc={_NONCE_COUNT}",
            "qop=auth",
            f"digest-uri={_quoted(self._digest_uri)}",
            f"response={self._digest(session, nonce, f'AUTHENTICATE:{self._digest_uri}')}",
        ]
        if is_utf8:
            parts.insert(0, "charset=utf-8")
        return ",".join(parts).encode("utf-8" if is_utf8 else "latin-1")

    def _digest(self, session: bytes, nonce: str, method: str) -> str:
        parts = [_md5(session).hex(), nonce, _NONCE_COUNT, self._client_nonce, "auth", _md5(method.encode()).hex()]
        return _md5(":".join(parts).encode()).hex()


def _md5(data: bytes) -> bytes:
    return md5(data, usedforsecurity=False).digest()  # also where the system forbids MD5 elsewhere


def _hashed(text: str, is_utf8: bool) -> bytes:
    """Encode text for the hash: in ISO 8859-1 where that is possible, also if the challenge is in UTF-8."""
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError:
        if not is_utf8:
            raise
        return text.encode()


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _directives(token: bytes) -> dict[str, list[str]]:
    """Return the values of each directive, in their order."""
    if len(token) > MAX_CHALLENGE_BYTES:
        raise AuthFailed(f"a SASL token of the server has {len(token)} bytes; the limit is {MAX_CHALLENGE_BYTES} bytes")
    try:
        text = token.decode()
    except UnicodeDecodeError:
        raise AuthFailed("a SASL token of the server is not UTF-8") from None
    found: dict[str, list[str]] = {}
    position = 0
    while position < len(text):
        if text[position] == ",":
            position += 1  # an empty element of the list
            continue
        match = _DIRECTIVE.match(text, position)
        if match is None:
            raise AuthFailed("a SASL token of the server cannot be decoded")
        name, value = match[1].lower(), match[2]
        if value.startswith('"'):
            value = re.sub(r"\\(.)", r"\1", value[1:-1])
        found.setdefault(name, []).append(value)
        position = match.end()
    return found


def _single(found: dict[str, list[str]], name: str) -> str | None:
    values = found.get(name)
    if values is not None and len(values) > 1:
        raise AuthFailed(f"a SASL token of the server has several values of {name}")
    return None if values is None else values[0]
