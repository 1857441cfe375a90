"""Authorization checks of the broker, by the configured provider.

The `require` methods raise AuthorizationError with the missing permission; never if authorization is disabled.
"""

from __future__ import annotations

from collections.abc import Generator

from pybroker.auth import plugins
from pybroker.auth.authorization_provider import AuthorizationEnvironment, AuthorizationProvider
from pybroker.auth.proxied_role import Principal, ProxiedRole, client_role, refusal_of_roles, roles_of
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

    def require_produce(self, topic: TopicName, principal: Principal) -> None:
        for each in self._checked(principal):
            self._provider.require_produce(topic, each)

    def require_consume(self, topic: TopicName, subscription: str, principal: Principal) -> None:
        for each in self._checked(principal):
            self._provider.require_consume(topic, subscription, each)

    def require_lookup(self, topic: TopicName, principal: Principal) -> None:
        for each in self._checked(principal):
            self._provider.require_lookup(topic, each)

    def require_list_topics(self, namespace: NamespaceName, principal: Principal) -> None:
        for each in self._checked(principal):
            self._provider.require_list_topics(namespace, each)

    def may_all(self, principal: Principal) -> bool:
        """Return whether the principal is a superuser, or authorization is disabled."""
        return all(self._provider.is_superuser(each) for each in self._checked(principal))

    def may_use(self, owner: str | None, principal: Principal) -> bool:
        """Return whether `principal` may use an object that the role `owner` owns; None: the object has no owner."""
        return owner is None or owner == client_role(principal) or self.may_all(principal)

    def holder(self, principal: Principal, nameless: str) -> Holder:
        """Return the account for fair shares and queues: the client's role, or `nameless` (such as its address) if it has
        none.
        """
        role = client_role(principal)
        if role is None:
            return Holder(nameless)
        is_operator = self.enabled and all(self._provider.is_superuser(each) for each in roles_of(principal))
        return holder_of_role(role, is_operator=is_operator)

    def may_produce_somewhere(self, principal: Principal) -> Generator[None, None, bool]:
        """Return whether `principal` may produce to at least one topic. Yields after parts of a long search."""
        for each in self._checked(principal):
            if not (yield from self._provider.may_produce_somewhere(each)):
                return False
        return True

    def require_superuser(self, principal: Principal) -> None:
        for each in self._checked(principal):
            if not self._provider.is_superuser(each):
                raise _missing_rank(each, "is not a superuser", "superUserRoles must contain the role")

    def require_tenant_admin(self, tenant: str, principal: Principal) -> None:
        for each in self._checked(principal):
            if not self._provider.administers(tenant, each):
                raise _missing_rank(each, f"does not administer tenant {tenant}", _administrator_of(tenant))

    def require_namespace_admin(self, namespace: NamespaceName, principal: Principal) -> None:
        for each in self._checked(principal):
            if not self._provider.administers(namespace.tenant, each):
                what = f"does not administer namespace {namespace}"
                raise _missing_rank(each, what, _administrator_of(namespace.tenant))

    def with_original_principal(self, role: str | None, original: str, *, may_be_equal: bool = False) -> Principal:
        """Return the principal of a client whose role a proxy with `role` names, or `role` if it names none.

        Raises AuthorizationError for an invalid combination, with Pulsar's text; see `refusal_of_roles`. Without
        authorization, the name from a role that is no proxy role has no effect.
        """
        if self.enabled:
            refusal = refusal_of_roles(self._proxy_roles, role, original, may_be_equal=may_be_equal)
            if refusal:
                named = f"role {role!r} named the original principal {original!r}"
                raise AuthorizationError(f"Invalid roles. {refusal}") from AuthorizationError(named)
        if role is None or role not in self._proxy_roles or not original.strip() or original == role:
            return role
        return ProxiedRole(original, role)

    def _checked(self, principal: Principal) -> tuple[str | None, ...]:
        """Return the roles that need a permission; none if authorization is disabled. Raises AuthorizationError for the
        role of a proxy without its client's: the permissions of the proxy must not replace those of the client.
        """
        if not self.enabled:
            return ()
        if not isinstance(principal, ProxiedRole) and principal in self._proxy_roles:
            raise AuthorizationError(
                f"role {principal!r} is a proxy role (proxyRoles), but the proxy sent no original principal"
            )
        return roles_of(principal)


def _missing_rank(role: str | None, what: str, needed: str) -> AuthorizationError:
    return without_role(what) if role is None else AuthorizationError(f"role {role!r} {what}: {needed}")


def _administrator_of(tenant: str) -> str:
    return (
        f"adminRoles of tenant {tenant} must contain the role. A superuser can add it: POST /admin/v2/tenants/{tenant}"
    )
