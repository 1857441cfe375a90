"""Pulsar's authorization: superusers, tenant administrators, and permissions of namespaces and topics.

Superusers may do everything, tenant administrators may do everything within their tenant, and other roles have the
permissions that are granted on a namespace or topic. A grant applies from the next request on. Errors contain the
missing permission.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from typing import Self
from urllib.parse import quote

from pybroker.auth.authorization_provider import AuthorizationEnvironment, AuthorizationProvider
from pybroker.config.broker_config import BrokerConfig
from pybroker.errors import AuthorizationError
from pybroker.metadata.resources import Resources
from pybroker.model.names import NamespaceName, TopicName
from pybroker.model.policies import AuthAction, NamespacePolicies, SubscriptionAuthMode
from pybroker.runtime.clock import Clock
from pybroker.runtime.time_slices import in_slices

TOPICS_A_STEP = 100


class PulsarAuthorizationProvider(AuthorizationProvider):
    """Authorization by `superUserRoles`, by `adminRoles` of tenants, and by permissions in policies."""

    def __init__(self, config: BrokerConfig, resources: Resources, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._resources = resources
        self._wildcards = config.authorization_allow_wildcards_matching

    @classmethod
    def create(cls, environment: AuthorizationEnvironment) -> Self:
        return cls(environment.config, environment.resources, environment.clock)

    async def is_superuser(self, role: str | None) -> bool:
        return role in self._config.super_user_roles  # a dynamic key

    async def administers(self, tenant: str, role: str | None) -> bool:
        if await self.is_superuser(role):
            return True
        info = self._resources.tenant(tenant)
        return info is not None and role in info.adminRoles

    async def require_produce(self, topic: TopicName, role: str | None) -> None:
        if not await self._may(topic, role, AuthAction.PRODUCE):
            raise _missing_grant(role, f"may not produce to {topic}", topic.namespace, AuthAction.PRODUCE)

    async def require_consume(self, topic: TopicName, subscription: str, role: str | None) -> None:
        if await self.administers(topic.tenant, role):
            return
        if not await self._may(topic, role, AuthAction.CONSUME):
            raise _missing_grant(role, f"may not consume from {topic}", topic.namespace, AuthAction.CONSUME)
        policies = self._resources.namespace(topic.namespace)
        if policies is not None and role is not None and subscription:
            _require_subscription(policies, topic, subscription, role)

    async def require_lookup(self, topic: TopicName, role: str | None) -> None:
        if not await self._may(topic, role, AuthAction.PRODUCE, AuthAction.CONSUME):
            what = f"may neither produce to nor consume from {topic}"
            raise _missing_grant(role, what, topic.namespace, AuthAction.PRODUCE, AuthAction.CONSUME)

    async def require_list_topics(self, namespace: NamespaceName, role: str | None) -> None:
        if await self.administers(namespace.tenant, role):
            return
        policies = self._resources.namespace(namespace)
        granted = policies.auth_policies.namespace_auth if policies is not None else {}
        if role is None or not self._grants(granted, role, (AuthAction.PRODUCE, AuthAction.CONSUME)):
            what = f"may not list the topics of {namespace}"
            raise _missing_grant(role, what, namespace, AuthAction.PRODUCE, AuthAction.CONSUME)

    async def may_produce_somewhere(self, role: str | None) -> bool:
        if await self.is_superuser(role):
            return True
        if role is None:
            return False
        for tenant in self._resources.tenants():
            if await self.administers(tenant, role):
                return True
        return await in_slices(self._may_produce_in_namespaces(role), self._clock)

    def _may_produce_in_namespaces(self, role: str) -> Generator[None, None, bool]:
        """Return whether a namespace or topic grants `role` to produce. Yields after each namespace."""
        tenants, wanted = self._resources.tenants(), (AuthAction.PRODUCE,)
        for tenant in tenants:
            for namespace in self._resources.namespaces(tenant):
                yield
                policies = self._resources.namespace(namespace)
                if policies is None:
                    continue
                granted = policies.auth_policies
                if self._grants(granted.namespace_auth, role, wanted):
                    return True
                for index, of_topic in enumerate(granted.destination_auth.values()):
                    if self._grants(of_topic, role, wanted):
                        return True
                    if index % TOPICS_A_STEP == TOPICS_A_STEP - 1:
                        yield
        return False

    async def _may(self, topic: TopicName, role: str | None, *actions: AuthAction) -> bool:
        if await self.administers(topic.tenant, role):
            return True
        policies = self._resources.namespace(topic.namespace)
        if policies is None or role is None:
            return False
        granted = policies.auth_policies
        by_topic = granted.destination_auth
        return (
            self._grants(granted.namespace_auth, role, actions)
            or self._grants(by_topic.get(str(topic), {}), role, actions)
            or self._grants(by_topic.get(str(topic.partitioned_name), {}), role, actions)
        )

    def _grants(self, granted: Mapping[str, list[AuthAction]], role: str, actions: Iterable[AuthAction]) -> bool:
        if any(action in granted.get(role, ()) for action in actions):
            return True
        return self._wildcards and any(
            matches_wildcard(pattern, role) and action in allowed
            for pattern, allowed in granted.items()
            for action in actions
        )


def _missing_grant(role: str | None, what: str, namespace: NamespaceName, *actions: AuthAction) -> AuthorizationError:
    """Return the error for a role that has none of `actions`. The text does not reveal whether the namespace exists."""
    if role is None:
        return without_role(what)
    names = " or ".join(action.value for action in actions)
    call = f'POST /admin/v2/namespaces/{namespace}/permissions/{quote(role, safe="")} with ["{actions[0].value}"]'
    return AuthorizationError(
        f"role {role!r} {what}: the permission {names} on namespace {namespace} is missing. "
        f"An administrator of tenant {namespace.tenant} can grant the permission: {call}"
    )


def without_role(what: str) -> AuthorizationError:
    return AuthorizationError(f"a client without a role {what}: connect with credentials")


def matches_wildcard(pattern: str, role: str) -> bool:
    """Return whether `role` matches `pattern`, which starts or ends with `*`."""
    return (pattern.endswith("*") and role.startswith(pattern[:-1])) or (
        pattern.startswith("*") and role.endswith(pattern[1:])
    )


def _require_subscription(policies: NamespacePolicies, topic: TopicName, subscription: str, role: str) -> None:
    reserved_for = policies.auth_policies.subscription_auth_roles.get(subscription)
    if reserved_for and role not in reserved_for:
        call = f"POST /admin/v2/namespaces/{topic.namespace}/permissions/subscription/{quote(subscription, safe='')}"
        raise AuthorizationError(
            f"role {role!r} may not use subscription {subscription!r} on topic {topic}: namespace {topic.namespace} permits "
            f"only listed roles. An administrator of tenant {topic.tenant} can add the role: {call} with a list of all roles"
        )
    if policies.subscription_auth_mode is SubscriptionAuthMode.PREFIX and not subscription.startswith(role):
        raise AuthorizationError(
            f"the name of subscription {subscription!r} on topic {topic} must start with the role {role!r} "
            "(subscription authentication mode Prefix)"
        )
