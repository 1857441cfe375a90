"""Documents keep what this version does not know, at every depth, over each change."""

import json
from random import Random
from typing import Any

import pytest

from pybroker.cluster.cluster_documents import ClusterDocuments
from pybroker.errors import AdminError, StoreError
from pybroker.metadata import metadata_paths
from pybroker.metadata.memory_metadata_store import MemoryMetadataStore
from pybroker.metadata.metadata_store import ANY_VERSION
from pybroker.metadata.partitioned_topics import PartitionedTopicMetadata, PartitionedTopics
from pybroker.metadata.resource_groups import ResourceGroupChange, ResourceGroups
from pybroker.metadata.resources import Resources
from pybroker.metadata.stored_document import read, rewrite, rewritten
from pybroker.model.cluster_data import (
    AutoFailoverPolicy,
    ClusterPolicies,
    ClusterUrl,
    FailureDomain,
    NamespaceIsolationData,
    ResourceQuota,
)
from pybroker.model.names import NamespaceName, TopicName
from pybroker.model.policies import (
    AuthAction,
    BacklogQuota,
    BundlesData,
    ClusterData,
    DispatchRate,
    LocalPolicies,
    NamespacePolicies,
    RetentionPolicies,
    SubscriptionAuthMode,
    TenantInfo,
    TopicPolicies,
    encode,
)

UNKNOWN: dict[str, Any] = {"future": {"list": [1, {"a": None}]}, "futureNull": None, "futureNumber": 1.5}
NAMESPACE = NamespaceName("t", "ns")


async def put(store: MemoryMetadataStore, path: str, document: object) -> None:
    await store.put(path, json.dumps(document).encode())


async def stored(store: MemoryMetadataStore, path: str) -> dict[str, Any]:
    found = await store.get(path)
    assert found is not None, path
    document: dict[str, Any] = json.loads(found.value)
    return document


def with_unknown(value: Any, key: str = "") -> Any:
    """Return `value` with unknown properties in each object whose keys are properties."""
    if not isinstance(value, dict):
        return value
    parts = {name: with_unknown(each, name) for name, each in value.items()}
    return parts if key in MAPS else {**parts, **UNKNOWN}


def unknown_count(value: Any) -> int:
    if not isinstance(value, dict):
        return 0
    return sum(unknown_count(each) for each in value.values()) + (UNKNOWN.items() <= value.items())


MAPS = (
    metadata_paths.isolation_policies("c"),
    "namespace_auth",
    "destination_auth",
    "subscription_auth_roles",
    "topicDispatchRate",
    "properties",
    "parameters",
)
"""Objects whose keys are names that users choose."""
POLICIES = {
    "auth_policies": {"namespace_auth": {"a": ["produce"]}, "destination_auth": {}, "subscription_auth_roles": {}},
    "bundles": {"boundaries": ["0x00000000", "0xffffffff"], "numBundles": 1},
    "retention_policies": {"retentionTimeInMinutes": 1, "retentionSizeInMB": 2},
    "topicDispatchRate": {"standalone": {"dispatchThrottlingRateInMsg": 5}},
    "replication_clusters": ["standalone"],
    "properties": {},
}


def test_unknown_properties_survive_a_change_beside_them() -> None:
    document = {"max_producers_per_topic": 5, "retention_policies": {"retentionTimeInMinutes": 1, **UNKNOWN}, **UNKNOWN}
    changed = NamespacePolicies(
        max_producers_per_topic=6,
        retention_policies=RetentionPolicies(retentionTimeInMinutes=7),
        message_ttl_in_seconds=8,
    )
    assert json.loads(rewritten(json.dumps(document).encode(), NamespacePolicies, changed)) == {
        "max_producers_per_topic": 6,
        "retention_policies": {"retentionTimeInMinutes": 7, **UNKNOWN},
        "message_ttl_in_seconds": 8,
        **UNKNOWN,
    }


def test_a_removed_part_takes_its_unknown_properties_with_it() -> None:
    document = {"retention_policies": {"retentionTimeInMinutes": 1, **UNKNOWN}}
    assert rewritten(json.dumps(document).encode(), NamespacePolicies, NamespacePolicies()) == b"{}"


def test_unchanged_documents_stay_as_they_are_written() -> None:
    document = b'{"deleted":false,"bundles":{"numBundles":"4","boundaries":null},"max_producers_per_topic":"5"}'
    known = NamespacePolicies(max_producers_per_topic=5, bundles=BundlesData(numBundles=4))
    assert rewritten(document, NamespacePolicies, known) == document


def test_named_entries_come_and_go_alone() -> None:
    document = {"a": {"brokers": ["x"], **UNKNOWN}, "b": {"brokers": [], **UNKNOWN}}
    changed = {"a": FailureDomain(["y"]), "c": FailureDomain(["z"])}
    assert json.loads(rewritten(json.dumps(document).encode(), dict[str, FailureDomain], changed)) == {
        "a": {"brokers": ["y"], **UNKNOWN},
        "c": {"brokers": ["z"]},
    }


