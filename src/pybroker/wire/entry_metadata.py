"""The few fields of a stored entry's metadata that the broker looks at, read without protobuf objects.

An entry is stored exactly as it was sent: `[0x0e01 crc32c(4)] metadata_size(4) MessageMetadata payload`.
"""

from __future__ import annotations

from pybroker.errors import ProtocolViolation
from pybroker.wire.varint import decode, skip_field

MAGIC_CRC32C = 0x0E01
_CHECKSUM_SIZE = 6
_PUBLISH_TIME_TAG = 3 << 3
_NUM_MESSAGES_TAG = 11 << 3
NUM_MESSAGES_BYTE = bytes((_NUM_MESSAGES_TAG,))


def metadata_span(entry: bytes) -> tuple[int, int]:
    """Where MessageMetadata begins and ends in `entry`. Raises ProtocolViolation when it does not fit."""
    start = _CHECKSUM_SIZE if entry[:2] == b"\x0e\x01" else 0
    size = int.from_bytes(entry[start : start + 4], "big")
    start += 4
    if len(entry) < start or start + size > len(entry):
        raise ProtocolViolation("message metadata is longer than its message")
    return start, start + size


def message_count(data: bytes, start: int, end: int) -> int:
    """`num_messages_in_batch` of the MessageMetadata at [start, end): 1 for a single message.

    Most metadata does not hold the byte of that field's tag at all, which one search tells.
    """
    if data.find(NUM_MESSAGES_BYTE, start, end) < 0:
        return 1
    count = 1
    pos = start
    while pos < end:
        tag, pos = decode(data, pos, end)
        if tag == _NUM_MESSAGES_TAG:
            count, pos = decode(data, pos, end)
        else:
            pos = skip_field(data, tag, pos, end)
    if not 0 < count < 1 << 31:
        raise ProtocolViolation(f"num_messages_in_batch is {count}")
    return count


def is_batch(entry: bytes) -> bool:
    """Whether the entry holds a batch, which may be of one message: its metadata then has `num_messages_in_batch`."""
    pos, end = metadata_span(entry)
    while pos < end:
        tag, pos = decode(entry, pos, end)
        if tag == _NUM_MESSAGES_TAG:
            return True
        pos = skip_field(entry, tag, pos, end)
    return False


def publish_time_ms(entry: bytes) -> int:
    """When the client sent the message, by its own clock, in milliseconds; 0 when the metadata does not say or does not parse.

    Never raises: what reads it (the index of a ledger, a search by time, expiry) must go on behind one broken entry.
    """
    try:
        pos, end = metadata_span(entry)
        while pos < end:
            tag, pos = decode(entry, pos, end)
            if tag == _PUBLISH_TIME_TAG:  # the third field of three that every client writes: the scan ends soon
                return decode(entry, pos, end)[0]
            pos = skip_field(entry, tag, pos, end)
    except ProtocolViolation:
        return 0
    return 0
