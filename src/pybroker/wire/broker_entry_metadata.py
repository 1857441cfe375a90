"""Broker metadata: a prefix that the broker adds to stored entries, with receive time and index of the last message.

    0x0e02  size(4)  BrokerEntryMetadata  entry as it was sent

Clients that do not support the prefix receive the entry without it. A client's entry cannot begin with these bytes,
because they would mean metadata larger than any frame.
"""

from __future__ import annotations

from dataclasses import dataclass

from pybroker.errors import ProtocolViolation
from pybroker.wire.entry_metadata import message_start, publish_time_ms
from pybroker.wire.varint import decode, encode, skip_field

_MAGIC = b"\x0e\x02"
_FIELDS_START = 6
_TIMESTAMP_TAG = 1 << 3
_INDEX_TAG = 2 << 3


@dataclass(frozen=True, slots=True)
class BrokerEntryMetadata:
    """The fields of the broker metadata; None for absent fields."""

    timestamp_ms: int | None
    index: int | None
    """Index of the entry's last message, counted from 0 over all messages of the topic."""


NOTHING_ADDED = BrokerEntryMetadata(None, None)


def with_broker_metadata(entry: bytes, timestamp_ms: int | None, index: int | None) -> bytes:
    fields = b""
    if timestamp_ms is not None:
        fields = b"\x08" + encode(timestamp_ms)
    if index is not None:
        fields += b"\x10" + encode(index)
    return _MAGIC + len(fields).to_bytes(4, "big") + fields + entry


def without_broker_metadata(entry: bytes) -> bytes:
    start = message_start(entry)
    return entry[start:] if start else entry


def broker_metadata(entry: bytes) -> BrokerEntryMetadata:
    """Return the broker metadata of an entry. Never raises: invalid broker metadata counts as absent."""
    end = message_start(entry)
    if not end:
        return NOTHING_ADDED
    timestamp_ms = index = None
    pos = _FIELDS_START
    try:
        while pos < end:
            tag, pos = decode(entry, pos, end)
            if tag == _TIMESTAMP_TAG:
                timestamp_ms, pos = decode(entry, pos, end)
            elif tag == _INDEX_TAG:
                index, pos = decode(entry, pos, end)
            else:
                pos = skip_field(entry, tag, pos, end)
    except ProtocolViolation:
        return NOTHING_ADDED
    return BrokerEntryMetadata(timestamp_ms, index)


def entry_time_ms(entry: bytes) -> int:
    """Return the time of an entry for expiry and searches: the broker's receive time if stored, else the client's
    publish time. Never raises.
    """
    if entry[:2] == _MAGIC:
        timestamp_ms = broker_metadata(entry).timestamp_ms
        if timestamp_ms:
            return timestamp_ms
    return publish_time_ms(entry)
