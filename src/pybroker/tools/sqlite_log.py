"""Damage in the write-ahead log of a SQLite file. Pure.

SQLite takes the first frame with a wrong checksum for the end of the log, so damage in the middle silently undoes what was
committed behind it. Checksums are chained: a frame that fits the one before it, which does not fit, proves that the log went
on. But a crash may leave any frames of a transaction that was never committed, later ones without earlier ones too; the next
transaction begins only when the one before it is on the device. So damage is proved by a frame of a transaction behind it.
"""

from __future__ import annotations

import struct

_HEADER = struct.Struct(">8I")
_FRAME = struct.Struct(">6I")
_MAGIC_LITTLE = 0x377F0682
_MASK = 0xFFFFFFFF

_Sums = tuple[int, int]


def find_log_damage(data: bytes) -> int | None:
    """The offset of the first damaged frame, 0 for the header, None when the log is sound."""
    if len(data) < _HEADER.size:
        return None
    magic, _, page_size, _, *salts, first, second = _HEADER.unpack_from(data)
    order = "<" if magic == _MAGIC_LITTLE else ">"
    sums = _add(order, (0, 0), data[: _HEADER.size - 8])
    if sums != (first, second):
        return 0
    frame_bytes = _FRAME.size + page_size
    offset = _HEADER.size
    while offset + frame_bytes <= len(data):
        computed, is_right = _check(order, sums, data, offset, page_size, salts)
        if not is_right:
            # Either part may be what is damaged: the frame, or its checksum.
            stored = _FRAME.unpack_from(data, offset)[4:6]
            goes_on = any(
                _has_later_transaction(order, chain, data, offset, page_size, salts) for chain in (stored, computed)
            )
            return offset if goes_on else None
        sums = computed
        offset += frame_bytes
    return None


def _has_later_transaction(order: str, sums: _Sums, data: bytes, offset: int, page_size: int, salts: list[int]) -> bool:
    """Whether the frames that fit behind the one at `offset`, with these checksums behind it, reach into another transaction."""
    frame_bytes = _FRAME.size + page_size
    has_commit = False
    while offset + 2 * frame_bytes <= len(data):
        has_commit |= _FRAME.unpack_from(data, offset)[1] != 0
        offset += frame_bytes
        sums, is_right = _check(order, sums, data, offset, page_size, salts)
        if not is_right or has_commit:
            return is_right
    return False


def _check(order: str, sums: _Sums, data: bytes, offset: int, page_size: int, salts: list[int]) -> tuple[_Sums, bool]:
    """The checksums behind a frame, and whether it is one of this log that fits."""
    start = offset + _FRAME.size
    computed = _add(order, _add(order, sums, data[offset : offset + 8]), data[start : start + page_size])
    fields = _FRAME.unpack_from(data, offset)
    return computed, list(fields[2:4]) == salts and fields[4:6] == computed


def _add(order: str, sums: _Sums, data: bytes) -> _Sums:
    first, second = sums
    for even, odd in struct.iter_unpack(f"{order}II", data):
        first = (first + even + second) & _MASK
        second = (second + odd + first) & _MASK
    return first, second
