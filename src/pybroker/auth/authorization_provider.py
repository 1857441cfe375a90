"""Interface of authorization: the permissions of roles.

The broker creates one provider when it starts, and asks it on its event loop: when a client creates a producer or
consumer, looks up a topic or sends a REST request, and not for each message. A provider may await a remote service. It
must not block the event loop, and must not suppress cancellation.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from pybroker.config.broker_config import BrokerConfig
from pybroker.errors import AuthorizationError
from pybroker.metadata.resources import Resources
from pybroker.model.names import NamespaceName, TopicName
from pybroker.runtime.clock import Clock


@dataclass(frozen=True, slots=True)
class AuthorizationEnvironment:
    """The parts of the broker that a provider may use: its configuration, and tenants and namespaces with their
    policies. Their values can change at any time.
    """

    config: BrokerConfig
    resources: Resources
    clock: Clock
    permissions_changed: Callable[[], None]
    """Tells the broker that permissions have changed outside of it: it asks again for everything that clients have open.
    Must be called on the event loop of the broker."""


QUESTIONS = (
    "is_superuser",
    "administers",
    "require_produce",
    "require_consume",
    "require_lookup",
    "require_list_topics",
    "may_produce_somewhere",
)
"""The methods that answer questions. All are coroutine functions."""


class AuthorizationProvider(ABC):
    """Base class of authorization providers. `role` is None for a client without a role.

    The `require` methods return nothing for a permission, and raise AuthorizationError with a reason for the client and
    the log. A question without an answer within `authorizationTimeoutMillis` is cancelled, and the client receives
    ServiceNotReady; any exception that is no error of the broker refuses the request, too.

    The broker asks again for open producers, consumers and sessions when the policies of their namespace, the
    administrators of their tenant, or a dynamic key such as `superUserRoles` change.
    """

    @classmethod
    @abstractmethod
    def create(cls, environment: AuthorizationEnvironment) -> Self:
        """Create the provider when the broker starts. Raises ConfigError. Must not start tasks or connections, because
        the broker also creates providers to check a configuration.
        """

    @abstractmethod
    async def is_superuser(self, role: str | None) -> bool:
        """Return whether the role may do everything."""

    @abstractmethod
    async def administers(self, tenant: str, role: str | None) -> bool:
        """Return whether the role may change namespaces, topics and policies of the tenant."""

    @abstractmethod
    async def require_produce(self, topic: TopicName, role: str | None) -> None: ...

    @abstractmethod
    async def require_consume(self, topic: TopicName, subscription: str, role: str | None) -> None:
        """Raise AuthorizationError unless the role may consume messages of the topic. `subscription` is empty for
        requests that concern no particular subscription.
        """

    async def require_lookup(self, topic: TopicName, role: str | None) -> None:
        """Raise AuthorizationError unless the role may look up the topic's broker. Default: a role that may produce or
        consume may look it up.
        """
        try:
            await self.require_produce(topic, role)
        except AuthorizationError:
            await self.require_consume(topic, "", role)

    async def require_list_topics(self, namespace: NamespaceName, role: str | None) -> None:
        """Raise AuthorizationError unless the role may list the topics of the namespace. Default: only administrators
        of the tenant may list them.
        """
        if not await self.administers(namespace.tenant, role):
            raise AuthorizationError(f"role {role!r} may not list the topics of namespace {namespace}")

    async def may_produce_somewhere(self, role: str | None) -> bool:
        """Return whether the role may produce to at least one topic. Such a role may register a sink of transactions;
        producing needs the permission for the topic in addition.

        Default: True for each client with a role.
        """
        return role is not None

    async def close(self) -> None:  # noqa: B027  (most providers have nothing to release)
        """Release connections and tasks when the broker stops."""
