"""Properties (custom metadata) of the ledgers that brokers create on a shared store: which application, part, topic and cluster
a ledger belongs to.

The first three are Pulsar's. Java brokers do not write the others, which mark the ledgers that the leader of the cluster may
delete when no document names them: `pybroker/cluster` is the name of the cluster, and `pybroker/named-within-ms` the time within
which the creator names the ledger, or never.
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
"""An orphaned ledger is at least this many times older than the time within which its creator had to name it."""
MAX_DIGITS = 15
_PULSAR = b"pulsar"
_MANAGED_LEDGER_COMPONENT = b"managed-ledger"


def cluster_properties(cluster_name: str) -> dict[str, bytes]:
    """Return the properties that all ledgers of managed ledgers of a cluster have."""
    return {APPLICATION: _PULSAR, COMPONENT: _MANAGED_LEDGER_COMPONENT, CLUSTER: cluster_name.encode()}


@dataclass(frozen=True, slots=True)
class ClusterMark:
    """The properties by which a broker marks its ledgers."""

    cluster_name: str
    named_within_ms: int

    @classmethod
    def of_age(cls, cluster_name: str, min_age_ms: int) -> ClusterMark:
        """Return the mark of ledgers that are orphaned from the age `min_age_ms` on."""
        return cls(cluster_name, min_age_ms // AGE_FACTOR)

    def properties(self) -> dict[str, bytes]:
        return {CLUSTER: self.cluster_name.encode(), NAMED_WITHIN: b"%d" % self.named_within_ms}


def managed_ledger_properties(mark: ClusterMark, managed_ledger: str) -> dict[str, bytes]:
    """Return the properties of a ledger of this managed ledger, whose name is as in the path of its document."""
    return {**cluster_properties(mark.cluster_name), **mark.properties(), MANAGED_LEDGER: managed_ledger.encode()}


def named_within_ms(properties: Mapping[str, bytes]) -> int | None:
    """Return the time within which the ledger's creator names it; None without a promise."""
    text = properties.get(NAMED_WITHIN, b"")
    return int(text) if text.isdigit() and len(text) <= MAX_DIGITS else None
