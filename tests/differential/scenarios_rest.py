"""Administration by REST: status codes, bodies, error shapes."""

import json

from tests.differential.harness import Run, scenario

V2 = "/admin/v2"
CLUSTERS = ["standalone"]


@scenario
def rest_clusters(run: Run) -> None:
    """The one cluster and its document."""
    run.rest("list", "GET", f"{V2}/clusters")
    run.rest("get", "GET", f"{V2}/clusters/standalone")
    run.rest("missing", "GET", f"{V2}/clusters/{run.token}")
    run.rest("bad name", "PUT", f"{V2}/clusters/{run.token}%20x", {"serviceUrl": "http://localhost:1"})
    run.rest("create", "PUT", f"{V2}/clusters/{run.token}", {"serviceUrl": "http://localhost:8080"})
    run.rest("create again", "PUT", f"{V2}/clusters/{run.token}", {"serviceUrl": "http://localhost:8080"})
    run.rest("get created", "GET", f"{V2}/clusters/{run.token}")
    update = {"serviceUrl": "http://localhost:8081", "brokerServiceUrl": "pulsar://localhost:6650"}
    run.rest("update", "POST", f"{V2}/clusters/{run.token}", update)
    run.rest("get updated", "GET", f"{V2}/clusters/{run.token}")
    run.rest("update missing", "POST", f"{V2}/clusters/{run.token}-no", {"serviceUrl": "http://localhost:8080"})
    run.rest("delete", "DELETE", f"{V2}/clusters/{run.token}")
    run.rest("delete again", "DELETE", f"{V2}/clusters/{run.token}")


@scenario
def rest_tenants(run: Run) -> None:
    """A tenant's life, and every way to get it wrong."""
    tenant, document = run.tenant(), {"adminRoles": ["admin"], "allowedClusters": CLUSTERS}
    path = f"{V2}/tenants/{tenant}"
    _, _, data = run.http("GET", f"{V2}/tenants", ..., "application/json")
    run.step("standard tenants", [name for name in ("public", "pulsar") if f'"{name}"'.encode() in data])
    run.rest("standard tenant", "GET", f"{V2}/tenants/public")
    run.rest("get missing", "GET", path)
    run.rest("update missing", "POST", path, document)
    run.rest("delete missing", "DELETE", path)
    run.rest("create without body", "PUT", path)
    run.rest("create with empty clusters", "PUT", path, {"adminRoles": [], "allowedClusters": []})
    run.rest("create with an unknown cluster", "PUT", path, {"adminRoles": [], "allowedClusters": ["nowhere"]})
    run.rest("create with a bad name", "PUT", f"{V2}/tenants/{tenant}%20x", document)
    run.rest("create", "PUT", path, document)
    run.rest("create again", "PUT", path, document)
    run.rest("get", "GET", path)
    run.rest("update", "POST", path, {"adminRoles": ["b", "a"], "allowedClusters": CLUSTERS})
    run.rest("get updated", "GET", path)
    run.rest("update to an unknown cluster", "POST", path, {"adminRoles": [], "allowedClusters": ["nowhere"]})
    run.rest("namespaces of it", "GET", f"{V2}/namespaces/{tenant}")
    run.rest("namespaces of a missing one", "GET", f"{V2}/namespaces/{tenant}-no")
    run.rest("a namespace in it", "PUT", f"{V2}/namespaces/{tenant}/ns")
    run.rest("delete while it has one", "DELETE", path)
    run.rest("force delete", "DELETE", f"{path}?force=true")
    run.rest("delete the namespace", "DELETE", f"{V2}/namespaces/{tenant}/ns")
    run.rest("delete", "DELETE", path)
    run.rest("get after", "GET", path)


def with_tenant(run: Run) -> str:
    """A tenant of the run's own, already made; its name."""
    tenant = run.tenant()
    run.http("PUT", f"{V2}/tenants/{tenant}", {"adminRoles": [], "allowedClusters": CLUSTERS}, "application/json")
    return tenant


@scenario
def rest_namespaces(run: Run) -> None:
    """A namespace's life, its policies document, its bundles."""
    tenant = with_tenant(run)
    path = f"{V2}/namespaces/{tenant}/ns"
    run.rest("get missing", "GET", path)
    run.rest("delete missing", "DELETE", path)
    run.rest("create in a missing tenant", "PUT", f"{V2}/namespaces/{tenant}-no/ns")
    run.rest("create with a bad name", "PUT", f"{V2}/namespaces/{tenant}/n%20s")
    run.rest("create", "PUT", path)
    run.rest("create again", "PUT", path)
    run.rest("policies", "GET", path)
    run.rest("bundles", "GET", f"{path}/bundles")
    run.rest("topics", "GET", f"{path}/topics")
    run.rest("topics of a missing one", "GET", f"{V2}/namespaces/{tenant}/no/topics")
    run.rest("list", "GET", f"{V2}/namespaces/{tenant}")
    policies = {"bundles": {"numBundles": 8}, "replication_clusters": CLUSTERS, "message_ttl_in_seconds": 60}
    run.rest("create with policies", "PUT", f"{V2}/namespaces/{tenant}/ns2", policies)
    run.rest("its policies", "GET", f"{V2}/namespaces/{tenant}/ns2")
    unknown = {"replication_clusters": ["nowhere"]}
    run.rest("create with an unknown cluster", "PUT", f"{V2}/namespaces/{tenant}/ns3", unknown)
    run.rest("list both", "GET", f"{V2}/namespaces/{tenant}")
    run.rest("delete", "DELETE", path)
    run.rest("get after", "GET", path)
    _, _, data = run.http("GET", f"{V2}/namespaces/public", ..., "application/json")
    run.step("standard namespaces", [name for name in ("public/default",) if name in json.loads(data)])
    run.rest("bundles of public/default", "GET", f"{V2}/namespaces/public/default/bundles")


