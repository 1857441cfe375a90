"""Byte layout of segment files: the entries of one ledger, and in a sealed ledger an index after them.

segment file
| header | block | block | ... | index | trailer |          index and trailer: sealed ledgers only

header
0          8         10     12     16          24       28      32
| magic    | version | zero | zero | ledger id | crc32c | zeros |
| PYBSEGMT | u16     | u16  | u32  | u64       | u32    |       |

block: consecutive entries, up to MAX_BLOCK_BYTES of them or a single larger one
0       4             8           16               24              28       32
| magic | entry count | ledger id | first entry id | payload bytes | crc32c | columns | payloads
| PSBK  | u32 n       | u64       | u64            | u32           | u32    |
columns: n lengths u32 | n message counts u32 | n crc32c u32 (each of one payload)
crc32c: of the 28 bytes before it and the columns. Damage of a payload affects that entry only. The ids are covered
too, which detects a block that a disk wrote to the wrong offset.

index
0       4         6      8           16            24              32           40            44
| magic | version | zero | ledger id | entry count | message count | size bytes | point count | columns flag | columns
| PSIX  | u16     | u16  | u64       | u64         | u64           | u64        | u32 p       | u32          |
columns: p first entry ids u64 | p offsets u64 | p messages before u64 | p payload bytes before u64
         and, with COLUMN_PUBLISH_TIMES set in the flag, p publish times u64: the latest of this and the earlier points'
         first entries, in milliseconds, 0 when not known
Points are whole blocks, at least POINT_SPACING_BYTES apart.

trailer, the last TRAILER_BYTES of a sealed file
0       4         6      8              16             20       24
| magic | version | zero | index offset | index length | crc32c |
| PSTR  | u16     | u16  | u64          | u32          | u32    |
crc32c: of the index and of the 20 bytes before it
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from crc32c import crc32c

from pybroker.storage_format.fields import LayoutError, UnknownVersion, pack_u32s, pack_u64s, unpack_u32s, unpack_u64s

SEGMENT_VERSION = 1
SEGMENT_HEADER_BYTES = 32
MAX_BLOCK_BYTES = 65536
MAX_BLOCK_ENTRIES = 4096
POINT_SPACING_BYTES = 65536
COLUMN_PUBLISH_TIMES = 1

_HEADER_MAGIC = b"PYBSEGMT"
_BLOCK_MAGIC = b"PSBK"
_INDEX_MAGIC = b"PSIX"
_TRAILER_MAGIC = b"PSTR"
_HEADER = struct.Struct("<8sHHIQ")
_BLOCK = struct.Struct("<4sIQQI")
_INDEX = struct.Struct("<4sHHQQQQII")
_TRAILER = struct.Struct("<4sHHQI")
_CHECKSUM = struct.Struct("<I")
_INDEX_COLUMNS = ("first_entry_ids", "offsets", "messages_before", "bytes_before", "publish_times")
_MAX_TIME_MS = (1 << 63) - 1

BLOCK_HEADER_BYTES = _BLOCK.size + _CHECKSUM.size
BLOCK_ENTRY_BYTES = 12
TRAILER_BYTES = _TRAILER.size + _CHECKSUM.size


@dataclass(frozen=True, slots=True)
class LedgerExtent:
    """The end of a ledger in its segment file. `end_offset` 0 means that there is no file yet."""

    end_offset: int
    entry_count: int
    message_count: int
    size_bytes: int


EMPTY_EXTENT = LedgerExtent(0, 0, 0, 0)

PublishTimeOf = Callable[[bytes], int]
"""Return the publish time of an entry in milliseconds, or raise if it is unknown."""


def no_publish_time(_entry: bytes) -> int:
    """Return 0, which means that the publish time of an entry is unknown."""
    return 0


class SegmentIndex:
    """Sparse index of a ledger's blocks: ascending points in packed arrays, 40 bytes for each 64 KiB of entries.

    `publish_times` is the running maximum of the publish times of the points' first entries, because clients' clocks
    may go back and a search needs ascending values. 0 means unknown. The column is empty in indexes of earlier
    versions.
    """

    __slots__ = ("_publish_time_of", "bytes_before", "first_entry_ids", "messages_before", "offsets", "publish_times")

    def __init__(self, publish_time_of: PublishTimeOf = no_publish_time) -> None:
        self._publish_time_of = publish_time_of
        self.first_entry_ids = array("Q")
        self.offsets = array("Q")
        self.messages_before = array("Q")
        self.bytes_before = array("Q")
        self.publish_times = array("Q")

    def __len__(self) -> int:
        return len(self.offsets)

    def is_point(self, offset: int) -> bool:
        return not self.offsets or offset >= self.offsets[-1] + POINT_SPACING_BYTES

    def add(
        self,
        first_entry_id: int,
        offset: int,
        messages_before: int,
        bytes_before: int,
        first_payload: bytes | memoryview | None,
    ) -> None:
        assert not self.offsets or first_entry_id > self.first_entry_ids[-1], "blocks rise"
        if len(self.publish_times) == len(self.offsets):
            self.publish_times.append(self._latest_publish_time(first_payload))
        self.first_entry_ids.append(first_entry_id)
        self.offsets.append(offset)
        self.messages_before.append(messages_before)
        self.bytes_before.append(bytes_before)

    def _latest_publish_time(self, payload: bytes | memoryview | None) -> int:
        earlier = self.publish_times[-1] if self.publish_times else 0
        if payload is None:
            return earlier
        try:
            return min(max(earlier, self._publish_time_of(bytes(payload))), _MAX_TIME_MS)
        except Exception:  # noqa: BLE001 - what a client wrote must never stop a checkpoint
            return earlier

    def copy(self) -> SegmentIndex:
        other = SegmentIndex(self._publish_time_of)
        for name in _INDEX_COLUMNS:
            setattr(other, name, getattr(self, name)[:])
        return other

    def point_of(self, entry_id: int) -> int:
        """Return the number of the last index point at or before an entry; -1 if there is none, because damage hides
        the entries before the first point.
        """
        return bisect_right(self.first_entry_ids, entry_id) - 1

    def point_at_or_behind(self, entry_id: int) -> int | None:
        point = bisect_left(self.first_entry_ids, entry_id)
        return point if point < len(self) else None

    def sparse_points(self, spacing_bytes: int) -> Iterator[tuple[int, int, int]]:
        """Yield (entry id, bytes before, messages before) of index points that are at least `spacing_bytes` of payload
        apart, without the first entry of the ledger.
        """
        next_bytes = spacing_bytes
        while (point := bisect_left(self.bytes_before, next_bytes)) < len(self):
            yield self.first_entry_ids[point], self.bytes_before[point], self.messages_before[point]
            next_bytes = self.bytes_before[point] + spacing_bytes

    def place_of(self, point: int) -> tuple[int, int]:
        if point < 0:
            return SEGMENT_HEADER_BYTES, 0
        return self.offsets[point], self.first_entry_ids[point]

    def totals_of(self, point: int) -> tuple[int, int]:
        return (self.messages_before[point], self.bytes_before[point]) if point >= 0 else (0, 0)

    def publish_time_span(self, publish_time_ms: int, entry_count: int) -> tuple[int, int]:
        """Return a range of entry ids [low, high) in which to search for an entry by its publish time (milliseconds
        since 1970), as defined by `LedgerIndex.publish_time_span`. `entry_count`: the number of entries of the ledger.
        """
        times = self.publish_times
        if not times:
            return 0, entry_count
        point = bisect_left(times, publish_time_ms)
        # If the time of the previous point is known, its entry is too early.
        low = self.first_entry_ids[point - 1] + 1 if point and times[point - 1] else 0
        return low, self.first_entry_ids[point] if point < len(times) else entry_count


@dataclass(frozen=True, slots=True)
class Block:
    """Checked header and columns of a block. Payloads start at `payload_offset` of the same bytes."""

    ledger_id: int
    first_entry_id: int
    lengths: array[int]
    message_counts: array[int]
    checksums: array[int]
    payload_offset: int
    payload_bytes: int

    @property
    def end_offset(self) -> int:
        return self.payload_offset + self.payload_bytes


def encode_segment_header(ledger_id: int) -> bytes:
    fields = _HEADER.pack(_HEADER_MAGIC, SEGMENT_VERSION, 0, 0, ledger_id)
    return (fields + _CHECKSUM.pack(crc32c(fields))).ljust(SEGMENT_HEADER_BYTES, b"\0")


def check_segment_header(data: bytes, ledger_id: int) -> None:
    """Raise LayoutError or UnknownVersion unless `data` begins with the segment file header of this ledger."""
    if len(data) < SEGMENT_HEADER_BYTES:
        raise LayoutError(f"the file of ledger {ledger_id} is truncated within its header: it has {len(data)} bytes")
    magic, version, _, _, found_id = _HEADER.unpack_from(data)
    if magic != _HEADER_MAGIC:
        raise LayoutError(
            f"the file of ledger {ledger_id} is damaged, or is not a ledger file: it does not begin with the header of a "
            "ledger file"
        )
    if version != SEGMENT_VERSION:
        cause = ": start the newer version that wrote it" if version > SEGMENT_VERSION else ""
        raise UnknownVersion(
            f"the file of ledger {ledger_id} has version {version}, but this version of pybroker supports "
            f"only version {SEGMENT_VERSION}{cause}"
        )
    if data[:SEGMENT_HEADER_BYTES] != encode_segment_header(ledger_id):
        raise LayoutError(
            f"the header of the file of ledger {ledger_id} is damaged, or the file is of ledger {found_id}"
        )


def split_into_blocks(payloads: Sequence[bytes | memoryview]) -> list[tuple[int, int]]:
    ends = list(accumulate(map(len, payloads)))
    ranges = []
    start, start_bytes = 0, 0
    while start < len(ends):
        # At least one entry: a large one gets its own block.
        end = max(start + 1, bisect_right(ends, start_bytes + MAX_BLOCK_BYTES, start))
        end = min(end, start + MAX_BLOCK_ENTRIES)
        ranges.append((start, end))
        start, start_bytes = end, ends[end - 1]
    return ranges


def encode_block(
    ledger_id: int, first_entry_id: int, payloads: Sequence[bytes | memoryview], message_counts: Sequence[int]
) -> list[bytes | memoryview]:
    lengths = pack_u32s(map(len, payloads))
    columns = b"".join((lengths, pack_u32s(message_counts), pack_u32s(map(crc32c, payloads))))
    fields = _BLOCK.pack(_BLOCK_MAGIC, len(payloads), ledger_id, first_entry_id, sum(lengths))
    return [fields + _CHECKSUM.pack(crc32c(columns, crc32c(fields))) + columns, *payloads]


def block_length(entry_count: int, payload_bytes: int) -> int:
    return BLOCK_HEADER_BYTES + BLOCK_ENTRY_BYTES * entry_count + payload_bytes


def decode_block(data: memoryview, offset: int) -> Block | int:
    """Decode and check header and columns of the block at `offset`; its payloads may be beyond `data`. If header or
    columns are truncated, return the number of bytes that are needed from `offset` on. Raises LayoutError.
    """
    if offset + BLOCK_HEADER_BYTES > len(data):
        return BLOCK_HEADER_BYTES
    magic, count, ledger_id, first_entry_id, payload_bytes = _BLOCK.unpack_from(data, offset)
    if magic != _BLOCK_MAGIC:
        raise LayoutError("the ledger file is damaged: no block of entries begins at this offset")
    if not 0 < count <= MAX_BLOCK_ENTRIES:
        raise LayoutError(
            f"the block at this offset of the ledger file is damaged: it claims {count} entries, but a block has from 1 to "
            f"{MAX_BLOCK_ENTRIES}"
        )
    columns_offset = offset + BLOCK_HEADER_BYTES
    payload_offset = columns_offset + BLOCK_ENTRY_BYTES * count
    if payload_offset > len(data):
        return BLOCK_HEADER_BYTES + BLOCK_ENTRY_BYTES * int(count)
    (checksum,) = _CHECKSUM.unpack_from(data, offset + _BLOCK.size)
    fields = data[offset : offset + _BLOCK.size]
    if checksum != crc32c(data[columns_offset:payload_offset], crc32c(fields)):
        raise LayoutError("the block at this offset of the ledger file is damaged: its header has a wrong checksum")
    column_bytes = 4 * count
    lengths, message_counts, checksums = (
        unpack_u32s(data[start : start + column_bytes]) for start in range(columns_offset, payload_offset, column_bytes)
    )
    if sum(lengths) != payload_bytes:
        raise LayoutError(
            f"the block at this offset of the ledger file is damaged: its entries have {sum(lengths)} bytes, but its "
            f"header claims {payload_bytes}"
        )
    return Block(ledger_id, first_entry_id, lengths, message_counts, checksums, payload_offset, payload_bytes)


def encode_index(ledger_id: int, extent: LedgerExtent, index: SegmentIndex) -> bytes:
    fields = _INDEX.pack(
        _INDEX_MAGIC,
        SEGMENT_VERSION,
        0,
        ledger_id,
        extent.entry_count,
        extent.message_count,
        extent.size_bytes,
        len(index),
        COLUMN_PUBLISH_TIMES if index.publish_times else 0,
    )
    body = b"".join((fields, *(pack_u64s(getattr(index, name)) for name in _INDEX_COLUMNS)))
    trailer = _TRAILER.pack(_TRAILER_MAGIC, SEGMENT_VERSION, 0, extent.end_offset, len(body))
    return b"".join((body, trailer, _CHECKSUM.pack(crc32c(trailer, crc32c(body)))))


def is_index_start(data: bytes | memoryview, ledger_id: int) -> bool:
    """Return whether `data` begins like the index of this ledger, even with a wrong checksum."""
    return len(data) >= _INDEX.size and bytes(data[:4]) == _INDEX_MAGIC and _INDEX.unpack_from(data)[3] == ledger_id


def find_block(data: bytes, start: int) -> int:
    """Return the offset of the next possible start of a block at or after `start`; -1 if there is none."""
    return data.find(_BLOCK_MAGIC, start)


def block_length_said(data: memoryview, offset: int) -> tuple[int, int]:
    """Return the number of entries and the length in bytes that the header of the block at `offset` states, without
    checking them; zeros if the header is truncated.
    """
    if offset + BLOCK_HEADER_BYTES > len(data):
        return 0, 0
    _, count, _, _, payload_bytes = _BLOCK.unpack_from(data, offset)
    return count, block_length(count, payload_bytes)


def decode_trailer(data: bytes, file_size: int) -> tuple[int, int]:
    """Return offset and length of the index of a sealed segment file. `data`: the last TRAILER_BYTES of the file.
    Raises LayoutError.
    """
    if len(data) != TRAILER_BYTES:
        raise LayoutError(
            f"the ledger file is truncated: it has only {file_size} bytes, fewer than its trailer. Restore the file from a "
            "backup, or run `pybroker ledger repair`"
        )
    magic, version, _, offset, length = _TRAILER.unpack_from(data)
    if magic != _TRAILER_MAGIC:
        raise LayoutError(
            "the ledger file is truncated or damaged: it does not end with a trailer. Restore the file from a backup, or run "
            "`pybroker ledger repair`"
        )
    if version != SEGMENT_VERSION:
        raise LayoutError(
            f"the trailer of the ledger file has version {version}, but this version of pybroker supports "
            f"only version {SEGMENT_VERSION}: the file is damaged, or a newer pybroker wrote it"
        )
    if offset + length + TRAILER_BYTES != file_size:
        raise LayoutError(
            f"the ledger file is damaged: it has {file_size} bytes, but according to its trailer "
            f"{offset + length + TRAILER_BYTES} bytes. Restore the file from a backup, or run `pybroker ledger repair`"
        )
    return offset, length


def decode_index(data: bytes, ledger_id: int, index_offset: int) -> tuple[LedgerExtent, SegmentIndex]:
    body, trailer = data[:-TRAILER_BYTES], data[-TRAILER_BYTES:]
    end_offset, length = decode_trailer(trailer, index_offset + len(data))
    (checksum,) = _CHECKSUM.unpack_from(trailer, _TRAILER.size)
    if length != len(body) or length < _INDEX.size or checksum != crc32c(trailer[: _TRAILER.size], crc32c(body)):
        raise LayoutError(f"the index at the end of the file of ledger {ledger_id} is damaged: it has a wrong checksum")
    magic, _, _, found_id, entries, messages, size, points, columns_flag = _INDEX.unpack_from(body)
    if magic != _INDEX_MAGIC or found_id != ledger_id:
        raise LayoutError(
            f"the file of ledger {ledger_id} contains the index of ledger {found_id}: files were exchanged. Restore the "
            "file from a backup"
        )
    names = _INDEX_COLUMNS if columns_flag & COLUMN_PUBLISH_TIMES else _INDEX_COLUMNS[:-1]
    if len(body) != _INDEX.size + 8 * points * len(names):
        raise LayoutError(
            f"the index at the end of the file of ledger {ledger_id} is damaged: it claims {points} points, which do not "
            f"match its length of {len(body)} bytes"
        )
    index = SegmentIndex()
    start = _INDEX.size
    for name in names:
        setattr(index, name, unpack_u64s(body[start : start + 8 * points]))
        start += 8 * points
    return LedgerExtent(end_offset, entries, messages, size), index
