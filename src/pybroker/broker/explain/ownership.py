"""Findings about a topic whose namespace bundle belongs to another broker, or to no broker."""

from __future__ import annotations

from typing import Any, NamedTuple

from pybroker.model.findings import Code, Finding
from pybroker.model.names import TopicName


class TopicBundle(NamedTuple):
    """A topic, its namespace bundle, and the id of the broker that runs `explain`."""

    topic: TopicName
    bundle: str
    broker_id: str

    def not_served(self, reason: str) -> Finding:
        """Return the finding that no broker serves the topic. `reason`: the error text that the finding quotes."""
        text = f"which broker {self.broker_id} does not serve now: {reason.rstrip('.')}"
        return self._finding(Code.BUNDLE_NOT_SERVED, text, reason=reason)

    def unloading(self) -> Finding:
        return self._finding(Code.BUNDLE_UNLOADING, "which is being unloaded or transferred to another broker")

    def without_owner(self, reason: str) -> Finding:
        """Return the finding that no broker acquires the bundle. `reason`: the error text that the finding quotes."""
        text = f"which has no owner: {reason.rstrip('.')}"
        return self._finding(Code.BUNDLE_WITHOUT_OWNER, text, reason=reason)

    def owner_not_answering(self, owner: str, *, is_registered: bool) -> Finding:
        """Return the finding that the owner does not respond. `owner`: its id, or its address if it is not registered."""
        registered = "" if is_registered else " and is not registered in the cluster"
        text = f"and its owner, broker {owner}, does not respond{registered}"
        return self._finding(Code.OWNER_NOT_ANSWERING, text, owner=owner, isRegistered=is_registered)

    def owner_without_explain(self, owner: str, version: str) -> Finding:
        """Return the finding that the owner is a Java broker, which has no `explain`. `version`: its version of Apache
        Pulsar, or "" if unknown.
        """
        text = f"which the Java broker {owner} serves"
        return self._finding(Code.OWNER_WITHOUT_EXPLAIN, text, waits=False, owner=owner, version=version or None)

    def owner_conflict(self, found: str) -> Finding:
        """Return the finding that this broker serves the topic, but the ownership document of the bundle names another
        broker or is missing. `found`: the address in the document, or "" if the document is missing.
        """
        stored = f"names {found}" if found else "is missing"
        text = f"which broker {self.broker_id} serves, and the ownership document of the bundle {stored}"
        return self._finding(Code.BUNDLE_OWNER_CONFLICT, text, waits=False, documentOwner=found or None)

    def _finding(self, code: Code, text: str, *, waits: bool = True, **evidence: Any) -> Finding:
        return Finding(
            code,
            f"Topic {self.topic} belongs to namespace bundle {self.bundle}, {text}.",
            waits=waits,
            evidence={"bundle": self.bundle, "broker": self.broker_id, **evidence},
        )