async def test_every_document_keeps_unknown_properties_through_the_calls_that_change_it() -> None:
    store = MemoryMetadataStore()
    resources, groups, partitioned = Resources(store), ResourceGroups(store), PartitionedTopics(store)
    documents, topic = ClusterDocuments(store), TopicName.parse("persistent://t/ns/a b")
    paths = {
        metadata_paths.cluster("c"): {"serviceUrl": "http://h:1"},
        metadata_paths.tenant("t"): {"adminRoles": [], "allowedClusters": ["c"]},
        metadata_paths.policies(NAMESPACE): POLICIES,
        metadata_paths.local_policies(NAMESPACE): {"bundles": POLICIES["bundles"], "bookieAffinityGroup": {}},
        metadata_paths.topic_policies(topic): {"retentionPolicies": {"retentionTimeInMinutes": 1}},
        metadata_paths.partitioned_topic(topic): {"partitions": 2, "deleted": False},
        metadata_paths.resource_group("g"): {"publishRateInMsgs": 1},
        metadata_paths.failure_domain("c", "d"): {"brokers": []},
        metadata_paths.isolation_policies("c"): {"p": {"auto_failover_policy": {"parameters": {}}}},
        metadata_paths.migration("c"): {"migrated": False, "migratedClusterUrl": {}},
        metadata_paths.DEFAULT_RESOURCE_QUOTA: {"memory": 1.0},
        metadata_paths.resource_quota(NAMESPACE, "0x00000000_0xffffffff"): {"memory": 1.0},
    }
    before = {path: with_unknown(document, path) for path, document in paths.items()}
    for path, document in before.items():
        await put(store, path, document)
    for part in (resources, groups, partitioned):
        await part.load()

    def change(policies: NamespacePolicies) -> None:
        policies.retention_policies = RetentionPolicies(3, 4)
        policies.topicDispatchRate["standalone"] = DispatchRate(9)
        policies.auth_policies.namespace_auth["b"] = [AuthAction.CONSUME]
        policies.backlog_quota_map["message_age"] = BacklogQuota("producer_exception", limitTime=5)

    def change_local(policies: LocalPolicies) -> None:
        policies.namespaceAntiAffinityGroup = "group"

    def change_topic(policies: TopicPolicies) -> None:
        policies.retentionPolicies = RetentionPolicies(3, 4)

    def change_partitions(metadata: PartitionedTopicMetadata) -> None:
        metadata.partitions = 5

    await resources.put_cluster("c", ClusterData(serviceUrl="http://other:1"))
    await resources.update_tenant("t", TenantInfo(["admin"], ["c"]))
    await resources.update_namespace(NAMESPACE, change)
    await resources.update_local_policies(NAMESPACE, change_local)
    await resources.update_bundles(NAMESPACE, lambda _: BundlesData(["0x00000000", "0x10000000", "0xffffffff"], 2))
    await resources.update_topic_policies(topic, change_topic)
    await partitioned.update(topic, change_partitions)
    await groups.put("g", ResourceGroupChange(dispatchRateInMsgs=7))
    await documents.put_failure_domain("c", "d", FailureDomain(["a"]))
    isolation = NamespaceIsolationData(["n"], ["p"], auto_failover_policy=AutoFailoverPolicy("min_available"))
    await documents.put_isolation_policy("c", "p", isolation)
    await documents.put_migration("c", ClusterPolicies(True, ClusterUrl("http://h:1")))
    await documents.put_default_quota(ResourceQuota(memory=2.0))
    await documents.put_quota(NAMESPACE, "0x00000000_0xffffffff", ResourceQuota(memory=3.0))
    for path, document in before.items():
        after = await stored(store, path)
        assert after != document, path
        assert unknown_count(after) == unknown_count(document) > 0, path
    policies = await stored(store, metadata_paths.policies(NAMESPACE))
    assert policies["bundles"]["numBundles"] == 2
    assert policies["backlog_quota_map"]["message_age"]["limitTime"] == 5


async def test_a_change_by_another_broker_in_between_is_kept() -> None:
    class Racing(MemoryMetadataStore):
        races = 2

        async def put(self, path: str, value: bytes, expected_version: int = ANY_VERSION) -> int:
            if self.races:
                self.races -= 1
                found = await self.get(path)
                other = {} if found is None else json.loads(found.value)
                await super().put(path, json.dumps({**other, f"other{self.races}": 1}).encode())
            return await super().put(path, value, expected_version)

    store = Racing()
    await rewrite(store, "/x", TenantInfo, lambda _: TenantInfo(["a"]), "It", TenantInfo)
    assert await stored(store, "/x") == {"other0": 1, "other1": 1, "adminRoles": ["a"]}
    store.races = 100
    with pytest.raises(AdminError, match="It is being changed by other requests") as refused:
        await rewrite(store, "/x", TenantInfo, lambda _: TenantInfo(["b"]), "It")
    assert refused.value.status == 409


