"""Writes the documents of an export file into a store.

Steps: read the whole file (`verify`), compare it with the store, write, compare again. Nothing is written before the first two
are complete. Documents are written in the order of the file, in batches that the store performs as a whole; a version decides
whether a running broker changed a document meanwhile. An interrupted import is completed by the same command.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import IO, Final

from pybroker.errors import BadVersionError, StoreError
from pybroker.metadata import metadata_paths
from pybroker.metadata.metadata_store import NOT_EXISTING, MetadataStore, Put, Versioned
from pybroker.model.system_topics import SYSTEM_NAMESPACE
from pybroker.tools.moving_metadata.export_file import Document, FileRefused, documents
from pybroker.tools.moving_metadata.exporting import Progress, stored_documents
from pybroker.tools.moving_metadata.portable_documents import are_equal, root_of

BATCH_DOCUMENTS: Final = 100
BATCH_BYTES: Final = 256 * 1024
MAX_SHARED_VALUE_BYTES: Final = 0xFFFFF - 4096
"""ZooKeeper refuses requests of 1 MiB (`jute.maxbuffer`); path and header take a part of them."""
WRITE_ATTEMPTS: Final = 5
"""For a batch whose documents a running broker changes at the same time."""


class Difference(StrEnum):
    """What to do with documents that the store has with another value."""

    REFUSE = "refuse"
    KEEP = "keep"
    REPLACE = "replace"


class Action(StrEnum):
    """What an import does, or would do, with a document."""

    CREATE = "create"
    REPLACE = "replace"
    KEEP = "keep"
    DELETE = "delete"
    DIFFERENT = "different"
    ONLY_IN_STORE = "only-in-store"


Report = Callable[[str, Action], None]


@dataclass(slots=True)
class Outcome:
    """Numbers of documents."""

    created: int = 0
    replaced: int = 0
    deleted: int = 0
    equal: int = 0
    kept: int = 0
    different: int = 0
    only_in_store: int = 0


@dataclass(frozen=True, slots=True)
class Import:
    """One import. `cluster_name` is the store's cluster.

    The document of this cluster has its addresses. It is created if it is missing, and stays as it is otherwise: the old and the
    new place of a broker have different addresses.
    """

    store: MetadataStore
    file: IO[bytes]
    cluster_name: str
    difference: Difference
    is_pruning: bool
    progress: Progress

    async def planned(self, report: Report) -> Outcome:
        """Compare and report each action; write nothing. Raises FileRefused and StoreError."""
        outcome = Outcome()
        for batch in self._batches():
            for document, found in zip(batch, await self._values_of(batch), strict=True):
                self._require_size(document)
                self._count(document, found, outcome, report)
        await self._compare_rest(outcome, report)
        return outcome

    async def perform(self) -> None:
        """Write what `planned` reported. Raises StoreError; the same call again continues."""
        done = 0
        for batch in self._batches():
            await self._write(batch)
            done += len(batch)
            self.progress(done)
        if self.is_pruning:
            await self._prune()

    async def remaining(self, report: Report) -> Outcome:
        """Compare again after `perform`, and report what is not as in the file."""
        await self.store.sync()
        return await self.planned(report)

    def action(self, document: Document, found: Versioned | None) -> Action | None:
        """Return the action for a document, given the store's value; None if they are equal."""
        if found is None or not found.value:
            return Action.CREATE
        if are_equal(document.value, found.value):
            return None
        if self.difference is Difference.KEEP or document.path == metadata_paths.cluster(self.cluster_name):
            return Action.KEEP
        return Action.REPLACE if self.difference is Difference.REPLACE else Action.DIFFERENT

    def _count(self, document: Document, found: Versioned | None, outcome: Outcome, report: Report) -> None:
        action = self.action(document, found)
        outcome.created += action is Action.CREATE
        outcome.replaced += action is Action.REPLACE
        outcome.kept += action is Action.KEEP
        outcome.different += action is Action.DIFFERENT
        outcome.equal += action is None
        if action is not None:
            report(document.path, action)

    def _require_size(self, document: Document) -> None:
        size = len(document.value)
        if self.store.is_shared and size > MAX_SHARED_VALUE_BYTES:
            raise FileRefused(
                f"the document {document.path} has {size} bytes, and ZooKeeper stores up to {MAX_SHARED_VALUE_BYTES}"
            )

    def _batches(self) -> Iterator[list[Document]]:
        """Consecutive documents of one root, which are in one store."""
        batch: list[Document] = []
        size = 0
        for document in documents(self.file):
            is_full = len(batch) >= BATCH_DOCUMENTS or size + len(document.value) > BATCH_BYTES
            if batch and (is_full or root_of(document.path) != root_of(batch[0].path)):
                yield batch
                batch, size = [], 0
            batch.append(document)
            size += len(document.value)
        if batch:
            yield batch

    async def _values_of(self, batch: list[Document]) -> list[Versioned | None]:
        return await self.store.values_of([document.path for document in batch])

    async def _write(self, batch: list[Document]) -> None:
        for _ in range(WRITE_ATTEMPTS):
            puts = [
                Put(document.path, document.value, NOT_EXISTING if found is None else found.version)
                for document, found in zip(batch, await self._values_of(batch), strict=True)
                if self.action(document, found) in (Action.CREATE, Action.REPLACE)
            ]
            try:
                if len(puts) == 1:
                    await self.store.put(*puts[0])
                elif puts:
                    await self.store.change_together(puts)
            except BadVersionError:
                continue  # a running broker changed one of them: compare again
            return
        raise StoreError(f"{batch[0].path} and others are being changed by a broker: repeat the command")

    async def _compare_rest(self, outcome: Outcome, report: Report) -> None:
        """Report the store's documents that the file does not have."""
        for path in await self._paths_only_in_store():
            outcome.deleted += self.is_pruning
            outcome.only_in_store += not self.is_pruning
            report(path, Action.DELETE if self.is_pruning else Action.ONLY_IN_STORE)

    async def _paths_only_in_store(self) -> list[str]:
        paths = {document.path for document in documents(self.file)}
        return [
            path
            async for path, _ in stored_documents(self.store)
            if path not in paths and not self._belongs_to_store(path)
        ]

    def _belongs_to_store(self, path: str) -> bool:
        """Return whether brokers or `pybroker metadata init` create the document again."""
        return path == metadata_paths.cluster(self.cluster_name) or path.split("/")[3:4] == [SYSTEM_NAMESPACE.tenant]

    async def _prune(self) -> None:
        """In the reverse order of a file: namespaces before their local policies, topics before their namespaces."""
        for path in reversed(await self._paths_only_in_store()):
            await self.store.delete(path)
