"""Every admin call on a namespace that does not exist, or whose tenant does not: which role is told that, and which is refused."""

from typing import Any

from tests.differential.harness import ADMIN_ROLE, Run, secured_scenario

V2 = "/admin/v2"
BUNDLE = "0x00000000_0x40000000"
_RATE = {"dispatchThrottlingRateInMsg": 1, "dispatchThrottlingRateInByte": 1, "ratePeriodInSecond": 1}
_NUMBERS = (
    "maxProducersPerTopic",
    "maxConsumersPerTopic",
    "maxConsumersPerSubscription",
    "maxSubscriptionsPerTopic",
    "maxUnackedMessagesPerConsumer",
    "maxUnackedMessagesPerSubscription",
    "maxTopicsPerNamespace",
    "messageTTL",
    "subscriptionExpirationTime",
)
# What is read, set with POST and a body, and removed.
_POLICIES: dict[str, Any] = {
    "retention": {"retentionTimeInMinutes": 1, "retentionSizeInMB": 1},
    "dispatchRate": _RATE,
    "subscriptionDispatchRate": _RATE,
    "replicatorDispatchRate": _RATE,
    "publishRate": {"publishThrottlingRateInMsg": 1, "publishThrottlingRateInByte": 1},
    "subscribeRate": {"subscribeThrottlingRatePerConsumer": 1, "ratePeriodInSecond": 1},
    "inactiveTopicPolicies": {
        "inactiveTopicDeleteMode": "delete_when_no_subscriptions",
        "maxInactiveDurationSeconds": 1,
        "deleteWhileInactive": True,
    },
    "autoTopicCreation": {"allowAutoTopicCreation": True, "topicType": "non-partitioned"},
    "autoSubscriptionCreation": {"allowAutoSubscriptionCreation": True},
    "persistence": {
        "bookkeeperEnsemble": 1,
        "bookkeeperWriteQuorum": 1,
        "bookkeeperAckQuorum": 1,
        "managedLedgerMaxMarkDeleteRate": 1.0,
    },
    "delayedDelivery": {"active": True, "tickTime": 1000},
    "subscriptionTypesEnabled": ["Shared"],
    "entryFilters": {"entryFilterNames": ""},
    "dispatcherPauseOnAckStatePersistent": ...,
    "deduplication": True,
    "allowedTopicPropertyKeysForMetrics": ["a"],
    "antiAffinity": "group",
    "persistence/bookieAffinity": {"bookkeeperAffinityGroupPrimary": "a", "bookkeeperAffinityGroupSecondary": "b"},
    **dict.fromkeys(_NUMBERS, 5),
}
# What is read and set, but cannot be removed, or is set with another method.
_SETTINGS: list[tuple[str, str, Any]] = [
    ("POST", "deduplicationSnapshotInterval", 10),
    ("POST", "schemaValidationEnforced", True),
    ("POST", "isAllowAutoUpdateSchema", True),
    ("POST", "encryptionRequired", True),
    ("POST", "subscriptionAuthMode", "None"),
    ("POST", "replication", ["standalone"]),
    ("POST", "allowedClusters", ["standalone"]),
    ("PUT", "schemaCompatibilityStrategy", "BACKWARD"),
    ("PUT", "schemaAutoUpdateCompatibilityStrategy", "Backward"),
    ("PUT", "compactionThreshold", 1),
    ("PUT", "offloadThreshold", 1),
    ("PUT", "offloadThresholdInSeconds", 1),
    ("PUT", "offloadDeletionLagMs", 1),
    ("PUT", "properties", {"a": "b"}),
]
_OTHERS: list[tuple[str, str, Any]] = [
    ("GET", "", ...),
    ("DELETE", "", ...),
    ("GET", "/topics", ...),
    ("GET", "/bundles", ...),
    ("GET", "/backlogQuotaMap", ...),
    ("POST", "/backlogQuota", {"limitSize": 1, "policy": "producer_exception"}),
    ("DELETE", "/backlogQuota", ...),
    ("GET", "/offloadPolicies", ...),
    ("DELETE", "/removeOffloadPolicies", ...),
    ("DELETE", "/compactionThreshold", ...),
    ("DELETE", "/offloadDeletionLagMs", ...),
    ("DELETE", "/properties", ...),
    ("GET", "/property/a", ...),
    ("PUT", "/property/a/b", ...),
    ("DELETE", "/property/a", ...),
    ("POST", "/migration", False),
    ("GET", "/resourcegroup", ...),
    ("POST", "/resourcegroup/none", ...),
    ("DELETE", "/resourcegroup", ...),
    ("POST", "/clearBacklog", ...),
    ("POST", "/clearBacklog/sub", ...),
    ("POST", f"/{BUNDLE}/clearBacklog", ...),
    ("POST", f"/{BUNDLE}/clearBacklog/sub", ...),
    ("POST", "/unsubscribe/sub", ...),
    ("POST", f"/{BUNDLE}/unsubscribe/sub", ...),
    ("GET", "/permissions", ...),
    ("POST", "/permissions/someone", ["consume"]),
    ("DELETE", "/permissions/someone", ...),
    ("GET", "/permissions/subscription", ...),
    ("POST", "/permissions/subscription/sub", ["someone"]),
    ("DELETE", "/permissions/sub/someone", ...),
    ("PUT", "/unload", ...),
    ("PUT", f"/{BUNDLE}/unload", ...),
    ("PUT", f"/{BUNDLE}/split", ...),
    ("GET", f"/{BUNDLE}/topicHashPositions", ...),
    ("DELETE", f"/{BUNDLE}", ...),
]
_BESIDE: list[tuple[str, str]] = [
    ("GET", "/persistent/{}"),
    ("GET", "/persistent/{}/partitioned"),
    ("GET", "/non-persistent/{}"),
    ("GET", "/non-persistent/{}/partitioned"),
    ("GET", f"/resource-quotas/{{}}/{BUNDLE}"),
    ("DELETE", f"/resource-quotas/{{}}/{BUNDLE}"),
]


