"""Finding about a topic whose bundle this broker does not serve, and that no redirect leads to its owner."""

from __future__ import annotations

from pybroker.model.findings import Code, Finding
from pybroker.model.names import TopicName


def explain_not_served(topic: TopicName, bundle: str, broker_id: str, reason: str) -> Finding:
    """`reason`: why no owner can be named, as a clause or sentence."""
    return Finding(
        Code.BUNDLE_NOT_SERVED,
        f"Topic {topic} belongs to namespace bundle {bundle}, which broker {broker_id} does not serve now: {reason}.",
        evidence={"bundle": bundle, "broker": broker_id, "reason": reason},
    )
