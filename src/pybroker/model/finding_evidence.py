"""The evidence of a finding of `pybroker explain` as a table and facts, for display.

A list of hashes, consumers or producers is the table; all other values are facts. Each value has a kind, which
determines its unit: `text`, `number`, `bytes`, `duration` (milliseconds), `since` (a past time, shown as an age) and
`time` (a time that may be in the future). Times are in milliseconds since 1970.
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

ROWS_SHOWN = 10
"""The maximum number of rows in a table."""
ITEMS_SHOWN = 10
"""The maximum number of items of a list that is shown as one fact."""


class Column(NamedTuple):
    """A column of a table: its title, the kind of its values, and the function that returns its value for a list
    item.
    """

    title: str
    kind: str
    value: Callable[[Mapping[str, Any]], Any]


def _member(name: str) -> Callable[[Mapping[str, Any]], Any]:
    return lambda item: item.get(name)


def _text(name: str) -> Callable[[Mapping[str, Any]], Any]:
    return lambda item: None if item.get(name) is None else str(item[name])


def _name(*names: str) -> Callable[[Mapping[str, Any]], Any]:
    """Return a function that reads the consumer name from an item. `names` are the properties that may contain the
    name, in order of preference.
    """
    return lambda item: next((item[each]["name"] for each in names if item.get(each)), None)


def keys_text(item: Mapping[str, Any]) -> str | None:
    """Return the known keys of the key hash in `item`, an item of the evidence; None if the broker knows no key."""
    texts = [key_text(each) for each in item.get("keys", ())]
    if item.get("moreKeys"):
        texts.append("…")
    return ", ".join(texts) or None


def key_text(key: Mapping[str, Any]) -> str:
    """Return a message key as text, or in hexadecimal digits if it is not UTF-8."""
    text = str(key["key"]) if "key" in key else "0x" + b64decode(key["keyBase64"]).hex()
    return f"{text}…" if "sizeBytes" in key else text


def _waiting(item: Mapping[str, Any]) -> Any:
    entries = item.get("waitingEntries")
    return f"{entries:,}+" if item.get("hasMore") and entries is not None else entries


_TABLES: Mapping[str, Sequence[Column]] = {
    "hashes": (
        Column("KEYS", "text", keys_text),
        Column("HASH", "text", _text("hash")),
        Column("HELD BY", "text", _name("from", "consumer")),
        Column("UNACKED", "number", _member("unackedMessages")),
        Column("OLDEST", "since", _member("oldestDelivered")),
        Column("NEXT CONSUMER", "text", _name("to")),
        Column("WAITING", "number", _waiting),
    ),
    "consumers": (
        Column("CONSUMER", "text", _text("name")),
        Column("UNACKED", "number", _member("unackedMessages")),
        Column("OLDEST", "since", _member("heldSince")),
        Column("LAST ACK", "since", _member("lastAcknowledgedAt")),
        Column("LAST REQUEST", "since", _member("lastAskedAt")),
        Column("WAITING", "number", _member("waitingEntries")),
        Column("ADDRESS", "text", _text("address")),
    ),
    "rates": (
        Column("LIMIT OF", "text", _text("of")),
        Column("RATE", "number", _member("rate")),
        Column("UNIT", "text", _text("unit")),
        Column("PERIOD (S)", "number", _member("periodSeconds")),
        Column("RESUMES IN", "duration", _member("goesOnInMs")),
    ),
    "bookies": (
        Column("BOOKIE", "text", _text("bookie")),
        Column("CONDITION", "text", _text("condition")),
        Column("SINCE", "since", _member("since")),
        Column("FAILURES", "number", _member("failures")),
        Column("LAST FAILURE", "text", _text("lastFailure")),
    ),
    "refused": (
        Column("PRODUCER", "text", _text("producer")),
        Column("TIMES", "number", _member("count")),
        Column("LAST", "since", _member("last")),
        Column("ERROR", "text", _text("error")),
        Column("TEXT", "text", _text("text")),
    ),
    "most": (
        Column("TOPIC", "text", _text("topic")),
        Column("SUBSCRIPTION", "text", _text("subscription")),
        Column("UNACKED", "number", _member("unackedMessages")),
    ),
    "messages": (
        Column("MESSAGE", "text", _text("uuid")),
        Column("CONSUMER", "text", _name("consumer")),
        Column("HAS", "number", _member("has")),
        Column("CHUNKS", "number", _member("chunks")),
        Column("FIRST ID", "text", lambda item: next(iter(item.get("messageIds", ())), None)),
    ),
    "producers": (
        Column("PRODUCER", "text", _text("producer")),
        Column("BLOCKED BY PRODUCER", "text", lambda item: item.get("throttledBy", {}).get("producer")),
        Column("OF TOPIC", "text", lambda item: item.get("throttledBy", {}).get("topic")),
    ),
}
_TITLES = {
    "before": "producers ahead in queue",
    "by": "acknowledged by",
    "forgottenUpToLedger": "no record up to ledger",
    "heldChunks": "received chunks",
    "holder": "exclusive producer",
    "holderAddress": "address",
    "holderSince": "exclusive since",
    "horizon": "compacted up to",
    "key": "configuration key",
    "keys": "configuration keys",
    "loadsBefore": "loads ahead in queue",
    "passedOverFrom": "skipped after",
    "passedOverTo": "skipped up to",
    "pendingEntries": "entries not stored yet",
    "pendingMessages": "messages not stored yet",
    "putOffEntries": "deferred entries",
    "setAsideFrom": "parked from",
    "share": "limit per subscription",
    "step": "load step",
    "waitingOfHash": "waiting with this hash",
    "waitingReaders": "waiting requests",
}
_CAPITAL = re.compile(r"(?<=[a-z])(?=[A-Z])")
_TIME = re.compile(r"(At|Time|[sS]ince)$")
_TEXT_NUMBER = re.compile(r"(^hash|[iI]d)$")


def evidence_shown(evidence: Mapping[str, Any]) -> dict[str, Any]:
    """Return the evidence of a finding as two JSON properties: `table` with the list in the evidence (None if there is
    no list), and `facts` with the other values.
    """
    listed = next((name for name in _TABLES if _is_table(evidence.get(name))), None)
    facts = [
        _fact(name, value)
        for name, value in evidence.items()
        if name != listed and not (listed and name.startswith("more"))
    ]
    return {
        "table": None if listed is None else _table(_TABLES[listed], evidence[listed], _more(evidence)),
        "facts": [each for each in facts if each is not None],
    }


def _is_table(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(each, Mapping) for each in value)


def _more(evidence: Mapping[str, Any]) -> int:
    return next((int(value) for name, value in evidence.items() if name.startswith("more")), 0)


def _table(columns: Sequence[Column], items: Sequence[Mapping[str, Any]], more: int) -> dict[str, Any]:
    rows = [[column.value(item) for column in columns] for item in items[:ROWS_SHOWN]]
    used = [index for index in range(len(columns)) if any(row[index] is not None for row in rows)]
    return {
        "columns": [{"title": columns[index].title, "kind": columns[index].kind} for index in used],
        "rows": [[row[index] for index in used] for row in rows],
        "more": more + max(0, len(items) - ROWS_SHOWN),
    }


def _fact(name: str, value: Any) -> dict[str, Any] | None:
    title = _TITLES.get(name) or _CAPITAL.sub(" ", name).lower()
    if isinstance(value, int) and not isinstance(value, bool):
        if _TIME.search(name):
            return {"title": title, "kind": "time", "value": value}
        if name.endswith("Ms"):
            return {"title": title.removesuffix(" ms"), "kind": "duration", "value": value}
        if name.lower().endswith("bytes"):
            return {"title": title, "kind": "bytes", "value": value}
        if not _TEXT_NUMBER.search(name):
            return {"title": title, "kind": "number", "value": value}
    text = _flat(value)
    return {"title": title, "kind": "text", "value": text} if text else None


def _flat(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        if "name" in value and "address" in value:
            return f"{value['name']} (id {value.get('id')}, {value['address']})"
        return ", ".join(f"{_CAPITAL.sub(' ', name).lower()} {_flat(each)}" for name, each in value.items())
    if isinstance(value, list):
        shown = ", ".join(_flat(each) for each in value[:ITEMS_SHOWN])
        return shown if len(value) <= ITEMS_SHOWN else f"{shown} and {len(value) - ITEMS_SHOWN:,} more"
    return str(value)
