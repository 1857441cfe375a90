"""REST calls that write every kind of shared metadata document, and the calls that read all of it.

`WRITES` creates a full set in an empty cluster named `standalone`. The answers to `READS` depend on the stored documents alone. The
recorded documents and answers of the reference broker are in `tests/vectors/metadata_documents.json`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

V2 = "/admin/v2"
CLUSTER = "standalone"
FULL, PLAIN, CUT, PLACED = (f"documents/{name}" for name in ("full", "plain", "cut", "placed"))
RATE = {"dispatchThrottlingRateInMsg": 10, "dispatchThrottlingRateInByte": 2000, "ratePeriodInSecond": 2}
OTHER = f"{V2}/clusters/other"
NAMES = ("a b", "größe", "100%", "tilde~star*")
"""Names of partitioned topics and groups that a path must encode."""


class Write(NamedTuple):
    method: str
    path: str
    body: Any = None


def _namespace_policies(namespace: str) -> list[Write]:
    values: dict[str, Any] = {
        "dispatchRate": RATE,
        "subscriptionDispatchRate": RATE,
        "replicatorDispatchRate": RATE,
        "publishRate": {"publishThrottlingRateInMsg": 5, "publishThrottlingRateInByte": 600},
        "subscribeRate": {"subscribeThrottlingRatePerConsumer": 5, "ratePeriodInSecond": 10},
        "maxProducersPerTopic": 11,
        "maxConsumersPerTopic": 12,
        "maxConsumersPerSubscription": 13,
        "maxSubscriptionsPerTopic": 14,
        "maxUnackedMessagesPerConsumer": 15,
        "maxUnackedMessagesPerSubscription": 16,
        "maxTopicsPerNamespace": 17,
        "messageTTL": 60,
        "retention": {"retentionTimeInMinutes": 10, "retentionSizeInMB": 20},
        "subscriptionExpirationTime": 5,
        "inactiveTopicPolicies": {
            "inactiveTopicDeleteMode": "delete_when_subscriptions_caught_up",
            "maxInactiveDurationSeconds": 60,
            "deleteWhileInactive": True,
        },
        "persistence": {
            "bookkeeperEnsemble": 1,
            "bookkeeperWriteQuorum": 1,
            "bookkeeperAckQuorum": 1,
            "managedLedgerMaxMarkDeleteRate": 2.5,
        },
        "autoSubscriptionCreation": {"allowAutoSubscriptionCreation": True},
        "autoTopicCreation": {
            "allowAutoTopicCreation": True,
            "topicType": "partitioned",
            "defaultNumPartitions": 3,
        },
        "delayedDelivery": {"active": True, "tickTime": 5, "maxDeliveryDelayInMillis": 7000},
        "subscriptionTypesEnabled": ["Shared", "Key_Shared"],
        "deduplication": True,
        "deduplicationSnapshotInterval": 60,
        "allowedTopicPropertyKeysForMetrics": ["team"],
        "schemaValidationEnforced": True,
        "isAllowAutoUpdateSchema": False,
        "encryptionRequired": True,
        "subscriptionAuthMode": "Prefix",
        "offloadPolicies": {"managedLedgerOffloadDriver": "filesystem", "managedLedgerOffloadThresholdInBytes": 1000},
        "replication": [CLUSTER],
        "allowedClusters": [CLUSTER],
        "antiAffinity": b"racks",  # as pulsar-admin sends it
        "persistence/bookieAffinity": {"bookkeeperAffinityGroupPrimary": "fast"},
        "resourcegroup/small": None,
        "migration": False,
        "permissions/writer": ["produce"],
        "permissions/reader": ["consume", "functions"],
        "permissions/subscription/audit": ["auditor"],
        "dispatcherPauseOnAckStatePersistent": None,
    }
    puts: dict[str, Any] = {
        "compactionThreshold": 500,
        "schemaCompatibilityStrategy": "BACKWARD",
        "schemaAutoUpdateCompatibilityStrategy": "Full",
        "offloadThreshold": 3000,
        "offloadThresholdInSeconds": 400,
        "offloadDeletionLagMs": 5000,
        "properties": {"owner": "billing", "tier": "1"},
    }
    path = f"{V2}/namespaces/{namespace}"
    size = {"limitSize": 1000000, "policy": "producer_exception"}
    age = {"limitTime": 3600, "policy": "consumer_backlog_eviction"}
    return [
        *(Write("POST", f"{path}/{name}", value) for name, value in values.items()),
        *(Write("PUT", f"{path}/{name}", value) for name, value in puts.items()),
        Write("POST", f"{path}/backlogQuota?backlogQuotaType=destination_storage", size),
        Write("POST", f"{path}/backlogQuota?backlogQuotaType=message_age", age),
        Write("POST", f"{V2}/persistent/{namespace}/orders/permissions/clerk", ["produce"]),
    ]


POLICIES = (
    *(
        write.path.removeprefix(f"{V2}/namespaces/x/")
        for write in _namespace_policies("x")
        if write.path.startswith(f"{V2}/namespaces/x/") and "?" not in write.path
    ),
)
URLS = {
    "serviceUrl": "http://other:8080",
    "serviceUrlTls": "https://other:8443",
    "brokerServiceUrl": "pulsar://other:6650",
    "brokerServiceUrlTls": "pulsar+ssl://other:6651",
}
ISOLATION = {
    "namespaces": ["isolated/.*"],
    "primary": ["broker-1.*"],
    "secondary": ["broker-2.*"],
    "auto_failover_policy": {
        "policy_type": "min_available",
        "parameters": {"min_limit": "1", "usage_threshold": "80"},
    },
    "unload_scope": "none",
}
QUOTA = {
    "msgRateIn": 1.5,
    "msgRateOut": 2.5,
    "bandwidthIn": 1000.0,
    "bandwidthOut": 2000.0,
    "memory": 16.0,
    "dynamic": False,
}
GROUP = {
    "publishRateInMsgs": 100,
    "publishRateInBytes": 100000,
    "dispatchRateInMsgs": 200,
    "dispatchRateInBytes": 200000,
}


def _encoded(name: str) -> str:
    return "".join(chr(byte) if chr(byte).isalnum() and byte < 128 else f"%{byte:02X}" for byte in name.encode())


WRITES: list[Write] = [
    Write(
        "PUT",
        OTHER,
        {**URLS, "authenticationPlugin": "Plugin", "authenticationParameters": "{}", "listenerName": "outside"},
    ),
    Write("PUT", f"{V2}/clusters/third", URLS),
    Write("POST", f"{OTHER}/peers", ["third"]),
    Write("POST", f"{OTHER}/failureDomains/rack-1", {"brokers": ["broker-1:8080", "broker-2:8080"]}),
    Write("POST", f"{OTHER}/failureDomains/rack-2", {"brokers": ["broker-3:8080"]}),
    Write("POST", f"{V2}/clusters/{CLUSTER}/namespaceIsolationPolicies/first", ISOLATION),
    Write("POST", f"{V2}/clusters/{CLUSTER}/namespaceIsolationPolicies/second", {**ISOLATION, "secondary": []}),
    Write("POST", f"{V2}/clusters/third/migrate?migrated=true", URLS),
    Write("PUT", f"{V2}/tenants/documents", {"adminRoles": ["boss", "deputy"], "allowedClusters": [CLUSTER]}),
    Write("PUT", f"{V2}/tenants/bare", {"adminRoles": [], "allowedClusters": [CLUSTER, "other"]}),
    Write("PUT", f"{V2}/resourcegroups/small", GROUP),
    *(Write("PUT", f"{V2}/resourcegroups/{_encoded(name)}", {"publishRateInMsgs": 7}) for name in NAMES[:2]),
    Write("PUT", f"{V2}/namespaces/{PLAIN}"),
    Write(
        "PUT",
        f"{V2}/namespaces/{CUT}",
        {"bundles": {"boundaries": ["0x00000000", "0x20000000", "0xffffffff"], "numBundles": 2}},
    ),
    Write("PUT", f"{V2}/namespaces/{PLACED}", {"bundles": {"numBundles": 8}}),
    Write("POST", f"{V2}/namespaces/{PLACED}/antiAffinity", b"racks"),
    Write("POST", f"{V2}/namespaces/{PLACED}/migration", True),
    Write("PUT", f"{V2}/namespaces/{FULL}", {"bundles": {"numBundles": 2}}),
    Write("PUT", f"{V2}/persistent/{FULL}/orders"),
    *_namespace_policies(FULL),
    *(Write("PUT", f"{V2}/persistent/{PLAIN}/{_encoded(name)}/partitions", 3) for name in ("orders", *NAMES)),
    Write("PUT", f"{V2}/non-persistent/{PLAIN}/quick/partitions", 2),
    Write("PUT", f"{V2}/namespaces/{CUT}/0x20000000_0xffffffff/split"),
    Write("POST", f"{V2}/resource-quotas", QUOTA),
    Write("POST", f"{V2}/resource-quotas/{PLAIN}/0x40000000_0x80000000", {**QUOTA, "memory": 32.0}),
    Write("POST", f"{V2}/brokers/configuration/brokerShutdownTimeoutMs/61000"),
    Write("POST", f"{V2}/brokers/configuration/superUserRoles/root,admin"),
]

READS: list[str] = [
    f"{V2}/clusters",
    *(f"{V2}/clusters/{name}" for name in ("other", "third")),
    f"{OTHER}/peers",
    f"{OTHER}/failureDomains",
    f"{OTHER}/failureDomains/rack-1",
    f"{OTHER}/failureDomains/none",
    f"{V2}/clusters/third/failureDomains",
    f"{V2}/clusters/{CLUSTER}/namespaceIsolationPolicies",
    f"{V2}/clusters/{CLUSTER}/namespaceIsolationPolicies/first",
    f"{V2}/clusters/{CLUSTER}/namespaceIsolationPolicies/none",
    f"{V2}/clusters/other/namespaceIsolationPolicies",
    f"{V2}/clusters/{CLUSTER}/namespaceIsolationPolicies/brokers/broker-1:8080",
    f"{V2}/clusters/{CLUSTER}/namespaceIsolationPolicies/brokers/broker-2:8080",
    f"{V2}/clusters/third/migrate",
    f"{V2}/tenants",
    f"{V2}/tenants/documents",
    f"{V2}/tenants/bare",
    f"{V2}/tenants/none",
    f"{V2}/resourcegroups",
    f"{V2}/resourcegroups/small",
    *(f"{V2}/resourcegroups/{_encoded(name)}" for name in NAMES[:2]),
    f"{V2}/namespaces/documents",
    f"{V2}/namespaces/bare",
    *(f"{V2}/namespaces/{namespace}" for namespace in (FULL, PLAIN, CUT, PLACED)),
    *(f"{V2}/namespaces/{namespace}/bundles" for namespace in (FULL, PLAIN, CUT, PLACED)),
    *(
        f"{V2}/namespaces/{FULL}/{name}"
        for name in POLICIES
        if not name.startswith(("permissions/", "resourcegroup/", "migration"))
    ),
    f"{V2}/namespaces/{FULL}/resourcegroup",
    f"{V2}/namespaces/{FULL}/permissions",
    f"{V2}/namespaces/{FULL}/permissions/subscription",
    f"{V2}/namespaces/{FULL}/backlogQuotaMap",
    f"{V2}/namespaces/{PLACED}/antiAffinity",
    f"{V2}/namespaces/{PLACED}/persistence/bookieAffinity",
    f"{V2}/namespaces/{CLUSTER}/antiAffinity/racks?tenant=documents",
    f"{V2}/persistent/{FULL}/orders/permissions",
    f"{V2}/persistent/{PLAIN}/partitioned",
    f"{V2}/non-persistent/{PLAIN}/partitioned",
    *(f"{V2}/persistent/{PLAIN}/{_encoded(name)}/partitions" for name in ("orders", *NAMES, "none")),
    f"{V2}/non-persistent/{PLAIN}/quick/partitions",
    f"{V2}/resource-quotas",
    f"{V2}/resource-quotas/{PLAIN}/0x40000000_0x80000000",
    f"{V2}/resource-quotas/{PLAIN}/0x00000000_0x40000000",
    f"{V2}/brokers/configuration/values",
]
DOCUMENT_ROOTS = ("/admin", "/loadbalance/resource-quota")
"""The parts of the tree with shared documents."""
