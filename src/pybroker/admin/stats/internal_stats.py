"""What a topic's managed ledger looks like from inside: the JSON of `internalStats`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pybroker.admin.time_text import iso_text
from pybroker.compaction.view import COMPACTION_SUBSCRIPTION

if TYPE_CHECKING:
    from pybroker.broker.delivery.subscription import Subscription
    from pybroker.broker.topic.topic import Topic
    from pybroker.managed_ledger.info import CompactedInfo
    from pybroker.managed_ledger.ledger_list import LedgerRow
    from pybroker.managed_ledger.managed_cursor import ManagedCursor

_NO_LEDGER = {"ledgerId": -1, "entries": -1, "size": -1, "offloaded": False, "underReplicated": False}


def internal_stats(topic: Topic, *, with_metadata: bool = False) -> dict[str, Any]:
    """The members are Pulsar's; those about cursors' own ledgers say that there are none."""
    ledger = topic.ledger
    rows = list(ledger.ledgers.rows())
    current = ledger.ledgers.row_of(ledger.current_ledger_id)
    closed_ms = max((row.closed_ms for row in rows if row.is_sealed), default=0)
    shown = {
        "entriesAddedCounter": ledger.entries_added_total,
        "numberOfEntries": ledger.ledgers.entry_count,
        "totalSize": ledger.ledgers.size_bytes,
        "currentLedgerEntries": 0 if current is None else current.entry_count,
        "currentLedgerSize": 0 if current is None else current.size_bytes,
        # The present ledger was begun when the one before it was closed.
        "lastLedgerCreatedTimestamp": iso_text(max(closed_ms, topic.loaded_ms)),
        "waitingCursorsCount": sum(_is_waiting(each) for each in topic.subscriptions.values()),
        "pendingAddEntriesCount": ledger.pending_entries,
        "lastConfirmedEntry": str(ledger.last_confirmed),
        "state": _state(topic),
        "ledgers": [_ledger(row, with_metadata) for row in rows],
        "cursors": _cursors(topic),
        "properties": ledger.properties,
        "schemaLedgers": [],
        "compactedLedger": _compacted(ledger.compacted),
    }
    leases = _leases(topic)
    if leases:
        shown["readLeases"] = leases
    return shown


def _leases(topic: Topic) -> list[dict[str, Any]]:
    """Readers that keep ledgers from being trimmed; ours, and so shown only where there are any."""
    now_ms = topic.surroundings.clock.monotonic_ms()
    return [
        {
            "reader": lease.owner.reader,
            "role": lease.owner.role,
            "ledgerId": lease.ledger_id,
            "endsInMillis": round(lease.ends_ms - now_ms),
        }
        for lease in topic.commons.read_leases.on(str(topic.name), now_ms)
    ]


def _ledger(row: LedgerRow, with_metadata: bool) -> dict[str, Any]:
    """An open one shows nothing yet, as in Pulsar."""
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


def _compacted(view: CompactedInfo | None) -> dict[str, Any]:
    if view is None:
        return _NO_LEDGER
    return {**_NO_LEDGER, "ledgerId": view.ledger, "entries": view.entries, "size": view.bytes}


def _state(topic: Topic) -> str:
    if topic.is_fenced:
        return "Fenced"
    if topic.ledger.is_terminated:
        return "Terminated"
    return "WriteFailed" if topic.ledger.is_write_failed else "LedgerOpened"


def _cursors(topic: Topic) -> dict[str, Any]:
    """Those of subscriptions, and the one that no subscription has."""
    shown = {
        name: _cursor(
            topic,
            each.cursor,
            is_waiting=_is_waiting(each),
            is_reading=each.is_reading,
            properties=_cursor_properties(each),
        )
        | _standstill(topic, each)
        for name, each in topic.subscriptions.items()
    }
    cursor = topic.deduplication.cursor
    if cursor is not None:
        known = {name: int(sequence_id) for name, sequence_id in cursor.properties.items()}
        shown[cursor.name] = _cursor(topic, cursor, is_waiting=False, is_reading=False, properties=known)
    return shown


def _cursor(
    topic: Topic, cursor: ManagedCursor, *, is_waiting: bool, is_reading: bool, properties: dict[str, int]
) -> dict[str, Any]:
    ledger = topic.ledger
    mark_delete = cursor.mark_delete_position
    return {
        "markDeletePosition": str(mark_delete),
        "readPosition": str(cursor.read_position),
        "waitingReadOp": is_waiting,
        "pendingReadOps": int(is_reading),
        "messagesConsumedCounter": ledger.entries_added_total - ledger.ledgers.entries_after(mark_delete),
        "cursorLedger": -1,
        "cursorLedgerLastEntry": -1,
        "individuallyDeletedMessages": cursor.state.individually_deleted_text(),
        "lastLedgerSwitchTimestamp": iso_text(topic.loaded_ms),
        "state": "Open" if cursor.is_durable else "NoLedger",
        "active": not cursor.has_more(),
        "numberOfEntriesSinceFirstNotAckedMessage": ledger.ledgers.entries_between(mark_delete, cursor.read_position),
        "totalNonContiguousDeletedMessagesRange": cursor.state.deleted_range_count,
        "subscriptionHavePendingRead": is_waiting or is_reading,
        "subscriptionHavePendingReplayRead": False,
        "properties": properties,
    }


def _standstill(topic: Topic, subscription: Subscription) -> dict[str, Any]:
    """Why nothing is delivered, and since when; ours, and so shown only while nothing is."""
    standstill = subscription.standstill
    if standstill is None:
        return {}
    now_ms = topic.surroundings.clock.monotonic_ms()
    gate = standstill.gate
    return {
        "standstill": {"gate": gate.name, "reason": gate.value, "forMillis": round(now_ms - standstill.since_ms)},
    }


def _cursor_properties(subscription: Subscription) -> dict[str, int]:
    view = subscription.cursor.ledger.compacted
    if view is None or subscription.name != COMPACTION_SUBSCRIPTION:
        return {}
    return {"CompactedTopicLedger": view.ledger}


def _is_waiting(subscription: Subscription) -> bool:
    """Whether the next message would go out at once."""
    return bool(subscription.consumers) and not subscription.cursor.has_more()
