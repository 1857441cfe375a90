"""What both halves of the plain Python scanner read fields with."""

from __future__ import annotations

from pybroker.columns.scanner_layout import Flag
from pybroker.errors import ProtocolViolation
from pybroker.wire.varint import decode

# Plain numbers: operations on members of an IntFlag take a microsecond each.
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
    """A field that must be there is not."""


def signed(value: int) -> int:
    """A 64-bit varint as the signed number that it is."""
    return value - (1 << 64) if value >> 63 else value


def signed32(value: int) -> int:
    value &= 0xFFFF_FFFF
    return value - (1 << 32) if value >> 31 else value


def span(data: bytes, pos: int, end: int) -> tuple[int, int, int]:
    """Start and size of the bytes field whose tag was just read, and where it ends."""
    if pos < end and data[pos] < 0x80:
        size, start = data[pos], pos + 1
    else:
        size, start = decode(data, pos, end)
    if start + size > end:
        raise ProtocolViolation("field longer than its message")
    return start, size, start + size
