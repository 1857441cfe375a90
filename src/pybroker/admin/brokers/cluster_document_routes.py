"""`/admin/v2/clusters/{cluster}/...`: failure domains, namespace isolation policies, and migration of a cluster.

Failure domains and isolation policies restrict the brokers to which the leader assigns bundles. The migration is only
stored.
"""

from __future__ import annotations

from starlette.responses import Response
from starlette.routing import Route

from pybroker.admin.calls.call import Call, empty_ok, json_response, no_content
from pybroker.admin.calls.own_address import broker_ids
from pybroker.admin.calls.queries import Query
from pybroker.admin.calls.routing import route
from pybroker.admin.namespaces.bundle_owners import on_each_bundle
from pybroker.cluster.bundles import Bundle
from pybroker.cluster.ownership.namespace_bundle import NamespaceBundle
from pybroker.errors import AdminError
from pybroker.model.cluster_data import (
    ClusterPolicies,
    ClusterUrl,
    FailureDomain,
    NamespaceIsolationData,
    checked_isolation,
    isolation_of,
    namespaces_to_unload,
)
from pybroker.model.names import NamespaceName

CLUSTER = "/admin/v2/clusters/{cluster}"
DOMAINS = CLUSTER + "/failureDomains"
ISOLATION = CLUSTER + "/namespaceIsolationPolicies"
MIGRATED = Query("migrated", "whether the cluster has moved to these addresses", bool)


def routes() -> list[Route]:
    return [
        route("GET", DOMAINS, list_failure_domains),
        route("GET", DOMAINS + "/{domain}", get_failure_domain),
        route("POST", DOMAINS + "/{domain}", set_failure_domain, body=FailureDomain),
        route("DELETE", DOMAINS + "/{domain}", delete_failure_domain),
        route("GET", ISOLATION, list_isolation_policies),
        route("GET", ISOLATION + "/brokers", list_isolated_brokers),
        route("GET", ISOLATION + "/brokers/{broker}", get_isolated_broker),
        route("GET", ISOLATION + "/{policy}", get_isolation_policy),
        route("POST", ISOLATION + "/{policy}", set_isolation_policy, body=NamespaceIsolationData),
        route("DELETE", ISOLATION + "/{policy}", delete_isolation_policy),
        route("GET", CLUSTER + "/migrate", get_migration),
        route("POST", CLUSTER + "/migrate", set_migration, body=ClusterUrl, queries=(MIGRATED,)),
    ]


async def list_failure_domains(call: Call) -> Response:
    """List failure domains. As in Pulsar, the list is empty for a missing cluster."""
    await call.require_superuser()
    return json_response(await call.broker.cluster_documents.failure_domains(call.name("cluster")))


async def get_failure_domain(call: Call) -> Response:
    await call.require_superuser()
    cluster, name = call.name("cluster"), call.name("domain")
    domains = await call.broker.cluster_documents.failure_domains(cluster)
    if name not in domains:
        raise AdminError(404, f"Domain {name} for cluster {cluster} does not exist")
    return json_response(domains[name])


async def set_failure_domain(call: Call) -> Response:
    """Create or replace a failure domain. 409 if one of its brokers is in another failure domain."""
    cluster = await _used_cluster(call)
    domain = await call.json(FailureDomain)
    await call.broker.cluster_documents.put_failure_domain(cluster, call.name("domain"), domain)
    return no_content()


async def delete_failure_domain(call: Call) -> Response:
    await call.broker.cluster_documents.delete_failure_domain(await _used_cluster(call), call.name("domain"))
    return empty_ok()


async def list_isolation_policies(call: Call) -> Response:
    """List isolation policies. 404 if the cluster never had an isolation policy."""
    await call.require_superuser()
    cluster = call.name("cluster")
    if call.resources.cluster(cluster) is None:
        raise AdminError(404, f"Cluster {cluster} does not exist.")
    return json_response(await _isolation_policies(call, cluster))


async def get_isolation_policy(call: Call) -> Response:
    cluster, name = await _used_cluster(call), call.name("policy")
    policies = await _isolation_policies(call, cluster)
    if name not in policies:
        raise AdminError(404, f"Cannot find NamespaceIsolationPolicy {name} for cluster {cluster}")
    return json_response(policies[name])


