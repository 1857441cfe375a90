"""Writes the shared documents of a store to a file, for `pybroker metadata export`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pybroker.metadata import metadata_paths
from pybroker.metadata.metadata_store import MetadataStore
from pybroker.metadata.shared_metadata import LAYOUT_VERSION
from pybroker.metadata.transfer.export_file import ExportWriter, Header
from pybroker.metadata.transfer.shared_documents import documents

Progress = Callable[[int], None]
"""Receives the number of documents so far."""


async def export_documents(store: MetadataStore, cluster_name: str, path: Path, progress: Progress) -> int:
    """Write all shared documents to the file `path`, and return their number. Raises StoreError and OSError; then no
    file exists.

    If brokers change the store meanwhile, the documents may be of different moments.
    """
    header = Header(cluster_name, LAYOUT_VERSION, await next_start(store))
    with ExportWriter(path, header) as writer:
        async for document in documents(store):
            writer.add(document.path, document.value)
            progress(writer.documents)
    return writer.documents


async def next_start(store: MetadataStore) -> int:
    """Return a lower bound of the number that the next broker to start will get. Producer names that the broker
    generates contain this number.

    In a shared store each call increases the number, because ZooKeeper returns its counter only when a node is created.
    """
    if not store.is_shared:
        found = await store.get(metadata_paths.PRODUCER_NAMES)
        return 0 if found is None else found.version + 1
    path = await store.create_sequential(metadata_paths.PRODUCER_NAME_START, b"", for_session=True)
    await store.delete(path)
    return int(path.removeprefix(metadata_paths.PRODUCER_NAME_START)) + 1
