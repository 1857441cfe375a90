"""Authorization checks of the broker, by the configured provider.

The `require` methods raise AuthorizationError with the missing permission; never if authorization is disabled.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from inspect import iscoroutinefunction

from pybroker.auth import plugins
from pybroker.auth.authorization_provider import QUESTIONS, AuthorizationEnvironment, AuthorizationProvider
from pybroker.auth.known_superusers import KnownSuperusers
from pybroker.auth.permission import Permission, PermissionChanges
from pybroker.auth.provider_questions import ProviderQuestions
from pybroker.auth.proxied_role import Principal, ProxiedRole, client_role, refusal_of_roles, roles_of
from pybroker.auth.pulsar_authorization import PulsarAuthorizationProvider, without_role
from pybroker.config.broker_config import BrokerConfig
from pybroker.config.setting_types import ConfigError
from pybroker.errors import AuthorizationError, BrokerError
from pybroker.metadata.resources import Resources
from pybroker.model.names import NamespaceName, TopicName
from pybroker.runtime.clock import Clock
from pybroker.runtime.tasks import TaskOwner
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
    found = plugins.plugin(plugins.AUTHORIZATION, name, "authorizationProvider", base, _BUILT_IN)
    if missing := [each for each in QUESTIONS if not iscoroutinefunction(getattr(found, each))]:
        raise ConfigError(f"authorizationProvider: {name!r} must declare `async def` for {', '.join(missing)}")
    return found


class AuthorizationService:
    """Authorization checks of one broker. The constructor raises ConfigError.

    The `require` methods also raise ServiceNotReady, if the provider does not answer in time.
    """

    def __init__(self, config: BrokerConfig, resources: Resources, clock: Clock | None = None) -> None:
        self.enabled = config.authorization_enabled
        self.changes = PermissionChanges()
        self.recheck: Callable[[], object] = lambda: None
        """Begins the check of everything that clients have open. Set by the broker."""
        self._proxy_roles = frozenset(config.proxy_roles)
        check_configuration(config)
        environment = AuthorizationEnvironment(config, resources, clock or Clock(), self.permissions_changed)
        self._provider = plugins.created(
            "authorizationProvider", config.authorization_provider, lambda: _provider_class(config).create(environment)
        )
        self.questions = ProviderQuestions(
            type(self._provider).__name__,
            config.authorization_timeout_millis / 1000,
            config.authorization_max_pending_questions,
        )
        self._superusers = KnownSuperusers()
        self._being_learned: set[str | None] = set()
        self._tasks = TaskOwner("authorization")

    async def close(self) -> None:
        await self._tasks.close()
        await self._provider.close()

    def permissions_changed(self) -> None:
        """Begin to ask the provider again whether clients may keep their open producers, consumers and sessions."""
        self.recheck()

    async def learn_superusers_again(self) -> None:
        """Update the known superusers after a change of permissions that may concern any role: forget all other roles,
        and ask the provider again for each superuser. If the provider fails, forget all roles.
        """
        self._superusers.forget_others()
        for role in self._superusers.roles():
            try:
                await self._is_superuser(role)
            except BrokerError:
                self._superusers.forget()
                return

    def permission(self, ask: Callable[[], Awaitable[None]]) -> Permission:
        """Return a permission that is checked with `ask` when `Permission.require` is called for the first time, or for
        the first time after a change of permissions. `ask` asks the provider, and raises its refusal.
        """
        return Permission(self.changes, ask)

    async def require_produce(self, topic: TopicName, principal: Principal) -> None:
        for each in self._checked(principal):
            await self.questions.ask(each, self._provider.require_produce(topic, each))

    async def require_consume(self, topic: TopicName, subscription: str, principal: Principal) -> None:
        for each in self._checked(principal):
            await self.questions.ask(each, self._provider.require_consume(topic, subscription, each))

    async def require_lookup(self, topic: TopicName, principal: Principal) -> None:
        for each in self._checked(principal):
            await self.questions.ask(each, self._provider.require_lookup(topic, each))

    async def require_list_topics(self, namespace: NamespaceName, principal: Principal) -> None:
        for each in self._checked(principal):
            await self.questions.ask(each, self._provider.require_list_topics(namespace, each))

    async def may_all(self, principal: Principal) -> bool:
        """Return whether the principal is a superuser, or authorization is disabled."""
        for each in self._checked(principal):
            if not await self._is_superuser(each):
                return False
        return True

    async def may_use(self, owner: str | None, principal: Principal) -> bool:
        """Return whether `principal` may use an object that the role `owner` owns; True if `owner` is None."""
        return owner is None or owner == client_role(principal) or await self.may_all(principal)

    def is_known_to_use(self, owner: str | None, principal: Principal) -> bool:
        """Return the result of `may_use` without waiting, by the last answers of the provider. A role without an answer
        is not a superuser. Called for each message of a transaction.
        """
        if owner is None or owner == client_role(principal):
            return True
        return all(self._is_known_superuser(each) for each in self._checked(principal))

    def holder(self, principal: Principal, nameless: str) -> Holder:
        """Return the account to which queued requests and limited resources are charged: the client's role, or
        `nameless` (such as its address) if it has no role. `is_operator` is set for a superuser, according to the last
        answers of the provider; see `learn`.
        """
        role = client_role(principal)
        if role is None:
            return Holder(nameless)
        is_operator = self.enabled and all(self._is_known_superuser(each) for each in roles_of(principal))
        return holder_of_role(role, is_operator=is_operator)

    async def learn(self, principal: Principal) -> None:
        """Ask the provider whether the roles of `principal` are superusers, and remember the answers for methods that
        cannot wait: `holder` and `is_known_to_use`.

        If the provider has ever failed to answer immediately, ask in the background and return at once. Until the
        answer arrives, these methods treat an unknown role as one that is not a superuser.
        """
        if not self.enabled or principal is None:
            return
        if self.questions.has_waited:
            self.learn_soon(principal)
        else:
            for each in roles_of(principal):
                await self._learn(each)

    def learn_soon(self, principal: Principal) -> None:
        """Ask the provider in the background whether the roles of a connected client are superusers."""
        if self.enabled and principal is not None:
            for each in roles_of(principal):
                self._is_known_superuser(each)

    async def may_produce_somewhere(self, principal: Principal) -> bool:
        """Return whether `principal` may produce to at least one topic."""
        for each in self._checked(principal):
            if not await self.questions.ask(each, self._provider.may_produce_somewhere(each)):
                return False
        return True

    async def require_superuser(self, principal: Principal) -> None:
        for each in self._checked(principal):
            if not await self._is_superuser(each):
                raise _missing_rank(each, "is not a superuser", "superUserRoles must contain the role")

    async def require_tenant_admin(self, tenant: str, principal: Principal) -> None:
        for each in self._checked(principal):
            if not await self._administers(tenant, each):
                raise _missing_rank(each, f"does not administer tenant {tenant}", _administrator_of(tenant))

    async def require_namespace_admin(self, namespace: NamespaceName, principal: Principal) -> None:
        for each in self._checked(principal):
            if not await self._administers(namespace.tenant, each):
                what = f"does not administer namespace {namespace}"
                raise _missing_rank(each, what, _administrator_of(namespace.tenant))

    async def _administers(self, tenant: str, role: str | None) -> bool:
        return await self.questions.ask(role, self._provider.administers(tenant, role))

    async def _is_superuser(self, role: str | None) -> bool:
        asked_at = self.changes.count
        is_superuser = await self.questions.ask(role, self._provider.is_superuser(role))
        if asked_at == self.changes.count:
            self._superusers.answered(role, is_superuser=is_superuser)
        return is_superuser

    async def _learn(self, role: str | None) -> None:
        if not self._superusers.is_answered(role):
            with suppress(BrokerError):
                await self._is_superuser(role)

    def _is_known_superuser(self, role: str | None) -> bool:
        if not self._superusers.is_answered(role) and role not in self._being_learned:
            self._being_learned.add(role)
            self._tasks.start(self._learn_later(role), "superuser")
        return role in self._superusers

    async def _learn_later(self, role: str | None) -> None:
        try:
            await self._learn(role)
        finally:
            self._being_learned.discard(role)

    def with_original_principal(self, role: str | None, original: str, *, may_be_equal: bool = False) -> Principal:
        """Return the principal of a client that authenticated as `role`. If `role` is a proxy role and `original`
        names the role of the proxy's client, the principal has both roles. Otherwise the principal is `role`.

        Raises AuthorizationError, with Pulsar's text, for a combination that `refusal_of_roles` refuses. With
        `may_be_equal`, a role that is not a proxy role may name itself as `original`. If authorization is disabled,
        nothing is refused, and `original` is ignored unless `role` is a proxy role.
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
