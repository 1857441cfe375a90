"""Authorization checks of the broker, by the configured provider.

The `require` methods raise AuthorizationError with the missing permission; never if authorization is disabled.
"""

from __future__ import annotations

from collections.abc import Generator

from pybroker.auth import plugins
from pybroker.auth.authorization_provider import AuthorizationEnvironment, AuthorizationProvider
from pybroker.auth.pulsar_authorization import PulsarAuthorizationProvider, without_role
from pybroker.config.broker_config import BrokerConfig
from pybroker.config.setting_types import ConfigError
from pybroker.errors import AuthorizationError
from pybroker.metadata.resources import Resources
from pybroker.model.names import NamespaceName, TopicName
from pybroker.waiting.fair_shares import Holder, holder_of_role

_BUILT_IN = "PulsarAuthorizationProvider"
_PACKAGE = "org.apache.pulsar.broker.authorization."


def check_configuration(config: BrokerConfig) -> None:
    problems = []
    if config.authorization_enabled and not config.authentication_enabled:
        problems.append(
            "authorizationEnabled=true needs authenticationEnabled=true, because only authenticated clients have a role"
        )
    try:
        _provider_class(config)
    except ConfigError as error:
        problems += error.problems
    if problems:
        raise ConfigError(*problems)


def _provider_class(config: BrokerConfig) -> type[AuthorizationProvider]:
    """Return the class of `authorizationProvider`, Pulsar's if authorization is disabled. Raises ConfigError."""
    name = config.authorization_provider
    if not config.authorization_enabled or name in {_BUILT_IN, _PACKAGE + _BUILT_IN}:
        return PulsarAuthorizationProvider
    # mypy refuses an abstract class as an argument for type[Provider].
    base: type[AuthorizationProvider] = AuthorizationProvider  # type: ignore[type-abstract]
    return plugins.plugin(plugins.AUTHORIZATION, name, "authorizationProvider", base, _BUILT_IN)


class AuthorizationService:
    """Authorization checks of one broker. The constructor raises ConfigError."""

    def __init__(self, config: BrokerConfig, resources: Resources) -> None:
        self.enabled = config.authorization_enabled
        self._proxy_roles = frozenset(config.proxy_roles)
        check_configuration(config)
        environment = AuthorizationEnvironment(config, resources)
        self._provider = plugins.created(
            "authorizationProvider", config.authorization_provider, lambda: _provider_class(config).create(environment)
        )

    def require_produce(self, topic: TopicName, role: str | None) -> None:
        if self.enabled:
            self._provider_for(role).require_produce(topic, role)

    def require_consume(self, topic: TopicName, subscription: str, role: str | None) -> None:
        if self.enabled:
            self._provider_for(role).require_consume(topic, subscription, role)

    def require_lookup(self, topic: TopicName, role: str | None) -> None:
        if self.enabled:
            self._provider_for(role).require_lookup(topic, role)

    def require_list_topics(self, namespace: NamespaceName, role: str | None) -> None:
        if self.enabled:
            self._provider_for(role).require_list_topics(namespace, role)

    def may_all(self, role: str | None) -> bool:
        return not self.enabled or self._provider_for(role).is_superuser(role)

    def may_use(self, owner: str | None, role: str | None) -> bool:
        """Return whether `role` may use an object that the role `owner` owns; None: the object has no owner."""
        return owner is None or owner == role or self.may_all(role)

    def holder(self, role: str | None, nameless: str) -> Holder:
        """Return the account for fair shares and queues: `role`, or `nameless` (such as the address) for a client
        without a role.
        """
        if role is None:
            return Holder(nameless)
        return holder_of_role(role, is_operator=self.enabled and self._provider.is_superuser(role))

    def may_produce_somewhere(self, role: str | None) -> Generator[None, None, bool]:
        """Return whether `role` may produce to at least one topic. Yields after parts of a long search."""
        if not self.enabled:
            return True
        return (yield from self._provider_for(role).may_produce_somewhere(role))

    def require_superuser(self, role: str | None) -> None:
        if not self.may_all(role):
            raise _missing_rank(role, "is not a superuser", "superUserRoles must contain the role")

    def require_tenant_admin(self, tenant: str, role: str | None) -> None:
        if self.enabled and not self._provider_for(role).administers(tenant, role):
            raise _missing_rank(role, f"does not administer tenant {tenant}", _administrator_of(tenant))

    def require_namespace_admin(self, namespace: NamespaceName, role: str | None) -> None:
        if self.enabled and not self._provider_for(role).administers(namespace.tenant, role):
            what = f"does not administer namespace {namespace}"
            raise _missing_rank(role, what, _administrator_of(namespace.tenant))

    def _provider_for(self, role: str | None) -> AuthorizationProvider:
        """Return the provider. Raises AuthorizationError for proxy roles, so that they are rejected everywhere."""
        if role in self._proxy_roles:
            # A proxy's permissions must not replace the permissions of its client. The broker does not know the client's role.
            raise AuthorizationError(
                f"role {role!r} is a proxy role (proxyRoles): connections through a proxy are not supported; connect directly"
            )
        return self._provider


def _missing_rank(role: str | None, what: str, needed: str) -> AuthorizationError:
    return without_role(what) if role is None else AuthorizationError(f"role {role!r} {what}: {needed}")


def _administrator_of(tenant: str) -> str:
    return (
        f"adminRoles of tenant {tenant} must contain the role. A superuser can add it: POST /admin/v2/tenants/{tenant}"
    )
