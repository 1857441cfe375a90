"""Byte layout of journal files, batches and records.

A journal file is a header and then batches, each at a multiple of BATCH_ALIGNMENT. A file is reused without being
cleared. A batch is valid only with the file's generation and a checksum that starts from the file's random salt, so old
batches are invalid and a client cannot forge a batch inside a payload.

    file header, FILE_HEADER_BYTES long, zeros after the fields
    0         8        10       12      16           24       28
    | magic   | version| zero   | salt  | generation | crc32c | zeros ...
    | PYBJOURN| u16    | u16    | u32   | u64        | u32    |

    batch
    0        4         6       8            16         24            28             32       36
    | magic  | version | zero  | generation | sequence | body length | record count | crc32c | body | old bytes up to the alignment
    | PJBT   | u16     | u16   | u64        | u64      | u32         | u32          | u32    |
    crc32c: of the 32 bytes before it and the body, started from the file's salt

    body: records, each
    0      1      4             8
    | type | zero | body length | body
    | u8   | 3 B  | u32         |

    APPEND           | ledger id u64 | first entry id u64 | n u32 | n lengths u32 | n message counts u32 | n payloads
    LEDGER_CREATED   | ledger id u64
    LEDGER_DELETED   | ledger id u64
    CURSOR_DELTA     | number u64 | length of id u16 | cursor id, UTF-8 | delta
    CURSOR_SNAPSHOT  | number u64 | length of id u16 | cursor id, UTF-8 | snapshot
    CURSOR_DELETED   | number u64 | length of id u16 | cursor id, UTF-8
    PROBE            | nothing: written to test whether the journal can be written

The number of a cursor record rises over the whole store: a snapshot covers the deltas with smaller numbers.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from itertools import accumulate, pairwise
from typing import NamedTuple

from crc32c import crc32c

from pybroker.storage_format.fields import LayoutError, UnknownVersion, pack_u32s

JOURNAL_VERSION = 1
FILE_HEADER_BYTES = 4096
# One sector, so that a torn write cannot damage the previous batch.
BATCH_ALIGNMENT = 512
MAX_CURSOR_ID_BYTES = 0xFFFF

_FILE_MAGIC = b"PYBJOURN"
_KEEP_LOCK_BELOW_BYTES = 1 << 20
_BATCH_MAGIC = b"PJBT"
_FILE_HEADER = struct.Struct("<8sHHIQ")
_BATCH_HEADER = struct.Struct("<4sHHQQII")
_BATCH_PREFIX = struct.Struct("<4sHHQ")
_CHECKSUM = struct.Struct("<I")
_RECORD_HEADER = struct.Struct("<B3xI")
_APPEND_HEADER = struct.Struct("<B3xIQQI")  # record header and the fixed part of the body
_APPEND_FIXED = struct.Struct("<QQI")
_APPEND_ENTRY = struct.Struct("<II")  # the columns of a single entry
_LEDGER_ID = struct.Struct("<Q")
_CURSOR_FIXED = struct.Struct("<QH")

FILE_HEADER_USED_BYTES = _FILE_HEADER.size + _CHECKSUM.size
BATCH_HEADER_BYTES = _BATCH_HEADER.size + _CHECKSUM.size
# Size of an APPEND record without payloads: fixed part, and per entry.
APPEND_RECORD_BYTES = _APPEND_HEADER.size
APPEND_ENTRY_BYTES = 8


class RecordType(IntEnum):
    """First byte of a record; numbers are never reused."""

    APPEND = 1
    LEDGER_CREATED = 2
    LEDGER_DELETED = 3
    CURSOR_DELTA = 4
    CURSOR_SNAPSHOT = 5
    CURSOR_DELETED = 6
    PROBE = 7


_LEDGER_TYPES = (RecordType.LEDGER_CREATED, RecordType.LEDGER_DELETED)
_TYPES = {int(record_type): record_type for record_type in RecordType}


@dataclass(frozen=True, slots=True)
class FileHeader:
    """The header of a journal file: its position in the order of all files, and the start value of its checksums."""

    generation: int
    salt: int


class BatchHeader(NamedTuple):
    """A batch with a valid checksum. Its body is at `body_offset` of the file."""

    generation: int
    sequence: int
    record_count: int
    body_offset: int
    body_length: int

    @property
    def end_offset(self) -> int:
        return align(self.body_offset + self.body_length)


class AppendRecord(NamedTuple):
    """A record of consecutive entries of one ledger."""

    ledger_id: int
    first_entry_id: int
    payloads: list[memoryview]
    message_counts: tuple[int, ...]
    size_bytes: int  # of the payloads


@dataclass(frozen=True, slots=True)
class LedgerRecord:
    """A record of the creation or deletion of a ledger."""

    type: RecordType
    ledger_id: int


class CursorRecord(NamedTuple):
    """A record about a cursor. `data` is the delta or the snapshot; empty for a deletion."""

    type: RecordType
    cursor_id: str
    number: int
    data: bytes


def align(offset: int) -> int:
    """Round `offset` up to the next possible start of a batch."""
    return -(-offset // BATCH_ALIGNMENT) * BATCH_ALIGNMENT


def encode_file_header(header: FileHeader) -> bytes:
    fields = _FILE_HEADER.pack(_FILE_MAGIC, JOURNAL_VERSION, 0, header.salt, header.generation)
    return (fields + _CHECKSUM.pack(crc32c(fields))).ljust(FILE_HEADER_BYTES, b"\0")


def decode_file_header(data: bytes | memoryview) -> FileHeader:
    if len(data) < _FILE_HEADER.size + _CHECKSUM.size:
        raise LayoutError(
            f"the journal file ends within its header, after {len(data)} bytes: run `pybroker ledger repair`"
        )
    magic, version, _, salt, generation = _FILE_HEADER.unpack_from(data)
    if magic != _FILE_MAGIC:
        raise LayoutError(
            "the file is damaged, or is not a journal file: it does not begin with the header of a journal file"
        )
    # Before the checksum, which a newer version may compute differently.
    if version != JOURNAL_VERSION:
        text = f"the journal file has version {version}, but this version of pybroker supports only version {JOURNAL_VERSION}"
        if version > JOURNAL_VERSION:
            raise UnknownVersion(
                f"{text}: start the newer version that wrote it. If no newer version was used, the header is damaged"
            )
        raise LayoutError(text)
    (checksum,) = _CHECKSUM.unpack_from(data, _FILE_HEADER.size)
    if checksum != crc32c(data[: _FILE_HEADER.size]):
        raise LayoutError("the header of the journal file has a wrong checksum: run `pybroker ledger repair`")
    return FileHeader(generation, salt)


def encode_batch_header(file: FileHeader, sequence: int, record_count: int, body: bytes) -> bytes:
    fields = _BATCH_HEADER.pack(_BATCH_MAGIC, JOURNAL_VERSION, 0, file.generation, sequence, len(body), record_count)
    # Keep the interpreter lock for a usual batch: getting it back from a busy event loop costs more than the sum.
    keep_lock = 0 if len(body) < _KEEP_LOCK_BELOW_BYTES else -1
    return fields + _CHECKSUM.pack(crc32c(body, crc32c(fields, file.salt), keep_lock))


def batch_prefix(file: FileHeader) -> bytes:
    return _BATCH_PREFIX.pack(_BATCH_MAGIC, JOURNAL_VERSION, 0, file.generation)


def decode_batch_header(data: memoryview, offset: int, file: FileHeader) -> BatchHeader | None:
    body_offset = offset + BATCH_HEADER_BYTES
    if body_offset > len(data):
        return None
    magic, version, _, generation, sequence, length, record_count = _BATCH_HEADER.unpack_from(data, offset)
    if magic != _BATCH_MAGIC or version != JOURNAL_VERSION or generation != file.generation:
        return None
    if body_offset + length > len(data):
        return None
    (checksum,) = _CHECKSUM.unpack_from(data, offset + _BATCH_HEADER.size)
    fields = data[offset : offset + _BATCH_HEADER.size]
    if checksum != crc32c(data[body_offset : body_offset + length], crc32c(fields, file.salt)):
        return None
    return BatchHeader(generation, sequence, record_count, body_offset, length)


def batch_crc_from(data: memoryview, offset: int) -> tuple[int, Callable[[int], int]] | None:
    """Return the stored checksum of the batch at `offset`, and a function that computes the checksum from a salt
    (`FileHeader.salt`, the start value). Return None if the batch is truncated.
    """
    body_offset = offset + BATCH_HEADER_BYTES
    if body_offset > len(data):
        return None
    length = int(_BATCH_HEADER.unpack_from(data, offset)[5])
    if body_offset + length > len(data):
        return None
    fields, body = data[offset : offset + _BATCH_HEADER.size], data[body_offset : body_offset + length]
    (checksum,) = _CHECKSUM.unpack_from(data, offset + _BATCH_HEADER.size)
    return int(checksum), lambda salt: crc32c(body, crc32c(fields, salt))


def batch_bytes_said(data: memoryview, offset: int, file: FileHeader) -> int:
    """Return the number of bytes of `data` that belong to the batch at `offset` according to its header, even if the
    batch is truncated. Return 0 without a complete batch header of the file's generation at `offset`; a reused file also
    contains batches of earlier generations.
    """
    prefix = batch_prefix(file)
    if data[offset : offset + len(prefix)] != prefix or offset + BATCH_HEADER_BYTES > len(data):
        return 0
    length = int(_BATCH_HEADER.unpack_from(data, offset)[5])
    return min(BATCH_HEADER_BYTES + length, len(data) - offset)


def encode_append(
    parts: list[bytes | array[int]],
    ledger_id: int,
    first_entry_id: int,
    payloads: list[bytes],
    message_counts: list[int],
) -> None:
    count = len(payloads)
    lengths = pack_u32s(map(len, payloads))
    body_length = _APPEND_FIXED.size + APPEND_ENTRY_BYTES * count + sum(lengths)
    parts += (
        _APPEND_HEADER.pack(RecordType.APPEND, body_length, ledger_id, first_entry_id, count),
        lengths,
        pack_u32s(message_counts),
    )
    parts += payloads


def encode_ledger_record(record: LedgerRecord) -> bytes:
    return _RECORD_HEADER.pack(record.type, _LEDGER_ID.size) + _LEDGER_ID.pack(record.ledger_id)


def encode_probe() -> bytes:
    return _RECORD_HEADER.pack(RecordType.PROBE, 0)


def encode_cursor_record(record: CursorRecord) -> bytes:
    cursor_id = record.cursor_id.encode()
    if len(cursor_id) > MAX_CURSOR_ID_BYTES:
        raise LayoutError(
            f"the cursor id {record.cursor_id[:100]!r} has {len(cursor_id)} bytes; the journal stores at most "
            f"{MAX_CURSOR_ID_BYTES} bytes"
        )
    fixed = _CURSOR_FIXED.pack(record.number, len(cursor_id))
    header = _RECORD_HEADER.pack(record.type, len(fixed) + len(cursor_id) + len(record.data))
    return b"".join((header, fixed, cursor_id, record.data))


def decode_records(body: memoryview) -> Iterator[AppendRecord | LedgerRecord | CursorRecord]:
    offset, end = 0, len(body)
    while offset < end:
        start = offset + _RECORD_HEADER.size
        if start > end:
            raise LayoutError(
                f"the record at byte {offset} of the journal batch is damaged: the batch ends within the record's header"
            )
        number, length = _RECORD_HEADER.unpack_from(body, offset)
        offset = start + length
        if offset > end:
            raise LayoutError(
                f"the record at byte {start - _RECORD_HEADER.size} of the journal batch is damaged: it claims {length} bytes, "
                f"but only {end - start} bytes follow"
            )
        record_type = _TYPES.get(number)
        if record_type is None:
            raise LayoutError(
                f"the record at byte {start - _RECORD_HEADER.size} of the journal batch has the unknown type {number}: the "
                "journal is damaged, or a newer pybroker wrote it"
            )
        if record_type is RecordType.APPEND:
            yield _decode_append(body, start, offset)
        elif record_type in _LEDGER_TYPES:
            yield _decode_ledger(record_type, body[start:offset])
        elif record_type is not RecordType.PROBE:
            yield _decode_cursor(record_type, body[start:offset])


def ledger_changes(body: memoryview) -> Iterator[tuple[RecordType, int, int]]:
    """Yield (record type, ledger id, end) of each record about a ledger in a batch; `end` is the id after the last
    entry of an APPEND record, else 0.
    """
    offset = 0
    while offset + _RECORD_HEADER.size <= len(body):
        number, length = _RECORD_HEADER.unpack_from(body, offset)
        offset += _RECORD_HEADER.size
        if number == RecordType.APPEND and length >= _APPEND_FIXED.size:
            ledger_id, first_entry_id, count = _APPEND_FIXED.unpack_from(body, offset)
            yield RecordType.APPEND, ledger_id, first_entry_id + count
        elif number in _LEDGER_TYPES and length == _LEDGER_ID.size:
            yield _TYPES[number], *_LEDGER_ID.unpack_from(body, offset), 0
        offset += length


def _decode_append(data: memoryview, start: int, end: int) -> AppendRecord:
    columns_offset = start + _APPEND_FIXED.size
    if columns_offset > end:
        raise LayoutError("an APPEND record in the journal batch is damaged: it ends within its fixed fields")
    ledger_id, first_entry_id, count = _APPEND_FIXED.unpack_from(data, start)
    payload_offset = columns_offset + APPEND_ENTRY_BYTES * count
    if payload_offset > end:
        raise LayoutError(
            f"an APPEND record in the journal batch is damaged: it claims {count} entries of ledger {ledger_id}, but ends "
            "within the lengths of these entries"
        )
    size_bytes = end - payload_offset
    if count == 1:  # faster for a single entry: a recovery may read a quarter of a million of them
        length, message_count = _APPEND_ENTRY.unpack_from(data, columns_offset)
        if length != size_bytes:
            raise LayoutError(
                f"an APPEND record in the journal batch is damaged: its entry of ledger {ledger_id} has {length} bytes, "
                f"but the record contains {size_bytes}"
            )
        return AppendRecord(ledger_id, first_entry_id, [data[payload_offset:end]], (message_count,), size_bytes)
    columns = struct.unpack_from(f"<{2 * count}I", data, columns_offset)
    ends = list(accumulate(columns[:count], initial=payload_offset))
    if ends[-1] != end:
        raise LayoutError(
            f"an APPEND record in the journal batch is damaged: its {count} entries of ledger {ledger_id} have "
            f"{ends[-1] - payload_offset} bytes, but the record contains {size_bytes}"
        )
    payloads = [data[start:end] for start, end in pairwise(ends)]
    return AppendRecord(ledger_id, first_entry_id, payloads, columns[count:], size_bytes)


def _decode_ledger(record_type: RecordType, body: memoryview) -> LedgerRecord:
    if len(body) != _LEDGER_ID.size:
        raise LayoutError(
            f"a {record_type.name} record in the journal batch is damaged: it has {len(body)} bytes instead of "
            f"{_LEDGER_ID.size}"
        )
    return LedgerRecord(record_type, *_LEDGER_ID.unpack(body))


def _decode_cursor(record_type: RecordType, body: memoryview) -> CursorRecord:
    if len(body) < _CURSOR_FIXED.size:
        raise LayoutError(f"a {record_type.name} record in the journal batch is damaged: it has only {len(body)} bytes")
    cursor_number, id_length = _CURSOR_FIXED.unpack_from(body)
    data_offset = _CURSOR_FIXED.size + id_length
    if data_offset > len(body):
        raise LayoutError(
            f"a {record_type.name} record in the journal batch is damaged: it has {len(body)} bytes and ends within the "
            "id of its cursor"
        )
    try:
        cursor_id = str(body[_CURSOR_FIXED.size : data_offset], "utf-8")
    except UnicodeDecodeError as error:
        raise LayoutError(
            f"a {record_type.name} record in the journal batch is damaged: the id of its cursor is not UTF-8 ({error})"
        ) from error
    return CursorRecord(record_type, cursor_id, cursor_number, bytes(body[data_offset:]))
