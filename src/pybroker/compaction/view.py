"""Looks into a compacted ledger: its entries by number, and the number of the first one at or behind a position of the topic.

Entries stand there in the order of their positions, so a search is by bisection: it reads as many single entries as their number
has binary digits, and only where a reader begins. Nothing is kept in memory.
"""

from __future__ import annotations

from pybroker.compaction.stored_entry import CompactedEntry, decode_stored
from pybroker.ledgers.ledger_store import LedgerStore
from pybroker.managed_ledger.managed_ledger_info import CompactedInfo
from pybroker.model.position import Position

COMPACTION_SUBSCRIPTION = "__compaction"
"""Which durable cursor stands where the last compaction of a topic ended; shown as a subscription, as Pulsar does."""


async def read_view(
    store: LedgerStore, view: CompactedInfo, index: int, max_entries: int, max_bytes: int
) -> list[CompactedEntry]:
    """Entries from the `index`-th on, at least one; there are so many. Raises StoreError."""
    count = min(max_entries, view.entries - index)
    assert count > 0, f"compacted ledger {view.ledger} has no entry {index}"
    run = store.read_buffered(view.ledger, index, count, max_bytes)
    if run is None:
        run = await store.read(view.ledger, index, count, max_bytes)
    return [
        decode_stored(payload, message_count)
        for payload, message_count in zip(run.payloads, run.message_counts, strict=True)
    ]


async def first_at(store: LedgerStore, view: CompactedInfo, position: Position) -> int:
    """The number of the first entry at or behind `position`; that of all entries when there is none. Raises StoreError."""
    low, high = 0, view.entries
    while low < high:
        middle = (low + high) // 2
        if (await read_view(store, view, middle, 1, 0))[0].position < position:
            low = middle + 1
        else:
            high = middle
    return low
