"""`/admin/v2/namespaces/{tenant}/{namespace}/...`: properties, clusters, resource group, and placement of a namespace.

Bookie affinity is stored without effect. Anti-affinity groups have an effect only in a cluster.
"""

from __future__ import annotations

from starlette.responses import Response
from starlette.routing import Route

from pybroker.admin.calls.call import BadBody, Call, empty_ok, json_response, no_content, text_response
from pybroker.admin.calls.existing_namespaces import (
    administered_namespace,
    existing_namespace,
    existing_tenant,
    superusers_namespace,
)
from pybroker.admin.calls.queries import Query
from pybroker.admin.calls.route_paths import NAMESPACE, NAMESPACES
from pybroker.admin.calls.routing import route
from pybroker.admin.policies.policy_values import check_clusters
from pybroker.errors import AdminError
from pybroker.model.names import NamespaceName
from pybroker.model.policies import BookieAffinityGroup, LocalPolicies, NamespacePolicies

PROPERTY = NAMESPACE + "/property/{key}"
BOOKIE_AFFINITY = NAMESPACE + "/persistence/bookieAffinity"
ANTI_AFFINITY = NAMESPACE + "/antiAffinity"
RESOURCE_GROUP = NAMESPACE + "/resourcegroup"


def routes() -> list[Route]:
    return [
        route("GET", NAMESPACE + "/properties", get_properties),
        route("PUT", NAMESPACE + "/properties", add_properties, body=dict[str, str]),
        route("DELETE", NAMESPACE + "/properties", remove_properties),
        route("GET", PROPERTY, get_property),
        route("PUT", PROPERTY + "/{value}", set_property),
        route("DELETE", PROPERTY, remove_property),
        route("GET", NAMESPACE + "/replication", get_replication),
        route("POST", NAMESPACE + "/replication", set_replication, body=list[str]),
        route("GET", NAMESPACE + "/allowedClusters", get_allowed_clusters),
        route("POST", NAMESPACE + "/allowedClusters", set_allowed_clusters, body=list[str]),
        route("POST", NAMESPACE + "/migration", set_migrated, body=bool),
        route("GET", RESOURCE_GROUP, get_resource_group),
        route("POST", RESOURCE_GROUP + "/{group}", set_resource_group),
        route("DELETE", RESOURCE_GROUP, remove_resource_group),
        route("GET", BOOKIE_AFFINITY, get_bookie_affinity),
        route("POST", BOOKIE_AFFINITY, set_bookie_affinity, body=BookieAffinityGroup),
        route("DELETE", BOOKIE_AFFINITY, remove_bookie_affinity),
        route("GET", ANTI_AFFINITY, get_anti_affinity),
        route("POST", ANTI_AFFINITY, set_anti_affinity, body=str),
        route("DELETE", ANTI_AFFINITY, remove_anti_affinity),
        route(
            "GET",
            NAMESPACES + "/{cluster}/antiAffinity/{group}",
            list_anti_affinity,
            queries=(Query("tenant", "whose namespaces", is_required=True),),
        ),
    ]


# --- properties ----------------------------------------------------------------------------------------------------------


async def _namespace_of_tenant(call: Call) -> NamespaceName:
    namespace = call.namespace_name()
    await call.require_admin_within(namespace.tenant)
    existing_tenant(call, namespace.tenant)
    return namespace


async def get_properties(call: Call) -> Response:
    return json_response(existing_namespace(call, await _namespace_of_tenant(call)).properties)


async def add_properties(call: Call) -> Response:
    """Add the properties in the body to the existing properties."""
    namespace = await _namespace_of_tenant(call)
    added = await call.json(dict[str, str])

    def change(policies: NamespacePolicies) -> None:
        policies.properties.update(added)

    await call.resources.update_namespace(namespace, change)
    return no_content()


async def remove_properties(call: Call) -> Response:
    """Remove all properties."""

    def change(policies: NamespacePolicies) -> None:
        policies.properties.clear()

    await call.resources.update_namespace(await _namespace_of_tenant(call), change)
    return no_content()


async def get_property(call: Call) -> Response:
    return _text(existing_namespace(call, await _namespace_of_tenant(call)).properties.get(call.name("key")))


async def set_property(call: Call) -> Response:
    key, value = call.name("key"), call.name("value")

    def change(policies: NamespacePolicies) -> None:
        policies.properties[key] = value

    await call.resources.update_namespace(await _namespace_of_tenant(call), change)
    return no_content()


async def remove_property(call: Call) -> Response:
    """Remove a property and return its value."""
    namespace, key = await _namespace_of_tenant(call), call.name("key")
    before: list[str | None] = []

    def change(policies: NamespacePolicies) -> None:
        before.append(policies.properties.pop(key, None))

    await call.resources.update_namespace(namespace, change)
    return _text(before[-1])


# --- clusters ------------------------------------------------------------------------------------------------------------


async def get_replication(call: Call) -> Response:
    return json_response((await _policies(call)).replication_clusters)


