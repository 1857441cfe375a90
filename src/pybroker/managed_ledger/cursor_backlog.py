"""The exact backlog of a cursor: entries, messages and bytes, without reading an entry.

The counts come from the list of ledgers. Only the ledger of the mark-delete position, and ledgers with individually
acknowledged batches, need a query of the store's index.
"""

from __future__ import annotations

from dataclasses import dataclass

from pybroker.errors import StoreError
from pybroker.ledgers.ledger_store import LedgerStore
from pybroker.managed_ledger.cursor_state import CursorState
from pybroker.managed_ledger.ledger_list import LedgerList


@dataclass(frozen=True, slots=True)
class Backlog:
    """The backlog of a cursor.

    `size_bytes` is the size of all entries after the mark-delete position, including acknowledged ones. If the store
    cannot measure a part of a ledger, all entries of the ledger count as equally large, as in Pulsar. `messages` is the
    number of entries if the store does not know the number of messages.
    """

    entries: int
    messages: int
    size_bytes: int


async def count_backlog(ledgers: LedgerList, store: LedgerStore, state: CursorState) -> Backlog:
    """Return the backlog of the cursor with the acknowledgements `state`. The result may lack changes of `state` during
    the call. Raises StoreError.
    """
    while True:
        before = ledgers.ledger_ids()
        try:
            return await _count(ledgers, store, state)
        except StoreError:
            if set(before) <= set(ledgers.ledger_ids()):
                raise
            # A ledger was trimmed during the query.


async def _count(ledgers: LedgerList, store: LedgerStore, state: CursorState) -> Backlog:
    # Copied before the store is queried, because the state may change meanwhile.
    mark = state.mark_delete_position
    entries = state.backlog_entries
    if not entries:
        return Backlog(0, 0, 0)
    acknowledged = list(state.acknowledged_behind())
    behind = ledgers.totals_behind(mark.ledger_id)
    size_bytes = behind.size_bytes
    messages = behind.message_count
    row = ledgers.row_of(mark.ledger_id)
    front = 0
    if row is not None and mark.entry_id + 1 < row.entry_count:
        messages = None if messages is None or row.message_count is None else messages + row.message_count
        size_bytes += row.size_bytes
        front = mark.entry_id + 1
    if front:
        before = await store.index.totals_before(mark.ledger_id, front)
        if before is None:
            assert row is not None, "the ledger of the mark-delete position"
            size_bytes -= row.size_bytes * front // row.entry_count
            messages = None
        else:
            size_bytes -= before.size_bytes
            messages = None if messages is None or before.message_count is None else messages - before.message_count
    if messages is None:
        return Backlog(entries, entries, size_bytes)
    for part in acknowledged:
        row = ledgers.row_of(part.ledger_id)
        if row is None or row.message_count == row.entry_count:
            messages -= len(part.deleted)
            continue
        counted = await store.index.message_count_of(part.ledger_id, part.deleted | part.partial)
        if counted is None:
            return Backlog(entries, entries, size_bytes)
        messages += part.remaining_messages - counted
    return Backlog(entries, messages, size_bytes)
