"""Search for orphaned ledgers in the whole cluster, for a report. It deletes nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Sequence
from typing import NamedTuple, Protocol

from pybroker.bookkeeper.errors import InvalidMetadata
from pybroker.bookkeeper.inspection.orphan_rule import OrphanRule, OrphanVerdict
from pybroker.bookkeeper.ledger_metadata import LedgerMetadata
from pybroker.runtime.clock import Clock


class Ledgers(Protocol):
    """The part of a client that the search needs."""

    def metadata_of_all(
        self, ledger_ids: Sequence[int]
    ) -> AsyncIterator[tuple[int, LedgerMetadata | InvalidMetadata]]: ...


class LedgerNames(Protocol):
    """Reads the metadata documents that list the ledgers of topics (also compacted ledgers) and of cursors."""

    async def read(self, take: Callable[[Collection[int]], None]) -> None:
        """Call `take` with the ledger ids of each metadata document. Raises StoreError if a document cannot be read;
        the caller must then not treat any ledger as orphaned.
        """


class FoundLedger(NamedTuple):
    """A ledger of this cluster, and whether it is orphaned."""

    ledger_id: int
    metadata: LedgerMetadata
    verdict: OrphanVerdict


class OrphanSearch:
    """Finds orphaned ledgers. The documents are read after the metadata of the ledgers."""

    def __init__(self, ledgers: Ledgers, rule: OrphanRule, names: LedgerNames, clock: Clock) -> None:
        self._ledgers = ledgers
        self._rule = rule
        self._names = names
        self._clock = clock

    async def run(self, ledger_ids: Sequence[int]) -> list[FoundLedger]:
        """Return the ledgers of `ledger_ids` that belong to this cluster, in order, and whether each is orphaned.

        Ledgers that no longer exist, or whose metadata cannot be decoded, are skipped. Raises MetadataUnknown, and
        StoreError if a document cannot be read.
        """
        now_ms = self._clock.wall_ms()
        own = [
            (ledger_id, metadata)
            async for ledger_id, metadata in self._ledgers.metadata_of_all(ledger_ids)
            if not isinstance(metadata, InvalidMetadata) and self._rule.is_own(metadata)
        ]
        named_ids: set[int] = set()
        if own:
            await self._names.read(named_ids.update)
        return [
            FoundLedger(ledger_id, metadata, self._rule.verdict(ledger_id, metadata, named_ids, now_ms))
            for ledger_id, metadata in own
        ]
