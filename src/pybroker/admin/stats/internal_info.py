"""Stored metadata of a topic's managed ledger, and the deprecated backlog summary. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pybroker.admin.time_text import iso_text
from pybroker.metadata.metadata_paths import java_encoded

if TYPE_CHECKING:
    from pybroker.broker.topic.topic import Topic
    from pybroker.model.names import TopicName
    from pybroker.model.position import Position

_NO_LEDGER_ID = -1  # cursors have no ledgers


def internal_info(topic: Topic) -> dict[str, Any]:
    """Return the JSON of `internal-info`. As in the stored metadata, an open ledger has no counts."""
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
                "cursorsLedgerId": _NO_LEDGER_ID,
                "markDelete": _position(cursor.mark_delete_position),
            }
            for cursor in ledger.cursors.values()
            if cursor.is_durable
        },
    }
    if ledger.is_terminated:
        info["terminatedPosition"] = _position(ledger.last_confirmed)
    return info


def _position(position: Position) -> dict[str, int]:
    return {"ledgerId": position.ledger_id, "entryId": position.entry_id}


def backlog_summary(name: TopicName, topics: Sequence[Topic], broker_name: str, now_ms: int) -> dict[str, Any]:
    rows = [row for topic in topics for row in topic.ledger.ledgers.rows()]
    backlogs: dict[str, int] = {}
    for topic in topics:
        for cursor in topic.ledger.cursors.values():
            backlogs[cursor.name] = backlogs.get(cursor.name, 0) + cursor.backlog_entries
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
            cursor: {"cursorBacklog": backlog, "cursorLedgerId": _NO_LEDGER_ID} for cursor, backlog in backlogs.items()
        },
        "statGeneratedAt": now_ms,
    }
