"""Every policy of namespaces and topics: statuses and bodies of each call for it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.differential.harness import Run, scenario
from tests.differential.scenarios_rest import V2, with_tenant

INTEGERS: tuple[Any, ...] = (-1, "x", {}, ...)
TEXTS = ("5", "-1", "x", "2147483648")  # in the query
RATE = {"dispatchThrottlingRateInMsg": 10, "ratePeriodInSecond": 2}


@dataclass(frozen=True)
class Row:
    """A policy at one level: where, a value or two, and what is refused. `...` is a request without a body."""

    path: str
    values: Sequence[Any]
    others: Sequence[Any] = (...,)
    method: str = "POST"
    can_be_unset: bool = True
    is_in_query: bool = False


RATES = {
    "namespace": [
        Row("dispatchRate", [RATE, {}], [[], ...]),
        Row("subscriptionDispatchRate", [RATE, {}], [[], ...]),
        Row("replicatorDispatchRate", [RATE, {}], [[], ...]),
        Row("publishRate", [{"publishThrottlingRateInMsg": 5}, {}], [[], ...]),
        Row("subscribeRate", [{"subscribeThrottlingRatePerConsumer": 5}, {}], [[], ...]),
    ],
    "topic": [
        Row("dispatchRate", [RATE, {}], [[], ...]),
        Row("subscriptionDispatchRate", [RATE, {}], [[], ...]),
        Row("sub/dispatchRate", [RATE, {**RATE, "dispatchThrottlingRateInByte": 7}], [[], ...]),
        Row("a%2Fb/dispatchRate", [RATE]),
        Row("replicatorDispatchRate", [RATE, {}], [[], ...]),
        Row("publishRate", [{"publishThrottlingRateInMsg": 5}, {}], [[], ...]),
        Row("subscribeRate", [{"subscribeThrottlingRatePerConsumer": 5}, {}], [[], ...]),
    ],
}
LIMITS = {
    "namespace": [
        Row("maxProducersPerTopic", [5, 0], INTEGERS),
        Row("maxConsumersPerTopic", [5, 0], INTEGERS),
        Row("maxConsumersPerSubscription", [5, 0], INTEGERS),
        Row("maxSubscriptionsPerTopic", [5, 0], INTEGERS),
        Row("maxUnackedMessagesPerConsumer", [5, 0], INTEGERS),
        Row("maxUnackedMessagesPerSubscription", [5, 0], INTEGERS),
        Row("maxTopicsPerNamespace", [5, 0], INTEGERS),
    ],
    "topic": [
        Row("maxProducers", [5, 0], INTEGERS),
        Row("maxConsumers", [5, 0], INTEGERS),
        Row("maxConsumersPerSubscription", [5, 0], INTEGERS),
        Row("maxSubscriptionsPerTopic", [5, 0], INTEGERS),
        Row("maxUnackedMessagesOnConsumer", [5, 0], INTEGERS),
        Row("maxUnackedMessagesOnSubscription", [5, 0], INTEGERS),
        Row("maxMessageSize", [5, 5242880], (*INTEGERS, 5242881)),
    ],
}
INACTIVE = {
    "inactiveTopicDeleteMode": "delete_when_subscriptions_caught_up",
    "maxInactiveDurationSeconds": 60,
    "deleteWhileInactive": True,
}
COPIES = {"bookkeeperEnsemble": 3, "bookkeeperWriteQuorum": 2, "bookkeeperAckQuorum": 1}
RETENTION = {"retentionTimeInMinutes": 10, "retentionSizeInMB": 10}
NO_RETENTION: tuple[Any, ...] = (
    {"retentionTimeInMinutes": 10, "retentionSizeInMB": 0},
    {"retentionTimeInMinutes": -2},
    [],
)
BAD_COPIES: tuple[Any, ...] = (
    {**COPIES, "bookkeeperWriteQuorum": 4},
    {"bookkeeperEnsemble": -1},
    {"bookkeeperEnsemble": 6},
    [],
    ...,
)
LIFE = {
    "namespace": [
        Row("messageTTL", [60, 0], INTEGERS),
        Row("retention", [RETENTION, {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}], NO_RETENTION),
        Row("subscriptionExpirationTime", [5, 0], INTEGERS),
        Row("inactiveTopicPolicies", [INACTIVE, {}], [[], ...]),
        Row("persistence", [{**COPIES, "managedLedgerMaxMarkDeleteRate": 2.5}, COPIES, {}], BAD_COPIES),
        Row("compactionThreshold", [500, 0], INTEGERS, method="PUT"),
        Row("autoSubscriptionCreation", [{"allowAutoSubscriptionCreation": True}, {}], [[], ...]),
        Row(
            "autoTopicCreation",
            [
                {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 3},
                {"allowAutoTopicCreation": True, "topicType": "non-partitioned"},
                {"allowAutoTopicCreation": False},
            ],
            [
                {"allowAutoTopicCreation": True},
                {"allowAutoTopicCreation": True, "topicType": "x"},
                {"allowAutoTopicCreation": True, "topicType": "partitioned"},
                {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 0},
                {"allowAutoTopicCreation": True, "topicType": "non-partitioned", "defaultNumPartitions": 2},
                [],
                ...,
            ],
        ),
    ],
    "topic": [
        Row("messageTTL", ["60", "0"], TEXTS, is_in_query=True),
        Row("retention", [RETENTION, {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}], NO_RETENTION),
        Row("subscriptionExpirationTime", ["60", "0"], TEXTS, is_in_query=True),
        Row("inactiveTopicPolicies", [INACTIVE, {}], [[], ...]),
        Row("persistence", [{**COPIES, "managedLedgerMaxMarkDeleteRate": 2.5}, COPIES, {}], BAD_COPIES),
        Row("compactionThreshold", [500, 0], INTEGERS),
        Row("autoSubscriptionCreation", [{"allowAutoSubscriptionCreation": True}, {}], [[], ...]),
    ],
}
DELAY = {"active": True, "tickTime": 5}
DELIVERY = {
    "namespace": [
        Row("delayedDelivery", [DELAY, {}], [[], ...]),
        Row("subscriptionTypesEnabled", [["Shared"], ["Key_Shared"], []], [{}]),
        Row("entryFilters", [], [{"entryFilterNames": ""}, {"entryFilterNames": "no,none"}, {}, []]),
        Row("dispatcherPauseOnAckStatePersistent", [...]),
        Row("deduplication", [True, False], ["x", {}, ...]),
        Row("deduplicationSnapshotInterval", [60, 0], INTEGERS, can_be_unset=False),
        Row("allowedTopicPropertyKeysForMetrics", [["a"], []], [{}, ...]),
    ],
    "topic": [
        Row("subscriptionTypesEnabled", [["Shared"], ["Key_Shared"], []], [{}]),
        Row("delayedDelivery", [DELAY, {}], [[], ...]),
        Row("entryFilters", [], [{"entryFilterNames": ""}, {"entryFilterNames": "no,none"}, {}, []]),
        Row("dispatcherPauseOnAckStatePersistent", [...]),
        Row("deduplicationEnabled", [True, False], ["x", {}, ...]),
        Row("deduplicationSnapshotInterval", [60, 0], INTEGERS),
    ],
}
FILES = {"managedLedgerOffloadDriver": "filesystem", "managedLedgerOffloadThresholdInBytes": 1000}
BUCKET = {"managedLedgerOffloadDriver": "aws-s3", "managedLedgerOffloadBucket": "b"}
NO_OFFLOAD: tuple[Any, ...] = (
    {},
    {"managedLedgerOffloadDriver": "x"},
    {"managedLedgerOffloadDriver": "aws-s3"},
    [],
    ...,
)
SCHEMAS_AND_STORAGE = {
    "namespace": [
        Row("schemaCompatibilityStrategy", ["BACKWARD", "FULL", "UNDEFINED"], [{}, ...], "PUT", can_be_unset=False),
        Row("schemaAutoUpdateCompatibilityStrategy", ["Full", "Backward"], [{}, ...], "PUT", can_be_unset=False),
        Row("schemaValidationEnforced", [True, False], ["x", ...], can_be_unset=False),
        Row("isAllowAutoUpdateSchema", [False, True], ["x", ...], can_be_unset=False),
        Row("encryptionRequired", [True, False], ["x", ...], can_be_unset=False),
        Row("subscriptionAuthMode", ["Prefix", "None"], [{}, ...], can_be_unset=False),
        Row("offloadPolicies", [FILES, BUCKET], NO_OFFLOAD, can_be_unset=False),
        Row("offloadThreshold", [500, 0], ["x", ...], "PUT", can_be_unset=False),
        Row("offloadThresholdInSeconds", [500, 0], ["x", ...], "PUT", can_be_unset=False),
        Row("offloadDeletionLagMs", [500, 0], ["x", ...], "PUT"),
    ],
    "topic": [
        Row("schemaCompatibilityStrategy", ["BACKWARD", "FULL", "UNDEFINED"], [{}, ...], "PUT"),
        Row("schemaValidationEnforced", [True, False], ["x", ...], can_be_unset=False),
        Row("offloadPolicies", [FILES, BUCKET], NO_OFFLOAD),
    ],
}


def walk(run: Run, rows: dict[str, list[Row]]) -> None:
    """All calls for some policies, in a namespace of their own; the namespace's document after each level was set."""
    tenant = with_tenant(run)
    namespace, topic = f"{V2}/namespaces/{tenant}/ns", f"{V2}/persistent/{tenant}/ns/t"
    run.http("PUT", namespace, ..., "application/json")
    run.http("PUT", topic, ..., "application/json")
    for level, base in (("namespace", namespace), ("topic", topic)):
        for row in rows[level]:
            call_all(run, f"{level} {row.path}", base, row)
    for row in rows["namespace"]:
        for value in row.values[:1]:
            run.http(row.method, f"{namespace}/{row.path}", value, "application/json")
    run.rest("document", "GET", namespace)
    for row in rows["topic"]:
        settle(run, f"{topic}/{row.path}?applied=true")
        run.rest(f"from the namespace {row.path}", "GET", f"{topic}/{row.path}?applied=true")


