"""Properties (custom metadata) of ledgers on BookKeeper: the application, part, topic and cluster to which a ledger
belongs.

The first three are Pulsar's. Java brokers do not write the other two. With them, the cluster's leader recognizes
ledgers that it may delete if no managed ledger info lists them: `pybroker/cluster` is the name of the cluster, and
`pybroker/named-within-ms` the time within which the creator stores the ledger in a managed ledger info, or never.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

APPLICATION = "application"
COMPONENT = "component"
MANAGED_LEDGER = "pulsar/managed-ledger"
CLUSTER = "pybroker/cluster"
NAMED_WITHIN = "pybroker/named-within-ms"
AGE_FACTOR = 4
"""An orphaned ledger is deleted only when its age is this many times the time within which its creator had to list it
in metadata.
"""
MAX_DIGITS = 15
_PULSAR = b"pulsar"
_MANAGED_LEDGER_COMPONENT = b"managed-ledger"


def cluster_properties(cluster_name: str) -> dict[str, bytes]:
    """Return the properties that pybroker gives to every ledger of a topic or cursor of the cluster."""
    return {APPLICATION: _PULSAR, COMPONENT: _MANAGED_LEDGER_COMPONENT, CLUSTER: cluster_name.encode()}


@dataclass(frozen=True, slots=True)
class ClusterMark:
    """The properties by which a broker marks the ledgers that it creates."""

    cluster_name: str
    named_within_ms: int

    @classmethod
    def of_age(cls, cluster_name: str, min_age_ms: int) -> ClusterMark:
        """Return the mark for the ledgers of a cluster that deletes an orphaned ledger when it is `min_age_ms`
        milliseconds old.
        """
        return cls(cluster_name, min_age_ms // AGE_FACTOR)

    def properties(self) -> dict[str, bytes]:
        return {CLUSTER: self.cluster_name.encode(), NAMED_WITHIN: b"%d" % self.named_within_ms}


def managed_ledger_properties(mark: ClusterMark, managed_ledger: str) -> dict[str, bytes]:
    """Return the properties of a ledger of the managed ledger with this name."""
    return {**cluster_properties(mark.cluster_name), **mark.properties(), MANAGED_LEDGER: managed_ledger.encode()}


def named_within_ms(properties: Mapping[str, bytes]) -> int | None:
    """Return the time in milliseconds within which the creator of a ledger must list it in metadata, from the ledger's
    properties; None if they do not state it.
    """
    text = properties.get(NAMED_WITHIN, b"")
    return int(text) if text.isdigit() and len(text) <= MAX_DIGITS else None
