"""`/admin/v2/namespaces`: creation and deletion of namespaces, policies document, bundles, topics and permissions."""

from __future__ import annotations

from starlette.responses import Response
from starlette.routing import Route

from pybroker.admin.calls.call import Call, json_response, no_content
from pybroker.admin.calls.existing_namespaces import (
    administered_namespace,
    existing_namespace,
    existing_tenant,
)
from pybroker.admin.calls.listed_everywhere import listed_everywhere
from pybroker.admin.calls.queries import FORCE, WITH_SYSTEM_TOPICS, Query
from pybroker.admin.calls.route_paths import NAMESPACE, NAMESPACES
from pybroker.admin.calls.routing import route
from pybroker.errors import AdminError
from pybroker.model.names import NON_PERSISTENT, PERSISTENT
from pybroker.model.policies import AuthAction, NamespacePolicies, copy_of, ordered_actions

PERMISSIONS = NAMESPACE + "/permissions"

DOMAIN_OF_MODE = {"PERSISTENT": PERSISTENT, "NON_PERSISTENT": NON_PERSISTENT, "ALL": None}
MODE = Query("mode", "domain of the topics", str, "PERSISTENT", tuple(DOMAIN_OF_MODE))


def routes() -> list[Route]:
    return [
        route("GET", NAMESPACES + "/{tenant}", list_namespaces),
        route("GET", NAMESPACE, get_policies),
        route("PUT", NAMESPACE, create_namespace),
        route("DELETE", NAMESPACE, delete_namespace, queries=(FORCE,)),
        route("GET", NAMESPACE + "/topics", list_topics, queries=(MODE, WITH_SYSTEM_TOPICS)),
        route("GET", NAMESPACE + "/bundles", get_bundles),
        route("GET", PERMISSIONS, get_permissions),
        route("GET", PERMISSIONS + "/subscription", get_subscription_permissions),
        route("POST", PERMISSIONS + "/subscription/{subscription}", grant_subscription),
        route("DELETE", PERMISSIONS + "/{subscription}/{role}", revoke_subscription),
        route("POST", PERMISSIONS + "/{role}", grant),
        route("DELETE", PERMISSIONS + "/{role}", revoke),
    ]


async def list_namespaces(call: Call) -> Response:
    tenant = call.name("tenant")
    await call.require_admin_within(tenant)
    existing_tenant(call, tenant, "Tenant not found")
    return json_response(sorted(str(namespace) for namespace in call.resources.namespaces(tenant)))


async def create_namespace(call: Call) -> Response:
    namespace = call.namespace_name()
    await call.require_admin_within(namespace.tenant)
    policies = await call.optional_json(NamespacePolicies) or NamespacePolicies()
    # The Go admin client sends "" for unset values.
    policies.schema_compatibility_strategy = policies.schema_compatibility_strategy or "UNDEFINED"
    await call.broker.namespace_deletion.settled(namespace)
    await call.resources.create_namespace(namespace, policies, call.config.max_namespaces_per_tenant)
    return no_content()


async def get_policies(call: Call) -> Response:
    namespace = await administered_namespace(call)
    policies = existing_namespace(call, namespace)
    if policies.is_allow_auto_update_schema is None:
        policies = copy_of(policies)  # the only policy whose effective value Pulsar shows
        policies.is_allow_auto_update_schema = call.config.is_allow_auto_update_schema_enabled
    return json_response(policies)


async def delete_namespace(call: Call) -> Response:
    namespace = call.namespace_name()
    await call.require_admin_within(namespace.tenant)
    await call.broker.namespace_deletion.delete(namespace, force=call.flag("force"))
    return no_content()


async def list_topics(call: Call) -> Response:
    namespace = call.namespace_name()
    await call.require_list_topics(namespace)
    existing_namespace(call, namespace)
    mode = call.query("mode") or "PERSISTENT"
    if mode not in DOMAIN_OF_MODE:
        raise AdminError(400, f"The query parameter mode is {mode!r}: use one of {', '.join(DOMAIN_OF_MODE)}")
    shows_system = call.flag("includeSystemTopic")
    return json_response(await listed_everywhere(call, namespace, DOMAIN_OF_MODE[mode], include_system=shows_system))


async def get_bundles(call: Call) -> Response:
    namespace = call.namespace_name()
    await call.require_list_topics(namespace)
    return json_response(existing_namespace(call, namespace).bundles)


async def get_permissions(call: Call) -> Response:
    namespace = await administered_namespace(call)
    return json_response(existing_namespace(call, namespace).auth_policies.namespace_auth)


async def grant(call: Call) -> Response:
    namespace, role = call.namespace_name(), call.name("role")
    await call.require_namespace_admin(namespace)
    actions = ordered_actions(await call.json(list[AuthAction]))

    def change(policies: NamespacePolicies) -> None:
        policies.auth_policies.namespace_auth[role] = actions

    existing_namespace(call, namespace, "Topic's namespace does not exist")
    await call.resources.update_namespace(namespace, change)
    return no_content()


async def revoke(call: Call) -> Response:
    namespace, role = call.namespace_name(), call.name("role")
    await call.require_namespace_admin(namespace)

    def change(policies: NamespacePolicies) -> None:
        policies.auth_policies.namespace_auth.pop(role, None)

    await call.resources.update_namespace(namespace, change)
    return no_content()


async def get_subscription_permissions(call: Call) -> Response:
    namespace = await administered_namespace(call)
    return json_response(existing_namespace(call, namespace).auth_policies.subscription_auth_roles)


async def grant_subscription(call: Call) -> Response:
    namespace, subscription = call.namespace_name(), call.name("subscription")
    await call.require_namespace_admin(namespace)
    roles = sorted(set(await call.json(list[str])))

    def change(policies: NamespacePolicies) -> None:
        policies.auth_policies.subscription_auth_roles[subscription] = roles

    await call.resources.update_namespace(namespace, change)
    return no_content()


async def revoke_subscription(call: Call) -> Response:
    namespace, subscription, role = call.namespace_name(), call.name("subscription"), call.name("role")
    await call.require_namespace_admin(namespace)

    def change(policies: NamespacePolicies) -> None:
        kept_for = policies.auth_policies.subscription_auth_roles
        if role in kept_for.get(subscription, ()):
            kept_for[subscription].remove(role)
            if not kept_for[subscription]:
                del kept_for[subscription]

    await call.resources.update_namespace(namespace, change)
    return no_content()
