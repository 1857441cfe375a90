"""Authentication of clients: selects the configured provider for a client's credentials.

Invalid credentials are rejected; the client is never treated as anonymous instead. A client is anonymous if its method
is not configured, `anonymousUserRole` is set, and `strictAuthMethod` is not set.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

from pybroker.auth import plugins, provider_names
from pybroker.auth.authentication_provider import (
    AuthenticationProvider,
    AuthenticationState,
    Challenge,
    Identity,
    PeerCertificate,
    ProviderEnvironment,
    RemoteClient,
)
from pybroker.auth.basic_provider import BasicProvider
from pybroker.auth.locations import decoded_base64
from pybroker.auth.tls_provider import TlsProvider
from pybroker.auth.token_provider import TokenProvider
from pybroker.config.broker_config import BrokerConfig
from pybroker.config.setting_types import ConfigError, Problems
from pybroker.errors import AuthenticationError, BrokerError
from pybroker.model.counters import Buckets
from pybroker.runtime import logs
from pybroker.runtime.clock import Clock

__all__ = ["AuthenticationService", "Challenge", "Identity", "PeerCertificate", "RemoteClient"]

UNIDENTIFIED = Identity(None, provider_names.NONE, None)
MAX_STEPS = 10
"""Maximum number of messages from a client in one authentication."""
STEP_TIMEOUT_S = 60.0
"""Maximum time of one step. The limits of the broker's own providers are shorter."""
MAX_FAILURE_LABELS = 100
"""Maximum number of label sets of the metric of failures. Further reasons of plugins are counted as OTHER."""
EXPIRING_MINUTES = (5, 10, 60, 240)
"""Upper bounds of the histogram of remaining lifetimes, those of Pulsar."""
_HTTP_SCHEMES = {"bearer": provider_names.TOKEN, "basic": provider_names.BASIC}
_BUILT_IN: dict[str, type[AuthenticationProvider]] = {
    provider_names.TOKEN: TokenProvider,
    provider_names.BASIC: BasicProvider,
    provider_names.TLS: TlsProvider,
}
"""All but OpenID Connect, whose libraries only its users load."""


class FailureLabels(NamedTuple):
    """Labels of the metric of failed authentications."""

    provider: str
    method: str
    reason: str


