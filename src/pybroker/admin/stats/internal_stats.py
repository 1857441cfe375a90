"""JSON of `internalStats`: the managed ledger and cursors of a topic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pybroker.admin.stats.managed_ledger_stats import cursor_stats, managed_ledger_stats
from pybroker.broker.topic.topic import Topic
from pybroker.compaction.view import COMPACTION_SUBSCRIPTION
from pybroker.metadata.metadata_paths import java_encoded

if TYPE_CHECKING:
    from pybroker.broker.delivery.subscription import Subscription
    from pybroker.broker.topic.topic_base import TopicBase
    from pybroker.managed_ledger.info.managed_ledger_info import CompactedInfo

_NO_LEDGER = {"ledgerId": -1, "entries": -1, "size": -1, "offloaded": False, "underReplicated": False}


_NO_CURSOR = {
    "waitingReadOp": False,
    "pendingReadOps": 0,
    "messagesConsumedCounter": 0,
    "cursorLedger": 0,
    "cursorLedgerLastEntry": 0,
    "active": False,
    "numberOfEntriesSinceFirstNotAckedMessage": 0,
    "totalNonContiguousDeletedMessagesRange": 0,
    "subscriptionHavePendingRead": False,
    "subscriptionHavePendingReplayRead": False,
}


async def shown_stats(topic: TopicBase, *, with_metadata: bool = False) -> dict[str, Any]:
    """Return the JSON, including the parts that are read from the metadata store. Raises StoreError. `with_metadata`:
    include the metadata of each ledger.
    """
    shown = internal_stats(topic, with_metadata=with_metadata)
    store = topic.broker_context.ledgers.store
    if not store.has_pulsar_layout or not isinstance(topic, Topic):
        return shown
    schema_ids = [each.ledger_id for each in await topic.broker_context.schemas.positions(topic.name)]
    compacted = shown["compactedLedger"]
    rows = {row["ledgerId"]: row for row in (*shown["ledgers"], compacted)} if with_metadata else {}
    found = await store.described([*schema_ids, *(ledger_id for ledger_id in rows if ledger_id >= 0)])
    for ledger_id in rows.keys() & found.keys():
        rows[ledger_id]["metadata"] = found[ledger_id].text
    shown["schemaLedgers"] = [
        {
            **_NO_LEDGER,
            "ledgerId": ledger_id,
            "entries": found[ledger_id].entry_count,
            "size": found[ledger_id].size_bytes,
            **({"metadata": found[ledger_id].text} if with_metadata else {}),
        }
        for ledger_id in schema_ids
        if ledger_id in found
    ]
    return shown


def internal_stats(topic: TopicBase, *, with_metadata: bool = False) -> dict[str, Any]:
    """Return the JSON from memory, without the parts that `shown_stats` reads. A non-persistent topic has no ledger and
    no cursors. `with_metadata`: include the metadata of each ledger.
    """
    if isinstance(topic, Topic):
        return _of_ledger(topic, with_metadata)
    return {
        "entriesAddedCounter": topic.counters.entries_in,
        "numberOfEntries": 0,
        "totalSize": 0,
        "currentLedgerEntries": 0,
        "currentLedgerSize": 0,
        "waitingCursorsCount": 0,
        "pendingAddEntriesCount": 0,
        "cursors": dict.fromkeys(topic.subscriptions, _NO_CURSOR),
    }


def _of_ledger(topic: Topic, with_metadata: bool) -> dict[str, Any]:
    ledger = topic.ledger
    shown = managed_ledger_stats(
        ledger,
        opened_ms=topic.loaded_ms,
        waiting_cursors=sum(_is_waiting(each) for each in topic.subscriptions.values()),
        state=_state(topic),
        with_metadata=with_metadata,
        cursors=_cursors(topic),
    )
    shown["compactedLedger"] = _compacted(ledger.compacted)
    leases = _leases(topic)
    if leases:
        shown["readLeases"] = leases
    return shown


def _leases(topic: Topic) -> list[dict[str, Any]]:
    now_ms = topic.runtime.clock.monotonic_ms()
    return [
        {
            "reader": lease.owner.reader,
            "role": lease.owner.role,
            "ledgerId": lease.ledger_id,
            "endsInMillis": round(lease.ends_ms - now_ms),
        }
        for lease in topic.broker_context.read_leases.on(str(topic.name), now_ms)
    ]


def _compacted(view: CompactedInfo | None) -> dict[str, Any]:
    if view is None:
        return _NO_LEDGER
    return {**_NO_LEDGER, "ledgerId": view.ledger, "entries": view.entries, "size": view.bytes}


def _state(topic: Topic) -> str:
    if topic.is_fenced:
        return "Fenced"
    if topic.ledger.is_terminated:
        return "Terminated"
    if topic.ledger.is_write_failed:
        return "WriteFailed"
    return "CreatingLedger" if topic.ledger.is_changing_ledger else "LedgerOpened"


def _cursors(topic: Topic) -> dict[str, Any]:
    shown = {
        java_encoded(name): cursor_stats(
            topic.ledger,
            each.cursor,
            opened_ms=topic.loaded_ms,
            is_waiting=_is_waiting(each),
            is_reading=each.is_reading,
            properties=_cursor_properties(each),
        )
        | _stall(topic, each)
        for name, each in topic.subscriptions.items()
    }
    cursor = topic.deduplication.cursor
    if cursor is not None:
        known = {name: int(sequence_id) for name, sequence_id in cursor.properties.items()}
        shown[cursor.name] = cursor_stats(
            topic.ledger, cursor, opened_ms=topic.loaded_ms, is_waiting=False, is_reading=False, properties=known
        )
    return shown


def _stall(topic: Topic, subscription: Subscription) -> dict[str, Any]:
    stall = subscription.stall
    if stall is None:
        return {}
    now_ms = topic.runtime.clock.monotonic_ms()
    blocked_reason = stall.blocked_reason
    return {
        "stall": {
            "blockedReason": blocked_reason.name,
            "reason": blocked_reason.value,
            "forMillis": round(now_ms - stall.since_ms),
        },
    }


def _cursor_properties(subscription: Subscription) -> dict[str, int]:
    view = subscription.cursor.ledger.compacted
    if view is None or subscription.name != COMPACTION_SUBSCRIPTION:
        return {}
    return {"CompactedTopicLedger": view.ledger}


def _is_waiting(subscription: Subscription) -> bool:
    return bool(subscription.consumers) and not subscription.cursor.has_more()
