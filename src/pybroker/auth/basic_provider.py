"""Authentication method `basic`: user and password, checked against an `.htpasswd` file.

Supported hashes are apr1 (MD5), SHA-1, and the crypt(3) hashes MD5, SHA-256, SHA-512, and DES. The file is read once,
when the broker starts.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
from collections import OrderedDict
from functools import partial
from typing import Self

from pybroker.auth import provider_names
from pybroker.auth.authentication_provider import AuthenticationProvider, Identity, ProviderEnvironment, RemoteClient
from pybroker.auth.locations import read_location
from pybroker.auth.password_checks import CheckLimits, PasswordChecks
from pybroker.config.setting_types import ConfigError
from pybroker.errors import AuthenticationError

_SCHEMES = ("apr_md5_crypt", "sha512_crypt", "sha256_crypt", "md5_crypt", "ldap_sha1", "des_crypt")
DEFAULT_MAX_PASSWORD_BYTES = 72
MAX_REMEMBERED_FAILURES = 1000
UNKNOWN_USER = ""


class BasicProvider(AuthenticationProvider):
    """Password provider with caches of correct passwords (as keyed digests) and of recent wrong ones, because hashes
    are slow.

    `verify` may run in any thread; all other methods run in one thread only.
    """

    method = provider_names.BASIC
    name = "AuthenticationProviderBasic"

    def __init__(
        self, location: str, checks: PasswordChecks, max_password_bytes: int = DEFAULT_MAX_PASSWORD_BYTES
    ) -> None:
        from passlib.context import CryptContext  # type: ignore[import-untyped]  # noqa: PLC0415  (only for its users)

        if not location:
            raise ConfigError(
                "authentication provider basic needs basicAuthConf: set it to the path of an .htpasswd file"
            )
        self._context = CryptContext(schemes=list(_SCHEMES))
        self._hashes = self._read(read_location("basicAuthConf", location))
        self._any_hash = next(iter(self._hashes.values()))
        self._max_password_bytes = max_password_bytes
        self._digest_key = secrets.token_bytes(32)
        self._verified: dict[str, bytes] = {}  # one digest per user of the file
        self._failed: OrderedDict[bytes, None] = OrderedDict()
        self._checks = checks
        self._under_way: dict[tuple[str, bytes], asyncio.Event] = {}

    @classmethod
    def create(cls, environment: ProviderEnvironment) -> Self:
        config = environment.config
        limits = CheckLimits(
            config.basic_auth_max_concurrent_checks,
            config.basic_auth_max_pending_checks,
            config.basic_auth_max_pending_checks_per_ip,
            config.basic_auth_max_failures_per_second_per_ip,
            config.basic_auth_pending_check_timeout_ms / 1000,
        )
        checks = PasswordChecks(limits, environment.clock)
        return cls(config.basic_auth_conf, checks, config.basic_auth_max_password_bytes)

    @property
    def waiting_checks(self) -> int:
        return self._checks.waiting

    async def authenticate(self, data: bytes, client: RemoteClient) -> Identity:
        """Verify a password. Hashes are computed in threads and queued fairly by address."""
        user, password = self.credentials(data)
        while (is_right := self.recall(user, password)) is None:
            await self._check(user, password, client.address)
        if not is_right:
            raise AuthenticationError("the user is unknown, or the password is wrong")
        return Identity(user, provider_names.BASIC, None)

    async def _check(self, user: str, password: str, address: str) -> None:
        """Compute one password hash. Concurrent callers with the same password share it, because a client opens many
        connections simultaneously.
        """
        key = address, self.digest(user, password)
        under_way = self._under_way.get(key)
        if under_way is not None:
            await under_way.wait()
            return
        ended = self._under_way[key] = asyncio.Event()
        try:
            verify = partial(self.verify, user, password)
            self.remember(user, password, await self._checks.check(address, self.row_of(user), verify))
        finally:
            del self._under_way[key]
            ended.set()

    def credentials(self, data: bytes) -> tuple[str, str]:
        try:
            user, colon, password = data.decode().partition(":")
        except UnicodeDecodeError:
            raise AuthenticationError("the user name or the password is not UTF-8") from None
        if not colon:
            raise (
                AuthenticationError("the credentials must have the form user:password")
                if data
                else AuthenticationError("the client sent no user and password", "EMPTY_AUTH_DATA")
            )
        return user, password

    def row_of(self, user: str) -> str:
        """Return the name of the queue for checks of this user's password. Unknown users share one queue."""
        return user if user in self._hashes else UNKNOWN_USER

    def recall(self, user: str, password: str) -> bool | None:
        """Return whether the password is correct according to the caches; None if the hash must be computed."""
        if len(password.encode()) > self._max_password_bytes or "\0" in password:
            return False
        digest = self.digest(user, password)
        remembered = self._verified.get(user)
        if remembered is not None and hmac.compare_digest(remembered, digest):
            return True
        return False if digest in self._failed else None

    def verify(self, user: str, password: str) -> bool:
        """Compute the password hash, which can take a second, and return whether it matches."""
        known = user in self._hashes
        right: bool = self._context.verify(password, self._hashes[user] if known else self._any_hash)
        return right and known

    def remember(self, user: str, password: str, is_right: bool) -> None:
        digest = self.digest(user, password)
        if is_right:
            self._verified[user] = digest
            return
        self._failed[digest] = None
        if len(self._failed) > MAX_REMEMBERED_FAILURES:
            self._failed.popitem(last=False)

    def digest(self, user: str, password: str) -> bytes:
        """Return a keyed digest of the password. The key exists only in this process."""
        return hmac.digest(self._digest_key, f"{user}:{password}".encode(), "sha256")

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
                raise ConfigError(
                    f"basicAuthConf, line {number}: the line must have the form user:hash, with an apr1, SHA-1 or "
                    "crypt hash"
                )
            hashes[user] = password_hash
        if not hashes:
            raise ConfigError("the file of basicAuthConf contains no user: add a line of the form user:hash")
        return hashes
