"""The words in which REST refuses: applications and their tests look for them."""

from typing import Any

from tests.differential.harness import Run, scenario

V2 = "/admin/v2"
CREATION: list[dict[str, Any]] = [
    {"topicType": "partitioned"},
    {"topicType": "partitioned", "defaultNumPartitions": 0},
    {"topicType": "partitioned", "defaultNumPartitions": -1},
    {"topicType": "non-partitioned", "defaultNumPartitions": 3},
    {"topicType": "other"},
    {},
]


def record(run: Run, method: str, path: str, body: Any = ...) -> None:
    """Status and reason, as they are but for the run's own names."""
    status, _, data = run.http(method, V2 + path, body, "application/json")
    text = data.decode()
    reason = text.partition('"reason":"')[2].removesuffix('"}') if text.startswith('{"reason":"') else text
    shown = "" if body is ... else f" {body}"
    run.step(f"{method} {path}{shown}".replace(run.token, "<run>"), [status, reason])


@scenario
def refusals_of_what_is_missing(run: Run) -> None:
    """Tenants, namespaces, clusters and topics that do not exist."""
    tenant = run.tenant()
    assert run.http("PUT", f"{V2}/tenants/{tenant}", {"allowedClusters": ["standalone"]}, "application/json")[0] == 204
    for namespace in (f"{run.tenant('none')}/ns", f"{tenant}/none"):
        of_namespace, of_topic = f"/namespaces/{namespace}", f"/persistent/{namespace}/t"
        for suffix in (
            "",
            "/permissions",
            "/retention",
            "/topics",
            "/bundles",
            "/backlogQuotaMap",
            "/messageTTL",
            "/properties",
        ):
            record(run, "GET", of_namespace + suffix)
        record(run, "DELETE", of_namespace)
        record(run, "POST", f"{of_namespace}/permissions/role", ["consume"])
        record(run, "POST", f"{of_namespace}/retention", {"retentionTimeInMinutes": 1, "retentionSizeInMB": 1})
        record(run, "POST", f"{of_namespace}/messageTTL", 5)
        record(run, "POST", f"{of_namespace}/clearBacklog")
        record(run, "PUT", f"{of_namespace}/unload")
        record(run, "PUT", f"{of_namespace}/property/a/b")
        for suffix in ("/stats", "/partitions", "/subscriptions", "/retention", "/permissions", "/internalStats"):
            record(run, "GET", of_topic + suffix)
        for suffix in ("", "/partitions", "/unload", "/subscription/s", "/compaction"):
            record(run, "PUT", of_topic + suffix, *([2] if suffix == "/partitions" else []))
        record(run, "GET", f"/persistent/{namespace}")
        record(run, "GET", f"/persistent/{namespace}/partitioned")
        record(run, "POST", f"{of_topic}/terminate")
        record(run, "POST", f"{of_topic}/subscription/s/skip_all")
    missing = run.tenant("none")
    record(run, "GET", f"/tenants/{missing}")
    record(run, "POST", f"/tenants/{missing}", {"allowedClusters": ["standalone"]})
    record(run, "DELETE", f"/tenants/{missing}")
    record(run, "GET", f"/namespaces/{missing}")
    record(run, "PUT", f"/namespaces/{missing}/ns")
    record(run, "GET", f"/clusters/{missing}")
    record(run, "POST", f"/clusters/{missing}", {"serviceUrl": "http://a:1"})
    record(run, "DELETE", f"/clusters/{missing}")


@scenario
def refusals_of_values(run: Run) -> None:
    """Values that no policy can have, names that none can have."""
    tenant = run.tenant()
    namespace = f"{tenant}/ns"
    assert run.http("PUT", f"{V2}/tenants/{tenant}", {"allowedClusters": ["standalone"]}, "application/json")[0] == 204
    assert run.http("PUT", f"{V2}/namespaces/{namespace}", ..., "application/json")[0] == 204
    assert run.http("PUT", f"{V2}/persistent/{namespace}/t", ..., "application/json")[0] == 204
    for body in CREATION:
        record(run, "POST", f"/namespaces/{namespace}/autoTopicCreation", {"allowAutoTopicCreation": True, **body})
    for name in (
        "messageTTL",
        "subscriptionExpirationTime",
        "maxProducersPerTopic",
        "maxConsumersPerTopic",
        "maxConsumersPerSubscription",
        "maxSubscriptionsPerTopic",
        "maxUnackedMessagesPerConsumer",
        "maxUnackedMessagesPerSubscription",
        "deduplicationSnapshotInterval",
    ):
        record(run, "POST", f"/namespaces/{namespace}/{name}", -1)
    for name in (
        "messageTTL?messageTTL=-1",
        "maxProducers",
        "maxConsumers",
        "maxConsumersPerSubscription",
        "maxSubscriptionsPerTopic",
        "maxUnackedMessagesOnConsumer",
        "maxUnackedMessagesOnSubscription",
        "deduplicationSnapshotInterval",
        "compactionThreshold",
        "maxMessageSize",
    ):
        record(run, "POST", f"/persistent/{namespace}/t/{name}", -1)
    copies = {"bookkeeperWriteQuorum": 2, "bookkeeperAckQuorum": 1, "managedLedgerMaxMarkDeleteRate": 0}
    for ensemble in (0, 1):
        record(run, "POST", f"/namespaces/{namespace}/persistence", {"bookkeeperEnsemble": ensemble, **copies})
    record(run, "GET", f"/persistent/{namespace}/t-partition-0/retention")
    record(run, "GET", f"/persistent/{namespace}/t/ledger/1/entry/1")
    record(run, "GET", f"/persistent/{namespace}/t/subscription/s/position/1")
    for minutes, megabytes in ((-2, 1), (1, -2), (0, 1), (1, 0)):
        limits = {"retentionTimeInMinutes": minutes, "retentionSizeInMB": megabytes}
        record(run, "POST", f"/namespaces/{namespace}/retention", limits)
    record(run, "GET", f"/persistent/{namespace}/none/stats")
    record(run, "GET", f"/persistent/{namespace}/none/subscriptions")
    record(run, "DELETE", f"/persistent/{namespace}/none")
    record(run, "DELETE", f"/persistent/{namespace}/none/partitions")
    record(run, "GET", f"/persistent/{namespace}/none/lastMessageId")
    record(run, "GET", f"/persistent/{namespace}/t/examinemessage")
    record(run, "POST", f"/persistent/{namespace}/t/subscription/none/skip_all")
    record(run, "DELETE", f"/persistent/{namespace}/t/subscription/none")
    record(run, "PUT", f"/persistent/{namespace}/none/partitions", 0)
    record(run, "PUT", f"/persistent/{namespace}/none-partition-1")
    record(run, "POST", f"/persistent/{namespace}/none/partitions", 3)
    record(run, "GET", f"/schemas/{namespace}/none/schema")
    record(run, "GET", "/resourcegroups/none")
    record(run, "POST", "/brokers/configuration/none/1")
    new = run.tenant("new")
    record(run, "PUT", f"/tenants/{new}", {"allowedClusters": []})
    record(run, "PUT", f"/tenants/{new}", {"allowedClusters": ["none"]})
    record(run, "PUT", f"/tenants/{new}", {"adminRoles": [" a"], "allowedClusters": ["standalone"]})
    record(run, "PUT", f"/tenants/{new}%20x", {"allowedClusters": ["standalone"]})
    record(run, "PUT", f"/namespaces/{tenant}/a%20b")
    record(run, "PUT", f"/clusters/{new}%20x", {"serviceUrl": "http://a:1"})