def call_all(run: Run, label: str, base: str, row: Row) -> None:
    path = f"{base}/{row.path}"
    run.rest(f"{label} unset", "GET", path)
    run.rest(f"{label} unset, applied", "GET", f"{path}?applied=true")
    for number, value in enumerate(row.values):
        change(run, f"{label} set {number}", path, row, value)
        run.rest(f"{label} value {number}", "GET", path)
    for number, value in enumerate(row.others):
        change(run, f"{label} other {number}", path, row, value)
    run.rest(f"{label} after these", "GET", path)
    if row.can_be_unset:
        run.rest(f"{label} remove", "DELETE", path)
        settle(run, path)
        run.rest(f"{label} removed", "GET", path)
        run.rest(f"{label} removed, applied", "GET", f"{path}?applied=true")


def change(run: Run, label: str, path: str, row: Row, value: Any) -> None:
    if row.is_in_query:
        run.rest_status(label, row.method, f"{path}?{row.path}={value}")
    else:
        run.rest_status(label, row.method, path, value)
    settle(run, path)


def settle(run: Run, path: str) -> None:
    """Wait until two answers in a row are equal: the policies of topics change a little later."""
    last: list[bytes] = []

    def is_settled() -> bool:
        last.append(run.http("GET", path, ..., "")[2])
        return len(last) > 3 and last[-1] == last[-3]

    run.wait_until(is_settled)


