"""Search for orphaned ledgers in the whole cluster, and their deletion by its leader."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from typing import NamedTuple, Protocol

from pybroker.bookkeeper.errors import InvalidMetadata
from pybroker.bookkeeper.inspection.orphan_rule import OrphanRule, OrphanVerdict
from pybroker.bookkeeper.ledger_metadata import LedgerMetadata
from pybroker.runtime import logs
from pybroker.runtime.clock import Clock


class Ledgers(Protocol):
    """The part of a client that the search needs."""

    def metadata_of_all(
        self, ledger_ids: Sequence[int]
    ) -> AsyncIterator[tuple[int, LedgerMetadata | InvalidMetadata]]: ...

    async def delete_ledger(self, ledger_id: int) -> None: ...


class FoundLedger(NamedTuple):
    """A ledger of this cluster, and whether it is orphaned."""

    ledger_id: int
    metadata: LedgerMetadata
    verdict: OrphanVerdict


ReadNames = Callable[[], Awaitable[Collection[int]]]
"""Reads all documents and returns the ledgers that they name. Raises if any document cannot be read."""


class OrphanSearch:
    """`run` lists, `delete` deletes. Both read the documents after the metadata of the ledgers."""

    def __init__(self, ledgers: Ledgers, rule: OrphanRule, read_names: ReadNames, clock: Clock) -> None:
        self._ledgers = ledgers
        self._rule = rule
        self._read_names = read_names
        self._clock = clock

    async def run(self, ledger_ids: Sequence[int]) -> list[FoundLedger]:
        """Return the ledgers of `ledger_ids` that have this cluster's marks, with verdicts, in the given order.

        Ledgers that are deleted meanwhile, or whose metadata cannot be decoded, are left out. Raises MetadataUnknown, and
        the errors of reading names.
        """
        now_ms = self._clock.wall_ms()
        own = [
            (ledger_id, metadata)
            async for ledger_id, metadata in self._ledgers.metadata_of_all(ledger_ids)
            if not isinstance(metadata, InvalidMetadata) and self._rule.is_own(metadata)
        ]
        named_ids = await self._read_names() if own else ()
        return [
            FoundLedger(ledger_id, metadata, self._rule.verdict(ledger_id, metadata, named_ids, now_ms))
            for ledger_id, metadata in own
        ]

    async def delete(self, ledger_ids: Sequence[int], is_leader: Callable[[], bool]) -> list[int]:
        """Examine the ledgers again, and delete those that are still orphaned. Return their ids.

        Ends early when this broker is no longer the leader. Raises the errors of `run`.
        """
        deleted: list[int] = []
        for found in await self.run(ledger_ids):
            if not is_leader():
                break
            if found.verdict is OrphanVerdict.ORPHANED:
                await self._ledgers.delete_ledger(found.ledger_id)
                logs.info("ledger.orphan_deleted", ledger=found.ledger_id)
                deleted.append(found.ledger_id)
        return deleted