def calls() -> list[tuple[str, str, Any]]:
    """Method, path with `{}` in place of the namespace, and body."""
    found: list[tuple[str, str, Any]] = []
    for name, body in _POLICIES.items():
        found += [("GET", f"/{name}", ...), ("POST", f"/{name}", body), ("DELETE", f"/{name}", ...)]
    for method, name, body in _SETTINGS:
        found += [("GET", f"/{name}", ...), (method, f"/{name}", body)]
    found += _OTHERS
    return [(method, "/namespaces/{}" + path, body) for method, path, body in found] + [
        (method, path, ...) for method, path in _BESIDE
    ]


@secured_scenario
def missing_namespaces(run: Run) -> None:
    """Roles without rights, with rights elsewhere, of the tenant's administrator and of a super user; the status of each call."""
    admin = run.token_of(ADMIN_ROLE)
    tenant, other = run.tenant(), run.tenant("other")
    for name in (tenant, other):
        document = {"adminRoles": ["boss"], "allowedClusters": ["standalone"]}
        assert run.http("PUT", f"{V2}/tenants/{name}", document, "application/json", admin)[0] == 204
    assert run.http("PUT", f"{V2}/namespaces/{other}/ns", ..., "application/json", admin)[0] == 204
    path = f"{V2}/namespaces/{other}/ns/permissions/guest"
    assert run.http("POST", path, ["produce", "consume"], "application/json", admin)[0] == 204
    missing = {"tenant": f"{run.tenant('none')}/ns", "namespace": f"{tenant}/none"}
    tokens = {role: run.token_of(role) for role in ("stranger", "guest", "boss", ADMIN_ROLE)}
    for method, path, body in calls():
        for what, namespace in missing.items():
            found = {
                role: run.http(method, V2 + path.format(namespace), body, "application/json", token)[0]
                for role, token in tokens.items()
            }
            run.step(f"{method} {path.format('<' + what + '>')}", found)
