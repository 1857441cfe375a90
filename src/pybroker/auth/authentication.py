"""Authentication of clients: selects the configured provider for a client's credentials.

Invalid credentials are rejected; the client is never treated as anonymous instead. A client is anonymous if its method
is not configured, `anonymousUserRole` is set, and `strictAuthMethod` is not set.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial

from pybroker.auth import provider_names
from pybroker.auth.authentication_provider import AuthenticationProvider, Identity, PeerCertificate
from pybroker.auth.basic_provider import BasicProvider
from pybroker.auth.locations import decoded_base64
from pybroker.auth.password_checks import CheckLimits, PasswordChecks
from pybroker.auth.tls_provider import TlsProvider
from pybroker.auth.token_provider import TokenProvider, TokenSettings
from pybroker.config.broker_config import BrokerConfig
from pybroker.config.setting_types import ConfigError, Problems
from pybroker.errors import AuthenticationError
from pybroker.runtime.clock import Clock

__all__ = ["AuthenticationService", "Identity", "PeerCertificate"]

UNIDENTIFIED = Identity(None, provider_names.NONE, None)
_HTTP_SCHEMES = {"bearer": provider_names.TOKEN, "basic": provider_names.BASIC}


class AuthenticationService:
    """All configured authentication providers. The constructor raises ConfigError."""

    def __init__(self, config: BrokerConfig, clock: Clock | None = None) -> None:
        self.enabled = config.authentication_enabled
        self._anonymous_role = "" if config.strict_auth_method else config.anonymous_user_role.strip()
        self._providers: dict[str, AuthenticationProvider] = {}
        self._checks = PasswordChecks(
            CheckLimits(
                config.basic_auth_max_concurrent_checks,
                config.basic_auth_max_pending_checks,
                config.basic_auth_max_pending_checks_per_ip,
                config.basic_auth_max_failures_per_second_per_ip,
                config.basic_auth_pending_check_timeout_ms / 1000,
            ),
            clock or Clock(),
        )
        self._under_way: dict[tuple[str, bytes], asyncio.Event] = {}
        if not self.enabled:
            return
        problems = Problems()
        for name in config.authentication_providers:
            with problems.noted():
                method = provider_names.method_of(name)
                if method not in self._providers:
                    self._providers[method] = _provider(method, config)
        problems.raise_any()
        if not self._providers and not self._anonymous_role:
            raise ConfigError("authenticationEnabled=true needs at least one provider: set authenticationProviders")

    def authenticate(
        self, method: str, data: bytes, peer_certificate: PeerCertificate | None, now_s: float
    ) -> Identity:
        """Verify the credentials `data` of the authentication method, in the calling thread. Raises AuthenticationError
        if they are missing or invalid. `now_s`: Unix time in seconds.
        """
        if not self.enabled:
            return UNIDENTIFIED
        provider = self._providers.get(method)
        if provider is not None:
            return provider.authenticate(data, peer_certificate, now_s)
        if self._anonymous_role:
            return Identity(self._anonymous_role, provider_names.NONE, None)
        if method in {"", provider_names.NONE}:
            raise AuthenticationError(
                "The request has no credentials, but authentication is required. Supported methods: "
                f"{', '.join(self._providers)}"
            )
        raise AuthenticationError(
            f"The authentication method {method[:40]!r} is not configured. Supported methods: "
            f"{', '.join(self._providers)}"
        )

    @property
    def waiting_checks(self) -> int:
        return self._checks.waiting

    def is_immediate(self, method: str, data: bytes) -> bool:
        """Return whether `authenticate` would compute no password hash, so that the event loop may call it."""
        provider = self._providers.get(method)
        return not isinstance(provider, BasicProvider) or not _takes_hash(provider, data)

    async def authenticate_in_turn(
        self, method: str, data: bytes, peer_certificate: PeerCertificate | None, now_s: float, address: str
    ) -> Identity:
        """Verify the credentials `data` of the authentication method. Password hashes are computed in threads, in a
        fair queue by `address`. `now_s`: Unix time in seconds.

        Raises AuthenticationError, and TooManyRequests if the queue is full.
        """
        provider = self._providers.get(method)
        if isinstance(provider, BasicProvider):
            while _takes_hash(provider, data):
                await self._check(provider, data, address)
        return self.authenticate(method, data, peer_certificate, now_s)

    async def _check(self, provider: BasicProvider, data: bytes, address: str) -> None:
        user, password = provider.credentials(data)
        key = address, provider.digest(user, password)
        under_way = self._under_way.get(key)
        if under_way is not None:
            await under_way.wait()
            return
        ended = self._under_way[key] = asyncio.Event()
        try:
            verify = partial(provider.verify, user, password)
            provider.remember(user, password, await self._checks.check(address, provider.row_of(user), verify))
        finally:
            del self._under_way[key]
            ended.set()

    def http_credentials(
        self, headers: Mapping[str, str], peer_certificate: PeerCertificate | None, query_token: str = ""
    ) -> tuple[str, bytes]:
        """Return the method and credentials of an HTTP request: from the Authorization header, else the token in the
        query, else the client certificate.

        `headers` must have lower-case names or ignore case. Raises AuthenticationError if the header is malformed.
        """
        authorization = headers.get("authorization", "")
        if not authorization and query_token and provider_names.TOKEN in self._providers:
            return provider_names.TOKEN, query_token.encode()
        if not authorization:
            method = (
                provider_names.TLS
                if peer_certificate is not None and provider_names.TLS in self._providers
                else provider_names.NONE
            )
            return method, b""
        scheme, _, text = authorization.partition(" ")
        method = _HTTP_SCHEMES.get(scheme.lower(), scheme)
        data: bytes | None = text.strip().encode()
        if method == provider_names.BASIC and method in self._providers:
            data = decoded_base64(text.encode())
            if data is None:
                raise AuthenticationError("the credentials in the Authorization header are not valid Base64")
        return method, data or b""

    def authenticate_http(
        self, headers: Mapping[str, str], peer_certificate: PeerCertificate | None, now_s: float, query_token: str = ""
    ) -> Identity:
        method, data = self.http_credentials(headers, peer_certificate, query_token)
        return self.authenticate(method, data, peer_certificate, now_s)


def _takes_hash(provider: BasicProvider, data: bytes) -> bool:
    try:
        return provider.recall(*provider.credentials(data)) is None
    except AuthenticationError:
        return False


def _provider(method: str, config: BrokerConfig) -> AuthenticationProvider:
    if method == provider_names.TOKEN:
        return TokenProvider(
            TokenSettings(
                secret_key=config.token_secret_key,
                public_key=config.token_public_key,
                public_algorithm=config.token_public_alg,
                role_claim=config.token_auth_claim or "sub",
                audience_claim=config.token_audience_claim,
                audience=config.token_audience,
                clock_skew_s=config.token_allowed_clock_skew_seconds,
            )
        )
    if method == provider_names.BASIC:
        return BasicProvider(config.basic_auth_conf, config.basic_auth_max_password_bytes)
    assert method == provider_names.TLS, method
    if config.tls_allow_insecure_connection:
        raise ConfigError(
            "The authentication provider tls cannot be used with tlsAllowInsecureConnection=true: remove one "
            "of these settings"
        )
    return TlsProvider()
