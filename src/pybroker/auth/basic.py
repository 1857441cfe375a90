"""Method `basic`: user and password, against the lines of a `.htpasswd` file.

Hashes as `htpasswd` and Pulsar's tools write them: apr1 (MD5), SHA-1, and what crypt(3) knows: MD5, SHA-256, SHA-512,
DES. The file is read once, at start. What must hold: an unknown user costs as much time as a wrong password.
"""

from __future__ import annotations

import hmac
import secrets

from pybroker.auth import names
from pybroker.auth.locations import read_location
from pybroker.auth.provider import AuthenticationProvider, Identity, PeerCertificate
from pybroker.config.keys import ConfigError
from pybroker.errors import AuthenticationError

_SCHEMES = ("apr_md5_crypt", "sha512_crypt", "sha256_crypt", "md5_crypt", "ldap_sha1", "des_crypt")
MAX_PASSWORD_BYTES = 4096


class BasicProvider(AuthenticationProvider):
    """Verifies passwords. A password that was right is remembered as a keyed digest, because slow hashes are slow on
    purpose and HTTP sends the password with each request."""

    def __init__(self, location: str) -> None:
        from passlib.context import CryptContext  # type: ignore[import-untyped]  # noqa: PLC0415  (only for its users)

        if not location:
            raise ConfigError("authentication by password needs basicAuthConf, the .htpasswd file")
        self._context = CryptContext(schemes=list(_SCHEMES))
        self._hashes = self._read(read_location("basicAuthConf", location))
        self._any_hash = next(iter(self._hashes.values()))
        self._digest_key = secrets.token_bytes(32)
        self._verified: dict[str, bytes] = {}  # At most one digest for each user of the file.

    def authenticate(self, data: bytes, peer_certificate: PeerCertificate | None, now_s: float) -> Identity:
        try:
            user, colon, password = data.decode().partition(":")
        except UnicodeDecodeError:
            raise AuthenticationError("user and password are not UTF-8") from None
        if not colon:
            raise AuthenticationError("no user and password were sent" if not data else "expected user:password")
        if not self._is_right(user, password):
            raise AuthenticationError("unknown user or wrong password")
        return Identity(user, names.BASIC, None)

    def _is_right(self, user: str, password: str) -> bool:
        if len(password) > MAX_PASSWORD_BYTES or "\0" in password:
            return False
        digest = hmac.digest(self._digest_key, password.encode(), "sha256")
        remembered = self._verified.get(user)
        if remembered is not None and hmac.compare_digest(remembered, digest):
            return True
        known = user in self._hashes
        right: bool = self._context.verify(password, self._hashes[user] if known else self._any_hash)
        if right and known:
            self._verified[user] = digest
        return right and known

    def _read(self, content: bytes) -> dict[str, str]:
        hashes: dict[str, str] = {}
        try:
            lines = content.decode().splitlines()
        except UnicodeDecodeError:
            raise ConfigError("basicAuthConf is not UTF-8") from None
        for number, line in enumerate(lines, 1):
            if not line.strip() or line.startswith("#"):
                continue
            user, colon, password_hash = line.strip().partition(":")
            if not user or not colon or self._context.identify(password_hash) is None:
                raise ConfigError(f"basicAuthConf, line {number}: expected user:hash, made by apr1, SHA-1 or crypt")
            hashes[user] = password_hash
        if not hashes:
            raise ConfigError("basicAuthConf names no user")
        return hashes
