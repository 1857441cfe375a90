"""Reads the documents of a store in the order of an export file, and writes that file."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Final

from pybroker.metadata.metadata_store import MetadataStore, Versioned
from pybroker.tools.moving_metadata.export_file import Document, ExportWriter, Summary
from pybroker.tools.moving_metadata.portable_documents import ROOTS

READ_VALUES: Final = 100
"""Values that are in memory at once."""
Progress = Callable[[int], None]
"""Called with the number of documents so far."""


async def stored_documents(store: MetadataStore) -> AsyncIterator[tuple[str, Versioned]]:
    """Yield path and value of each document that can be moved, in a fixed order. Raises StoreError.

    Lists one level below each node, and holds the paths of one level in memory. A value of no bytes is no document.
    """
    for root in ROOTS:
        if root.depth == 0:
            found = await store.get(root.path)
            if found is not None and found.value:
                yield root.path, found
            continue
        async for path, value in _documents_below(store, root.path, root.depth):
            yield path, value


async def _documents_below(store: MetadataStore, parent: str, depth: int) -> AsyncIterator[tuple[str, Versioned]]:
    names = await store.children(parent)
    for start in range(0, len(names), READ_VALUES):
        paths = [f"{parent}/{name}" for name in names[start : start + READ_VALUES]]
        for path, found in zip(paths, await store.values_of(paths), strict=True):
            if found is not None and found.value:
                yield path, found
            if depth > 1:
                async for below in _documents_below(store, path, depth - 1):
                    yield below


async def export_documents(store: MetadataStore, cluster: str, target: Path, progress: Progress) -> Summary:
    """Write the file, complete or not at all: an interrupted export keeps an earlier file. Raises StoreError, OSError."""
    partial = target.with_name(f"{target.name}.partial")
    partial.unlink(missing_ok=True)
    # Documents can contain credentials, such as those of other clusters.
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            writer = ExportWriter(file, cluster)
            count = 0
            async for path, found in stored_documents(store):
                writer.write(Document(path, found.value))
                count += 1
                progress(count)
            summary = writer.finish()
            file.flush()
            os.fsync(file.fileno())
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
    return summary
