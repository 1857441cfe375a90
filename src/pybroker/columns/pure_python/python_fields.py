"""Reading of protobuf fields for the pure Python scanner."""

from __future__ import annotations

from pybroker.columns.scanner_layout import Flag
from pybroker.errors import ProtocolViolation
from pybroker.wire.varint import decode

# Plain numbers, because IntFlag operations take a microsecond each.
EVENT_TIME = int(Flag.EVENT_TIME)
NULL_VALUE = int(Flag.NULL_VALUE)
NULL_KEY = int(Flag.NULL_KEY)
KEY_IS_BASE64 = int(Flag.KEY_IS_BASE64)
PROPERTIES = int(Flag.PROPERTIES)
REPEATED_PROPERTIES = int(Flag.REPEATED_PROPERTIES)
INDEX = int(Flag.INDEX)
BATCH = int(Flag.BATCH)
ENCRYPTED = int(Flag.ENCRYPTED)
MARKER = int(Flag.MARKER)
SKIPPED = int(Flag.SKIPPED)
MAX_SIZE = 0x7FFF_FFFF


class MissingField(Exception):
    """A required field is missing."""


def signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def signed32(value: int) -> int:
    value &= 0xFFFF_FFFF
    return value - (1 << 32) if value >> 31 else value


def span(data: bytes, pos: int, end: int) -> tuple[int, int, int]:
    """Return the start, size and end of the value of a protobuf bytes field in `data`. `pos`: the offset after the
    field's tag. `end`: the end of the message. Raises ProtocolViolation if the value extends beyond `end`.
    """
    if pos < end and data[pos] < 0x80:
        size, start = data[pos], pos + 1
    else:
        size, start = decode(data, pos, end)
    if start + size > end:
        raise ProtocolViolation("a field of the message metadata is longer than the metadata")
    return start, size, start + size