@scenario
def policies_rates(run: Run) -> None:
    """Dispatch, publish and subscribe rates."""
    walk(run, RATES)


@scenario
def policies_limits(run: Run) -> None:
    """Numbers of producers, consumers, subscriptions, topics, unacknowledged messages; size of a message."""
    walk(run, LIMITS)


@scenario
def policies_life(run: Run) -> None:
    """Retention, expiry, what is made and deleted automatically, copies, compaction."""
    walk(run, LIFE)


@scenario
def policies_delivery(run: Run) -> None:
    """Delays, subscription types, filters, deduplication."""
    walk(run, DELIVERY)


@scenario
def policies_schemas_and_storage(run: Run) -> None:
    """Schema strategies, encryption, subscription names, offload."""
    walk(run, SCHEMAS_AND_STORAGE)


@scenario
def policies_namespace_settings(run: Run) -> None:
    """Properties, clusters, groups and placement of a namespace."""
    tenant = with_tenant(run)
    path, missing = f"{V2}/namespaces/{tenant}/ns", f"{V2}/namespaces/{tenant}/no"
    run.rest("create", "PUT", path)
    run.rest("properties", "GET", f"{path}/properties")
    run.rest("add properties", "PUT", f"{path}/properties", {"a": "1"})
    run.rest("add others", "PUT", f"{path}/properties", {"b": "2"})
    run.rest("both", "GET", f"{path}/properties")
    run.rest("set one", "PUT", f"{path}/property/a%2Fx/b%2Fc")
    run.rest("get one", "GET", f"{path}/property/a")
    run.rest("get none", "GET", f"{path}/property/no")
    run.rest("remove one", "DELETE", f"{path}/property/a")
    run.rest("remove none", "DELETE", f"{path}/property/a")
    run.rest("left", "GET", f"{path}/properties")
    run.rest("remove properties", "DELETE", f"{path}/properties")
    run.rest("none left", "GET", f"{path}/properties")
    for name in ("replication", "allowedClusters"):
        run.rest(name, "GET", f"{path}/{name}")
        run.rest(f"set {name}", "POST", f"{path}/{name}", ["standalone"])
        run.rest_status(f"unknown {name}", "POST", f"{path}/{name}", ["nowhere"])
        run.rest_status(f"empty {name}", "POST", f"{path}/{name}", [])
        run.rest_status(f"wrong {name}", "POST", f"{path}/{name}", {})
        run.rest(f"{name} after", "GET", f"{path}/{name}")
    run.rest("migrated", "POST", f"{path}/migration", True)
    run.rest("document", "GET", path)
    run.rest("not migrated", "POST", f"{path}/migration", False)
    run.rest_status("migration without body", "POST", f"{path}/migration")
    affinity = f"{path}/persistence/bookieAffinity"
    run.rest("set offload", "POST", f"{path}/offloadPolicies", FILES)
    run.rest("offload in the document", "GET", path)
    run.rest("remove offload", "DELETE", f"{path}/removeOffloadPolicies")
    run.rest("offload removed", "GET", f"{path}/offloadPolicies")
    run.rest("no affinity", "GET", affinity)
    run.rest("set affinity", "POST", affinity, {"bookkeeperAffinityGroupPrimary": "p"})
    run.rest("affinity", "GET", affinity)
    run.rest("remove affinity", "DELETE", affinity)
    run.rest("affinity removed", "GET", affinity)
    run.rest("no group", "GET", f"{path}/antiAffinity")
    run.rest("set group", "POST", f"{path}/antiAffinity", run.token)
    run.rest("group", "GET", f"{path}/antiAffinity")
    run.rest_status("set no group", "POST", f"{path}/antiAffinity")
    run.rest("other group", "GET", f"{V2}/namespaces/standalone/antiAffinity/{run.token}no?tenant={tenant}")
    run.rest("its namespaces", "GET", f"{V2}/namespaces/standalone/antiAffinity/{run.token}?tenant={tenant}")
    run.rest_status("of no tenant", "GET", f"{V2}/namespaces/standalone/antiAffinity/{run.token}")
    run.rest("remove group", "DELETE", f"{path}/antiAffinity")
    run.rest("group removed", "GET", f"{path}/antiAffinity")
    run.rest("no resource group", "GET", f"{path}/resourcegroup")
    run.rest_status("unknown resource group", "POST", f"{path}/resourcegroup/{run.token}")
    run.rest("remove resource group", "DELETE", f"{path}/resourcegroup")
    for name in ("properties", "replication", "messageTTL", "maxProducersPerTopic", "resourcegroup", "offloadPolicies"):
        run.rest_status(f"missing {name}", "GET", f"{missing}/{name}")
        run.rest_status(f"set missing {name}", "POST", f"{missing}/{name}", 5 if name[0] == "m" else ["standalone"])


