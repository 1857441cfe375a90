"""The documents that a broker takes along when it moves to another metadata store, and the types of their values.

All other values stay where they are: managed ledgers and cursors name ledgers that another store does not have; session values
belong to a running broker; `/local-store` describes one data directory; ledgers and bookies belong to BookKeeper.

The order of ROOTS is the order of a file, and an interrupted import leaves its beginning. Local policies come before the
policies of their namespaces: as soon as a namespace exists, its bundles are the right ones.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from pybroker.metadata import metadata_paths
from pybroker.metadata.partitioned_topics import PartitionedTopicMetadata
from pybroker.metadata.resource_groups import ResourceGroup
from pybroker.model.cluster_data import ClusterPolicies, FailureDomain, NamespaceIsolationData, ResourceQuota
from pybroker.model.policies import ClusterData, LocalPolicies, NamespacePolicies, TenantInfo, TopicPolicies


class Root(NamedTuple):
    """`depth` is the number of levels below `path` that have documents; 0: the value at `path` itself."""

    path: str
    depth: int


ROOTS = (
    Root(metadata_paths.CLUSTERS, 3),
    Root(metadata_paths.RESOURCE_GROUPS, 1),
    Root(metadata_paths.LOCAL_POLICIES, 2),
    Root(metadata_paths.POLICIES, 2),
    Root(metadata_paths.RESOURCE_QUOTAS, 3),
    Root(metadata_paths.PARTITIONED_TOPICS, 4),
    Root(metadata_paths.TOPIC_POLICIES, 4),
    Root(metadata_paths.SCHEMAS, 4),
    Root(metadata_paths.DYNAMIC_CONFIGURATION, 0),
)


def root_of(path: str) -> Root | None:
    """Return the root of the document at `path`; None if values at this path are not moved."""
    segments = path.split("/")
    if any(segment in ("", ".", "..") for segment in segments[1:]) or "\0" in path:
        return None
    for root in ROOTS:
        if path == root.path:
            return root if root.depth == 0 else None
        if path.startswith(f"{root.path}/"):
            return root if len(segments) - root.path.count("/") - 1 <= root.depth else None
    return None


def type_of(path: str) -> Any:
    """Return the type of the document at `path`, None for an unknown one."""
    match path.split("/")[1:]:
        case ["admin", "clusters", _]:
            return ClusterData
        case ["admin", "clusters", _, "failureDomain", _]:
            return FailureDomain
        case ["admin", "clusters", _, "namespaceIsolationPolicies"]:
            return dict[str, NamespaceIsolationData]
        case ["admin", "clusters", _, "policies"]:
            return ClusterPolicies
        case ["admin", "resourcegroups", _]:
            return ResourceGroup
        case ["admin", "local-policies", _, _]:
            return LocalPolicies
        case ["admin", "policies", _]:
            return TenantInfo
        case ["admin", "policies", _, _]:
            return NamespacePolicies
        case ["loadbalance", "resource-quota", "default"] | ["loadbalance", "resource-quota", _, _, _]:
            return ResourceQuota
        case ["admin", "partitioned-topics", _, _, _, _]:
            return PartitionedTopicMetadata
        case ["pybroker", "topic-policies", _, _, _, _]:
            return TopicPolicies
        case ["pybroker", "schemas", _, _, _, _]:
            return dict[str, Any]
        case ["admin", "configuration"]:
            return dict[str, str]
    return None


def are_equal(first: bytes, second: bytes) -> bool:
    """Return whether two values are the same document, whatever the order of its properties."""
    if first == second:
        return True
    try:
        return _in_order(first) == _in_order(second)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False


def _in_order(value: bytes) -> bytes:
    return msgspec.json.encode(msgspec.json.decode(value), order="sorted")
