"""Limits, types, copies, schemas, filters: the level that each of them is taken from."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
from tests.unit.model.test_effective_policies import BROKER, found_for

from pybroker.model.effective_policies import effective_policies
from pybroker.model.offload_policies import OffloadPolicies
from pybroker.model.policies import (
    DispatchRate,
    EntryFilters,
    InactiveTopicPolicies,
    NamespacePolicies,
    PersistencePolicies,
    PublishRate,
    SubscriptionPolicies,
    TopicPolicies,
)

# The effective name, then the field and value of the namespace, then those of the topic; "" where the level has no such
# policy.
LEVELS: list[tuple[str, str, Any, str, Any]] = [
    ("replicator_dispatch_rate", "replicatorDispatchRate", DispatchRate(2), "replicatorDispatchRate", DispatchRate(3)),
    ("publish_rate", "publishMaxMessageRate", PublishRate(2), "publishRate", PublishRate(3)),
    ("max_producers", "max_producers_per_topic", 2, "maxProducerPerTopic", 0),
    ("max_consumers", "max_consumers_per_topic", 2, "maxConsumerPerTopic", 0),
    ("max_consumers_per_subscription", "max_consumers_per_subscription", 2, "maxConsumersPerSubscription", 0),
    ("max_subscriptions", "max_subscriptions_per_topic", 2, "maxSubscriptionsPerTopic", 0),
    ("max_unacked_per_consumer", "max_unacked_messages_per_consumer", 2, "maxUnackedMessagesOnConsumer", 0),
    ("max_unacked_per_subscription", "max_unacked_messages_per_subscription", 2, "maxUnackedMessagesOnSubscription", 0),
    ("max_message_size", "", None, "maxMessageSize", 3),
    ("encryption_required", "encryption_required", True, "", None),
    (
        "dispatcher_pause_on_ack_state",
        "dispatcherPauseOnAckStatePersistentEnabled",
        True,
        "dispatcherPauseOnAckStatePersistentEnabled",
        False,
    ),
    ("resource_group", "resource_group_name", "g", "", None),
    ("deduplication", "deduplicationEnabled", True, "deduplicationEnabled", False),
    (
        "deduplication_snapshot_interval_s",
        "deduplicationSnapshotIntervalSeconds",
        2,
        "deduplicationSnapshotIntervalSeconds",
        3,
    ),
    ("persistence", "persistence", PersistencePolicies(2, 1, 1), "persistence", PersistencePolicies(3, 1, 1)),
    (
        "inactive_topics",
        "inactive_topic_policies",
        InactiveTopicPolicies(maxInactiveDurationSeconds=2),
        "inactiveTopicPolicies",
        InactiveTopicPolicies(maxInactiveDurationSeconds=3),
    ),
    ("compaction_threshold", "compaction_threshold", 2, "compactionThreshold", 0),
    ("schema_strategy", "schema_compatibility_strategy", "BACKWARD", "schemaCompatibilityStrategy", "FORWARD"),
    ("schema_validation_enforced", "schema_validation_enforced", True, "schemaValidationEnforced", False),
    ("is_allow_auto_update_schema", "is_allow_auto_update_schema", False, "", None),
    ("offload", "offload_policies", OffloadPolicies("n"), "offloadPolicies", OffloadPolicies("t")),
]
OTHERS = {  # with other values, or covered by the other file
    "retention",
    "message_ttl_s",
    "size_quota",
    "age_quota",
    "dispatch_rate",
    "subscription_dispatch_rate",
    "subscribe_rate",
    "subscription_expiration_minutes",
    "delayed_delivery",
    "auto_subscription_creation",
    "own_subscription_dispatch_rates",
    "subscription_types_enabled",
    "entry_filter_names",
    "replication_clusters",
}
BY_CLUSTER = {"replicatorDispatchRate", "publishMaxMessageRate"}


def test_no_policy_is_left_out_here() -> None:
    assert {row[0] for row in LEVELS} | OTHERS == {field.name for field in fields(BROKER)}


@pytest.mark.parametrize("row", LEVELS, ids=lambda row: row[0])
def test_the_nearest_level_that_says_something_wins(row: tuple[str, str, Any, str, Any]) -> None:
    name, namespace_field, by_namespace, topic_field, by_topic = row
    namespace, topic = NamespacePolicies(), TopicPolicies()
    assert getattr(found_for(topic, namespace), name) == getattr(BROKER, name)
    if namespace_field:
        value = {"here": by_namespace, "elsewhere": None} if namespace_field in BY_CLUSTER else by_namespace
        setattr(namespace, namespace_field, value)
        assert getattr(found_for(topic, namespace), name) == by_namespace != getattr(BROKER, name)
    if topic_field:
        setattr(topic, topic_field, by_topic)
        assert getattr(found_for(topic, namespace), name) == by_topic


def test_a_list_without_a_subscription_type_is_none() -> None:
    namespace, topic = NamespacePolicies(), TopicPolicies(subscriptionTypesEnabled=[])
    assert found_for(topic, namespace).subscription_types_enabled == BROKER.subscription_types_enabled
    namespace.subscription_types_enabled = ["Shared"]
    assert found_for(topic, namespace).subscription_types_enabled == {"Shared"}
    topic.subscriptionTypesEnabled = ["Failover", "Exclusive"]
    assert found_for(topic, namespace).subscription_types_enabled == {"Failover", "Exclusive"}


def test_filters_are_split_into_names() -> None:
    assert found_for(TopicPolicies(), NamespacePolicies()).entry_filter_names == ()
    namespace = NamespacePolicies(entryFilters=EntryFilters("a, b,"))
    assert found_for(TopicPolicies(), namespace).entry_filter_names == ("a", "b")
    assert found_for(TopicPolicies(entryFilters=EntryFilters("c")), namespace).entry_filter_names == ("c",)


def test_a_topic_lives_in_the_clusters_of_its_namespace_unless_it_says_so_itself() -> None:
    namespace = NamespacePolicies(replication_clusters=["a", "b"])
    assert found_for(TopicPolicies(), namespace).replication_clusters == ("a", "b")
    assert found_for(TopicPolicies(replicationClusters=["b"]), namespace).replication_clusters == ("b",)


def test_a_subscription_has_its_own_rate_or_that_of_all() -> None:
    own = {"s": SubscriptionPolicies(DispatchRate(9)), "none": SubscriptionPolicies()}
    found = found_for(TopicPolicies(subscriptionPolicies=own), NamespacePolicies())
    assert found.subscription_dispatch_rate_of("s") == DispatchRate(9)
    assert found.subscription_dispatch_rate_of("none") == BROKER.subscription_dispatch_rate
    assert found.subscription_dispatch_rate_of("other") == BROKER.subscription_dispatch_rate


def test_the_older_name_of_a_schema_strategy_counts_where_the_newer_one_is_not_set() -> None:
    namespace = NamespacePolicies(schema_auto_update_compatibility_strategy="AutoUpdateDisabled")
    assert found_for(TopicPolicies(), namespace).schema_strategy == "ALWAYS_INCOMPATIBLE"
    namespace.schema_compatibility_strategy = "BACKWARD"
    assert found_for(TopicPolicies(), namespace).schema_strategy == "BACKWARD"


def test_encryption_that_the_broker_requires_is_required_of_every_namespace() -> None:
    requiring = replace(BROKER, encryption_required=True)
    assert effective_policies(TopicPolicies(), NamespacePolicies(), requiring, "here").encryption_required
