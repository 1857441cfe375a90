"""Interface of authorization: what a role may do.

The broker creates one provider when it starts, and asks it for each request, on its event loop. A provider must answer
from memory: it must not block or wait. A provider of external rules keeps a copy of them and refreshes the copy in a
thread.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator
from dataclasses import dataclass
from typing import Self

from pybroker.config.broker_config import BrokerConfig
from pybroker.errors import AuthorizationError
from pybroker.metadata.resources import Resources
from pybroker.model.names import NamespaceName, TopicName


@dataclass(frozen=True, slots=True)
class AuthorizationEnvironment:
    """The parts of the broker that a provider may use: its configuration, and tenants and namespaces with their
    policies. Their values can change at any time.
    """

    config: BrokerConfig
    resources: Resources


class AuthorizationProvider(ABC):
    """Rules of one kind. `role` is None for a client without a role.

    The `require` methods raise AuthorizationError with a reason for the client and the log. The broker checks open
    producers and consumers again when the policies of their namespace, the administrators of their tenant, or a dynamic
    key such as `superUserRoles` change.
    """

    @classmethod
    @abstractmethod
    def create(cls, environment: AuthorizationEnvironment) -> Self:
        """Create the provider when the broker starts. Raises ConfigError."""

    @abstractmethod
    def is_superuser(self, role: str | None) -> bool:
        """Return whether the role may do everything."""

    @abstractmethod
    def administers(self, tenant: str, role: str | None) -> bool:
        """Return whether the role may change namespaces, topics and policies of the tenant."""

    @abstractmethod
    def require_produce(self, topic: TopicName, role: str | None) -> None: ...

    @abstractmethod
    def require_consume(self, topic: TopicName, subscription: str, role: str | None) -> None:
        """`subscription` is empty for requests that concern no particular subscription."""

    def require_lookup(self, topic: TopicName, role: str | None) -> None:
        """Default: a role that may produce or consume may find the topic's broker."""
        try:
            self.require_produce(topic, role)
        except AuthorizationError:
            self.require_consume(topic, "", role)

    def require_list_topics(self, namespace: NamespaceName, role: str | None) -> None:
        """Default: only administrators of the tenant."""
        if not self.administers(namespace.tenant, role):
            raise AuthorizationError(f"role {role!r} may not list the topics of {namespace}")

    def may_produce_somewhere(self, role: str | None) -> Generator[None, None, bool]:
        """Return whether the role may produce to at least one topic. A long search yields after each millisecond.

        Default: every role. It may register a sink of transactions, which does not allow it to produce.
        """
        yield from ()
        return role is not None
