"""Detection of damage in a SQLite write-ahead log. Pure.

SQLite treats the first frame with a wrong checksum as the end of the log, so damage in the middle silently undoes later
commits. Checksums are chained: a later frame that continues the chain proves that the log was longer. A crash may leave
frames of an uncommitted transaction, but the next transaction begins only when the previous one is durable. Therefore a
frame of a later transaction proves damage.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

_HEADER = struct.Struct(">8I")
_FRAME = struct.Struct(">6I")
_MAGIC_LITTLE = 0x377F0682
_MASK = 0xFFFFFFFF

_Sums = tuple[int, int]


class LogFrame(NamedTuple):
    """One page in the log."""

    page_number: int
    data: bytes
    is_commit: bool
    """Whether the frame ends a transaction."""
    is_whole: bool
    """Whether the checksum is correct. A damaged frame's page number may be wrong."""


def log_page_size(data: bytes) -> int:
    """Return the page size in bytes from the header of a write-ahead log; 0 without a header."""
    return int(_HEADER.unpack_from(data)[2]) if len(data) >= _HEADER.size else 0


def log_frames(data: bytes, page_size: int) -> list[LogFrame]:
    """Return the frames since the last restart of the log up to the last undamaged frame, including damaged frames
    between them.
    """
    frame_bytes = _FRAME.size + page_size
    if len(data) < _HEADER.size + frame_bytes:
        return []
    magic, _, _, _, *salts, first, second = _HEADER.unpack_from(data)
    order = "<" if magic == _MAGIC_LITTLE else ">"
    # A checksum continues the checksum of the previous frame. If that frame is damaged, try its stored and its computed
    # checksum.
    sums: list[_Sums] = [(first, second)]
    if _add(order, (0, 0), data[: _HEADER.size - 8]) != sums[0]:
        salts = list(_FRAME.unpack_from(data, _HEADER.size)[2:4])
    frames: list[LogFrame] = []
    end = 0  # after the last undamaged frame
    for offset in range(_HEADER.size, len(data) - frame_bytes + 1, frame_bytes):
        page_number, database_pages, *_, first, second = _FRAME.unpack_from(data, offset)
        checked = [_check(order, each, data, offset, page_size, salts) for each in sums]
        is_whole = any(is_right for _, is_right in checked)
        start = offset + _FRAME.size
        frames.append(LogFrame(page_number, data[start : start + page_size], database_pages != 0, is_whole))
        sums = [(first, second)]
        if is_whole:
            end = len(frames)
        else:
            sums.append(checked[0][0])
    return frames[:end]


def find_log_damage(data: bytes) -> int | None:
    """Return the offset of the first damaged frame in a write-ahead log, 0 for a damaged header, None if the log is
    undamaged. A damaged frame counts only if frames of a later transaction follow, because a crash may leave incomplete
    frames at the end.
    """
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
            # Either the frame or its checksum may be damaged.
            stored = _FRAME.unpack_from(data, offset)[4:6]
            goes_on = any(
                _has_later_transaction(order, chain, data, offset, page_size, salts) for chain in (stored, computed)
            )
            return offset if goes_on else None
        sums = computed
        offset += frame_bytes
    return None


def _has_later_transaction(order: str, sums: _Sums, data: bytes, offset: int, page_size: int, salts: list[int]) -> bool:
    """Return whether the frames that continue the chain after `offset` reach into another transaction."""
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
