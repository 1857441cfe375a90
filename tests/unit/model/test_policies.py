"""Documents of tenants, clusters and namespaces, in REST and in the metadata store."""

from __future__ import annotations

import json

import msgspec
import pytest

from pybroker.model.offload_policies import OffloadPolicies
from pybroker.model.policies import (
    AuthAction,
    BacklogQuota,
    BundlesData,
    ClusterData,
    DelayedDeliveryPolicies,
    NamespacePolicies,
    TenantInfo,
    TopicPolicies,
    checked_bundles,
    copy_of,
    decode,
    encode,
    even_bundles,
    ordered_actions,
    to_pulsar_topic_policies,
)

FRESH = {
    "auth_policies": {"namespace_auth": {}, "destination_auth": {}, "subscription_auth_roles": {}},
    "replication_clusters": ["standalone"],
    "allowed_clusters": [],
    "bundles": {"boundaries": ["0x00000000", "0x40000000", "0x80000000", "0xc0000000", "0xffffffff"], "numBundles": 4},
    "backlog_quota_map": {},
    "clusterDispatchRate": {},
    "topicDispatchRate": {},
    "subscriptionDispatchRate": {},
    "replicatorDispatchRate": {},
    "clusterSubscribeRate": {},
    "publishMaxMessageRate": {},
    "latency_stats_sample_rate": {},
    "deleted": False,
    "encryption_required": False,
    "subscription_auth_mode": "None",
    "offload_threshold": -1,
    "offload_threshold_in_seconds": -1,
    "schema_compatibility_strategy": "UNDEFINED",
    "schema_validation_enforced": False,
    "subscription_types_enabled": [],
    "properties": {},
    "migrated": False,
}

ONCE_SET = {
    "is_allow_auto_update_schema": False,
    "persistence": {
        "bookkeeperEnsemble": 2,
        "bookkeeperWriteQuorum": 2,
        "bookkeeperAckQuorum": 1,
        "managedLedgerMaxMarkDeleteRate": 0.5,
    },
    "deduplicationEnabled": True,
    "deduplicationSnapshotIntervalSeconds": 30,
    "autoTopicCreationOverride": {
        "allowAutoTopicCreation": True,
        "topicType": "partitioned",
        "defaultNumPartitions": 3,
    },
    "autoSubscriptionCreationOverride": {"allowAutoSubscriptionCreation": False},
    "message_ttl_in_seconds": 60,
    "subscription_expiration_time_minutes": 5,
    "retention_policies": {"retentionTimeInMinutes": 10, "retentionSizeInMB": -1},
    "delayed_delivery_policies": {"active": True, "tickTime": 1000, "maxDeliveryDelayInMillis": 0},
    "inactive_topic_policies": {
        "inactiveTopicDeleteMode": "delete_when_no_subscriptions",
        "maxInactiveDurationSeconds": 60,
        "deleteWhileInactive": True,
    },
    "offload_policies": json.loads(encode(OffloadPolicies(managedLedgerOffloadDriver="filesystem"))),
    "entryFilters": {"entryFilterNames": "a,b"},
    "max_producers_per_topic": 1,
    "max_consumers_per_topic": 2,
    "max_consumers_per_subscription": 3,
    "max_unacked_messages_per_consumer": 4,
    "max_unacked_messages_per_subscription": 5,
    "max_subscriptions_per_topic": 6,
    "max_topics_per_namespace": 7,
    "compaction_threshold": 8,
    "offload_deletion_lag_ms": 9,
    "schema_auto_update_compatibility_strategy": "Full",
    "resource_group_name": "group",
    "dispatcherPauseOnAckStatePersistentEnabled": True,
    "allowed_topic_property_keys_for_metrics": ["key"],
}


def test_a_fresh_namespace_has_pulsars_document_property_by_property() -> None:
    fresh = NamespacePolicies(replication_clusters=["standalone"], bundles=even_bundles(4))
    assert json.loads(encode(fresh)) == FRESH


def test_optional_policies_are_kept_and_shown_once_they_are_set() -> None:
    document = {**FRESH, **ONCE_SET}
    assert json.loads(encode(decode(json.dumps(document).encode(), NamespacePolicies))) == document


def test_rates_quotas_and_permissions_survive_encoding() -> None:
    document = {
        **FRESH,
        "auth_policies": {
            "namespace_auth": {"app": ["produce", "consume"]},
            "destination_auth": {"persistent://public/default/t": {"app": ["functions"]}},
            "subscription_auth_roles": {"sub": ["app"]},
        },
        "backlog_quota_map": {
            "destination_storage": {"limit": 10, "limitSize": 10, "limitTime": -1, "policy": "producer_exception"}
        },
        "topicDispatchRate": {
            "standalone": {
                "dispatchThrottlingRateInMsg": 100,
                "dispatchThrottlingRateInByte": 1000,
                "relativeToPublishRate": False,
                "ratePeriodInSecond": 1,
            }
        },
        "clusterSubscribeRate": {"standalone": {"subscribeThrottlingRatePerConsumer": 5, "ratePeriodInSecond": 30}},
        "publishMaxMessageRate": {"standalone": {"publishThrottlingRateInMsg": 10, "publishThrottlingRateInByte": -1}},
        "subscription_auth_mode": "Prefix",
    }
    assert json.loads(encode(decode(json.dumps(document).encode(), NamespacePolicies))) == document


