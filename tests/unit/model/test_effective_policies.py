"""The nearer level wins, policy by policy."""

from __future__ import annotations

from dataclasses import replace

from pybroker.model.effective_policies import EffectivePolicies, effective_policies
from pybroker.model.policies import (
    AutoSubscriptionCreationOverride,
    BacklogQuota,
    DelayedDeliveryPolicies,
    DispatchRate,
    NamespacePolicies,
    RetentionPolicies,
    SubscribeRate,
    TopicPolicies,
)

BROKER = EffectivePolicies(
    RetentionPolicies(1, 1),
    10,
    BacklogQuota("producer_request_hold", limitSize=1),
    BacklogQuota(limitTime=1),
    DispatchRate(1),
    DispatchRate(1),
    SubscribeRate(1),
    10,
    DelayedDeliveryPolicies(tickTime=1),
    AutoSubscriptionCreationOverride(False),
)
NAMESPACE = NamespacePolicies(
    retention_policies=RetentionPolicies(2, 2),
    message_ttl_in_seconds=20,
    backlog_quota_map={"destination_storage": BacklogQuota(limitSize=2), "message_age": BacklogQuota(limitTime=2)},
    topicDispatchRate={"here": DispatchRate(2), "elsewhere": DispatchRate(9)},
    subscriptionDispatchRate={"here": DispatchRate(2)},
    clusterSubscribeRate={"here": SubscribeRate(2)},
    subscription_expiration_time_minutes=20,
    delayed_delivery_policies=DelayedDeliveryPolicies(tickTime=2),
)
TOPIC = TopicPolicies(
    retentionPolicies=RetentionPolicies(3, 3),
    messageTTLInSeconds=30,
    backlogQuotaMap={"destination_storage": BacklogQuota(limitSize=3), "message_age": BacklogQuota(limitTime=3)},
    dispatchRate=DispatchRate(3),
    subscriptionDispatchRate=DispatchRate(3),
    subscribeRate=SubscribeRate(3),
    subscriptionExpirationTimeMinutes=30,
    delayedDeliveryPolicies=DelayedDeliveryPolicies(tickTime=3),
)


def levels(policies: EffectivePolicies) -> list[int]:
    return [
        policies.retention.retentionSizeInMB,
        policies.message_ttl_s // 10,
        policies.size_quota.limitSize,
        policies.age_quota.limitTime,
        policies.dispatch_rate.dispatchThrottlingRateInMsg,
        policies.subscription_dispatch_rate.dispatchThrottlingRateInMsg,
        policies.subscribe_rate.subscribeThrottlingRatePerConsumer,
        policies.subscription_expiration_minutes // 10,
        policies.delayed_delivery.tickTime,
    ]


def found_for(topic: TopicPolicies, namespace: NamespacePolicies) -> EffectivePolicies:
    return effective_policies(topic, namespace, BROKER, "here")


def test_a_topic_wins_over_its_namespace_and_that_over_the_broker() -> None:
    assert levels(found_for(TopicPolicies(), NamespacePolicies())) == [1] * 9
    assert levels(found_for(TopicPolicies(), NAMESPACE)) == [2] * 9
    assert levels(found_for(TOPIC, NAMESPACE)) == [3] * 9
    assert levels(found_for(TOPIC, NamespacePolicies())) == [3] * 9


def test_each_policy_is_looked_up_by_itself() -> None:
    topic = TopicPolicies(backlogQuotaMap={"message_age": BacklogQuota(limitTime=3)})
    assert levels(found_for(topic, NAMESPACE)) == [2, 2, 2, 3, 2, 2, 2, 2, 2]


def test_whether_subscriptions_are_made_is_looked_up_like_the_rest() -> None:
    yes = AutoSubscriptionCreationOverride(True)
    assert not found_for(TopicPolicies(), NamespacePolicies()).auto_subscription_creation.allowAutoSubscriptionCreation
    by_namespace = found_for(TopicPolicies(), NamespacePolicies(autoSubscriptionCreationOverride=yes))
    assert by_namespace.auto_subscription_creation == yes
    assert found_for(TopicPolicies(autoSubscriptionCreationOverride=yes), NamespacePolicies()) == replace(
        BROKER, auto_subscription_creation=yes
    )


def test_a_value_that_switches_off_is_a_value() -> None:
    off = TopicPolicies(retentionPolicies=RetentionPolicies(0, 0), messageTTLInSeconds=0)
    found = found_for(off, NAMESPACE)
    assert found.retention == RetentionPolicies(0, 0)
    assert found.message_ttl_s == 0
