"""The nearer level wins, policy by policy."""

from __future__ import annotations

from pybroker.model.effective_policies import EffectivePolicies, effective_policies
from pybroker.model.policies import BacklogQuota, NamespacePolicies, RetentionPolicies, TopicPolicies

BROKER = EffectivePolicies(
    RetentionPolicies(1, 1), 10, BacklogQuota("producer_request_hold", limitSize=1), BacklogQuota(limitTime=1)
)
NAMESPACE = NamespacePolicies(
    retention_policies=RetentionPolicies(2, 2),
    message_ttl_in_seconds=20,
    backlog_quota_map={"destination_storage": BacklogQuota(limitSize=2), "message_age": BacklogQuota(limitTime=2)},
)
TOPIC = TopicPolicies(
    retentionPolicies=RetentionPolicies(3, 3),
    messageTTLInSeconds=30,
    backlogQuotaMap={"destination_storage": BacklogQuota(limitSize=3), "message_age": BacklogQuota(limitTime=3)},
)


def levels(policies: EffectivePolicies) -> tuple[int, int, int, int]:
    return (
        policies.retention.retentionSizeInMB,
        policies.message_ttl_s // 10,
        policies.size_quota.limitSize,
        policies.age_quota.limitTime,
    )


def test_a_topic_wins_over_its_namespace_and_that_over_the_broker() -> None:
    assert levels(effective_policies(TopicPolicies(), NamespacePolicies(), BROKER)) == (1, 1, 1, 1)
    assert levels(effective_policies(TopicPolicies(), NAMESPACE, BROKER)) == (2, 2, 2, 2)
    assert levels(effective_policies(TOPIC, NAMESPACE, BROKER)) == (3, 3, 3, 3)
    assert levels(effective_policies(TOPIC, NamespacePolicies(), BROKER)) == (3, 3, 3, 3)


def test_each_policy_is_looked_up_by_itself() -> None:
    topic = TopicPolicies(backlogQuotaMap={"message_age": BacklogQuota(limitTime=3)})
    assert levels(effective_policies(topic, NAMESPACE, BROKER)) == (2, 2, 2, 3)


def test_a_value_that_switches_off_is_a_value() -> None:
    off = TopicPolicies(retentionPolicies=RetentionPolicies(0, 0), messageTTLInSeconds=0)
    found = effective_policies(off, NAMESPACE, BROKER)
    assert found.retention == RetentionPolicies(0, 0)
    assert found.message_ttl_s == 0