@scenario
def policies_topics(run: Run) -> None:
    """What else is set for single topics, and where: partitions, missing topics, backlog quotas, clusters, shadows."""
    tenant = with_tenant(run)
    base = f"{V2}/persistent/{tenant}/ns"
    run.rest("create", "PUT", f"{V2}/namespaces/{tenant}/ns")
    run.rest("topic", "PUT", f"{base}/t")
    run.rest("partitioned topic", "PUT", f"{base}/p/partitions", 2)
    run.rest("set for all partitions", "POST", f"{base}/p/maxProducers", 3)
    settle(run, f"{base}/p/maxProducers")
    run.rest("of all partitions", "GET", f"{base}/p/maxProducers")
    run.rest("of a partition", "GET", f"{base}/p-partition-0/maxProducers")
    run.rest("set for a partition", "POST", f"{base}/p-partition-0/maxProducers", 4)
    for name in ("maxProducers", "retention", "backlogQuotaMap", "replication", "shadowTopics", "s/dispatchRate"):
        run.rest(f"missing {name}", "GET", f"{base}/no/{name}")
        run.rest(f"missing namespace {name}", "GET", f"{V2}/persistent/{tenant}/no/t/{name}")
    run.rest("replication", "GET", f"{base}/t/replication")
    run.rest("applied replication", "GET", f"{base}/t/replication?applied=true")
    run.rest("set replication", "POST", f"{base}/t/replication", ["standalone"])
    for number, clusters in enumerate((["nowhere"], ["standalone", "nowhere"], [], {}, ...)):
        run.rest_status(f"wrong replication {number}", "POST", f"{base}/t/replication", clusters)
    run.rest("replication set", "GET", f"{base}/t/replication")
    run.rest("remove replication", "DELETE", f"{base}/t/replication")
    settle(run, f"{base}/t/replication")
    run.rest("replication removed", "GET", f"{base}/t/replication")
    name = f"persistent://{tenant}/ns/"
    run.rest("another topic", "PUT", f"{base}/shadow")
    for number, shadows in enumerate(([f"{name}no"], [], ["non-" + name + "shadow"], {}, ..., [f"{name}shadow"])):
        run.rest_status(f"shadows {number}", "PUT", f"{base}/t/shadowTopics", shadows)
    settle(run, f"{base}/t/shadowTopics")
    run.rest("shadows", "GET", f"{base}/t/shadowTopics")
    run.rest("remove shadows", "DELETE", f"{base}/t/shadowTopics")
    quota = {"limitSize": 1000, "limitTime": 60, "policy": "producer_request_hold"}
    run.rest("set quota", "POST", f"{base}/t/backlogQuota", quota)
    settle(run, f"{base}/t/backlogQuotaMap")
    run.rest("quotas", "GET", f"{base}/t/backlogQuotaMap")
    run.rest("remove all policies", "DELETE", f"{base}/t/policies")
    settle(run, f"{base}/t/backlogQuotaMap")
    run.rest("no quotas", "GET", f"{base}/t/backlogQuotaMap")
    run.rest("remove all of a missing one", "DELETE", f"{base}/no/policies")


