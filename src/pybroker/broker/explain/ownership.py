"""Finding about a topic whose bundle this broker does not serve, if requests cannot be redirected to an owner."""

from __future__ import annotations

from pybroker.model.findings import Code, Finding
from pybroker.model.names import TopicName


def explain_not_served(topic: TopicName, bundle: str, broker_id: str, reason: str) -> Finding:
    """Report the bundle that this broker does not serve. `reason`: a clause or sentence on why no owner is known."""
    return Finding(
        Code.BUNDLE_NOT_SERVED,
        f"Topic {topic} belongs to namespace bundle {bundle}, which broker {broker_id} does not serve now: {reason}.",
        evidence={"bundle": bundle, "broker": broker_id, "reason": reason},
    )
