"""Avro format of TransactionBufferSnapshot, in which Java brokers store a topic's aborted transactions. Pure."""

from __future__ import annotations

from pybroker.model.names import TopicName
from pybroker.model.position import EARLIEST, Position

_PRESENT = b"\x02"
"""Of a union of null and a type."""
_ABSENT = b"\x00"
_NO_ITEMS = b"\x00"
_MAX_LONG_BYTES = 10


class InvalidSnapshot(Exception):
    """The value is not a TransactionBufferSnapshot."""


def encode_snapshot(topic: TopicName, last: Position) -> bytes:
    """Return a snapshot of `topic` without aborted transactions, with the max read position `last`."""
    name = str(topic).encode()
    position = _long(last.entry_id) + _long(last.ledger_id)
    return b"".join((_PRESENT, _NO_ITEMS, position, _PRESENT, _long(len(name)), name))


def start_behind(snapshot: bytes) -> Position:
    """Return the position up to which no message belongs to an open or aborted transaction: the max read position if
    the snapshot has no aborted transactions, otherwise EARLIEST. Raises InvalidSnapshot.
    """
    if snapshot[:1] == _ABSENT:
        at = 1
    elif snapshot[:2] == _PRESENT + _NO_ITEMS:
        at = 2
    elif snapshot[:1] == _PRESENT:
        return EARLIEST
    else:
        raise InvalidSnapshot(
            f"the transaction snapshot that a Java broker stored is damaged: it begins with the byte {snapshot[:1]!r}, which "
            "is not the start of an Avro list"
        )
    entry_id, at = _read_long(snapshot, at)
    ledger_id, at = _read_long(snapshot, at)
    return Position(ledger_id, entry_id) if ledger_id >= 0 else EARLIEST


def _read_long(value: bytes, at: int) -> tuple[int, int]:
    """Return the Avro number at the index `at`, and the index after it. Raises InvalidSnapshot."""
    number = 0
    for shift in range(0, 7 * _MAX_LONG_BYTES, 7):
        if at >= len(value):
            break
        number |= (value[at] & 0x7F) << shift
        at += 1
        if value[at - 1] < 0x80:
            return number >> 1 ^ -(number & 1), at
    raise InvalidSnapshot(
        f"the transaction snapshot that a Java broker stored is damaged: it ends within an Avro number ({value!r})"
    )


def _long(number: int) -> bytes:
    left = (number << 1) ^ (number >> 63)
    encoded = bytearray()
    while left > 0x7F:
        encoded.append(left & 0x7F | 0x80)
        left >>= 7
    encoded.append(left)
    return bytes(encoded)
