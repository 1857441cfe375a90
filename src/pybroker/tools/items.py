"""The items that the commands of `pybroker ledger` print: one line of text or JSON each."""

from __future__ import annotations

import json
from typing import Any

from pybroker.errors import ProtocolViolation
from pybroker.wire.entry_metadata import message_metadata

Item = dict[str, Any]
"""One line of output; "kind" comes first."""


def described_entry(payload: bytes) -> Item:
    """Return the decoded metadata of an entry; an empty item for bytes that are not an entry."""
    try:
        metadata = message_metadata(payload)
    except ProtocolViolation:
        return {}
    item: Item = {
        "publish_time": metadata.publish_time,
        "producer": metadata.producer_name,
        "sequence_id": metadata.sequence_id,
    }
    if metadata.HasField("partition_key"):
        item["key"] = metadata.partition_key
    if metadata.properties:
        item["properties"] = {pair.key: pair.value for pair in metadata.properties}
    return item


def item_text(item: Item) -> str:
    kind, *fields = item.items()
    return " ".join([str(kind[1]), *(f"{name}={_value(value)}" for name, value in fields if value is not None)])


def _value(value: object) -> str:
    """Quote values with spaces or control characters, so that a client's bytes never reach the terminal unescaped."""
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str) and value.isprintable() and value and " " not in value:
        return value
    return json.dumps(value)
