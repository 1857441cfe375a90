"""Reads of the compacted view of a topic. Its entries are numbered from 0, in the order of their positions."""

from __future__ import annotations

from pybroker.compaction.stored_entry import CompactedEntry, format_in
from pybroker.ledgers.ledger_store import LedgerStore
from pybroker.managed_ledger.info.managed_ledger_info import CompactedInfo
from pybroker.model.position import Position

COMPACTION_SUBSCRIPTION = "__compaction"
"""The durable cursor at the end of the last compaction; shown as a subscription, as Pulsar does."""


async def read_view(
    store: LedgerStore, view: CompactedInfo, index: int, max_entries: int, max_bytes: int
) -> list[CompactedEntry]:
    """Return entries of the compacted view from entry number `index` on, which must exist: at most `max_entries`, and
    about `max_bytes`, but at least one. Raises StoreError.
    """
    count = min(max_entries, view.entries - index)
    assert count > 0, f"compacted ledger {view.ledger} has no entry {index}"
    run = store.read_buffered(view.ledger, index, count, max_bytes)
    if run is None:
        run = await store.read(view.ledger, index, count, max_bytes)
    stored = format_in(store)
    return [
        stored.decode(payload, message_count)
        for payload, message_count in zip(run.payloads, run.message_counts, strict=True)
    ]


async def first_at(store: LedgerStore, view: CompactedInfo, position: Position) -> int:
    """Return the number of the first entry of the compacted view at or after `position`; the number of entries if there
    is none. Raises StoreError.
    """
    low, high = 0, view.entries
    while low < high:
        middle = (low + high) // 2
        if (await read_view(store, view, middle, 1, 0))[0].position < position:
            low = middle + 1
        else:
            high = middle
    return low
