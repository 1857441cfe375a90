"""Effective policies of a topic. Each policy comes from the topic, else from its namespace, else from the broker. Pure.

A value at a more specific level replaces the other values completely, even a value that means "none" or "no limit".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from pybroker.model.offload_policies import OffloadPolicies
from pybroker.model.policies import (
    AutoSubscriptionCreationOverride,
    BacklogQuota,
    BacklogQuotaType,
    DelayedDeliveryPolicies,
    DispatchRate,
    InactiveTopicPolicies,
    NamespacePolicies,
    PersistencePolicies,
    PublishRate,
    RetentionPolicies,
    SubscribeRate,
    TopicPolicies,
)

SUBSCRIPTION_TYPES = frozenset({"Exclusive", "Shared", "Failover", "Key_Shared"})

_STRATEGY_OF_OLD = {
    "AutoUpdateDisabled": "ALWAYS_INCOMPATIBLE",
    "Backward": "BACKWARD",
    "Forward": "FORWARD",
    "Full": "FULL",
    "AlwaysCompatible": "ALWAYS_COMPATIBLE",
    "BackwardTransitive": "BACKWARD_TRANSITIVE",
    "ForwardTransitive": "FORWARD_TRANSITIVE",
    "FullTransitive": "FULL_TRANSITIVE",
}

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class EffectivePolicies:
    """The policies that apply to one topic. Each default means that there is no limit and no effect."""

    retention: RetentionPolicies
    message_ttl_s: int
    """0: messages do not expire."""
    size_quota: BacklogQuota
    age_quota: BacklogQuota
    dispatch_rate: DispatchRate
    """Rate of the topic as a whole."""
    subscription_dispatch_rate: DispatchRate
    """Rate of each subscription that has no rate of its own: call `subscription_dispatch_rate_of`."""
    subscribe_rate: SubscribeRate
    subscription_expiration_minutes: int
    """0: unused subscriptions are not deleted."""
    delayed_delivery: DelayedDeliveryPolicies
    auto_subscription_creation: AutoSubscriptionCreationOverride
    own_subscription_dispatch_rates: Mapping[str, DispatchRate] = field(default_factory=dict)
    replicator_dispatch_rate: DispatchRate = field(default_factory=DispatchRate)
    publish_rate: PublishRate = field(default_factory=PublishRate)
    """0 or less is no limit."""
    max_producers: int = 0
    """0: no limit; likewise for the following fields."""
    max_consumers: int = 0
    max_consumers_per_subscription: int = 0
    max_subscriptions: int = 0
    max_unacked_per_consumer: int = 0
    max_unacked_per_subscription: int = 0
    max_message_size: int = 0
    """Bytes; 0: only the broker's limit."""
    subscription_types_enabled: frozenset[str] = SUBSCRIPTION_TYPES
    encryption_required: bool = False
    dispatcher_pause_on_ack_state: bool = False
    resource_group: str | None = None
    deduplication: bool = False
    deduplication_snapshot_interval_s: int | None = None
    persistence: PersistencePolicies = field(default_factory=PersistencePolicies)
    inactive_topics: InactiveTopicPolicies = field(default_factory=InactiveTopicPolicies)
    compaction_threshold: int = 0
    """Bytes; 0: compaction only on request."""
    schema_strategy: str = "FULL"
    schema_validation_enforced: bool = False
    is_allow_auto_update_schema: bool = True
    entry_filter_names: tuple[str, ...] = ()
    offload: OffloadPolicies | None = None
    replication_clusters: tuple[str, ...] = ()

    def subscription_dispatch_rate_of(self, subscription: str) -> DispatchRate:
        return self.own_subscription_dispatch_rates.get(subscription, self.subscription_dispatch_rate)


