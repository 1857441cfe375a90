"""An entry of a compacted ledger: the entry as clients receive it, followed by its position in the topic.

    entry bytes | ledger id i64 | entry id i64        little-endian

Readers of the beginning of an entry (publish time, metadata) need not know about the position.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from pybroker.errors import StoreError
from pybroker.model.position import Position

_PLACE = struct.Struct("<qq")


class CompactedEntry(NamedTuple):
    """An entry of the view; `position` is that in the topic."""

    position: Position
    payload: bytes
    message_count: int


def encode_stored(position: Position, payload: bytes) -> bytes:
    return payload + _PLACE.pack(*position)


def decode_stored(stored: bytes, message_count: int) -> CompactedEntry:
    """Raises StoreError if `stored` is too short."""
    if len(stored) < _PLACE.size:
        raise StoreError(f"an entry of {len(stored)} bytes is none of a compacted ledger")
    position = Position(*_PLACE.unpack_from(stored, len(stored) - _PLACE.size))
    return CompactedEntry(position, stored[: -_PLACE.size], message_count)
