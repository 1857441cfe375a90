"""What is known of clusters besides their addresses, and how much of a broker a bundle may take: documents of REST.

What must always hold: property names are Pulsar's; optional properties are None until they are set. A single broker has no
use for any of this; it is kept and shown for tools that manage several, and for the cluster that a broker joins later.
"""

from __future__ import annotations

import msgspec
import re2

# ruff: noqa: N815  (property names are part of the interface)

MIN_AVAILABLE = "min_available"
UNLOAD_SCOPES = frozenset({"all_matching", "none", "changed"})
MAX_PATTERN_MEMORY_BYTES = 1 << 20


class FailureDomain(msgspec.Struct):
    """Brokers that fail together."""

    brokers: list[str] = []


class AutoFailoverPolicy(msgspec.Struct):
    """When the secondary brokers of an isolation policy step in."""

    policy_type: str | None = None
    parameters: dict[str, str] = {}


class NamespaceIsolationData(msgspec.Struct):
    """Namespaces that only some brokers may serve; all three lists are regular expressions."""

    namespaces: list[str] = []
    primary: list[str] = []
    secondary: list[str] = []
    auto_failover_policy: AutoFailoverPolicy | None = None
    unload_scope: str | None = None


class BrokerNamespaceIsolationData(msgspec.Struct):
    """What isolation policies say about one broker."""

    brokerName: str
    policyName: str | msgspec.UnsetType = msgspec.UNSET  # Absent, also within a list.
    namespaceRegex: list[str] = []
    primary: bool = False


class ClusterUrl(msgspec.Struct):
    """Where clients of a migrated cluster are sent."""

    serviceUrl: str | None = None
    serviceUrlTls: str | None = None
    brokerServiceUrl: str | None = None
    brokerServiceUrlTls: str | None = None


class ClusterPolicies(msgspec.Struct):
    """Whether a cluster has moved, and where to."""

    migrated: bool = False
    migratedClusterUrl: ClusterUrl = msgspec.field(default_factory=ClusterUrl)


class ResourceQuota(msgspec.Struct):
    """What a bundle is expected to take of a broker: messages and bytes a second, megabytes of memory."""

    msgRateIn: float = 0.0
    msgRateOut: float = 0.0
    bandwidthIn: float = 0.0
    bandwidthOut: float = 0.0
    memory: float = 0.0
    dynamic: bool = True


DEFAULT_RESOURCE_QUOTA = ResourceQuota(40.0, 120.0, 100_000.0, 300_000.0, 80.0, True)


def checked_isolation(data: NamespaceIsolationData) -> NamespaceIsolationData:
    """`data` as it is kept: an unknown scope is dropped, as Pulsar does. Raises ValueError when it cannot be meant."""
    if not data.namespaces or not data.primary:
        raise ValueError("namespaces and primary are needed")
    for pattern in (*data.namespaces, *data.primary, *data.secondary):
        _compiled(pattern)
    failover = data.auto_failover_policy
    if failover is None or failover.policy_type != MIN_AVAILABLE:
        raise ValueError(f"auto_failover_policy of policy_type {MIN_AVAILABLE} is needed")
    for parameter in ("min_limit", "usage_threshold"):
        if not failover.parameters.get(parameter, "").isdecimal():
            raise ValueError(f"auto_failover_policy needs the parameter {parameter}, a whole number")
    if data.unload_scope not in UNLOAD_SCOPES:
        return msgspec.structs.replace(data, unload_scope=None)
    return data


def isolation_of(broker: str, policies: dict[str, NamespaceIsolationData]) -> BrokerNamespaceIsolationData:
    """What `policies` say about `broker`: its namespaces in all of them, and the name of the last that lists it.

    A policy that lists the broker both ways counts as primary.
    """
    found = BrokerNamespaceIsolationData(broker)
    for name, policy in policies.items():
        is_primary = _matches(broker, policy.primary)
        if is_primary or _matches(broker, policy.secondary):
            found.policyName = name
            found.namespaceRegex = [*found.namespaceRegex, *policy.namespaces]
            found.primary = is_primary
    return found


def _matches(broker: str, patterns: list[str]) -> bool:
    return any(_compiled(pattern).fullmatch(broker) for pattern in patterns)


def _compiled(pattern: str) -> re2._Regexp[str]:
    """Raises ValueError. On RE2, which takes time linear in the name, whatever the pattern says."""
    options = re2.Options()
    options.log_errors = False
    options.max_mem = MAX_PATTERN_MEMORY_BYTES
    try:
        return re2.compile(pattern, options)
    except (re2.error, UnicodeEncodeError) as error:
        raise ValueError(f"not a regular expression: {pattern!r} ({error})") from error
