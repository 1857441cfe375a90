"""Finds shared documents that brokers cannot use, for `pybroker metadata check`. Reads only.

Each document is decoded as brokers do it, and compared with related documents, such as the tenant of a namespace. Only
names, bundles and partition counts are kept in memory.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pybroker.errors import StoreError
from pybroker.metadata import metadata_paths
from pybroker.metadata.metadata_store import MetadataStore
from pybroker.metadata.partitioned_topics import PartitionedTopicMetadata
from pybroker.metadata.resource_groups import ResourceGroup
from pybroker.metadata.stored_document import decoded
from pybroker.metadata.transfer.exporting import Progress
from pybroker.metadata.transfer.shared_documents import Document, DocumentKind, documents, kind_of
from pybroker.model.cluster_data import ClusterPolicies, FailureDomain, NamespaceIsolationData, ResourceQuota
from pybroker.model.names import PERSISTENT, NamespaceName, TopicName
from pybroker.model.policies import (
    BundlesData,
    ClusterData,
    LocalPolicies,
    NamespacePolicies,
    TenantInfo,
    TopicPolicies,
)

LARGE_BYTES = 512 * 1024
"""ZooKeeper refuses values of about 1 MB."""
_KINDS: Mapping[DocumentKind, Any] = {
    DocumentKind.CLUSTER: ClusterData,
    DocumentKind.TENANT: TenantInfo,
    DocumentKind.NAMESPACE: NamespacePolicies,
    DocumentKind.LOCAL_POLICIES: LocalPolicies,
    DocumentKind.PARTITIONED_TOPIC: PartitionedTopicMetadata,
    DocumentKind.RESOURCE_GROUP: ResourceGroup,
    DocumentKind.DYNAMIC_CONFIGURATION: dict[str, str],
    DocumentKind.RESOURCE_QUOTA: ResourceQuota,
    DocumentKind.TOPIC_POLICIES: TopicPolicies,
    DocumentKind.SCHEMA: dict[str, Any],
}
_CLUSTER_PARTS: Mapping[str, Any] = {
    "failureDomain": FailureDomain,
    "namespaceIsolationPolicies": dict[str, NamespaceIsolationData],
    "policies": ClusterPolicies,
}


class Problem(NamedTuple):
    """A problem of a document.

    `is_error`: brokers cannot use the document, or use it differently. Otherwise the document has no effect, or may
    become unusable.
    """

    path: str
    text: str
    is_error: bool


@dataclass(slots=True)
class _Names:
    """Names in documents and names of existing documents, collected in one pass."""

    clusters: set[str] = field(default_factory=set)
    tenants: set[str] = field(default_factory=set)
    bundles: dict[str, BundlesData | None] = field(default_factory=dict)
    """The bundles in the policies of each namespace, by its name."""
    local_bundles: dict[str, BundlesData | None] = field(default_factory=dict)
    used_clusters: dict[str, set[str]] = field(default_factory=dict)
    """By the path of the document that names them."""
    partitions: dict[TopicName, int] = field(default_factory=dict)
    """The partition counts of partitioned topics."""


async def problems(store: MetadataStore, cluster_name: str, progress: Progress) -> AsyncIterator[Problem]:
    """Yield the problems of single documents, and then contradictions between documents. `progress` is called with the
    number of checked documents. Raises StoreError.
    """
    names = _Names()
    count = 0
    async for document in documents(store):
        count += 1
        progress(count)
        for problem in _of_document(document, names):
            yield problem
    for problem in _between(names, cluster_name):
        yield problem
    async for topic in _stored_topics(store):
        for problem in _of_topic(topic, names.partitions):
            yield problem


async def _stored_topics(store: MetadataStore) -> AsyncIterator[TopicName]:
    """Yield the topics that have a managed ledger info in this store. (For local ledgers the info is in the data
    directory.)
    """
    for tenant in await store.children(metadata_paths.MANAGED_LEDGERS):
        for local_name in await store.children(f"{metadata_paths.MANAGED_LEDGERS}/{tenant}"):
            namespace = NamespaceName(tenant, local_name)
            for segment in await store.children(metadata_paths.managed_ledgers(namespace, PERSISTENT)):
                yield metadata_paths.topic_of_segment(namespace, PERSISTENT, segment)


def _of_topic(topic: TopicName, partitions: Mapping[TopicName, int]) -> Iterable[Problem]:
    path, count = metadata_paths.managed_ledger(topic), partitions.get(topic.partitioned_name)
    if topic.partition_index < 0:
        if count is not None:
            text = "is a topic, and there is a partitioned topic of the same name: clients cannot read its messages"
            yield Problem(path, text, is_error=True)
    elif count is not None and topic.partition_index >= count:
        text = f"is a partition, and {topic.partitioned_name} has {count} partitions: clients do not read its messages"
        yield Problem(path, text, is_error=True)


def _of_document(document: Document, names: _Names) -> Iterable[Problem]:
    path, value, _ = document
    if len(value) > LARGE_BYTES:
        yield Problem(path, f"has {len(value)} bytes: ZooKeeper refuses values of 1 MB or more", is_error=False)
    kind = kind_of(path)
    type_ = _KINDS.get(kind)
    if kind is DocumentKind.CLUSTER_PART:
        type_ = _CLUSTER_PARTS.get(path.split("/")[4])
    if type_ is None:
        yield Problem(path, "is not known: this version of pybroker ignores it", is_error=False)
        return
    _exists(path, kind, names)
    try:
        content = decoded(path, value, type_)
    except StoreError as error:
        yield Problem(path, f"cannot be read ({error.__cause__ or error}): correct or delete it", is_error=True)
        return
    yield from _of_content(path, kind, content, names)


def _exists(path: str, kind: DocumentKind, names: _Names) -> None:
    """Record the name of a document, which exists even if the content cannot be read."""
    segments = path.split("/")
    if kind is DocumentKind.CLUSTER:
        names.clusters.add(segments[3])
    elif kind is DocumentKind.TENANT:
        names.tenants.add(segments[3])
    elif kind is DocumentKind.NAMESPACE:
        names.bundles["/".join(segments[3:5])] = None


def _of_content(path: str, kind: DocumentKind, content: Any, names: _Names) -> Iterable[Problem]:
    segments = path.split("/")
    match kind:
        case DocumentKind.TENANT:
            names.used_clusters[path] = set(content.allowedClusters)
        case DocumentKind.NAMESPACE:
            names.bundles["/".join(segments[3:5])] = content.bundles
            names.used_clusters[path] = set(content.replication_clusters)
        case DocumentKind.LOCAL_POLICIES:
            names.local_bundles["/".join(segments[3:5])] = content.bundles
        case DocumentKind.PARTITIONED_TOPIC:
            name = metadata_paths.partitioned_topic_of_segment(
                NamespaceName(segments[3], segments[4]), segments[5], segments[6]
            )
            names.partitions[name] = content.partitions
            if content.partitions < 1:
                yield Problem(path, f"has {content.partitions} partitions: delete the topic", is_error=True)


def _between(names: _Names, cluster_name: str) -> Iterable[Problem]:
    if cluster_name not in names.clusters:
        yield Problem(
            metadata_paths.cluster(cluster_name),
            f"does not exist: clusterName is {cluster_name}, and the store has"
            f" {', '.join(sorted(names.clusters)) or 'no cluster'}",
            is_error=True,
        )
    for path, used in names.used_clusters.items():
        if missing := sorted(used - names.clusters):
            yield Problem(path, f"names clusters that do not exist: {', '.join(missing)}", is_error=False)
    for namespace in names.bundles:
        tenant = namespace.split("/")[0]
        if tenant not in names.tenants:
            yield Problem(
                f"{metadata_paths.POLICIES}/{namespace}",
                f"belongs to tenant {tenant}, which does not exist: create the tenant",
                is_error=True,
            )
    for namespace, local in names.local_bundles.items():
        path = f"{metadata_paths.LOCAL_POLICIES}/{namespace}"
        if namespace not in names.bundles:
            yield Problem(path, "belongs to a namespace that does not exist: it has no effect", is_error=False)
        elif local is None and (names.bundles[namespace] or BundlesData()).numBundles > 1:
            yield Problem(
                path,
                "has no bundles although the namespace has several: Java brokers assume a single bundle, so a topic can"
                " have two owners. Unload the namespace with pybroker, which writes them",
                is_error=True,
            )
