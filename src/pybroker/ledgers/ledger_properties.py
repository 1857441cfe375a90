"""Properties (custom metadata) of the ledgers that brokers create on a shared store: which application, part, topic and cluster
a ledger belongs to.

The first three are Pulsar's. `pybroker/cluster` marks the ledgers that brokers of a cluster may delete when no document names
them: Java brokers do not write it.
"""

from __future__ import annotations

APPLICATION = "application"
COMPONENT = "component"
MANAGED_LEDGER = "pulsar/managed-ledger"
CLUSTER = "pybroker/cluster"
_PULSAR = b"pulsar"
_MANAGED_LEDGER_COMPONENT = b"managed-ledger"


def cluster_properties(cluster_name: str) -> dict[str, bytes]:
    """Return the properties that all ledgers of managed ledgers of a cluster have."""
    return {APPLICATION: _PULSAR, COMPONENT: _MANAGED_LEDGER_COMPONENT, CLUSTER: cluster_name.encode()}


def managed_ledger_properties(cluster_name: str, managed_ledger: str) -> dict[str, bytes]:
    """Return the properties of a ledger of this managed ledger, whose name is as in the path of its document."""
    return {**cluster_properties(cluster_name), MANAGED_LEDGER: managed_ledger.encode()}