async def test_an_empty_value_is_no_document() -> None:
    store = MemoryMetadataStore()
    await store.put("/x", b"")
    assert await read(store, "/x", TenantInfo) is None
    assert await rewrite(store, "/x", TenantInfo, lambda info: info, "It") is None
    await rewrite(store, "/x", TenantInfo, lambda _: TenantInfo(["a"]), "It", TenantInfo)
    assert await read(store, "/x", TenantInfo) == TenantInfo(["a"])


DAMAGED = [
    b"{",
    b"5",
    b"\xff\xfe",
    b'{"a":"\xff"}',
    b'{"adminRoles":5}',
    b"[" * 100_000,
    b'{"a":' * 5000 + b"1" + b"}" * 5000,
]


@pytest.mark.parametrize("value", DAMAGED, ids=range(len(DAMAGED)))
async def test_a_damaged_document_is_named_and_stays(value: bytes) -> None:
    store = MemoryMetadataStore()
    await store.put("/x", value)
    with pytest.raises(StoreError, match="the metadata at /x cannot be read"):
        await rewrite(store, "/x", TenantInfo, lambda info: info, "It", TenantInfo)
    found = await store.get("/x")
    assert found is not None
    assert found.value == value


FUTURE = {
    "auth_policies": {"namespace_auth": {"a": ["produce", "future"], "b": ["future"]}, **UNKNOWN},
    "subscription_auth_mode": "Future",
    "inactive_topic_policies": {"inactiveTopicDeleteMode": "future", "maxInactiveDurationSeconds": 5},
}
"""Policies with names that only a newer version knows."""


async def test_unknown_names_are_absent_and_stay() -> None:
    store = MemoryMetadataStore()
    await put(store, "/x", FUTURE)
    found = await read(store, "/x", NamespacePolicies)
    assert found is not None
    assert found.auth_policies.namespace_auth == {"a": [AuthAction.PRODUCE], "b": []}
    assert found.subscription_auth_mode == "None"
    assert found.inactive_topic_policies is not None
    assert found.inactive_topic_policies.inactiveTopicDeleteMode is None
    assert found.inactive_topic_policies.maxInactiveDurationSeconds == 5

    def change(policies: NamespacePolicies) -> NamespacePolicies:
        policies.max_producers_per_topic = 7
        policies.auth_policies.namespace_auth["c"] = [AuthAction.CONSUME]
        return policies

    await rewrite(store, "/x", NamespacePolicies, change, "It")
    after = await stored(store, "/x")
    assert after["auth_policies"]["namespace_auth"].pop("c") == ["consume"]
    assert after == {**FUTURE, "max_producers_per_topic": 7}


def test_unknown_names_can_be_replaced() -> None:
    changed = NamespacePolicies(subscription_auth_mode=SubscriptionAuthMode.PREFIX)
    changed.auth_policies.namespace_auth["a"] = [AuthAction.CONSUME]
    after = json.loads(rewritten(json.dumps(FUTURE).encode(), NamespacePolicies, changed))
    assert after == {
        "auth_policies": {"namespace_auth": {"a": ["consume"]}, **UNKNOWN},
        "subscription_auth_mode": "Prefix",
    }


@pytest.mark.parametrize("seed", range(20))
def test_random_changes_keep_random_unknown_properties(seed: int) -> None:
    """The known part of the result is the change, and the unknown part is that of the document."""
    random = Random(seed)
    document = json.loads(encode(NamespacePolicies(retention_policies=RetentionPolicies(1, 2))))
    expected: dict[tuple[str, ...], int] = {}

    def spread(value: dict[str, Any], path: tuple[str, ...]) -> None:
        for key in list(value):
            if isinstance(value[key], dict) and key in ("bundles", "auth_policies", "retention_policies"):
                spread(value[key], (*path, key))
        for number in range(random.randrange(3)):
            value[f"x{number}"] = expected[(*path, f"x{number}")] = random.randrange(100)

    spread(document, ())
    changed = NamespacePolicies(
        retention_policies=RetentionPolicies(random.randrange(9), 3),
        bundles=BundlesData(["0x00000000", "0xffffffff"], 1),
        max_producers_per_topic=random.choice([None, 4]),
    )
    after = json.loads(rewritten(json.dumps(document).encode(), NamespacePolicies, changed))
    for path, value in expected.items():
        part = after
        for key in path[:-1]:
            part = part[key]
        assert part.pop(path[-1]) == value
    assert after == json.loads(encode(changed))