@scenario
def rest_namespace_with_topic(run: Run) -> None:
    """A namespace that holds a topic is not deleted."""
    tenant = with_tenant(run)
    path = f"{V2}/namespaces/{tenant}/ns"
    run.rest("create", "PUT", path)
    client = run.client()
    producer = client.create_producer(run.topic(namespace=f"{tenant}/ns"))
    producer.send(b"one")
    run.rest("topics", "GET", f"{path}/topics")
    run.rest("delete while it has a topic", "DELETE", path)
    run.rest("force delete", "DELETE", f"{path}?force=true")


@scenario
def rest_permissions(run: Run) -> None:
    """Permissions of roles on a namespace."""
    tenant = with_tenant(run)
    path = f"{V2}/namespaces/{tenant}/ns/permissions"
    run.rest("of a missing namespace", "GET", path)
    run.rest("grant on a missing namespace", "POST", f"{path}/role", ["produce"])
    run.rest("create", "PUT", f"{V2}/namespaces/{tenant}/ns")
    run.rest("none", "GET", path)
    run.rest("grant", "POST", f"{path}/role", ["produce", "consume"])
    run.rest("one", "GET", path)
    run.rest("grant again, less", "POST", f"{path}/role", ["consume"])
    run.rest("grant another", "POST", f"{path}/other", ["produce"])
    run.rest("two", "GET", path)
    run.rest("in the policies", "GET", f"{V2}/namespaces/{tenant}/ns")
    run.rest("revoke", "DELETE", f"{path}/role")
    run.rest("revoke again", "DELETE", f"{path}/role")
    run.rest("left", "GET", path)
    run.rest("grant an unknown action", "POST", f"{path}/third", ["fly"])


@scenario
def rest_brokers(run: Run) -> None:
    """Health, readiness, version, the list of brokers."""
    run.rest("health", "GET", f"{V2}/brokers/health")
    run.rest("ready", "GET", f"{V2}/brokers/ready")
    run.rest("list", "GET", f"{V2}/brokers")
    run.rest("list of the cluster", "GET", f"{V2}/brokers/standalone")
    run.rest("leader", "GET", f"{V2}/brokers/leaderBroker")
    run.rest_status("version", "GET", f"{V2}/brokers/version")
    status, headers, _ = run.http("GET", "/metrics", ..., "application/json")
    run.step("metrics without slash", [status, headers.get("Location")])
    status, headers, _ = run.http("GET", "/metrics/", ..., "application/json")
    run.step("metrics", [status, (headers.get("Content-Type") or "").split(";")[0]])


@scenario
def rest_lookup(run: Run) -> None:
    """Lookup and bundle of a topic by REST."""
    topic = f"persistent/public/default/{run.token}-t"
    run.rest("lookup", "GET", f"/lookup/v2/topic/{topic}")
    run.rest("lookup by listener name", "GET", f"/lookup/v2/topic/{topic}?listenerName=none")
    fixed = "/lookup/v2/topic/persistent/public/default/some-topic"
    run.rest("bundle", "GET", f"{fixed}/bundle")
    run.rest("odd characters", "GET", "/lookup/v2/topic/persistent/public/default/%C3%A4%20%2B%25/bundle")
    run.rest("slash in the name", "GET", "/lookup/v2/topic/persistent/public/default/a%2Fb")
    run.rest("slash in the name, partitions", "GET", f"{V2}/persistent/public/default/a%2Fb/partitions")
    run.rest("missing namespace", "GET", f"/lookup/v2/topic/persistent/public/{run.token}/t")
    run.rest("missing tenant", "GET", f"/lookup/v2/topic/persistent/{run.token}/ns/t")
    run.rest("bundle, missing namespace", "GET", f"/lookup/v2/topic/persistent/public/{run.token}/t/bundle")
    run.rest("bad domain", "GET", "/lookup/v2/topic/sometimes/public/default/t")
    run.rest("partitions of a missing topic", "GET", f"{V2}/{topic}/partitions")
    run.rest("partitions where it may be made", "GET", f"{V2}/{topic}/partitions?checkAllowAutoCreation=true")
    run.client().create_producer(f"persistent://public/default/{run.token}-t")
    run.rest("partitions of a topic", "GET", f"{V2}/{topic}/partitions")
    run.rest("partitions, missing namespace", "GET", f"{V2}/persistent/public/{run.token}/t/partitions")


@scenario
def rest_misuse(run: Run) -> None:
    """Wrong verbs, unknown paths, broken bodies."""
    tenant = with_tenant(run)
    run.rest_status("unknown path", "GET", f"{V2}/nothing/here")
    run.rest_status("unknown root", "GET", "/nowhere")
    run.rest_status("wrong verb", "PATCH", f"{V2}/tenants/{tenant}")
    run.rest_status("wrong verb on a list", "DELETE", f"{V2}/clusters")
    run.rest_status("broken JSON", "POST", f"{V2}/tenants/{tenant}", b"{broken")
    run.rest_status("JSON of the wrong shape", "POST", f"{V2}/tenants/{tenant}", [1, 2])
    run.rest_status(
        "unknown property", "POST", f"{V2}/tenants/{tenant}", {"allowedClusters": CLUSTERS, "colour": "red"}
    )
    run.rest_status("permissions that are no list", "POST", f"{V2}/namespaces/public/default/permissions/r", {"a": 1})
    run.rest_status("trailing slash", "GET", f"{V2}/clusters/")