class AuthenticationService:
    """All configured authentication providers. The constructor raises ConfigError."""

    def __init__(self, config: BrokerConfig, clock: Clock | None = None) -> None:
        self.enabled = config.authentication_enabled
        self.successes: Counter[tuple[str, str]] = Counter()
        """Successful authentications by provider and method."""
        self.failures: Counter[FailureLabels] = Counter()
        self.expiring_minutes = Buckets(EXPIRING_MINUTES)
        """Accepted tokens with an expiry time, by their remaining lifetime."""
        self._environment = ProviderEnvironment(config, clock or Clock())
        self._anonymous_role = "" if config.strict_auth_method else config.anonymous_user_role.strip()
        self._providers: dict[str, list[AuthenticationProvider]] = {}
        if not self.enabled:
            return
        problems = Problems()
        classes: list[type[AuthenticationProvider]] = []
        for name in config.authentication_providers:
            with problems.noted():
                found = _class_of(name)
                if found not in classes:
                    classes.append(found)
                    self._providers.setdefault(found.method, []).append(
                        plugins.created("authenticationProviders", name, partial(found.create, self._environment))
                    )
        problems.raise_any()
        if not self._providers and not self._anonymous_role:
            raise ConfigError("authenticationEnabled=true needs at least one provider: set authenticationProviders")

    def begin(self, method: str, client: RemoteClient) -> AuthenticationState:
        """Begin the authentication of a client with `method`. An unknown method is refused in the first step. The state
        refuses more than MAX_STEPS steps. The caller must not run two steps at the same time.
        """
        if not self.enabled:
            return _Decided(UNIDENTIFIED)
        providers = self._providers.get(method)
        if providers:
            return _Exchange(self, providers, client)
        if self._anonymous_role:
            return _Decided(Identity(self._anonymous_role, provider_names.NONE, None))
        return _Decided(self._unknown(method))

    async def authenticate(self, method: str, data: bytes, client: RemoteClient) -> Identity:
        """Authenticate in one step, as HTTP does. Raises AuthenticationError if credentials are missing or invalid, and
        TooManyRequests if the broker is too busy to verify them.
        """
        found = await self.begin(method, client).authenticate(data)
        if isinstance(found, Challenge):
            raise AuthenticationError(
                f"the authentication method {method[:40]!r} needs several steps, which are possible only in the binary "
                "protocol"
            )
        return found

    async def authenticate_http(
        self, headers: Mapping[str, str], client: RemoteClient, query_token: str = ""
    ) -> Identity:
        """Authenticate an HTTP request by its `http_credentials`. Raises AuthenticationError if they are missing or
        invalid, and TooManyRequests if the broker is too busy to verify them.
        """
        method, data = self.http_credentials(headers, client.certificate, query_token)
        return await self.authenticate(method, data, client)

    def http_credentials(
        self, headers: Mapping[str, str], peer_certificate: PeerCertificate | None, query_token: str = ""
    ) -> tuple[str, bytes]:
        """Return the method and credentials of an HTTP request: from the Authorization header, else the token in the
        query, else the client certificate. Without any of these, the method is `none`.

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

    @property
    def waiting_checks(self) -> int:
        """Number of passwords that wait for a check."""
        return sum(each.waiting_checks for each in self._all() if isinstance(each, BasicProvider))

    async def close(self) -> None:
        for each in self._all():
            await each.close()

    def count_failure(self, provider: AuthenticationProvider, error: BrokerError) -> None:
        reason = error.reason if isinstance(error, AuthenticationError) else "TOO_MANY_REQUESTS"
        labels = FailureLabels(provider.name, provider.method, reason)
        if labels not in self.failures and len(self.failures) >= MAX_FAILURE_LABELS:
            labels = labels._replace(reason="OTHER")
        self.failures[labels] += 1

    def count_success(self, provider: AuthenticationProvider, identity: Identity) -> None:
        self.successes[provider.name, provider.method] += 1
        if provider.method == provider_names.TOKEN and identity.expires_at_s is not None:
            self.expiring_minutes.add((identity.expires_at_s - self._environment.now_s()) / 60)

    @property
    def expired_tokens(self) -> int:
        """Number of tokens that were refused because they had expired."""
        tokens = (key for key in self.failures if key.method == provider_names.TOKEN)
        return sum(self.failures[key] for key in tokens if key.reason == AuthenticationError.EXPIRED)

    def _all(self) -> list[AuthenticationProvider]:
        return [each for providers in self._providers.values() for each in providers]

    def _unknown(self, method: str) -> AuthenticationError:
        supported = f"Supported methods: {', '.join(self._providers)}"
        if method in {"", provider_names.NONE}:
            return AuthenticationError(f"The request has no credentials, but authentication is required. {supported}")
        return AuthenticationError(f"The authentication method {method[:40]!r} is not configured. {supported}")


class _Decided(AuthenticationState):
    """A result that does not depend on credentials."""

    def __init__(self, result: Identity | AuthenticationError) -> None:
        self._result = result

    async def authenticate(self, data: bytes) -> Identity:
        if isinstance(self._result, AuthenticationError):
            raise self._result
        return self._result


class _Exchange(AuthenticationState):
    """An authentication by the providers of one method.

    The first step tries all providers in order. The provider that returns a challenge receives all further steps.
    """

    def __init__(
        self, service: AuthenticationService, providers: Sequence[AuthenticationProvider], client: RemoteClient
    ) -> None:
        self._service = service
        self._candidates = [(each, each.new_state(client)) for each in providers]
        self._steps = 0

    async def authenticate(self, data: bytes) -> Identity | Challenge:
        self._steps += 1
        errors: list[tuple[AuthenticationProvider, AuthenticationError]] = []
        for provider, state in self._candidates:
            try:
                found = await self._step(provider, state, data)
            except AuthenticationError as error:
                errors.append((provider, error))
                continue
            except BrokerError as error:
                self._service.count_failure(provider, error)
                raise
            if isinstance(found, Challenge):
                self._candidates = [(provider, state)]
            else:
                self._service.count_success(provider, found)
            return found
        for provider, each in errors:
            self._service.count_failure(provider, each)
        if len(errors) == 1:
            raise errors[0][1]
        has_expired = any(each.reason == AuthenticationError.EXPIRED for _, each in errors)
        raise AuthenticationError(
            "; ".join(f"{provider.name}: {each}" for provider, each in errors),
            AuthenticationError.EXPIRED if has_expired else errors[-1][1].reason,
        )

    async def _step(
        self, provider: AuthenticationProvider, state: AuthenticationState, data: bytes
    ) -> Identity | Challenge:
        if self._steps > MAX_STEPS:
            raise AuthenticationError(f"the authentication has more than {MAX_STEPS} steps", "TOO_MANY_STEPS")
        deadline = asyncio.timeout(STEP_TIMEOUT_S)
        try:
            async with deadline:
                return await state.authenticate(data)
        except BrokerError:
            raise
        except Exception as error:  # noqa: BLE001  (the code of a plugin)
            if deadline.expired():
                raise AuthenticationError(
                    f"the authentication provider {provider.name} did not respond within {STEP_TIMEOUT_S:g} s",
                    "TIMEOUT",
                ) from None
            logs.error(
                "authentication.provider_failed",
                provider=provider.name,
                error=type(error).__name__,
                at=plugins.failure_place(error),
            )
            raise AuthenticationError(
                f"the authentication provider {provider.name} failed; see authentication.provider_failed in the "
                "broker's log",
                "PROVIDER_ERROR",
            ) from None


def _class_of(name: str) -> type[AuthenticationProvider]:
    short_name = provider_names.BUILT_IN.get(name)
    if short_name == provider_names.OIDC:
        from pybroker.auth.openid.openid_provider import OpenIdProvider  # noqa: PLC0415

        return OpenIdProvider
    if short_name is not None:
        return _BUILT_IN[short_name]
    # mypy refuses an abstract class as an argument for type[Provider].
    base: type[AuthenticationProvider] = AuthenticationProvider  # type: ignore[type-abstract]
    built_in = ", ".join(provider_names.BUILT_IN)
    found = plugins.plugin(plugins.AUTHENTICATION, name, "authenticationProviders", base, built_in)
    if not getattr(found, "method", ""):
        raise ConfigError(f"authenticationProviders: {name!r} has no attribute `method`, the name that clients send")
    return found
