"""Writes exported documents to a store, for `pybroker metadata import`.

Repeatable: equal documents are skipped, so a second import completes an interrupted one. An existing document with
other content is reported, and stays unless the caller requests its replacement. Nothing is deleted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby, islice
from pathlib import Path

from pybroker.errors import BadVersionError, StoreError
from pybroker.metadata import metadata_paths
from pybroker.metadata.metadata_store import NOT_EXISTING, MetadataStore, Versioned
from pybroker.metadata.shared_metadata import LAYOUT_VERSION
from pybroker.metadata.transfer.export_file import Header, InvalidExport, checked_header, exported_documents
from pybroker.metadata.transfer.exporting import next_start
from pybroker.metadata.transfer.shared_documents import root_of

MAX_STARTS = 100_000
"""More counted starts of brokers are not plausible, and would take too long to count in the other store."""
WRITES_AT_ONCE = 100
_RACE_ATTEMPTS = 5
Progress = Callable[[int, int], None]
"""Receives the number of imported documents, and of all documents."""


@dataclass(slots=True)
class ImportResult:
    """Numbers of documents by result, and the paths of documents that differ."""

    created: int = 0
    equal: int = 0
    replaced: int = 0
    kept: int = 0
    """Number of documents with the cluster's own addresses, which stay as they are in the store."""
    different: list[str] = field(default_factory=list)
    """Paths of documents with other content, which were not replaced."""


def importable_header(file: Path, cluster_name: str) -> tuple[Header, int]:
    """Check an export file, and return its header and its number of documents. Raises InvalidExport if the file is
    damaged or of another cluster, and OSError.
    """
    header, count = checked_header(file)
    if header.cluster != cluster_name:
        raise InvalidExport(
            f"The file {file} was exported from cluster {header.cluster}, but clusterName is {cluster_name}. The exported "
            f"documents contain the name of their cluster: use clusterName={header.cluster}."
        )
    if header.layout > LAYOUT_VERSION:
        raise InvalidExport(
            f"The file {file} contains documents of version {header.layout}, but this version of pybroker reads only "
            f"versions up to {LAYOUT_VERSION}: use the newer version."
        )
    if header.next_start > MAX_STARTS:
        raise InvalidExport(
            f"The file {file} is damaged: it records {header.next_start} starts of brokers, which exceeds the maximum of "
            f"{MAX_STARTS}."
        )
    return header, count


class DocumentImport:
    """One import of an export file into a store."""

    def __init__(
        self,
        store: MetadataStore,
        cluster_name: str,
        path: Path,
        *,
        replaces: bool,
        is_dry_run: bool,
        progress: Progress,
    ) -> None:
        self._store = store
        self._cluster_path = metadata_paths.cluster(cluster_name)
        self._cluster_name = cluster_name
        self._file = path
        self._replaces = replaces
        self._is_dry_run = is_dry_run
        self._progress = progress
        self._result = ImportResult()

    async def run(self) -> ImportResult:
        """Import all documents. Raises InvalidExport before anything is written; after a StoreError, repeat the import."""
        header, count = importable_header(self._file, self._cluster_name)
        for _ in exported_documents(self._file):
            pass  # Each document must be readable before the first one is written.
        done = 0
        exported = exported_documents(self._file)
        while some := list(islice(exported, WRITES_AT_ONCE)):
            await self._import(some)
            done += len(some)
            self._progress(done, count)
        if not self._is_dry_run:
            await self._count_starts(header.next_start)
        return self._result

    async def _import(self, some: list[tuple[str, bytes]]) -> None:
        found = await self._store.values_of([path for path, _ in some])
        with_present = zip(some, found, strict=True)
        # Documents of one kind at a time, because a namespace must follow everything that belongs to it.
        for _, of_root in groupby(with_present, key=lambda each: root_of(each[0][0])):
            await self._together(self._import_one(path, value, present) for (path, value), present in of_root)

    async def _import_one(self, path: str, value: bytes, present: Versioned | None) -> None:
        result = self._result
        for _ in range(_RACE_ATTEMPTS):
            if present is not None and present.value == value:
                result.equal += 1
                return
            if present is not None and path == self._cluster_path:
                result.kept += 1
                return
            if present is not None and not self._replaces:
                result.different.append(path)
                return
            try:
                if not self._is_dry_run:
                    await self._store.put(path, value, NOT_EXISTING if present is None else present.version)
            except BadVersionError:  # another broker changed it at this moment
                present = await self._store.get(path)
                continue
            if present is None:
                result.created += 1
            else:
                result.replaced += 1
            return
        raise StoreError(
            f"the document {path} could not be written, because another process changed it during each attempt: repeat the import"
        )

    async def _count_starts(self, wanted: int) -> None:
        """Let generated producer names continue after the names that the exported store has assigned.

        If a new producer got the name of an earlier one, deduplication would drop its messages as duplicates.
        """
        if wanted == 0:
            return
        while (missing := wanted - await next_start(self._store)) > 0:
            await self._together(self._count_start() for _ in range(min(missing, WRITES_AT_ONCE)))

    async def _together(self, changes: Iterable[Coroutine[None, None, None]]) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for change in changes:
                    group.create_task(change)
        except* StoreError as errors:
            raise StoreError(f"{errors.exceptions[0]}; repeat the import to complete it") from errors

    async def _count_start(self) -> None:
        if self._store.is_shared:
            await next_start(self._store)
        else:
            await self._store.put(metadata_paths.PRODUCER_NAMES, b"")


def paths_told(paths: list[str], most: int) -> Iterator[str]:
    """Yield the first `most` paths for a report, and then a text with the number of further paths."""
    yield from paths[:most]
    if len(paths) > most:
        yield f"and {len(paths) - most} more"
