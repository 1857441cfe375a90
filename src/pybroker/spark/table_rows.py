"""Rows of the tables `pulsar-topics`, `pulsar-ledgers` and `pulsar-subscriptions`.

They come from query plans and from the JSON of `stats` and `internalStats`. Values that the broker does not report are
null. Independent of Spark.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from pybroker.model.names import TopicName
from pybroker.reading.positions import TopicPlan

Document = Mapping[str, Any]
_TIME = pa.timestamp("ms", tz="UTC")
_PLACE = re.compile(r"(-?\d+):(-?\d+)")
_HOLE = re.compile(r"[(\[](-?\d+):(-?\d+)\.\.(-?\d+):(-?\d+)[)\]]")
MAX_HOLES = 1000
"""Maximum number of acknowledged ranges shown per subscription. `ackedRangeCount` counts all."""

TOPICS = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),  # -1 for a topic without partitions
        ("entryCount", pa.int64()),
        ("sizeBytes", pa.int64()),
        ("backlogBytes", pa.int64()),
        ("ledgerCount", pa.int32()),
        ("producerCount", pa.int32()),
        ("subscriptionCount", pa.int32()),
        ("messagesIn", pa.int64()),  # since the topic was loaded
        ("messagesOut", pa.int64()),
        ("messageRateIn", pa.float64()),
        ("messageRateOut", pa.float64()),
        ("lastPublishTime", _TIME),
        ("creationTime", _TIME),
        ("state", pa.string()),
    ]
)
LEDGERS = pa.schema(
    [
        ("topic", pa.string()),
        ("ledgerId", pa.int64()),
        ("entryCount", pa.int64()),
        ("messageCount", pa.int64()),
        ("sizeBytes", pa.int64()),
        ("isSealed", pa.bool_()),
    ]
)
_RANGE = pa.struct(
    [
        ("fromLedgerId", pa.int64()),
        ("fromEntryId", pa.int64()),  # the entry before the first one
        ("toLedgerId", pa.int64()),
        ("toEntryId", pa.int64()),  # the last entry
    ]
)
SUBSCRIPTIONS = pa.schema(
    [
        ("topic", pa.string()),
        ("subscription", pa.string()),
        ("type", pa.string()),
        ("isDurable", pa.bool_()),
        ("markDeleteLedgerId", pa.int64()),
        ("markDeleteEntryId", pa.int64()),
        ("readLedgerId", pa.int64()),
        ("readEntryId", pa.int64()),
        ("backlogEntries", pa.int64()),
        ("backlogBytes", pa.int64()),
        ("unackedMessages", pa.int64()),
        ("delayedMessages", pa.int64()),
        ("isBlocked", pa.bool_()),
        ("ackedRangeCount", pa.int64()),  # after the mark-delete position
        ("ackedRanges", pa.list_(_RANGE)),
        ("consumerCount", pa.int32()),
        ("drainingHashCount", pa.int64()),
        ("drainingUnackedMessages", pa.int64()),
        ("lastAckedTime", _TIME),
        (
            "consumers",
            pa.list_(
                pa.struct([("name", pa.string()), ("unackedMessages", pa.int64()), ("drainingHashCount", pa.int64())])
            ),
        ),
    ]
)


def topic_row(topic: str, stats: Document, internal: Document) -> dict[str, Any]:
    return {
        "topic": topic,
        "partition": TopicName.parse(topic).partition_index,
        "entryCount": internal.get("numberOfEntries"),
        "sizeBytes": stats.get("storageSize"),
        "backlogBytes": stats.get("backlogSize"),
        "ledgerCount": len(internal.get("ledgers", ())),
        "producerCount": len(stats.get("publishers", ())),
        "subscriptionCount": len(stats.get("subscriptions", ())),
        "messagesIn": stats.get("msgInCounter"),
        "messagesOut": stats.get("msgOutCounter"),
        "messageRateIn": stats.get("msgRateIn"),
        "messageRateOut": stats.get("msgRateOut"),
        "lastPublishTime": _time(stats.get("lastPublishTimeStamp")),
        "creationTime": _time(stats.get("topicCreationTimeStamp")),
        "state": internal.get("state"),
    }


def ledger_rows(plan: TopicPlan) -> Iterator[dict[str, Any]]:
    for ledger in plan.ledgers:
        yield {
            "topic": plan.topic,
            "ledgerId": ledger.ledger_id,
            "entryCount": ledger.end_entry_id - ledger.first_entry_id,
            "messageCount": ledger.message_count if ledger.message_count >= 0 else None,
            "sizeBytes": ledger.size_bytes if ledger.size_bytes >= 0 else None,
            "isSealed": ledger.is_sealed,
        }


def subscription_rows(topic: str, stats: Document, internal: Document) -> Iterator[dict[str, Any]]:
    cursors = internal.get("cursors", {})
    for name, shown in sorted(stats.get("subscriptions", {}).items()):
        cursor = cursors.get(name, {})
        mark_delete, read = _place(cursor.get("markDeletePosition")), _place(cursor.get("readPosition"))
        ranges = cursor.get("individuallyDeletedMessages") or ""
        consumers = shown.get("consumers", ())
        yield {
            "topic": topic,
            "subscription": name,
            "type": shown.get("type"),
            "isDurable": shown.get("durable"),
            "markDeleteLedgerId": mark_delete[0],
            "markDeleteEntryId": mark_delete[1],
            "readLedgerId": read[0],
            "readEntryId": read[1],
            "backlogEntries": shown.get("msgBacklog"),
            "backlogBytes": shown.get("backlogSize"),
            "unackedMessages": shown.get("unackedMessages"),
            "delayedMessages": shown.get("msgDelayed"),
            "isBlocked": shown.get("blockedSubscriptionOnUnackedMsgs"),
            "ackedRangeCount": cursor.get("totalNonContiguousDeletedMessagesRange"),
            "ackedRanges": list(_ranges(ranges)),
            "consumerCount": len(consumers),
            "drainingHashCount": shown.get("drainingHashesCount"),
            "drainingUnackedMessages": shown.get("drainingHashesUnackedMessages"),
            "lastAckedTime": _time(shown.get("lastAckedTimestamp")),
            "consumers": [
                {
                    "name": each.get("consumerName"),
                    "unackedMessages": each.get("unackedMessages"),
                    "drainingHashCount": each.get("drainingHashesCount"),
                }
                for each in consumers
            ],
        }


def _ranges(text: str) -> Iterator[dict[str, int]]:
    for number, found in enumerate(_HOLE.finditer(text)):
        if number >= MAX_HOLES:
            return
        names = ("fromLedgerId", "fromEntryId", "toLedgerId", "toEntryId")
        yield dict(zip(names, map(int, found.groups()), strict=True))


def _place(text: object) -> tuple[int | None, int | None]:
    found = _PLACE.fullmatch(text) if isinstance(text, str) else None
    return (int(found.group(1)), int(found.group(2))) if found else (None, None)


def _time(milliseconds: object) -> int | None:
    return milliseconds if isinstance(milliseconds, int) and milliseconds > 0 else None