async def set_replication(call: Call) -> Response:
    """Set the replication clusters. They must exist, and both the tenant and the namespace must be allowed to use
    them.
    """
    namespace = await administered_namespace(call)
    existing_namespace(call, namespace)
    clusters = await call.optional_json(list[str])
    if not clusters:
        raise AdminError(412, "ClusterIds should not be null or empty")
    check_clusters(call, namespace.tenant, clusters)

    def change(policies: NamespacePolicies) -> None:
        excluded = [each for each in clusters if policies.allowed_clusters and each not in policies.allowed_clusters]
        if excluded:
            raise AdminError(403, f"Cluster [{excluded[0]}] is not in the list of allowed clusters of the namespace")
        policies.replication_clusters = clusters

    await call.resources.update_namespace(namespace, change)
    return empty_ok()


async def get_allowed_clusters(call: Call) -> Response:
    return json_response((await _policies(call)).allowed_clusters)


async def set_allowed_clusters(call: Call) -> Response:
    """Set the allowed clusters. The tenant must be allowed to use them, and they must include the replication
    clusters.
    """
    namespace = await administered_namespace(call)
    existing_namespace(call, namespace)
    clusters = await call.json(list[str])
    check_clusters(call, namespace.tenant, clusters)

    def change(policies: NamespacePolicies) -> None:
        missing = [each for each in policies.replication_clusters if each not in clusters]
        if missing:
            raise AdminError(400, f"Allowed clusters do not contain the replication cluster [{missing[0]}]")
        policies.allowed_clusters = clusters

    await call.resources.update_namespace(namespace, change)
    return empty_ok()


async def set_migrated(call: Call) -> Response:
    """Set whether the namespace has migrated to another cluster."""
    namespace = await superusers_namespace(call)
    is_migrated = await call.json(bool)

    def change(policies: LocalPolicies) -> None:
        policies.migrated = is_migrated

    await call.resources.update_local_policies(namespace, change)
    return no_content()


# --- resource group ------------------------------------------------------------------------------------------------------


async def get_resource_group(call: Call) -> Response:
    return _text((await _policies(call)).resource_group_name)


async def set_resource_group(call: Call) -> Response:
    """Set the resource group, which must exist."""
    namespace, group = await administered_namespace(call), call.name("group")
    if call.broker.broker_context.resource_groups.get(group) is None:
        raise AdminError(412, "ResourceGroup does not exist")

    def change(policies: NamespacePolicies) -> None:
        policies.resource_group_name = group

    await call.resources.update_namespace(namespace, change)
    return no_content()


async def remove_resource_group(call: Call) -> Response:
    def change(policies: NamespacePolicies) -> None:
        policies.resource_group_name = None

    await call.resources.update_namespace(await administered_namespace(call), change)
    return no_content()


# --- placement -----------------------------------------------------------------------------------------------------------


async def get_bookie_affinity(call: Call) -> Response:
    namespace = await superusers_namespace(call)
    existing_namespace(call, namespace)
    affinity = call.resources.local_policies(namespace).bookieAffinityGroup
    return empty_ok() if affinity is None else json_response(affinity)


async def set_bookie_affinity(call: Call) -> Response:
    """Set the bookie affinity. A request without a body, or with `null`, removes it."""
    namespace = await superusers_namespace(call)
    affinity = await call.optional_json(BookieAffinityGroup)

    def change(policies: LocalPolicies) -> None:
        policies.bookieAffinityGroup = affinity

    await call.resources.update_local_policies(namespace, change)
    return no_content()


async def remove_bookie_affinity(call: Call) -> Response:
    def change(policies: LocalPolicies) -> None:
        policies.bookieAffinityGroup = None

    await call.resources.update_local_policies(await superusers_namespace(call), change)
    return no_content()


async def get_anti_affinity(call: Call) -> Response:
    return _text((await _local_policies(call)).namespaceAntiAffinityGroup)


async def set_anti_affinity(call: Call) -> Response:
    namespace = await administered_namespace(call)
    group = await call.text()
    if not group or group == "null":
        raise AdminError(412, "Anti-affinity group can't be empty")

    def change(policies: LocalPolicies) -> None:
        policies.namespaceAntiAffinityGroup = group

    await call.resources.update_local_policies(namespace, change)
    return no_content()


async def remove_anti_affinity(call: Call) -> Response:
    def change(policies: LocalPolicies) -> None:
        policies.namespaceAntiAffinityGroup = None

    await call.resources.update_local_policies(await administered_namespace(call), change)
    return no_content()


async def list_anti_affinity(call: Call) -> Response:
    """List the namespaces of a tenant that belong to an anti-affinity group."""
    tenant, group = call.query("tenant"), call.name("group")
    if not tenant:
        raise BadBody("Tenant should not be null")
    await call.require_admin_within(tenant)
    found = [
        str(namespace)
        for namespace in call.resources.namespaces(tenant)
        if call.resources.local_policies(namespace).namespaceAntiAffinityGroup == group
    ]
    return json_response(found)


async def _local_policies(call: Call) -> LocalPolicies:
    namespace = await administered_namespace(call)
    existing_namespace(call, namespace)
    return call.resources.local_policies(namespace)


async def _policies(call: Call) -> NamespacePolicies:
    return existing_namespace(call, await administered_namespace(call))


def _text(value: str | None) -> Response:
    return empty_ok() if value is None else text_response(value, "application/json")
