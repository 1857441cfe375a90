"""Interface of authentication methods.

The broker creates one provider for each configured method when it starts, and one state for each authentication of a
client. Everything runs on the broker's event loop, so a provider must not block: it awaits its IO, or uses a thread.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Self

from pybroker.auth.proxied_role import Principal, ProxiedRole, principal_of
from pybroker.config.broker_config import BrokerConfig
from pybroker.runtime.clock import Clock


@dataclass(frozen=True, slots=True)
class Identity:
    """An authenticated client. `role` is None only if authentication is disabled. `expires_at_s` is Unix time in
    seconds.
    """

    role: str | None
    method: str
    expires_at_s: float | None
    proxy_role: str | None = None
    """Role of the Pulsar proxy through which the client connects."""

    @property
    def principal(self) -> Principal:
        return principal_of(self.role, self.proxy_role)

    def of_client(self, principal: Principal) -> Identity:
        """Return this identity with the role and proxy role of `principal`."""
        if isinstance(principal, ProxiedRole):
            return dataclasses.replace(self, role=principal.role, proxy_role=principal.proxy_role)
        return dataclasses.replace(self, role=principal, proxy_role=None)

    def expires_within(self, seconds: float, now_s: float) -> bool:
        """Return whether the credentials expire less than `seconds` after the Unix time `now_s`. With 0: whether they
        have expired.
        """
        return self.expires_at_s is not None and now_s + seconds >= self.expires_at_s


@dataclass(frozen=True, slots=True)
class Challenge:
    """Bytes that the broker sends to the client in AUTH_CHALLENGE. The client's answer is the next step."""

    data: bytes


@dataclass(frozen=True, slots=True)
class PeerCertificate:
    """Fields of a verified client certificate."""

    common_name: str | None


@dataclass(frozen=True, slots=True)
class RemoteClient:
    """The client that authenticates: its address without the port, and its certificate if it presented one."""

    address: str
    certificate: PeerCertificate | None = None


@dataclass(frozen=True, slots=True)
class ProviderEnvironment:
    """The parts of the broker that a provider may use."""

    config: BrokerConfig
    clock: Clock

    def now_s(self) -> float:
        """Return the Unix time in seconds."""
        return self.clock.wall_ms() / 1000


class AuthenticationState(ABC):
    """One authentication of one client, from its first credentials to its identity."""

    @abstractmethod
    async def authenticate(self, data: bytes) -> Identity | Challenge:
        """Process the client's credentials or its answer to the last challenge.

        Return the client's identity, or a challenge if the method needs another step. Raises AuthenticationError, and
        TooManyRequests if the broker is too busy to verify the credentials. The error text is sent to the client and
        logged, so that it must not contain credentials.
        """


class AuthenticationProvider(ABC):
    """One authentication method. Implementations must not expose their keys.

    A method with one step implements `authenticate`. A method with several steps also overrides `new_state`.
    """

    method: ClassVar[str]
    """Name of the method that clients send in CONNECT, or as the scheme of the HTTP header Authorization. Several
    providers may have the same method; the broker tries them in the configured order.
    """
    name: ClassVar[str]
    """Label `provider_name` of metrics. Default: the name of the class."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "name" not in cls.__dict__:
            cls.name = cls.__name__

    @classmethod
    @abstractmethod
    def create(cls, environment: ProviderEnvironment) -> Self:
        """Create the provider when the broker starts. Raises ConfigError. Must not start tasks or connections, because
        the broker also creates providers to check a configuration.
        """

    async def authenticate(self, data: bytes, client: RemoteClient) -> Identity:
        """Verify credentials in one step. Raises AuthenticationError and TooManyRequests like
        `AuthenticationState.authenticate`.
        """
        raise NotImplementedError(f"{type(self).__name__} overrides neither authenticate nor new_state")

    def new_state(self, client: RemoteClient) -> AuthenticationState:
        """Begin the authentication of `client`. The default has one step: `authenticate`."""
        return _OneStep(self, client)

    async def close(self) -> None:  # noqa: B027  (most providers have nothing to release)
        """Release connections and tasks when the broker stops."""


class _OneStep(AuthenticationState):
    def __init__(self, provider: AuthenticationProvider, client: RemoteClient) -> None:
        self._provider = provider
        self._client = client

    async def authenticate(self, data: bytes) -> Identity:
        return await self._provider.authenticate(data, self._client)
