"""Clusters' documents, brokers, dynamic configuration, bundles and quotas: status codes, bodies, effects."""

import json

from tests.differential.harness import Run, scenario

V2 = "/admin/v2"
ISOLATION = {
    "namespaces": ["public/iso.*"],
    "primary": ["localhost-that-is-not"],
    "secondary": ["other"],
    "auto_failover_policy": {
        "policy_type": "min_available",
        "parameters": {"min_limit": "1", "usage_threshold": "80"},
    },
}
FIRST = "0x00000000_0x40000000"
OWN_DYNAMIC_KEYS = {
    "bulkReadThrottlingRatePerNamespaceInByte",
    "bundleHandoverLeaderTimeoutMs",
    "bundleHandoverLookupTimeoutMs",
    "bundleHandoverPercentage",
    "consoleEnabled",
    "consoleMaxLiveConnections",
    "consoleMaxTopics",
    "consoleSampleIntervalMs",
    "dataSnapshotPauseTimeoutMs",
    "dataSnapshotTimeoutSeconds",
    "explainSilentConsumerMs",
    "keySharedLookAheadMaxBytesPerSubscription",
    "logLevel",
    "maxConcurrentBundleHandovers",
    "maxParkedLookups",
    "maxTransactionSinksPerCoordinator",
    "maxTransactionTimeoutInSeconds",
    "maxTransactionsCommittedTogether",
    "maxWaitingTopicRequests",
    "parkedLookupCheckIntervalMs",
    "parkedLookupTimeoutMs",
    "readLeaseDurationSeconds",
    "readLeaseMaxDurationSeconds",
    "slowOperationThresholdMs",
    "transactionSinkRetentionInMinutes",
}
"""Keys of features that Pulsar does not have. `test_dynamic_key_names` fails when one is missing here."""
SECOND = "0x40000000_0x80000000"


@scenario
def brokers_cluster_documents(run: Run) -> None:
    """Peers, failure domains, isolation policies and migration of a cluster."""
    cluster = f"{V2}/clusters/{run.token}"
    run.rest("create", "PUT", cluster, {"serviceUrl": "http://localhost:8080"})
    run.rest("no peers", "GET", f"{cluster}/peers")
    run.rest("peers of nobody", "GET", f"{V2}/clusters/{run.token}-no/peers")
    run.rest("unknown peer", "POST", f"{cluster}/peers", [f"{run.token}-no"])
    run.rest("itself as a peer", "POST", f"{cluster}/peers", [run.token])
    run.rest("peers", "POST", f"{cluster}/peers", ["standalone"])
    run.rest("get peers", "GET", f"{cluster}/peers")
    run.rest("peers in the cluster", "GET", cluster)
    run.rest("no more peers", "POST", f"{cluster}/peers", [])
    run.rest("get no more peers", "GET", f"{cluster}/peers")
    domains = f"{cluster}/failureDomains"
    run.rest("no domains", "GET", domains)
    run.rest("missing domain", "GET", f"{domains}/d1")
    run.rest("domain", "POST", f"{domains}/d1", {"brokers": ["b1:8080", "b2:8080"]})
    run.rest("broker twice", "POST", f"{domains}/d2", {"brokers": ["b1:8080"]})
    run.rest("domain again", "POST", f"{domains}/d1", {"brokers": ["b3:8080"]})
    run.rest("domain of nobody", "POST", f"{V2}/clusters/{run.token}-no/failureDomains/d", {"brokers": ["b:1"]})
    run.rest("domains", "GET", domains)
    run.rest("get domain", "GET", f"{domains}/d1")
    run.rest("delete domain", "DELETE", f"{domains}/d1")
    run.rest("delete domain again", "DELETE", f"{domains}/d1")
    policies = f"{cluster}/namespaceIsolationPolicies"
    run.rest("no policies yet", "GET", policies)
    run.rest("no policy yet", "GET", f"{policies}/p")
    run.rest("policy without namespaces", "POST", f"{policies}/p", {**ISOLATION, "namespaces": []})
    run.rest("policy without failover", "POST", f"{policies}/p", {"namespaces": ["a"], "primary": ["b"]})
    run.rest("policy that is no expression", "POST", f"{policies}/p", {**ISOLATION, "primary": ["("]})
    run.rest("policy", "POST", f"{policies}/p", ISOLATION)
    run.rest("policy with a scope", "POST", f"{policies}/q", {**ISOLATION, "unload_scope": "changed"})
    run.rest("policies", "GET", policies)
    run.rest("get policy", "GET", f"{policies}/p")
    run.rest("missing policy", "GET", f"{policies}/none")
    run.rest("brokers", "GET", f"{policies}/brokers")
    run.rest("another broker", "GET", f"{policies}/brokers/other")
    run.rest("delete policy", "DELETE", f"{policies}/p")
    run.rest("delete policy again", "DELETE", f"{policies}/p")
    run.rest("delete the cluster with a policy", "DELETE", cluster)
    run.rest("delete the other policy", "DELETE", f"{policies}/q")
    run.rest("no policies left", "GET", policies)
    run.rest("not migrated", "GET", f"{cluster}/migrate")
    run.rest("delete", "DELETE", cluster)