def test_partial_bodies_nulls_and_unknown_properties_are_accepted() -> None:
    body = b'{"bundles": {"numBundles": 2, "boundaries": null}, "persistence": null, "from_the_future": [1]}'
    policies = decode(body, NamespacePolicies)
    assert policies == NamespacePolicies(bundles=BundlesData(numBundles=2))
    assert b"from_the_future" not in encode(policies)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"not json",
        b"[]",
        b'{"message_ttl_in_seconds": "x"}',
        b'{"auth_policies": {"namespace_auth": {"r": ["fly"]}}}',
    ],
)
def test_what_is_no_policies_document_is_refused(body: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode(body, NamespacePolicies)


def test_a_quota_is_read_by_its_old_and_its_new_name() -> None:
    by_old = decode(b'{"backlog_quota_map": {"q": {"limit": 5}}}', NamespacePolicies).backlog_quota_map["q"]
    by_new = decode(b'{"backlog_quota_map": {"q": {"limitSize": 5}}}', NamespacePolicies).backlog_quota_map["q"]
    assert by_old == by_new
    assert (by_new.limit, by_new.limitSize, by_new.limitTime) == (5, 5, 0)


def test_an_unset_cluster_url_is_absent_and_the_flags_are_always_there() -> None:
    assert json.loads(encode(ClusterData(serviceUrl="http://h:8080"))) == {
        "serviceUrl": "http://h:8080",
        "brokerClientTlsEnabled": False,
        "tlsAllowInsecureConnection": False,
        "brokerClientTlsEnabledWithKeyStore": False,
    }


def test_a_tenant_always_shows_both_lists() -> None:
    assert json.loads(encode(TenantInfo())) == {"adminRoles": [], "allowedClusters": []}


def test_a_copy_shares_nothing_with_its_original() -> None:
    original = NamespacePolicies(bundles=even_bundles(1))
    copied = copy_of(original)
    assert copied == original
    copied.bundles.boundaries.clear()
    copied.auth_policies.namespace_auth["app"] = [AuthAction.PRODUCE]
    assert original == NamespacePolicies(bundles=even_bundles(1))


@pytest.mark.parametrize("count", [1, 3, 4, 7, 64, 4096])
def test_even_bundles_span_the_whole_range(count: int) -> None:
    bundles = even_bundles(count)
    assert bundles.numBundles == count
    assert len(bundles.boundaries) == count + 1
    assert bundles.boundaries[0] == "0x00000000"
    assert bundles.boundaries[-1] == "0xffffffff"
    assert sorted(set(bundles.boundaries)) == bundles.boundaries


@pytest.mark.parametrize("count", [0, -1, 4097])
def test_an_impossible_number_of_bundles_is_refused(count: int) -> None:
    with pytest.raises(ValueError, match="bundles"):
        even_bundles(count)


def test_bundles_of_a_request_are_given_ones_or_a_number_or_the_default() -> None:
    given = BundlesData(["0xffffffff", "0x80000000", "0x00000000"], 2)
    assert checked_bundles(given) == BundlesData(["0x00000000", "0x80000000", "0xffffffff"], 2)
    assert checked_bundles(BundlesData(numBundles=8)) == even_bundles(8)
    assert checked_bundles(BundlesData()) == even_bundles(4)
    assert checked_bundles(BundlesData(), 16) == even_bundles(16)


@pytest.mark.parametrize(
    "bundles",
    [
        BundlesData(["0x00000000"], 0),
        BundlesData(["0x00000000", "0x80000000"], 1),
        BundlesData(["0x10000000", "0xffffffff"], 1),
        BundlesData(["0x00000000", "0xffffffff"], 2),
        BundlesData(["0x00000000", "x", "0xffffffff"], 2),
        BundlesData(["0x00000000", "0x1ffffffff"], 1),
    ],
)
def test_boundaries_that_make_no_sense_are_refused(bundles: BundlesData) -> None:
    with pytest.raises(ValueError, match="bound"):
        checked_bundles(bundles)


def test_actions_come_once_each_and_in_order() -> None:
    given = [AuthAction.CONSUME, AuthAction.PRODUCE, AuthAction.CONSUME]
    assert ordered_actions(given) == [AuthAction.PRODUCE, AuthAction.CONSUME]


def test_the_policies_of_a_topic_have_pulsars_names_where_others_read_them() -> None:
    policies = TopicPolicies(
        backlogQuotaMap={"message_age": BacklogQuota(limitTime=5)},
        delayedDeliveryPolicies=DelayedDeliveryPolicies(active=True, tickTime=7),
        subscriptionExpirationTimeMinutes=9,
        maxProducerPerTopic=3,
    )
    assert to_pulsar_topic_policies(policies) == {
        "backLogQuotaMap": {"message_age": {"limit": 0, "limitSize": 0, "limitTime": 5}},
        "subscriptionPolicies": {},
        "subscriptionExpirationTimeInMinutes": 9,
        "delayedDeliveryEnabled": True,
        "delayedDeliveryTickTimeMillis": 7,
        "delayedDeliveryMaxDelayInMillis": 0,
        "maxProducerPerTopic": 3,
    }


def test_the_policies_of_a_topic_that_were_stored_with_fewer_members_are_read() -> None:
    stored = b'{"backlogQuotaMap":{},"messageTTLInSeconds":5,"delayedDeliveryPolicies":{"active":true,"tickTime":7}}'
    assert decode(stored, TopicPolicies) == TopicPolicies(
        messageTTLInSeconds=5, delayedDeliveryPolicies=DelayedDeliveryPolicies(active=True, tickTime=7)
    )
