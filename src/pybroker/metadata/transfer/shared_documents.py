"""The documents that move with a broker from one metadata store to another, in the order in which they are written.

Not among them: managed ledgers and cursors, whose ledgers are in one data directory or on bookies; values of sessions,
such as the owners of bundles; and the documents of schemas of Java brokers, which name ledgers on bookies.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from enum import Enum
from typing import NamedTuple

from pybroker.metadata import metadata_paths
from pybroker.metadata.metadata_store import PAGE_VALUES, MetadataStore


class DocumentKind(Enum):
    """The kind of a document's content."""

    CLUSTER = "cluster"
    CLUSTER_PART = "further document of a cluster"
    TENANT = "tenant"
    NAMESPACE = "policies of a namespace"
    LOCAL_POLICIES = "local policies of a namespace"
    PARTITIONED_TOPIC = "partitioned topic"
    RESOURCE_GROUP = "resource group"
    DYNAMIC_CONFIGURATION = "dynamic configuration"
    RESOURCE_QUOTA = "resource quota"
    TOPIC_POLICIES = "policies of a topic"
    SCHEMA = "version of a schema"
    UNKNOWN = "unknown document"


class Document(NamedTuple):
    """A document in a metadata store."""

    path: str
    value: bytes
    version: int


ROOTS: Sequence[str] = (
    metadata_paths.CLUSTERS,
    metadata_paths.RESOURCE_GROUPS,
    metadata_paths.DYNAMIC_CONFIGURATION,
    metadata_paths.RESOURCE_QUOTAS,
    metadata_paths.SCHEMAS,
    metadata_paths.TOPIC_POLICIES,
    metadata_paths.PARTITIONED_TOPICS,
    metadata_paths.LOCAL_POLICIES,
    metadata_paths.POLICIES,
)
"""Paths of the documents and their parents. A namespace exists with its policies, so everything that belongs to it comes
before: a broker that runs meanwhile never sees a namespace without its bundles."""


async def documents(store: MetadataStore) -> AsyncIterator[Document]:
    """Yield all shared documents of a metadata store: for each of `ROOTS` in order, its documents sorted by path.
    Raises StoreError.
    """
    for root in ROOTS:
        found = await store.get(root)
        if found is not None and found.value:
            yield Document(root, found.value, found.version)
        after = ""
        while True:
            page = await store.values_below(root, after, PAGE_VALUES)
            for path, (value, version) in page:
                if value:
                    yield Document(path, value, version)
            if len(page) < PAGE_VALUES:
                break
            after = page[-1][0]


def root_of(path: str) -> str:
    """Return the element of `ROOTS` that is `path` itself or a parent of it; "" if there is none."""
    return next((root for root in ROOTS if path == root or path.startswith(f"{root}/")), "")


def is_shared_path(path: str) -> bool:
    """Return whether a document at this path is shared by brokers, so that an import may write it."""
    return bool(root_of(path))


def kind_of(path: str) -> DocumentKind:
    root = root_of(path)
    depth = path[len(root) :].count("/")
    match root, depth:
        case metadata_paths.CLUSTERS, 1:
            return DocumentKind.CLUSTER
        case metadata_paths.CLUSTERS, 2 | 3:
            return DocumentKind.CLUSTER_PART
        case metadata_paths.POLICIES, 1:
            return DocumentKind.TENANT
        case metadata_paths.POLICIES, 2:
            return DocumentKind.NAMESPACE
        case metadata_paths.LOCAL_POLICIES, 2:
            return DocumentKind.LOCAL_POLICIES
        case metadata_paths.PARTITIONED_TOPICS, 4:
            return DocumentKind.PARTITIONED_TOPIC
        case metadata_paths.RESOURCE_GROUPS, 1:
            return DocumentKind.RESOURCE_GROUP
        case metadata_paths.DYNAMIC_CONFIGURATION, 0:
            return DocumentKind.DYNAMIC_CONFIGURATION
        case metadata_paths.RESOURCE_QUOTAS, 1 | 3:
            return DocumentKind.RESOURCE_QUOTA
        case metadata_paths.TOPIC_POLICIES, 4:
            return DocumentKind.TOPIC_POLICIES
        case metadata_paths.SCHEMAS, 4:
            return DocumentKind.SCHEMA
    return DocumentKind.UNKNOWN