async def set_isolation_policy(call: Call) -> Response:
    """Create or replace an isolation policy of a cluster. If this broker is in that cluster, also unload the namespaces
    that the policy's `unload_scope` selects. The policy's patterns are RE2 regular expressions, without lookaround and
    back-references.
    """
    cluster, name = await _used_cluster(call), call.name("policy")
    try:
        data = checked_isolation(await call.json(NamespaceIsolationData))
    except ValueError as error:
        raise AdminError(400, f"Invalid format of input policy data. policy: {name}; {error}") from error
    former = (await call.broker.cluster_documents.isolation_policies(cluster) or {}).get(name)
    await call.broker.cluster_documents.put_isolation_policy(cluster, name, data)
    if cluster == call.config.cluster_name:
        await _unload_namespaces(call, data, former)
    return no_content()


async def _unload_namespaces(call: Call, policy: NamespaceIsolationData, former: NamespaceIsolationData | None) -> None:
    """Unload the namespaces whose brokers the changed policy may exclude, in a cluster of several brokers."""
    ownership, resources = call.broker.ownership, call.resources
    if ownership is None:
        return
    by_name = {str(each): each for tenant in resources.tenants() for each in resources.namespaces(tenant)}
    for name in namespaces_to_unload(by_name, policy, former):
        namespace = by_name[name]

        async def release(bundle: Bundle | None, namespace: NamespaceName = namespace) -> None:
            assert bundle is not None, "a broker with an ownership names bundles"
            await ownership.release(NamespaceBundle(namespace, bundle))

        await on_each_bundle(call, namespace, "/unload", release, may_acquire=False, method="PUT")


async def delete_isolation_policy(call: Call) -> Response:
    """Delete an isolation policy. 204 also if it does not exist."""
    await call.broker.cluster_documents.delete_isolation_policy(await _used_cluster(call), call.name("policy"))
    return no_content()


async def list_isolated_brokers(call: Call) -> Response:
    """Return, for each broker of the cluster, the isolation policies that match it. 404 if the cluster never had an
    isolation policy.
    """
    policies = await _isolation_policies(call, await _used_cluster(call))
    return json_response([isolation_of(each, policies) for each in broker_ids(call)])


async def get_isolated_broker(call: Call) -> Response:
    """Return the isolation policies that match a broker. The broker need not be registered. 404 if the cluster never
    had an isolation policy.
    """
    policies = await _isolation_policies(call, await _used_cluster(call))
    return json_response(isolation_of(call.name("broker"), policies))


async def get_migration(call: Call) -> Response:
    """Return the cluster to which this cluster migrates. 404 without a migration."""
    await call.require_superuser()
    cluster = call.name("cluster")
    policies = await call.broker.cluster_documents.migration(cluster)
    if call.resources.cluster(cluster) is None or policies is None:
        raise AdminError(404, f"Cluster {cluster} does not exist, or has no migration state")
    url = policies.migratedClusterUrl
    shown = {"serviceUrl": url.serviceUrl, "serviceUrlTls": url.serviceUrlTls}
    shown |= {"brokerServiceUrl": url.brokerServiceUrl, "brokerServiceUrlTls": url.brokerServiceUrlTls}
    return json_response({"migrated": policies.migrated, "migratedClusterUrl": {**shown, "empty": url.empty}})


async def set_migration(call: Call) -> Response:
    """Store the cluster to which this cluster migrates; `migrated=true` marks the migration as complete. Clients are
    not redirected.
    """
    await call.require_superuser()
    cluster = call.name("cluster")
    if call.resources.cluster(cluster) is None:
        raise AdminError(404, f"Cluster does not exist: {cluster}")
    policies = ClusterPolicies(call.flag("migrated"), await call.json(ClusterUrl))
    await call.broker.cluster_documents.put_migration(cluster, policies)
    return empty_ok()


async def _used_cluster(call: Call) -> str:
    await call.require_superuser()
    cluster = call.name("cluster")
    if call.resources.cluster(cluster) is None:
        raise AdminError(412, f"Cluster {cluster} does not exist.")
    return cluster


async def _isolation_policies(call: Call, cluster: str) -> dict[str, NamespaceIsolationData]:
    policies = await call.broker.cluster_documents.isolation_policies(cluster)
    if policies is None:
        raise AdminError(404, f"NamespaceIsolationPolicies for cluster {cluster} does not exist")
    return policies
