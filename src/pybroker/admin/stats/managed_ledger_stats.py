"""JSON of the internal state of a managed ledger and its cursors, in Pulsar's format."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pybroker.admin.time_text import iso_text
from pybroker.ledgers.cursor_store import NO_CURSOR_LEDGER

if TYPE_CHECKING:
    from pybroker.managed_ledger.ledger_list import LedgerRow
    from pybroker.managed_ledger.managed_cursor import ManagedCursor
    from pybroker.managed_ledger.managed_ledger import ManagedLedger


def managed_ledger_stats(
    ledger: ManagedLedger,
    *,
    opened_ms: int,
    waiting_cursors: int,
    state: str,
    with_metadata: bool,
    cursors: dict[str, Any],
) -> dict[str, Any]:
    """Return the JSON of a managed ledger. `opened_ms`: time at which the managed ledger was opened, in Unix
    milliseconds; `cursors`: results of `cursor_stats` by cursor name.
    """
    rows = list(ledger.ledgers.rows())
    current = ledger.ledgers.row_of(ledger.current_ledger_id)
    closed_ms = max((row.closed_ms for row in rows if row.is_sealed), default=0)
    return {
        "entriesAddedCounter": ledger.entries_added_total,
        "numberOfEntries": ledger.ledgers.entry_count,
        "totalSize": ledger.ledgers.size_bytes,
        "currentLedgerEntries": 0 if current is None else current.entry_count,
        "currentLedgerSize": 0 if current is None else current.size_bytes,
        # The open ledger was created when the previous one was closed.
        "lastLedgerCreatedTimestamp": iso_text(max(closed_ms, opened_ms)),
        "waitingCursorsCount": waiting_cursors,
        "pendingAddEntriesCount": ledger.pending_entries,
        "lastConfirmedEntry": str(ledger.last_confirmed),
        "state": state,
        "ledgers": [_ledger(row, with_metadata) for row in rows],
        "cursors": cursors,
        "properties": dict(ledger.properties),
        "schemaLedgers": [],
    }


def cursor_stats(
    ledger: ManagedLedger,
    cursor: ManagedCursor,
    *,
    opened_ms: int,
    is_waiting: bool,
    is_reading: bool,
    properties: dict[str, int],
) -> dict[str, Any]:
    """Return the JSON of a cursor. `opened_ms`: time at which the managed ledger was opened, in Unix milliseconds."""
    mark_delete = cursor.mark_delete_position
    cursor_ledger = cursor.cursor_ledger
    has_no_ledger = not cursor.is_durable or cursor_ledger == NO_CURSOR_LEDGER
    shown_ledger = cursor_ledger or NO_CURSOR_LEDGER
    return {
        "markDeletePosition": str(mark_delete),
        "readPosition": str(cursor.read_position),
        "waitingReadOp": is_waiting,
        "pendingReadOps": int(is_reading),
        "messagesConsumedCounter": ledger.entries_added_total - cursor.backlog_entries,
        "cursorLedger": shown_ledger.ledger_id,
        "cursorLedgerLastEntry": shown_ledger.last_entry_id,
        "individuallyDeletedMessages": cursor.state.individually_deleted_text(),
        "lastLedgerSwitchTimestamp": iso_text(opened_ms),
        "state": "NoLedger" if has_no_ledger else "Open",
        "active": not cursor.has_more(),
        "numberOfEntriesSinceFirstNotAckedMessage": ledger.ledgers.entries_between(mark_delete, cursor.read_position),
        "totalNonContiguousDeletedMessagesRange": cursor.state.deleted_range_count,
        "subscriptionHavePendingRead": is_waiting or is_reading,
        "subscriptionHavePendingReplayRead": False,
        "properties": properties,
    }


def _ledger(row: LedgerRow, with_metadata: bool) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "ledgerId": row.ledger_id,
        "entries": row.entry_count if row.is_sealed else 0,
        "size": row.size_bytes if row.is_sealed else 0,
        "offloaded": False,
        "underReplicated": False,
    }
    if with_metadata:
        state = f"CLOSED, lastEntryId={row.entry_count - 1}, length={row.size_bytes}" if row.is_sealed else "OPEN"
        shown["metadata"] = f"LedgerMetadata{{state={state}, digestType=CRC32C}}"
    return shown