@scenario
def brokers_configuration(run: Run) -> None:
    """Settings that are changed at run time, and those that cannot be."""
    base = f"{V2}/brokers/configuration"
    key = "maxConcurrentTopicLoadRequest"
    run.rest("set", "POST", f"{base}/{key}/4999")
    values = run.http("GET", f"{base}/values", ..., "application/json")[2]
    run.step("shown", f'"{key}":"4999"'.encode() in values)
    run.rest("take back", "DELETE", f"{base}/{key}")
    run.rest("take back again", "DELETE", f"{base}/{key}")
    run.rest("not dynamic", "POST", f"{base}/brokerServicePort/1")
    run.rest("not known", "POST", f"{base}/{run.token}/1")
    run.rest("take back what is not dynamic", "DELETE", f"{base}/brokerServicePort")
    run.rest("that does not fit", "POST", f"{base}/{key}/many")
    values = run.http("GET", f"{base}/values", ..., "application/json")[2]
    run.step("that does not fit, shown", f'"{key}":"many"'.encode() in values)
    run.rest("take that back", "DELETE", f"{base}/{key}")
    run.rest("of load managers", "POST", f"{base}/loadBalancerHistoryResourcePercentage/0.8")
    values = run.http("GET", f"{base}/values", ..., "application/json")[2]
    run.step("of load managers, shown", b'"loadBalancerHistoryResourcePercentage":"0.8"' in values)
    run.rest("take that of load managers back", "DELETE", f"{base}/loadBalancerHistoryResourcePercentage")
    names = set(json.loads(run.http("GET", base, ..., "application/json")[2]))
    # By name, so that one more key is one difference.
    run.step("listed", dict.fromkeys(sorted(names - OWN_DYNAMIC_KEYS), True))


@scenario
def brokers_other_calls(run: Run) -> None:
    """Bookkeeping of brokers, and services that a broker without them answers for."""
    run.rest("unknown broker", "GET", f"{V2}/brokers/standalone/{run.token}:1/ownedNamespaces")
    run.rest("health of another", "GET", f"{V2}/brokers/health?brokerId={run.token}:1")
    run.rest("quota check", "GET", f"{V2}/brokers/backlog-quota-check")
    run.rest("racks", "GET", f"{V2}/bookies/racks-info")
    run.rest("rack", "GET", f"{V2}/bookies/racks-info/{run.token}:3181")
    run.rest("remove rack", "DELETE", f"{V2}/bookies/racks-info/{run.token}:3181")
    run.rest("worker", "GET", f"{V2}/worker/cluster")
    run.rest("functions", "GET", "/admin/v3/functions/public/default")
    run.rest("sources", "GET", "/admin/v3/sources/public/default")
    run.rest("sinks", "GET", "/admin/v3/sinks/public/default")
    run.rest("packages", "GET", "/admin/v3/packages/function/public/default")
    quota = f"{V2}/resource-quotas/public/default/{FIRST}"
    run.rest("default quota", "GET", f"{V2}/resource-quotas")
    run.rest("quota of a bundle", "GET", quota)
    run.rest("set", "POST", quota, {"msgRateIn": 10.0, "dynamic": False})
    run.rest("get set", "GET", quota)
    run.rest("of no bundle", "GET", f"{V2}/resource-quotas/public/default/0x00000000_0x50000000")
    run.rest("remove", "DELETE", quota)
    run.rest("remove again", "DELETE", quota)


@scenario
def brokers_bundles(run: Run) -> None:
    """Bundles of a namespace: split, unloaded, looked into."""
    tenant = run.tenant()
    run.rest("tenant", "PUT", f"{V2}/tenants/{tenant}", {"allowedClusters": ["standalone"]})
    path = f"{V2}/namespaces/{tenant}/ns"
    run.rest("namespace", "PUT", path)
    run.rest("bundles", "GET", f"{path}/bundles")
    run.rest("of no bundle", "GET", f"{path}/0x00000000_0x50000000/topicHashPositions")
    run.rest("unload of no bundle", "PUT", f"{path}/0x00000000_0x50000000/unload")
    run.rest("unload to nobody", "PUT", f"{path}/{FIRST}/unload?destinationBroker={run.token}:1")
    run.rest("unload", "PUT", f"{path}/{FIRST}/unload")
    run.rest("unload all", "PUT", f"{path}/unload")
    run.rest("unload a missing namespace", "PUT", f"{V2}/namespaces/{tenant}/none/unload")
    run.rest("split by nothing", "PUT", f"{path}/{FIRST}/split?splitAlgorithmName=by_hand")
    run.rest("split no bundle", "PUT", f"{path}/0x00000000_0x50000000/split")
    run.rest("split", "PUT", f"{path}/{FIRST}/split?unload=true")
    run.rest("bundles after", "GET", f"{path}/bundles")
    at = f"{path}/{SECOND}/split?splitAlgorithmName=specified_positions_divide&unload=true"
    run.rest("split nowhere", "PUT", at)
    run.rest("split twice", "PUT", at, [1200000000, 1500000000])
    run.rest("bundles after that", "GET", f"{path}/bundles")
    run.rest("split hot", "PUT", f"{path}/HOT/split")
    run.rest("delete no bundle", "DELETE", f"{path}/0x00000000_0x50000000")
    run.rest("clear no bundle", "POST", f"{path}/0x00000000_0x50000000/clearBacklog")
    run.rest("delete the namespace", "DELETE", path)


@scenario
def brokers_unload_with_clients(run: Run) -> None:
    """Clients of an unloaded namespace come back, and what they had not acknowledged is delivered again."""
    tenant = run.tenant()
    run.rest("tenant", "PUT", f"{V2}/tenants/{tenant}", {"allowedClusters": ["standalone"]})
    run.rest("namespace", "PUT", f"{V2}/namespaces/{tenant}/ns")
    client = run.client()
    topic = run.topic(namespace=f"{tenant}/ns")
    producer = client.create_producer(topic)
    consumer = client.subscribe(topic, "s")
    producer.send(b"one")
    run.record_messages("before", run.receive(consumer, 1))
    run.rest("unload", "PUT", f"{V2}/namespaces/{tenant}/ns/unload")
    producer.send(b"two")
    run.step("after", sorted(message.data().decode() for message in run.receive(consumer, 2)))
