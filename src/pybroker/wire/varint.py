"""Encoding and decoding of protobuf varints, optimized for Python: two table lookups for any value below 2^28."""

from __future__ import annotations

from pybroker.errors import ProtocolViolation


def _encode_slowly(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


# LAST[v] ends a varint; MORE[v] is 14 bits with more to follow.
_LAST: list[bytes] = [_encode_slowly(value) for value in range(1 << 14)]
_MORE: list[bytes] = [bytes((value & 0x7F | 0x80, value >> 7 | 0x80)) for value in range(1 << 14)]


def encode(value: int) -> bytes:
    """Encode an unsigned 64-bit value, or a negative value in two's complement of 64 bits."""
    if 0 <= value < 0x4000:
        return _LAST[value]
    if 0 <= value < 0x10000000:
        return _MORE[value & 0x3FFF] + _LAST[value >> 14]
    return _encode_slowly(value & 0xFFFF_FFFF_FFFF_FFFF)


def encode_range(first: int, count: int) -> tuple[list[bytes], bytes] | None:
    """Encode `count` consecutive values as (first bytes of each value, common last bytes), without work for each value.

    Return None unless all have the same length and the same last bytes; the caller then encodes them one by one.
    """
    last = first + count - 1
    low = first & 0x3FFF
    if first >> 14 != last >> 14 or not 0x80 <= first < 0x10000000:
        return None
    if first < 0x4000:
        return _LAST[low : low + count], b""
    return _MORE[low : low + count], _LAST[first >> 14]


def decode(data: bytes, pos: int, end: int) -> tuple[int, int]:
    """Return the varint at offset `pos` of `data`, and the offset after it. Raises ProtocolViolation if it does not end
    before `end`.
    """
    result = 0
    shift = 0
    while pos < end:
        byte = data[pos]
        pos += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return result & 0xFFFF_FFFF_FFFF_FFFF, pos
        shift += 7
        if shift > 63:
            break
    raise ProtocolViolation(
        "the protobuf message is damaged: it ends within a number (varint), or a number has more than ten bytes"
    )


def skip_field(data: bytes, tag: int, pos: int, end: int) -> int:
    wire_type = tag & 7
    if wire_type == 0:
        return decode(data, pos, end)[1]
    if wire_type == 2:
        length, pos = decode(data, pos, end)
        pos += length
    elif wire_type == 1:
        pos += 8
    elif wire_type == 5:
        pos += 4
    else:
        raise ProtocolViolation(f"the protobuf message is damaged: a field has the unknown wire type {wire_type}")
    if pos > end:
        raise ProtocolViolation("the protobuf message is damaged: it ends within a field")
    return pos
