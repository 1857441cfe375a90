"""Scan of entry metadata into records: the first half of the pure Python version of `_scanner.c`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pybroker.columns.pure_python.python_fields import (
    BATCH,
    ENCRYPTED,
    EVENT_TIME,
    INDEX,
    KEY_IS_BASE64,
    MARKER,
    MAX_SIZE,
    NULL_KEY,
    NULL_VALUE,
    PROPERTIES,
    signed,
    signed32,
    span,
)
from pybroker.columns.scanner_layout import ENTRY, ScanError
from pybroker.errors import ProtocolViolation
from pybroker.wire.broker_entry_metadata import broker_metadata
from pybroker.wire.entry_metadata import message_start, metadata_span
from pybroker.wire.varint import decode, skip_field

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from pybroker.columns.scanner_layout import Int64s, Records

_REQUIRED = 7  # producer_name, sequence_id, publish_time


def scan_entries(data: Buffer, starts: Int64s, lengths: Int64s, entries: Records) -> None:
    view = memoryview(data).cast("B")
    rows = [
        _entry_record(view, start, start + length)
        for start, length in zip(starts.tolist(), lengths.tolist(), strict=True)
    ]
    entries[:] = np.array(rows, ENTRY)


_EMPTY = (*(0,) * 13, 0, 0, -1, -1, -1, -1, -1, -1, 1, *(0,) * 7)


def _failed(error: ScanError) -> tuple[int, ...]:
    return (*_EMPTY[:-2], int(error), 0)


def _entry_record(view: memoryview, start: int, end: int) -> tuple[int, ...]:
    if start < 0 or end < start or end > len(view) or end - start > MAX_SIZE:
        return _failed(ScanError.BEYOND_SOURCE)
    entry = view[start:end]
    try:
        metadata_start, metadata_end = metadata_span(entry)
    except ProtocolViolation:
        return _failed(ScanError.METADATA_TOO_LONG)
    flags = index = 0
    if broker_end := message_start(entry):
        found = broker_metadata(bytes(entry[:broker_end])).index
        if found is not None:
            index = signed(found)
            flags = INDEX
    try:
        data = bytes(entry[metadata_start:metadata_end])
        return _metadata_record(data, start + metadata_start, flags, index, end)
    except ProtocolViolation:
        return _failed(ScanError.MALFORMED_METADATA)


def _metadata_record(data: bytes, at: int, flags: int, index: int, entry_end: int) -> tuple[int, ...]:  # noqa: C901, PLR0912, PLR0915
    """Return the record of the MessageMetadata `data`, which is at offset `at` of its source. One function, because
    a call for each field is slow.
    """
    pos, end = 0, len(data)
    seen = 0
    publish_time = event_time = sequence_id = uncompressed = compression = chunk_id = chunk_count = 0
    producer_at = replicated_at = key_at = ordering_at = version_at = uuid_at = 0
    producer_size = replicated_size = key_size = ordering_size = version_size = uuid_size = -1
    count = 1
    while pos < end:
        tag = data[pos]
        if tag > 0x7F:
            tag, pos = decode(data, pos, end)
        else:
            pos += 1
        if tag == 10:
            producer_at, producer_size, pos = span(data, pos, end)
            seen |= 1
        elif tag == 16:
            sequence_id, pos = decode(data, pos, end)
            seen |= 2
        elif tag == 24:
            publish_time, pos = decode(data, pos, end)
            seen |= 4
        elif tag == 34:
            _, _, pos = span(data, pos, end)
            flags |= PROPERTIES
        elif tag == 50:
            key_at, key_size, pos = span(data, pos, end)
        elif tag == 64:
            value, pos = decode(data, pos, end)
            value = signed32(value)
            compression = value if 0 <= value <= 4 else compression  # protobuf ignores unknown enum values
        elif tag == 72:
            value, pos = decode(data, pos, end)
            uncompressed = value & 0xFFFF_FFFF
        elif tag == 88:
            value, pos = decode(data, pos, end)
            count = signed32(value)
            flags |= BATCH
        elif tag == 96:
            event_time, pos = decode(data, pos, end)
            flags |= EVENT_TIME
        elif tag == 106:
            _, _, pos = span(data, pos, end)
            flags |= ENCRYPTED
        elif tag == 130:
            version_at, version_size, pos = span(data, pos, end)
        elif tag == 136:
            value, pos = decode(data, pos, end)
            flags = flags | KEY_IS_BASE64 if value else flags & ~KEY_IS_BASE64
        elif tag == 146:
            ordering_at, ordering_size, pos = span(data, pos, end)
        elif tag == 160:
            _, pos = decode(data, pos, end)
            flags |= MARKER
        elif tag == 200:
            value, pos = decode(data, pos, end)
            flags = flags | NULL_VALUE if value else flags & ~NULL_VALUE
        elif tag == 210:
            uuid_at, uuid_size, pos = span(data, pos, end)
        elif tag == 216:
            value, pos = decode(data, pos, end)
            chunk_count = signed32(value)
        elif tag == 232:
            value, pos = decode(data, pos, end)
            chunk_id = signed32(value)
        elif tag == 240:
            value, pos = decode(data, pos, end)
            flags = flags | NULL_KEY if value else flags & ~NULL_KEY
        elif tag == 42:
            replicated_at, replicated_size, pos = span(data, pos, end)
        else:
            pos = skip_field(data, tag, pos, end)
    error = ScanError.NONE
    is_chunk = uuid_size > 0 and chunk_count > 1
    if seen != _REQUIRED:
        error = ScanError.MISSING_FIELD
    elif flags & BATCH and count < 1:
        error = ScanError.BAD_MESSAGE_COUNT
    elif is_chunk and not 0 <= chunk_id < chunk_count:
        error = ScanError.BAD_CHUNK
    return (
        signed(publish_time),
        signed(event_time),
        signed(sequence_id),
        index,
        at,
        at + end,
        at + producer_at,
        at + replicated_at,
        at + key_at,
        at + ordering_at,
        at + version_at,
        at + uuid_at,
        uncompressed,
        end,
        entry_end - at - end,
        producer_size,
        replicated_size,
        key_size,
        ordering_size,
        version_size,
        uuid_size,
        count,
        compression,
        chunk_id if is_chunk else 0,
        chunk_count if is_chunk else 0,
        0,
        flags,
        int(error),
        0,
    )
