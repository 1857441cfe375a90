"""Permissions of roles."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from pybroker.auth.authorization import AuthorizationService
from pybroker.auth.proxied_role import ProxiedRole
from pybroker.auth.pulsar_authorization import matches_wildcard
from pybroker.config.broker_config import BrokerConfig
from pybroker.config.setting_types import ConfigError
from pybroker.errors import AuthorizationError
from pybroker.metadata.memory_metadata_store import MemoryMetadataStore
from pybroker.metadata.resources import Resources
from pybroker.model.names import NamespaceName, TopicName
from pybroker.model.policies import AuthAction, NamespacePolicies, SubscriptionAuthMode, TenantInfo

CONFIG = BrokerConfig().replace(
    authentication_enabled=True,
    authorization_enabled=True,
    super_user_roles=("root",),
    anonymous_user_role="anonymous",
)
NAMESPACE = NamespaceName("acme", "orders")
TOPIC = TopicName.parse("persistent://acme/orders/t")
PUBLIC = TopicName.parse("t")
PRODUCE, CONSUME = AuthAction.PRODUCE, AuthAction.CONSUME


@pytest.fixture
async def resources() -> Resources:
    resources = Resources(MemoryMetadataStore())
    await resources.load()
    await resources.bootstrap("standalone", ())
    await resources.create_tenant("acme", TenantInfo(adminRoles=["boss"], allowedClusters=["standalone"]))
    await resources.create_namespace(NAMESPACE, NamespacePolicies())
    return resources


async def grant(resources: Resources, change: Callable[[NamespacePolicies], None], topic: TopicName = TOPIC) -> None:
    await resources.update_namespace(topic.namespace, change)


async def may(check: Callable[..., Awaitable[None]], *arguments: object) -> bool:
    try:
        await check(*arguments)
    except AuthorizationError:
        return False
    return True


async def test_when_it_is_off_everybody_may_do_all(resources: Resources) -> None:
    service = AuthorizationService(BrokerConfig(), resources)
    await service.require_produce(TOPIC, None)
    await service.require_consume(TOPIC, "sub", None)
    await service.require_lookup(TOPIC, None)
    await service.require_superuser(None)
    await service.require_tenant_admin("acme", None)
    await service.require_namespace_admin(NAMESPACE, None)
    await service.require_list_topics(NAMESPACE, None)


@pytest.mark.parametrize(
    ("role", "data", "administers", "superuser"),
    [
        ("root", True, True, True),
        ("boss", True, True, False),
        ("app", False, False, False),
        (None, False, False, False),
    ],
)
async def test_superusers_and_tenant_administrators_need_no_grant(
    resources: Resources, role: str | None, data: bool, administers: bool, superuser: bool
) -> None:
    service = AuthorizationService(CONFIG, resources)
    assert await may(service.require_produce, TOPIC, role) is data
    assert await may(service.require_consume, TOPIC, "sub", role) is data
    assert await may(service.require_lookup, TOPIC, role) is data
    assert await may(service.require_list_topics, NAMESPACE, role) is data
    assert await may(service.require_tenant_admin, "acme", role) is administers
    assert await may(service.require_namespace_admin, NAMESPACE, role) is administers
    assert await may(service.require_superuser, role) is superuser


async def test_a_tenant_administrator_is_nobody_in_other_tenants(resources: Resources) -> None:
    service = AuthorizationService(CONFIG, resources)
    assert not await may(service.require_produce, PUBLIC, "boss")
    assert not await may(service.require_tenant_admin, "public", "boss")
    assert not await may(service.require_tenant_admin, "missing", "boss")


async def test_a_namespace_grants_exactly_the_actions_given(resources: Resources) -> None:
    service = AuthorizationService(CONFIG, resources)
    await grant(resources, lambda p: p.auth_policies.namespace_auth.update(writer=[PRODUCE], reader=[CONSUME]))
    assert await may(service.require_produce, TOPIC, "writer")
    assert not await may(service.require_consume, TOPIC, "sub", "writer")
    assert not await may(service.require_produce, TOPIC, "reader")
    assert await may(service.require_consume, TOPIC, "sub", "reader")
    assert await may(service.require_lookup, TOPIC, "writer")
    assert await may(service.require_lookup, TOPIC, "reader")
    assert await may(service.require_list_topics, NAMESPACE, "reader")
    assert await may(service.require_list_topics, NAMESPACE, "writer")
    assert not await may(service.require_list_topics, NAMESPACE, "stranger")
    assert not await may(service.require_namespace_admin, NAMESPACE, "reader")


async def test_the_anonymous_role_uses_what_it_is_granted_and_nothing_else(resources: Resources) -> None:
    service = AuthorizationService(CONFIG, resources)
    await grant(resources, lambda p: p.auth_policies.namespace_auth.update(anonymous=[PRODUCE, CONSUME]), PUBLIC)
    await grant(resources, lambda p: p.auth_policies.namespace_auth.update(app=[PRODUCE, CONSUME]))
    assert await may(service.require_produce, PUBLIC, "anonymous")
    assert await may(service.require_consume, PUBLIC, "sub", "anonymous")
    assert not await may(service.require_produce, TOPIC, "anonymous")
    assert not await may(service.require_consume, TOPIC, "sub", "anonymous")
    assert not await may(service.require_lookup, TOPIC, "anonymous")
    assert await may(service.require_produce, TOPIC, "app")


async def test_a_revoked_grant_counts_no_more(resources: Resources) -> None:
    service = AuthorizationService(CONFIG, resources)
    await grant(resources, lambda p: p.auth_policies.namespace_auth.update(app=[PRODUCE]))
    assert await may(service.require_produce, TOPIC, "app")
    await grant(resources, lambda p: p.auth_policies.namespace_auth.clear())
    assert not await may(service.require_produce, TOPIC, "app")


async def test_a_topics_grant_counts_for_it_and_its_partitions_only(resources: Resources) -> None:
    service = AuthorizationService(CONFIG, resources)
    await grant(resources, lambda p: p.auth_policies.destination_auth.update({str(TOPIC): {"app": [PRODUCE]}}))
    assert await may(service.require_produce, TOPIC, "app")
    assert await may(service.require_produce, TOPIC.partition(3), "app")
    assert await may(service.require_lookup, TOPIC, "app")
    assert not await may(service.require_consume, TOPIC, "sub", "app")
    assert not await may(service.require_produce, TopicName.parse("persistent://acme/orders/other"), "app")
    assert not await may(service.require_list_topics, NAMESPACE, "app")


async def test_a_reserved_subscription_is_for_its_roles_only(resources: Resources) -> None:
    service = AuthorizationService(CONFIG, resources)

    def change(policies: NamespacePolicies) -> None:
        policies.auth_policies.namespace_auth.update(app=[CONSUME], other=[CONSUME])
        policies.auth_policies.subscription_auth_roles.update(reserved=["app", "stranger"], free=[])

    await grant(resources, change)
    assert await may(service.require_consume, TOPIC, "reserved", "app")
    assert not await may(service.require_consume, TOPIC, "reserved", "other")
    assert await may(service.require_consume, TOPIC, "free", "other")
    assert not await may(service.require_consume, TOPIC, "reserved", "stranger"), "a reservation is no grant"
    assert await may(service.require_consume, TOPIC, "reserved", "boss")


async def test_with_mode_prefix_a_subscription_begins_with_the_role(resources: Resources) -> None:
    service = AuthorizationService(CONFIG, resources)

    def change(policies: NamespacePolicies) -> None:
        policies.auth_policies.namespace_auth.update(app=[CONSUME])
        policies.subscription_auth_mode = SubscriptionAuthMode.PREFIX

    await grant(resources, change)
    assert await may(service.require_consume, TOPIC, "app-1", "app")
    assert not await may(service.require_consume, TOPIC, "mine", "app")


async def test_wildcards_count_only_when_they_are_switched_on(resources: Resources) -> None:
    await grant(resources, lambda p: p.auth_policies.namespace_auth.update({"app-*": [PRODUCE], "*.reader": [CONSUME]}))
    off = AuthorizationService(CONFIG, resources)
    assert not await may(off.require_produce, TOPIC, "app-1")
    on = AuthorizationService(CONFIG.replace(authorization_allow_wildcards_matching=True), resources)
    assert await may(on.require_produce, TOPIC, "app-1")
    assert not await may(on.require_consume, TOPIC, "sub", "app-1")
    assert await may(on.require_consume, TOPIC, "sub", "x.reader")
    assert not await may(on.require_produce, TOPIC, "application")


@pytest.mark.parametrize(
    ("pattern", "role", "expected"),
    [("*", "any", True), ("a*", "abc", True), ("*c", "abc", True), ("a*c", "abc", False), ("abc", "abc", False)],
)
def test_a_wildcard_stands_first_or_last(pattern: str, role: str, expected: bool) -> None:
    assert matches_wildcard(pattern, role) is expected


async def test_a_missing_namespace_grants_nothing(resources: Resources) -> None:
    service = AuthorizationService(CONFIG, resources)
    missing = TopicName.parse("persistent://acme/missing/t")
    assert not await may(service.require_lookup, missing, "app")
    assert not await may(service.require_list_topics, missing.namespace, "app")
    assert await may(service.require_lookup, missing, "boss")


async def test_a_proxy_role_is_refused_even_as_a_superuser(resources: Resources) -> None:
    service = AuthorizationService(CONFIG.replace(super_user_roles=("proxy",), proxy_roles=("proxy",)), resources)
    assert not await may(service.require_produce, TOPIC, "proxy")
    assert not await may(service.require_superuser, "proxy")


async def test_proxy_and_client_both_need_the_permission(resources: Resources) -> None:
    service = AuthorizationService(
        CONFIG.replace(super_user_roles=("proxy", "boss"), proxy_roles=("proxy",)), resources
    )
    client, weak = ProxiedRole("boss", "proxy"), ProxiedRole("stranger", "proxy")
    assert await may(service.require_produce, TOPIC, client)
    assert await may(service.require_superuser, client)
    assert not await may(service.require_produce, TOPIC, weak)
    assert not await may(service.require_superuser, weak)
    assert not await may(service.require_superuser, ProxiedRole("boss", "unknown"))
    assert (await service.may_all(client), await service.may_all(weak)) == (True, False)
    assert await service.may_use("stranger", weak), "the client owns it"
    assert not await service.may_use("proxy", weak)
    await service.learn(client)
    await service.learn(weak)
    assert (service.holder(client, "").is_operator, service.holder(weak, "").is_operator) == (True, False)
    assert service.holder(weak, "").name == service.holder("stranger", "").name


async def test_proxied_role_is_none_of_a_client_without_proxy(resources: Resources) -> None:
    service = AuthorizationService(CONFIG.replace(proxy_roles=("proxy",)), resources)
    assert service.with_original_principal("app", "") == "app"
    assert service.with_original_principal("app", "app", may_be_equal=True) == "app"
    assert service.with_original_principal("proxy", "app") == ProxiedRole("app", "proxy")


async def test_only_a_proxy_names_another_role_without_authorization(resources: Resources) -> None:
    config = CONFIG.replace(authorization_enabled=False, proxy_roles=("proxy",))
    service = AuthorizationService(config, resources)
    assert service.with_original_principal("app", "boss") == "app"
    assert service.with_original_principal("proxy", "app") == ProxiedRole("app", "proxy")


async def test_a_configuration_that_cannot_work_names_its_key(resources: Resources) -> None:
    with pytest.raises(ConfigError, match="authenticationEnabled"):
        AuthorizationService(CONFIG.replace(authentication_enabled=False), resources)
    with pytest.raises(ConfigError, match="authorizationProvider"):
        AuthorizationService(CONFIG.replace(authorization_provider="org.example.Other"), resources)


async def reason(check: Callable[..., Awaitable[None]], *arguments: object) -> str:
    with pytest.raises(AuthorizationError) as refused:
        await check(*arguments)
    return str(refused.value)


async def test_refusal_names_role_permission_namespace_and_the_call_that_grants_it(resources: Resources) -> None:
    service = AuthorizationService(CONFIG, resources)
    await grant(resources, lambda policies: policies.auth_policies.namespace_auth.update({"app/1": [CONSUME]}))
    assert await reason(service.require_produce, TOPIC, "app/1") == (
        "role 'app/1' may not produce to persistent://acme/orders/t: the permission produce on namespace acme/orders is missing. "
        "An administrator of tenant acme can grant the permission: "
        'POST /admin/v2/namespaces/acme/orders/permissions/app%2F1 with ["produce"]'
    )
    assert "the permission consume on namespace acme/orders is missing" in await reason(
        service.require_consume, TOPIC, "s", "other"
    )
    assert "the permission produce or consume on namespace" in await reason(service.require_lookup, TOPIC, "other")
    assert "the permission produce or consume on namespace" in await reason(
        service.require_list_topics, NAMESPACE, "other"
    )
    assert "superUserRoles must contain the role" in await reason(service.require_superuser, "app/1")
    for check, asked in ((service.require_namespace_admin, NAMESPACE), (service.require_tenant_admin, "acme")):
        assert "adminRoles of tenant acme must contain the role" in await reason(check, asked, "app/1")
    roles = {"s": ["someone"]}
    await grant(resources, lambda policies: policies.auth_policies.subscription_auth_roles.update(roles))
    told = await reason(service.require_consume, TOPIC, "s", "app/1")
    assert "POST /admin/v2/namespaces/acme/orders/permissions/subscription/s with a list of all roles" in told
    assert "someone" not in told


@pytest.mark.parametrize("role", ["other", None])
async def test_refusal_does_not_tell_whether_the_namespace_exists(resources: Resources, role: str | None) -> None:
    service = AuthorizationService(CONFIG, resources)
    missing = TopicName.parse("persistent://nobody/nowhere/t")
    for check in (service.require_produce, service.require_lookup):
        there, absent = await reason(check, TOPIC, role), await reason(check, missing, role)
        assert there.replace("acme/orders", "nobody/nowhere").replace("tenant acme", "tenant nobody") == absent


async def test_refusal_without_a_role_asks_for_credentials_and_names_no_permission(resources: Resources) -> None:
    service = AuthorizationService(CONFIG, resources)
    for told in (
        await reason(service.require_produce, TOPIC, None),
        await reason(service.require_consume, TOPIC, "s", None),
        await reason(service.require_list_topics, NAMESPACE, None),
        await reason(service.require_superuser, None),
        await reason(service.require_tenant_admin, "acme", None),
    ):
        assert told.startswith("a client without a role ")
        assert told.endswith(": connect with credentials")