@scenario
def policies_topic_permissions(run: Run) -> None:
    """Permissions on single topics, one by one and several at once."""
    tenant = with_tenant(run)
    base, namespace = f"{V2}/persistent/{tenant}/ns", f"{V2}/namespaces/{tenant}/ns"
    run.rest("create", "PUT", namespace)
    run.rest("topic", "PUT", f"{base}/t")
    run.rest("partitioned topic", "PUT", f"{base}/p/partitions", 2)
    run.rest("grant on the namespace", "POST", f"{namespace}/permissions/all", ["produce"])
    run.rest_status("grant nothing on the namespace", "POST", f"{namespace}/permissions/none")
    run.rest("grant", "POST", f"{base}/t/permissions/one", ["produce", "consume"])
    run.rest("grant an empty list", "POST", f"{base}/t/permissions/two", [])
    run.rest("grant nothing", "POST", f"{base}/t/permissions/three")
    run.rest("grant more to all", "POST", f"{base}/t/permissions/all", ["consume"])
    run.rest("on the topic", "GET", f"{base}/t/permissions")
    run.rest("in the document", "GET", namespace)
    run.rest("on a missing topic", "GET", f"{base}/no/permissions")
    run.rest("grant on a missing topic", "POST", f"{base}/no/permissions/one", ["produce"])
    run.rest("revoke on a missing topic", "DELETE", f"{base}/no/permissions/one")
    run.rest("in a missing namespace", "GET", f"{V2}/persistent/{tenant}/no/t/permissions")
    run.rest("revoke", "DELETE", f"{base}/t/permissions/one")
    run.rest("revoke none", "DELETE", f"{base}/t/permissions/one")
    run.rest("left", "GET", f"{base}/t/permissions")
    run.rest("grant on partitions", "POST", f"{base}/p/permissions/one", ["consume"])
    run.rest("on partitions", "GET", f"{base}/p/permissions")
    run.rest("on a partition", "GET", f"{base}/p-partition-0/permissions")
    topics = [f"persistent://{tenant}/ns/{name}" for name in ("t", "p")]
    grants = [{"topic": topic, "role": "many", "actions": ["produce"]} for topic in topics]
    run.rest("grant on several", "POST", f"{V2}/namespaces/grantPermissionsOnTopics", grants)
    run.rest("granted on several", "GET", f"{base}/p/permissions")
    missing = [{**grants[0], "topic": f"{topics[0]}no"}]
    run.rest("grant on several, one missing", "POST", f"{V2}/namespaces/grantPermissionsOnTopics", missing)
    run.rest("grant on none", "POST", f"{V2}/namespaces/grantPermissionsOnTopics", [])
    run.rest("revoke on several", "POST", f"{V2}/namespaces/revokePermissionsOnTopics", grants)
    run.rest("revoke on several again", "POST", f"{V2}/namespaces/revokePermissionsOnTopics", grants)
    run.rest("in the document after all", "GET", namespace)
    run.rest("delete the topic", "DELETE", f"{base}/t")
    run.rest("in the document without it", "GET", namespace)
