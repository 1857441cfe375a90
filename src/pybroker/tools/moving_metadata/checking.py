"""Reads every document of a store and reports what is wrong. Changes nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator

from pybroker.metadata import metadata_paths
from pybroker.metadata.broker_identity import BROKERS_PATH
from pybroker.metadata.metadata_store import MetadataStore
from pybroker.metadata.shared_metadata import LAYOUT_PATH
from pybroker.model.names import NamespaceName, TopicName
from pybroker.tools.moving_metadata.document_rules import DocumentRules, Finding, unknown_parent
from pybroker.tools.moving_metadata.exporting import Progress, stored_documents
from pybroker.tools.moving_metadata.portable_documents import ROOTS

_KNOWN = (*(root.path for root in ROOTS), LAYOUT_PATH, BROKERS_PATH)


async def check_documents(store: MetadataStore, cluster_name: str, progress: Progress) -> AsyncIterator[Finding]:
    """Yield the findings. Raises StoreError if the store cannot be read."""
    rules = DocumentRules(cluster_name)
    count = 0
    async for path, found in stored_documents(store):
        for finding in rules.add(path, found.value):
            yield finding
        count += 1
        progress(count)
    for parent in ("/admin", "/pybroker"):
        for name in await store.children(parent):
            if f"{parent}/{name}" not in _KNOWN:
                yield unknown_parent(f"{parent}/{name}")
    for finding in rules.finish():
        yield finding
    async for topics in _topics(store):
        for finding in rules.topics(topics):
            yield finding


async def _topics(store: MetadataStore) -> AsyncIterator[list[TopicName]]:
    """Yield the topics that exist, by namespace. A store without managed ledgers has none."""
    for tenant in await store.children(metadata_paths.MANAGED_LEDGERS):
        for local_name in await store.children(f"{metadata_paths.MANAGED_LEDGERS}/{tenant}"):
            namespace = NamespaceName(tenant, local_name)
            segments = await store.children(metadata_paths.managed_ledgers(namespace, "persistent"))
            yield [metadata_paths.topic_of_segment(namespace, "persistent", segment) for segment in segments]
