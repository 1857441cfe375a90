"""Deletion of the orphaned ledgers of a cluster, by its leader: ledgers on bookies that no metadata document lists.

Operation: a run reads the metadata of all ledgers, and then all documents that list ledgers. It closes and fences each
orphaned ledger, reads the documents again, and deletes the ledgers that are still in no document. Two rules protect an
owner that stores its new ledger late in a document:

* It does not use a ledger that it stores later than it promised in the ledger's properties. `OrphanRule` waits much
  longer.
* If the clocks of both brokers differ by more than that, the ledger is fenced before its deletion, so that its owner's
  appends are refused. If a document lists the ledger at the second reading, it is kept.

Failure: a ledger that cannot be closed, because its bookies do not answer, is kept until a later run. If a document
cannot be read, the run ends without a deletion, because it may list any ledger.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import Protocol

from pybroker.bookkeeper.errors import BookKeeperError, InvalidMetadata, NoSuchLedger
from pybroker.bookkeeper.inspection.orphan_rule import OrphanRule, OrphanVerdict
from pybroker.bookkeeper.inspection.orphan_search import LedgerNames, Ledgers
from pybroker.runtime import logs
from pybroker.runtime.clock import Clock

READS_PER_S = 2000
DELETIONS_PER_S = 20
MAX_CANDIDATES = 100_000
CLOSED_TOGETHER = 1000
"""Ledgers that are closed before the documents are read again."""
_READS_AT_ONCE = 100


class ListedLedgers(Ledgers, Protocol):
    """The part of a client that the deletion needs."""

    def ledger_pages(self) -> AsyncIterator[list[int]]: ...

    async def recover_ledger(self, ledger_id: int) -> object: ...

    async def delete_ledger(self, ledger_id: int) -> None: ...


@dataclass(slots=True)
class OrphanCounts:
    """Numbers of ledgers that one run examined, deleted and kept."""

    examined: int = 0
    deleted: int = 0
    kept: int = 0
    """Orphaned ledgers that could not be closed or deleted."""
    is_complete: bool = False
    """False if this broker stopped being the leader."""


class OrphanDeletion:
    """Deletes the orphaned ledgers of a cluster. `is_leader` is called before each step; two leaders at the same time
    only do the same work twice. `sleep` waits for a number of seconds.
    """

    def __init__(
        self,
        ledgers: ListedLedgers,
        rule: OrphanRule,
        names: LedgerNames,
        is_leader: Callable[[], Awaitable[bool]],
        clock: Clock,
        sleep: Callable[[float], Awaitable[None]],
    ) -> None:
        self._ledgers = ledgers
        self._rule = rule
        self._names = names
        self._is_leader = is_leader
        self._clock = clock
        self._sleep = sleep

    async def run(self) -> OrphanCounts:
        """Examine all ledgers of the cluster once, and delete the orphaned ones. Raises MetadataUnknown, and StoreError
        if a document cannot be read.
        """
        counts = OrphanCounts()
        now_ms = self._clock.wall_ms()
        candidates = array("q")
        async for page in self._ledgers.ledger_pages():
            for start in range(0, len(page), _READS_AT_ONCE):
                if not await self._is_leader():
                    return counts
                part = page[start : start + _READS_AT_ONCE]
                async for ledger_id, metadata in self._ledgers.metadata_of_all(part):
                    if isinstance(metadata, InvalidMetadata):
                        continue
                    if self._rule.verdict(ledger_id, metadata, (), now_ms) is OrphanVerdict.ORPHANED:
                        candidates.append(ledger_id)
                counts.examined += len(part)
                await self._sleep(len(part) / READS_PER_S)
                if len(candidates) >= MAX_CANDIDATES:
                    if not await self._delete_orphans(candidates, counts):
                        return counts
                    candidates = array("q")
        counts.is_complete = await self._delete_orphans(candidates, counts)
        return counts

    async def _delete_orphans(self, candidates: array[int], counts: OrphanCounts) -> bool:
        """Delete the candidates that are still orphaned. Return False if this broker is not the leader any more."""
        orphans = await self._without_names(candidates)
        for start in range(0, len(orphans), CLOSED_TOGETHER):
            closed = array("q")
            for ledger_id in orphans[start : start + CLOSED_TOGETHER]:
                if not await self._is_leader():
                    return False
                if await self._is_closed(ledger_id, counts):
                    closed.append(ledger_id)
                await self._sleep(1 / DELETIONS_PER_S)
            for ledger_id in await self._without_names(closed):
                if not await self._is_leader():
                    return False
                await self._delete(ledger_id, counts)
        return True

    async def _without_names(self, ledger_ids: array[int]) -> array[int]:
        """Read the documents, and return the ledgers that are in none of them."""
        if not ledger_ids:
            return ledger_ids
        ascending = array("q", sorted(ledger_ids))
        has_name = bytearray(len(ascending))

        def take(named: Collection[int]) -> None:
            for ledger_id in named:
                index = bisect_left(ascending, ledger_id)
                if index < len(ascending) and ascending[index] == ledger_id:
                    has_name[index] = True

        await self._names.read(take)
        return array("q", (each for each, is_named in zip(ascending, has_name, strict=True) if not is_named))

    async def _is_closed(self, ledger_id: int, counts: OrphanCounts) -> bool:
        """Close and fence the ledger. Return False if that is not possible."""
        try:
            await self._ledgers.recover_ledger(ledger_id)
        except NoSuchLedger:
            return False
        except BookKeeperError as error:
            self._keep(ledger_id, error, counts)
            return False
        return True

    async def _delete(self, ledger_id: int, counts: OrphanCounts) -> None:
        try:
            await self._ledgers.delete_ledger(ledger_id)
        except BookKeeperError as error:
            self._keep(ledger_id, error, counts)
            return
        counts.deleted += 1
        logs.info("ledger.orphan_deleted", ledger=ledger_id)

    def _keep(self, ledger_id: int, error: BookKeeperError, counts: OrphanCounts) -> None:
        counts.kept += 1
        logs.warning("ledger.orphan_kept", ledger=ledger_id, error=str(error))
