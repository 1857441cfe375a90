"""Which policies are in force for a topic: its own, else its namespace's, else the broker's; one by one.

Pure. What must hold: a value set at a nearer level wins whole, also one that says "none" or "no limit".
"""

from __future__ import annotations

from dataclasses import dataclass

from pybroker.model.policies import (
    BacklogQuota,
    BacklogQuotaType,
    NamespacePolicies,
    RetentionPolicies,
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


def effective_policies(
    topic: TopicPolicies, namespace: NamespacePolicies, broker: EffectivePolicies
) -> EffectivePolicies:
    """What holds for a topic that has `topic` set, in a namespace that has `namespace` set."""
    ttl_s = topic.messageTTLInSeconds
    if ttl_s is None:
        ttl_s = namespace.message_ttl_in_seconds
    return EffectivePolicies(
        retention=topic.retentionPolicies or namespace.retention_policies or broker.retention,
        message_ttl_s=broker.message_ttl_s if ttl_s is None else ttl_s,
        size_quota=_quota(BacklogQuotaType.SIZE, topic, namespace) or broker.size_quota,
        age_quota=_quota(BacklogQuotaType.AGE, topic, namespace) or broker.age_quota,
    )


def _quota(kind: BacklogQuotaType, topic: TopicPolicies, namespace: NamespacePolicies) -> BacklogQuota | None:
    return topic.backlogQuotaMap.get(kind) or namespace.backlog_quota_map.get(kind)
