"""Ledgers that a crash has left in the store and that no managed ledger names: made, and not named before the process ended.

They are found once after a start, beside what clients do: a ledger of an earlier run is never named anew, so what the metadata
store does not name once it has been read through never will be. Such a ledger is empty, since it is named before its first entry:
one with entries shows that metadata was lost, and is kept for whoever repairs that.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection

from pybroker import logs
from pybroker.errors import StoreError
from pybroker.managed_ledger.info import ManagedLedgerInfo, decode_info
from pybroker.managed_ledger.ledger_list import LedgerList
from pybroker.metadata.paths import MANAGED_LEDGERS
from pybroker.metadata.store import MetadataStore
from pybroker.storage.ledger_store import LedgerStore

_TOPIC_DEPTH = 4  # tenant, namespace, domain, topic


async def delete_leftovers(store: LedgerStore, metadata: MetadataStore, stored_ids: Collection[int]) -> None:
    """Delete those of `stored_ids` that are empty and that nothing names.

    They are all the ledgers of earlier runs, listed before anything was opened. While one document cannot be read nothing is
    deleted: who knows what it names.
    """
    left = set(stored_ids)
    try:
        async for path, value in managed_ledger_documents(metadata):
            left.difference_update(named_ledger_ids(decode_info(path, value)))
    except StoreError as error:
        logs.error("leftovers.failed", error=str(error))
        return
    deleted = failed = 0
    for ledger_id in sorted(left):
        try:
            if (await store.recover(ledger_id)).entry_count == 0:
                await store.delete_ledger(ledger_id)
                deleted += 1
        except StoreError as error:
            failed += 1  # the others do not depend on it
            logs.error("leftovers.failed", ledger_id=ledger_id, error=str(error))
    logs.info("leftovers.deleted", ledgers=deleted)
    if kept := len(left) - deleted - failed:
        logs.warning("leftovers.kept", ledgers=kept, reason="no topic names them, yet they hold entries")


def named_ledger_ids(info: ManagedLedgerInfo) -> list[int]:
    """Every ledger that `info` names, also those that are to be deleted. Raises StoreError."""
    compacted = () if info.compacted is None else (info.compacted.ledger,)
    return [*LedgerList.decode(bytes(info.ledgers), 0).ledger_ids(), *info.trimmed, *compacted]


async def path_that_names_ledgers(metadata: MetadataStore) -> str:
    """One managed ledger that names ledgers, "" when none does. Raises StoreError."""
    async for path, value in managed_ledger_documents(metadata):
        if named_ledger_ids(decode_info(path, value)):
            return path
    return ""


async def managed_ledger_documents(metadata: MetadataStore) -> AsyncIterator[tuple[str, bytes]]:
    """Path and value of every managed ledger's document. Raises StoreError."""
    paths = [MANAGED_LEDGERS]
    for _ in range(_TOPIC_DEPTH):
        paths = [f"{path}/{name}" for path in paths for name in await metadata.children(path)]
    for path in paths:
        found = await metadata.get(path)
        if found is not None:
            yield path, found.value
