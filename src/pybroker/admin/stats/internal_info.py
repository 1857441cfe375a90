"""JSON of `internal-info`: the stored metadata of a topic's managed ledger."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pybroker.admin.time_text import iso_text
from pybroker.ledgers.cursor_store import NO_CURSOR_LEDGER
from pybroker.metadata.metadata_paths import java_encoded

if TYPE_CHECKING:
    from pybroker.broker.topic.topic import Topic
    from pybroker.managed_ledger.info.stored_documents import StoredCursor, StoredLedger, StoredManagedLedger
    from pybroker.managed_ledger.managed_cursor import ManagedCursor
    from pybroker.model.names import TopicName
    from pybroker.model.position import Position


async def shown_info(topic: Topic) -> dict[str, Any]:
    """Return the JSON: read from the metadata store if ledgers are on BookKeeper, otherwise from memory. Raises
    StoreError.
    """
    stored = await topic.broker_context.ledgers.records.described(topic.ledger.name)
    return internal_info(topic) if stored is None else _documents(stored, topic.ledger.created_ms)


def _documents(stored: StoredManagedLedger, created_ms: int) -> dict[str, Any]:
    info: dict[str, Any] = {
        "version": stored.version,
        "creationDate": iso_text(stored.created_ms or created_ms),
        "modificationDate": iso_text(stored.changed_ms),
        "ledgers": [_stored_ledger(each) for each in stored.ledgers],
        "cursors": {name: _stored_cursor(each) for name, each in stored.cursors.items()},
    }
    if stored.terminated is not None:
        info["terminatedPosition"] = _position(stored.terminated)
    if stored.properties:
        info["properties"] = stored.properties
    return info


def _stored_ledger(ledger: StoredLedger) -> dict[str, Any]:
    shown: dict[str, Any] = {"ledgerId": ledger.ledger_id}
    if ledger.entries is not None:
        shown["entries"] = ledger.entries
    if ledger.size_bytes is not None:
        shown["size"] = ledger.size_bytes
    return {**shown, "timestamp": ledger.changed_ms, "isOffloaded": False}


def _stored_cursor(cursor: StoredCursor) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "version": cursor.version,
        "creationDate": iso_text(cursor.created_ms),
        "modificationDate": iso_text(cursor.changed_ms),
        "cursorsLedgerId": cursor.ledger_id,
        "markDelete": _position(cursor.mark),
    }
    if cursor.deleted:
        shown["individualDeletedMessages"] = [
            {"from": _position(start), "to": _position(end)} for start, end in cursor.deleted
        ]
    if cursor.numbers:
        shown["properties"] = cursor.numbers
    return shown


def internal_info(topic: Topic) -> dict[str, Any]:
    """Return the JSON from memory. As in the stored metadata, an open ledger has no counts."""
    ledger = topic.ledger
    rows = list(ledger.ledgers.rows())
    changed_ms = max([topic.loaded_ms, *(row.closed_ms for row in rows if row.is_sealed)])
    info: dict[str, Any] = {
        "version": ledger.document.version,
        "creationDate": iso_text(ledger.created_ms),
        "modificationDate": iso_text(changed_ms),
        "ledgers": [
            {"ledgerId": row.ledger_id, "entries": row.entry_count, "size": row.size_bytes, "timestamp": row.closed_ms}
            | {"isOffloaded": False}
            if row.is_sealed
            else {"ledgerId": row.ledger_id, "timestamp": changed_ms, "isOffloaded": False}
            for row in rows
        ],
        "cursors": {
            java_encoded(cursor.name): {
                "version": ledger.document.version,
                "cursorsLedgerId": _cursor_ledger_id(cursor),
                "markDelete": _position(cursor.mark_delete_position),
            }
            for cursor in ledger.cursors.values()
            if cursor.is_durable
        },
    }
    if ledger.is_terminated:
        info["terminatedPosition"] = _position(ledger.last_confirmed)
    return info


def _cursor_ledger_id(cursor: ManagedCursor) -> int:
    return (cursor.cursor_ledger or NO_CURSOR_LEDGER).ledger_id


def _position(position: Position) -> dict[str, int]:
    return {"ledgerId": position.ledger_id, "entryId": position.entry_id}


def backlog_summary(name: TopicName, topics: Sequence[Topic], broker_name: str, now_ms: int) -> dict[str, Any]:
    rows = [row for topic in topics for row in topic.ledger.ledgers.rows()]
    backlogs: dict[str, int] = {}
    cursor_ledgers: dict[str, int] = {}
    for topic in topics:
        for cursor in topic.ledger.cursors.values():
            backlogs[cursor.name] = backlogs.get(cursor.name, 0) + cursor.backlog_entries
            cursor_ledgers[cursor.name] = _cursor_ledger_id(cursor)
    return {
        "topicName": name.storage_path,
        "brokerName": broker_name,
        "storageSize": sum(row.size_bytes for row in rows),
        "totalMessages": sum(row.entry_count for row in rows),
        "messageBacklog": sum(backlogs.values()),
        "dataLedgerDetails": [
            {
                "entries": row.entry_count,
                "timestamp": row.closed_ms,
                "size": row.size_bytes,
                "ledgerId": row.ledger_id,
            }
            for row in rows
        ],
        "cursorDetails": {
            cursor: {"cursorBacklog": backlog, "cursorLedgerId": cursor_ledgers[cursor]}
            for cursor, backlog in backlogs.items()
        },
        "statGeneratedAt": now_ms,
    }
