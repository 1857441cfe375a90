"""Finding about a topic in a bundle that this broker does not serve.

Used if the request cannot be redirected to the owner of the bundle.
"""

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
