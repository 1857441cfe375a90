"""Which policies are in force for a topic: its own, else its namespace's, else the broker's; one by one.

Pure. What must hold: a value set at a nearer level wins whole, also one that says "none" or "no limit".
"""

from __future__ import annotations

from dataclasses import dataclass

from pybroker.model.policies import (
    AutoSubscriptionCreationOverride,
    BacklogQuota,
    BacklogQuotaType,
    DelayedDeliveryPolicies,
    DispatchRate,
    NamespacePolicies,
    RetentionPolicies,
    SubscribeRate,
    TopicPolicies,
)


@dataclass(frozen=True, slots=True)
class EffectivePolicies:
    """Every policy with a value."""

    retention: RetentionPolicies
    message_ttl_s: int
    """0: messages do not expire."""
    size_quota: BacklogQuota
    age_quota: BacklogQuota
    dispatch_rate: DispatchRate
    """Of the topic as a whole."""
    subscription_dispatch_rate: DispatchRate
    """Of each of its subscriptions."""
    subscribe_rate: SubscribeRate
    subscription_expiration_minutes: int
    """0: subscriptions that nobody uses stay."""
    delayed_delivery: DelayedDeliveryPolicies
    auto_subscription_creation: AutoSubscriptionCreationOverride


def effective_policies(
    topic: TopicPolicies, namespace: NamespacePolicies, broker: EffectivePolicies, cluster: str
) -> EffectivePolicies:
    """What holds in `cluster` for a topic that has `topic` set, in a namespace that has `namespace` set."""
    expiration_minutes = topic.subscriptionExpirationTimeMinutes
    if expiration_minutes is None:
        expiration_minutes = namespace.subscription_expiration_time_minutes
    ttl_s = topic.messageTTLInSeconds
    if ttl_s is None:
        ttl_s = namespace.message_ttl_in_seconds
    return EffectivePolicies(
        retention=topic.retentionPolicies or namespace.retention_policies or broker.retention,
        message_ttl_s=broker.message_ttl_s if ttl_s is None else ttl_s,
        size_quota=_quota(BacklogQuotaType.SIZE, topic, namespace) or broker.size_quota,
        age_quota=_quota(BacklogQuotaType.AGE, topic, namespace) or broker.age_quota,
        dispatch_rate=topic.dispatchRate or namespace.topicDispatchRate.get(cluster) or broker.dispatch_rate,
        subscription_dispatch_rate=(
            topic.subscriptionDispatchRate
            or namespace.subscriptionDispatchRate.get(cluster)
            or broker.subscription_dispatch_rate
        ),
        subscribe_rate=topic.subscribeRate or namespace.clusterSubscribeRate.get(cluster) or broker.subscribe_rate,
        subscription_expiration_minutes=(
            broker.subscription_expiration_minutes if expiration_minutes is None else expiration_minutes
        ),
        auto_subscription_creation=(
            topic.autoSubscriptionCreationOverride
            or namespace.autoSubscriptionCreationOverride
            or broker.auto_subscription_creation
        ),
        delayed_delivery=(
            topic.delayedDeliveryPolicies or namespace.delayed_delivery_policies or broker.delayed_delivery
        ),
    )


def _quota(kind: BacklogQuotaType, topic: TopicPolicies, namespace: NamespacePolicies) -> BacklogQuota | None:
    return topic.backlogQuotaMap.get(kind) or namespace.backlog_quota_map.get(kind)