def effective_policies(
    topic: TopicPolicies, namespace: NamespacePolicies, broker: EffectivePolicies, cluster: str
) -> EffectivePolicies:
    """Return the effective policies of a topic in `cluster`. `broker` has the policies from the broker's
    configuration.
    """
    return EffectivePolicies(
        retention=topic.retentionPolicies or namespace.retention_policies or broker.retention,
        message_ttl_s=_first(topic.messageTTLInSeconds, namespace.message_ttl_in_seconds, broker.message_ttl_s),
        size_quota=_quota(BacklogQuotaType.SIZE, topic, namespace) or broker.size_quota,
        age_quota=_quota(BacklogQuotaType.AGE, topic, namespace) or broker.age_quota,
        dispatch_rate=topic.dispatchRate or namespace.topicDispatchRate.get(cluster) or broker.dispatch_rate,
        subscription_dispatch_rate=(
            topic.subscriptionDispatchRate
            or namespace.subscriptionDispatchRate.get(cluster)
            or broker.subscription_dispatch_rate
        ),
        subscribe_rate=topic.subscribeRate or namespace.clusterSubscribeRate.get(cluster) or broker.subscribe_rate,
        subscription_expiration_minutes=_first(
            topic.subscriptionExpirationTimeMinutes,
            namespace.subscription_expiration_time_minutes,
            broker.subscription_expiration_minutes,
        ),
        delayed_delivery=(
            topic.delayedDeliveryPolicies or namespace.delayed_delivery_policies or broker.delayed_delivery
        ),
        auto_subscription_creation=(
            topic.autoSubscriptionCreationOverride
            or namespace.autoSubscriptionCreationOverride
            or broker.auto_subscription_creation
        ),
        own_subscription_dispatch_rates={
            name: policies.dispatchRate
            for name, policies in topic.subscriptionPolicies.items()
            if policies.dispatchRate is not None
        },
        replicator_dispatch_rate=(
            topic.replicatorDispatchRate
            or namespace.replicatorDispatchRate.get(cluster)
            or broker.replicator_dispatch_rate
        ),
        publish_rate=topic.publishRate or namespace.publishMaxMessageRate.get(cluster) or broker.publish_rate,
        max_producers=_first(topic.maxProducerPerTopic, namespace.max_producers_per_topic, broker.max_producers),
        max_consumers=_first(topic.maxConsumerPerTopic, namespace.max_consumers_per_topic, broker.max_consumers),
        max_consumers_per_subscription=_first(
            topic.maxConsumersPerSubscription,
            namespace.max_consumers_per_subscription,
            broker.max_consumers_per_subscription,
        ),
        max_subscriptions=_first(
            topic.maxSubscriptionsPerTopic, namespace.max_subscriptions_per_topic, broker.max_subscriptions
        ),
        max_unacked_per_consumer=_first(
            topic.maxUnackedMessagesOnConsumer,
            namespace.max_unacked_messages_per_consumer,
            broker.max_unacked_per_consumer,
        ),
        max_unacked_per_subscription=_first(
            topic.maxUnackedMessagesOnSubscription,
            namespace.max_unacked_messages_per_subscription,
            broker.max_unacked_per_subscription,
        ),
        max_message_size=_first(topic.maxMessageSize, None, broker.max_message_size),
        # A list without subscription types counts as unset: otherwise no consumer could subscribe.
        subscription_types_enabled=(
            frozenset(topic.subscriptionTypesEnabled or namespace.subscription_types_enabled)
            or broker.subscription_types_enabled
        ),
        encryption_required=namespace.encryption_required or broker.encryption_required,
        dispatcher_pause_on_ack_state=_first(
            topic.dispatcherPauseOnAckStatePersistentEnabled,
            namespace.dispatcherPauseOnAckStatePersistentEnabled,
            broker.dispatcher_pause_on_ack_state,
        ),
        resource_group=namespace.resource_group_name,
        deduplication=_first(topic.deduplicationEnabled, namespace.deduplicationEnabled, broker.deduplication),
        deduplication_snapshot_interval_s=_first(
            topic.deduplicationSnapshotIntervalSeconds,
            namespace.deduplicationSnapshotIntervalSeconds,
            broker.deduplication_snapshot_interval_s,
        ),
        persistence=topic.persistence or namespace.persistence or broker.persistence,
        inactive_topics=topic.inactiveTopicPolicies or namespace.inactive_topic_policies or broker.inactive_topics,
        compaction_threshold=_first(
            topic.compactionThreshold, namespace.compaction_threshold, broker.compaction_threshold
        ),
        schema_strategy=(topic.schemaCompatibilityStrategy or _strategy(namespace) or broker.schema_strategy),
        schema_validation_enforced=_first(
            topic.schemaValidationEnforced,
            namespace.schema_validation_enforced or None,  # False is also the value shown when it is unset
            broker.schema_validation_enforced,
        ),
        is_allow_auto_update_schema=_first(
            None, namespace.is_allow_auto_update_schema, broker.is_allow_auto_update_schema
        ),
        entry_filter_names=_filters(topic, namespace, broker),
        offload=topic.offloadPolicies or namespace.offload_policies or broker.offload,
        replication_clusters=tuple(topic.replicationClusters or namespace.replication_clusters),
    )


def _first(topic: T | None, namespace: T | None, broker: T) -> T:
    if topic is not None:
        return topic
    return broker if namespace is None else namespace


def _quota(kind: BacklogQuotaType, topic: TopicPolicies, namespace: NamespacePolicies) -> BacklogQuota | None:
    return topic.backlogQuotaMap.get(kind) or namespace.backlog_quota_map.get(kind)


def _strategy(namespace: NamespacePolicies) -> str | None:
    if namespace.schema_compatibility_strategy != "UNDEFINED":
        return namespace.schema_compatibility_strategy
    return _STRATEGY_OF_OLD.get(namespace.schema_auto_update_compatibility_strategy or "")


def _filters(topic: TopicPolicies, namespace: NamespacePolicies, broker: EffectivePolicies) -> tuple[str, ...]:
    found = topic.entryFilters or namespace.entryFilters
    return broker.entry_filter_names if found is None else split_names(found.entryFilterNames)


def split_names(text: str) -> tuple[str, ...]:
    return tuple(name for name in map(str.strip, text.split(",")) if name)
