"""The rules of `pybroker metadata check`. Pure: documents in, findings out.

`DocumentRules.add` gets each document of a store once, in any order, and keeps only names and partition counts. `finish` returns
the findings that depend on several documents.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import Any, Final, NamedTuple

from pybroker.errors import StoreError
from pybroker.metadata import metadata_paths
from pybroker.metadata.partitioned_topics import PartitionedTopicMetadata
from pybroker.metadata.stored_document import decoded
from pybroker.model.names import NamespaceName, TopicName
from pybroker.model.policies import (
    BundlesData,
    LocalPolicies,
    NamespacePolicies,
    TenantInfo,
    checked_bundles,
)
from pybroker.tools.moving_metadata.portable_documents import type_of

LARGE_VALUE_BYTES: Final = 512 * 1024
"""Half of the size at which ZooKeeper refuses a request."""
GLOBAL_CLUSTER = "global"


class Severity(StrEnum):
    """A problem changes how brokers behave; a note does not."""

    PROBLEM = "problem"
    NOTE = "note"


class Finding(NamedTuple):
    """`text` says what is wrong, and what to do."""

    severity: Severity
    code: str
    path: str
    text: str


def _problem(code: str, path: str, text: str) -> Finding:
    return Finding(Severity.PROBLEM, code, path, text)


def _note(code: str, path: str, text: str) -> Finding:
    return Finding(Severity.NOTE, code, path, text)


class DocumentRules:
    """`cluster_name` is that of the configuration."""

    def __init__(self, cluster_name: str) -> None:
        self._cluster_name = cluster_name
        self._clusters: set[str] = set()
        self._tenants: set[str] = set()
        self._namespaces: set[str] = set()
        self._groups: set[str] = set()
        self._cluster_uses: list[tuple[str, str]] = []
        self._group_uses: list[tuple[str, str]] = []
        self._owned: list[tuple[str, str]] = []
        """Path, and the namespace that it belongs to."""
        self._partitions: dict[TopicName, int] = {}

    def add(self, path: str, value: bytes) -> Iterator[Finding]:
        """Yield the findings of one document."""
        self._remember_name(path)
        kind = type_of(path)
        if kind is None:
            yield _note("unknown-path", path, "pybroker does not know documents at this path, and ignores it")
            return
        if len(value) > LARGE_VALUE_BYTES:
            yield _problem(
                "large", path, f"it has {len(value)} bytes; ZooKeeper refuses requests of 1 MiB: make it smaller"
            )
        try:
            document: Any = decoded(path, value, kind)
        except StoreError as error:
            yield _problem("unreadable", path, f"brokers ignore it: {error}")
            return
        match document:
            case TenantInfo():
                self._cluster_uses += [(path, name) for name in document.allowedClusters]
            case NamespacePolicies():
                yield from self._namespace(path, document)
            case LocalPolicies():
                yield from _local_policies(path, document)
            case PartitionedTopicMetadata():
                yield from self._partitioned(path, document)

    def _remember_name(self, path: str) -> None:
        match path.split("/")[1:]:
            case ["admin", "clusters", name]:
                self._clusters.add(name)
            case ["admin", "resourcegroups", segment]:
                self._groups.add(metadata_paths.name_of_segment(segment))
            case ["admin", "policies", tenant]:
                self._tenants.add(tenant)
            case ["admin", "policies", tenant, namespace]:
                self._namespaces.add(f"{tenant}/{namespace}")
            case ["admin", "local-policies" | "partitioned-topics", tenant, namespace, *_]:
                self._owned.append((path, f"{tenant}/{namespace}"))
            case ["pybroker", "topic-policies" | "schemas", tenant, namespace, *_]:
                self._owned.append((path, f"{tenant}/{namespace}"))

    def _namespace(self, path: str, policies: NamespacePolicies) -> Iterator[Finding]:
        clusters = {*policies.replication_clusters, *policies.allowed_clusters} - {GLOBAL_CLUSTER}
        self._cluster_uses += [(path, name) for name in sorted(clusters)]
        if policies.resource_group_name:
            self._group_uses.append((path, policies.resource_group_name))
        yield from _bundles(path, policies.bundles)

    def _partitioned(self, path: str, metadata: PartitionedTopicMetadata) -> Iterator[Finding]:
        tenant, namespace, domain, segment = path.removeprefix(f"{metadata_paths.PARTITIONED_TOPICS}/").split("/")
        topic = metadata_paths.partitioned_topic_of_segment(NamespaceName(tenant, namespace), domain, segment)
        self._partitions[topic] = metadata.partitions
        if metadata.partitions < 1:
            yield _problem(
                "partitions", path, f"it has {metadata.partitions} partitions: delete the topic, or correct it"
            )

    def finish(self) -> Iterator[Finding]:
        """Yield the findings between documents, after all were added."""
        own = metadata_paths.cluster(self._cluster_name)
        if self._cluster_name not in self._clusters:
            others = ", ".join(sorted(self._clusters)) or "none"
            yield _problem(
                "cluster", own, f"clusterName is {self._cluster_name}, and the store has {others}: brokers refuse it"
            )
        for path, name in self._cluster_uses:
            if name not in self._clusters:
                yield _problem(
                    "cluster", path, f"it names the cluster {name}, which does not exist: create or remove it"
                )
        for path, name in self._group_uses:
            if name not in self._groups:
                yield _note("resource-group", path, f"it names the resource group {name}, which does not exist")
        for namespace in sorted(self._namespaces):
            if namespace.partition("/")[0] not in self._tenants:
                yield _problem(
                    "tenant", f"{metadata_paths.POLICIES}/{namespace}", "its tenant does not exist: create it"
                )
        for path, namespace in self._owned:
            if namespace not in self._namespaces:
                yield _note("namespace", path, f"the namespace {namespace} does not exist: it has no effect")

    def topics(self, names: Iterable[TopicName]) -> Iterator[Finding]:
        """Compare the topics that exist with the partition counts, after all documents were added."""
        for topic in names:
            path, count = metadata_paths.managed_ledger(topic), self._partitions.get(topic.partitioned_name)
            if topic.partition_index < 0:
                if count is not None:
                    yield _problem("partitions", path, "a topic and a partitioned topic have this name")
            elif count is None:
                text = f"the partition exists, and {topic.partitioned_name} is not a partitioned topic"
                yield _note("partitions", path, f"{text}: clients find it by its full name only")
            elif topic.partition_index >= count:
                text = f"the partition exists, and {topic.partitioned_name} has {count} partitions"
                yield _problem("partitions", path, f"{text}: clients do not find its messages")


def _local_policies(path: str, policies: LocalPolicies) -> Iterator[Finding]:
    if policies.bundles is None:
        text = "they have no bundles: Java brokers use one bundle for the namespace, so a topic can have two owners"
        yield _problem("bundles", path, f"{text}. Delete the value, or add the bundles of the namespace's policies")
    else:
        yield from _bundles(path, policies.bundles)


def _bundles(path: str, bundles: BundlesData) -> Iterator[Finding]:
    try:
        is_right = bool(bundles.boundaries) and checked_bundles(bundles).boundaries == bundles.boundaries
        reason = "" if is_right else "the boundaries are missing, not sorted, or not from 0x00000000 to 0xffffffff"
        if is_right and bundles.numBundles not in (0, len(bundles.boundaries) - 1):
            reason = f"numBundles is {bundles.numBundles}, and there are {len(bundles.boundaries) - 1} ranges"
    except (ValueError, StoreError) as error:
        reason = str(error)
    if reason:
        yield _problem(
            "bundles", path, f"the bundles are wrong: {reason}. Brokers can disagree about the owner of a topic"
        )


def unknown_parent(path: str) -> Finding:
    """Return the finding for a path below `/admin` or `/pybroker` that has no known documents."""
    return _note("unknown-path", path, "pybroker does not know documents at this path, and ignores it")
