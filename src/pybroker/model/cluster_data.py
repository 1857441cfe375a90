"""REST documents about clusters and bundles: failure domains, isolation policies, migration, quotas.

Property names are Pulsar's; optional properties are None until they are set. A single broker only stores and returns
these documents.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable

import msgspec
import re2

# ruff: noqa: N815  (property names are part of the interface)

MIN_AVAILABLE = "min_available"
UNLOAD_SCOPES = frozenset({"all_matching", "none", "changed"})
MAX_PATTERN_MEMORY_BYTES = 1 << 20
MAX_CACHED_PATTERNS = 100


class FailureDomain(msgspec.Struct):
    """A named set of brokers that may fail together."""

    brokers: list[str] = []


class AutoFailoverPolicy(msgspec.Struct):
    """The condition on which the secondary brokers of an isolation policy take over."""

    policy_type: str | None = None
    parameters: dict[str, str] = {}


class NamespaceIsolationData(msgspec.Struct):
    """Namespaces that only certain brokers may serve. All three lists contain regular expressions."""

    namespaces: list[str] = []
    primary: list[str] = []
    secondary: list[str] = []
    auto_failover_policy: AutoFailoverPolicy | None = None
    unload_scope: str | None = None


class BrokerNamespaceIsolationData(msgspec.Struct):
    """The isolation policies that apply to one broker."""

    brokerName: str
    policyName: str | msgspec.UnsetType = msgspec.UNSET  # absent, also in a list
    namespaceRegex: list[str] = []
    primary: bool = False


class ClusterUrl(msgspec.Struct):
    """Addresses to which clients of a migrated cluster are redirected. `empty` is true if there are none."""

    serviceUrl: str | None = None
    serviceUrlTls: str | None = None
    brokerServiceUrl: str | None = None
    brokerServiceUrlTls: str | None = None
    empty: bool = True

    def __post_init__(self) -> None:
        urls = (self.serviceUrl, self.serviceUrlTls, self.brokerServiceUrl, self.brokerServiceUrlTls)
        self.empty = not any(urls)


class ClusterPolicies(msgspec.Struct):
    """Migration state of a cluster, and its destination."""

    migrated: bool = False
    migratedClusterUrl: ClusterUrl = msgspec.field(default_factory=ClusterUrl)


class ResourceQuota(msgspec.Struct):
    """Expected load of a bundle: messages and bytes per second, and megabytes of memory."""

    msgRateIn: float = 0.0
    msgRateOut: float = 0.0
    bandwidthIn: float = 0.0
    bandwidthOut: float = 0.0
    memory: float = 0.0
    dynamic: bool = True


DEFAULT_RESOURCE_QUOTA = ResourceQuota(40.0, 120.0, 100_000.0, 300_000.0, 80.0, True)


def checked_isolation(data: NamespaceIsolationData) -> NamespaceIsolationData:
    """Return `data` in its stored form: an unknown unload scope is removed, as in Pulsar. Raises ValueError for invalid
    data.
    """
    if not data.namespaces or not data.primary:
        raise ValueError("the isolation policy needs the fields namespaces and primary")
    for pattern in (*data.namespaces, *data.primary, *data.secondary):
        _compiled(pattern)
    failover = data.auto_failover_policy
    if failover is None or failover.policy_type != MIN_AVAILABLE:
        raise ValueError(f"the isolation policy needs auto_failover_policy with the policy_type {MIN_AVAILABLE}")
    for parameter in ("min_limit", "usage_threshold"):
        if not failover.parameters.get(parameter, "").isdecimal():
            raise ValueError(f"auto_failover_policy needs the parameter {parameter} with an integer")
    if data.unload_scope not in UNLOAD_SCOPES:
        return msgspec.structs.replace(data, unload_scope=None)
    return data


def namespaces_to_unload(
    namespaces: Iterable[str], policy: NamespaceIsolationData, former: NamespaceIsolationData | None
) -> list[str]:
    """Return the namespaces to unload when the isolation policy `policy` replaces `former`, as in Pulsar.

    With `unload_scope` `changed`, the default: the namespaces that match either policy if the primary brokers changed,
    otherwise those that match a pattern of only one of the two policies. With `all_matching`: the namespaces that match
    either policy. With `none`: no namespaces.
    """
    if policy.unload_scope == "none":
        return []
    patterns = set(policy.namespaces)
    if former is not None:
        patterns |= set(former.namespaces)
        has_new_brokers = sorted(policy.primary) != sorted(former.primary)
        if policy.unload_scope != "all_matching" and not has_new_brokers:
            patterns -= set(policy.namespaces) & set(former.namespaces)
    return [namespace for namespace in namespaces if matches_any(namespace, sorted(patterns))]


def isolation_of(broker: str, policies: dict[str, NamespaceIsolationData]) -> BrokerNamespaceIsolationData:
    """Return the namespaces of all policies that list `broker`, the name of the last of these policies, and whether
    that policy lists it as primary. A broker that a policy lists as both primary and secondary is primary.
    """
    found = BrokerNamespaceIsolationData(broker)
    for name, policy in policies.items():
        is_primary = matches_any(broker, policy.primary)
        if is_primary or matches_any(broker, policy.secondary):
            found.policyName = name
            found.namespaceRegex = [*found.namespaceRegex, *policy.namespaces]
            found.primary = is_primary
    return found


def matches_any(text: str, patterns: list[str]) -> bool:
    """Return whether one of `patterns` matches the whole `text`. A pattern that RE2 does not support never matches."""
    for pattern in patterns:
        try:
            if _compiled(pattern).fullmatch(text):
                return True
        except ValueError:
            continue
    return False


@functools.lru_cache(MAX_CACHED_PATTERNS)
def _compiled(pattern: str) -> re2._Regexp[str]:
    """Compile a pattern with RE2, which matches any pattern in linear time. Raises ValueError for an invalid
    pattern.
    """
    options = re2.Options()
    options.log_errors = False
    options.max_mem = MAX_PATTERN_MEMORY_BYTES
    try:
        return re2.compile(pattern, options)
    except (re2.error, UnicodeEncodeError) as error:
        raise ValueError(f"{pattern!r} is not a valid regular expression: {error}") from error
