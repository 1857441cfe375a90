"""Scan of messages into records: the second half of the pure Python version of `_scanner.c`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pybroker.columns.pure_python.python_fields import (
    BATCH,
    EVENT_TIME,
    KEY_IS_BASE64,
    MARKER,
    NULL_KEY,
    NULL_VALUE,
    PROPERTIES,
    REPEATED_PROPERTIES,
    SKIPPED,
    MissingField,
    signed,
    signed32,
    span,
)
from pybroker.columns.scanner_layout import (
    CHECKED_PROPERTIES,
    LEAST_MESSAGE_BYTES,
    MESSAGE,
    PROPERTY,
    ScanError,
    Wanted,
)
from pybroker.errors import ProtocolViolation
from pybroker.wire.varint import decode, skip_field

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from pybroker.columns.scanner_layout import Records

# Plain numbers, as in python_fields.
_VALUE, _KEY, _ORDERING_KEY, _PROPERTIES = (
    int(Wanted.VALUE),
    int(Wanted.KEY),
    int(Wanted.ORDERING_KEY),
    int(Wanted.PROPERTIES),
)
_PRODUCER_NAME, _SCHEMA_VERSION, _REPLICATED_FROM = (
    int(Wanted.PRODUCER_NAME),
    int(Wanted.SCHEMA_VERSION),
    int(Wanted.REPLICATED_FROM),
)
_OF_ENTRIES = _PRODUCER_NAME | _SCHEMA_VERSION | _REPLICATED_FROM
_CONVERTED_AT_ONCE = 128


class _Entry(NamedTuple):
    publish_time_ms: int
    event_time_ms: int
    sequence_id: int
    broker_index: int
    metadata_at: int
    payload_at: int
    producer_name_at: int
    replicated_from_at: int
    key_at: int
    ordering_key_at: int
    schema_version_at: int
    uuid_at: int
    uncompressed_bytes: int
    metadata_bytes: int
    payload_bytes: int
    producer_name_bytes: int
    replicated_from_bytes: int
    key_bytes: int
    ordering_key_bytes: int
    schema_version_bytes: int
    uuid_bytes: int
    message_count: int
    compression: int
    chunk_id: int
    chunk_count: int
    payload_source: int
    flags: int
    error: int
    reserved: int


_OF_A_MESSAGE = EVENT_TIME | NULL_VALUE | NULL_KEY | KEY_IS_BASE64


def scan_messages(
    sources: Sequence[Buffer],
    entries: Records,
    wanted: int,
    max_bytes: int,
    state: Records,
    messages: Records,
    properties: Records,
) -> tuple[int, int]:
    """Write a record for each message of `entries` to `messages`, and for each of their properties to `properties`.
    Begin at the position in `state`, and advance it. Return the numbers of messages and properties that were written.

    The scan stops when `messages` or `properties` is full, when the values of the fields in `wanted` (flags of
    `Wanted`) reach `max_bytes` in total, or after the last entry: `state["entry"]` is then the number of entries. If
    the properties of the first message exceed `properties`, nothing is written, and the result is (0, number of its
    properties). For an unreadable entry, one error record is written; for a damaged batch, the records of the messages
    before the damage and one error record.
    """
    return _MessageScan(sources, entries, wanted, max_bytes, messages, properties).run(state)


class _Full(Exception):
    """The next message does not fit."""


class _MessageScan:
    def __init__(
        self,
        sources: Sequence[Buffer],
        entries: Records,
        wanted: int,
        max_bytes: int,
        messages: Records,
        properties: Records,
    ) -> None:
        self._sources = [memoryview(source).cast("B") for source in sources]
        self._entries = entries
        self._wanted = int(wanted)
        self._left_bytes = max_bytes
        self._messages = messages
        self._properties = properties
        self._rows: list[tuple[int, ...]] = []
        self._found: list[tuple[int, int, int, int]] = []

    def run(self, state: Records) -> tuple[int, int]:
        number, batch_index, pos = (int(state[0][name]) for name in ("entry", "batch_index", "pos"))
        try:
            for entry in self._entries_from(number):
                if entry.flags & (MARKER | SKIPPED):
                    pass
                elif entry.error:
                    self._add(self._error_row(number, -1, entry.error), 0, [])
                elif not entry.flags & BATCH or entry.chunk_count:
                    self._single(number, entry)
                else:
                    while batch_index < entry.message_count:
                        batch_index, pos = self._next_of_batch(number, entry, batch_index, pos)
                number += 1
                batch_index = pos = 0
        except _Full:
            pass
        state[0] = (number, batch_index, pos)
        if not self._rows:
            return 0, len(self._found)  # the properties that the first message needs
        if self._rows:
            self._messages[: len(self._rows)] = np.array(self._rows, MESSAGE)
        if self._found:
            self._properties[: len(self._found)] = np.array(self._found, PROPERTY)
        return len(self._rows), len(self._found)

    def _entries_from(self, number: int) -> Iterator[_Entry]:
        """Yield entries as plain numbers, converted in small groups, because most calls end after a few hundred."""
        for first in range(number, len(self._entries), _CONVERTED_AT_ONCE):
            yield from map(_Entry._make, self._entries[first : first + _CONVERTED_AT_ONCE].tolist())

    def _error_row(self, number: int, batch_index: int, error: int) -> tuple[int, ...]:
        return (0, 0, 0, 0, 0, -1, -1, -1, 0, 0, number, batch_index, 0, 0, 0, int(error), 0)

    def _add(self, row: tuple[int, ...], size_bytes: int, found: list[tuple[int, int, int, int]]) -> None:
        """Raise _Full if the message does not fit. The first message may exceed the byte limit."""
        if len(self._rows) == len(self._messages):
            raise _Full
        if self._rows and size_bytes > self._left_bytes:
            raise _Full
        if len(self._found) + len(found) > len(self._properties):
            if not self._rows:
                self._found = found
            raise _Full
        self._left_bytes -= size_bytes
        self._rows.append(row)
        self._found.extend(found)

    def _size(
        self, entry: _Entry, value: int, key: int, ordering_key: int, found: list[tuple[int, int, int, int]]
    ) -> int:
        size = 0
        wanted = self._wanted
        if wanted & _OF_ENTRIES:
            if wanted & _PRODUCER_NAME:
                size += max(0, entry.producer_name_bytes)
            if wanted & _SCHEMA_VERSION:
                size += max(0, entry.schema_version_bytes)
            if wanted & _REPLICATED_FROM:
                size += max(0, entry.replicated_from_bytes)
        if wanted & _VALUE and value > 0:
            size += value
        if wanted & _KEY and key > 0:
            size += key
        if wanted & _ORDERING_KEY and ordering_key > 0:
            size += ordering_key
        return size + sum(item[2] + item[3] for item in found)

    def _single(self, number: int, entry: _Entry) -> None:
        source, at, size = entry.payload_source, entry.payload_at, entry.payload_bytes
        flags = entry.flags & _OF_A_MESSAGE
        if not self._is_inside(source, at, size) or not self._is_inside(0, entry.metadata_at, entry.metadata_bytes):
            self._add(self._error_row(number, -1, ScanError.BEYOND_SOURCE), 0, [])
            return
        found: list[tuple[int, int, int, int]] = []
        if self._wanted & _PROPERTIES and entry.flags & PROPERTIES:
            metadata_at = entry.metadata_at
            data = bytes(self._sources[0][metadata_at : metadata_at + entry.metadata_bytes])
            try:
                found = _properties_of(data, 34, metadata_at)
            except MissingField:
                self._add(self._error_row(number, -1, ScanError.MISSING_FIELD), 0, [])
                return
            except ProtocolViolation:
                self._add(self._error_row(number, -1, ScanError.MALFORMED_METADATA), 0, [])
                return
            flags |= self._property_flags(0, found)
        value_size = -1 if flags & NULL_VALUE else size
        key_size = -1 if flags & NULL_KEY else entry.key_bytes
        row = (
            entry.event_time_ms,
            entry.sequence_id,
            at,
            entry.key_at,
            entry.ordering_key_at,
            value_size,
            key_size,
            entry.ordering_key_bytes,
            source,
            0,
            number,
            -1,
            len(self._found),
            len(found),
            flags,
            0,
            0,
        )
        self._add(row, self._size(entry, value_size, key_size, entry.ordering_key_bytes, found), found)

    def _next_of_batch(self, number: int, entry: _Entry, batch_index: int, pos: int) -> tuple[int, int]:
        source, at, size = entry.payload_source, entry.payload_at, entry.payload_bytes
        count = entry.message_count
        if not self._is_inside(source, at, size):
            self._add(self._error_row(number, -1, ScanError.BEYOND_SOURCE), 0, [])
            return count, 0
        if batch_index == 0:
            if count * LEAST_MESSAGE_BYTES > size:
                self._add(self._error_row(number, -1, ScanError.TOO_MANY_MESSAGES), 0, [])
                return count, 0
            pos = at
        end = at + size
        view = self._sources[source]
        error = ScanError.BATCH_TOO_SHORT
        if at <= pos and pos + 4 <= end:
            metadata_at = pos + 4
            metadata_end = metadata_at + int.from_bytes(view[pos:metadata_at], "big")
            if metadata_end <= end:
                data = bytes(view[metadata_at:metadata_end])
                try:
                    value_size = self._add_of_batch(data, metadata_at, metadata_end, end, number, entry, batch_index)
                except MissingField:
                    error = ScanError.MISSING_BATCH_FIELD
                except ProtocolViolation:
                    error = ScanError.MALFORMED_BATCH_METADATA
                else:
                    if value_size >= 0:
                        return batch_index + 1, metadata_end + value_size
        self._add(self._error_row(number, batch_index, error), 0, [])
        return count, 0

    def _add_of_batch(  # noqa: C901, PLR0912
        self, data: bytes, at: int, metadata_end: int, end: int, number: int, entry: _Entry, batch_index: int
    ) -> int:
        """Add a message by its SingleMessageMetadata `data`. Return the size of its value; -1 if it exceeds the
        batch.
        """
        pos, size = 0, len(data)
        value_size = None
        flags = entry.flags & (EVENT_TIME | NULL_VALUE)
        event_time, sequence_id = entry.event_time_ms, entry.sequence_id
        key_at = ordering_at = 0
        key_size = ordering_size = -1
        has_properties = is_compacted_out = False
        while pos < size:
            tag = data[pos]
            if tag > 0x7F:
                tag, pos = decode(data, pos, size)
            else:
                pos += 1
            if tag == 24:
                value, pos = decode(data, pos, size)
                value_size = signed32(value)
            elif tag == 18:
                key_at, key_size, pos = span(data, pos, size)
            elif tag == 10:
                _, _, pos = span(data, pos, size)
                has_properties = True
            elif tag == 32:
                value, pos = decode(data, pos, size)
                is_compacted_out = value != 0
            elif tag == 40:
                value, pos = decode(data, pos, size)
                event_time = signed(value)
                flags |= EVENT_TIME
            elif tag == 48:
                value, pos = decode(data, pos, size)
                flags = flags | KEY_IS_BASE64 if value else flags & ~KEY_IS_BASE64
            elif tag == 58:
                ordering_at, ordering_size, pos = span(data, pos, size)
            elif tag == 64:
                value, pos = decode(data, pos, size)
                sequence_id = signed(value)
            elif tag == 72:
                value, pos = decode(data, pos, size)
                flags = flags | NULL_VALUE if value else flags & ~NULL_VALUE
            elif tag == 80:
                value, pos = decode(data, pos, size)
                flags = flags | NULL_KEY if value else flags & ~NULL_KEY
            else:
                pos = skip_field(data, tag, pos, size)
        if value_size is None:
            raise MissingField
        if value_size < 0 or metadata_end + value_size > end:
            return -1
        if is_compacted_out:
            return value_size
        source = entry.payload_source
        found: list[tuple[int, int, int, int]] = []
        if has_properties and self._wanted & _PROPERTIES:
            found = _properties_of(data, 10, at)
            flags |= self._property_flags(source, found)
        shown_size = -1 if flags & NULL_VALUE else value_size
        key_size = -1 if flags & NULL_KEY else key_size
        row = (
            event_time,
            sequence_id,
            metadata_end,
            at + key_at,
            at + ordering_at,
            shown_size,
            key_size,
            ordering_size,
            source,
            source,
            number,
            batch_index,
            len(self._found),
            len(found),
            flags,
            0,
            0,
        )
        self._add(row, self._size(entry, shown_size, key_size, ordering_size, found), found)
        return value_size

    def _is_inside(self, source: int, at: int, size: int) -> bool:
        return 0 <= source < len(self._sources) and at >= 0 and size >= 0 and at + size <= len(self._sources[source])

    def _property_flags(self, source: int, found: list[tuple[int, int, int, int]]) -> int:
        flags = PROPERTIES if found else 0
        if len(found) > CHECKED_PROPERTIES:
            return flags | REPEATED_PROPERTIES
        view = self._sources[source]
        names = {bytes(view[at : at + size]) for at, _, size, _ in found}
        return flags if len(names) == len(found) else flags | REPEATED_PROPERTIES


def _properties_of(data: bytes, properties_tag: int, at: int) -> list[tuple[int, int, int, int]]:
    found = []
    pos, end = 0, len(data)
    while pos < end:
        tag = data[pos]
        if tag > 0x7F:
            tag, pos = decode(data, pos, end)
        else:
            pos += 1
        if tag != properties_tag:
            pos = skip_field(data, tag, pos, end)
            continue
        start, _, pos = span(data, pos, end)
        found.append(_key_value(data, start, pos, at))
    return found


def _key_value(data: bytes, pos: int, end: int, at: int) -> tuple[int, int, int, int]:
    name_at = value_at = 0
    name_size = value_size = -1
    while pos < end:
        tag = data[pos]
        if tag > 0x7F:
            tag, pos = decode(data, pos, end)
        else:
            pos += 1
        if tag == 10:
            name_at, name_size, pos = span(data, pos, end)
        elif tag == 18:
            value_at, value_size, pos = span(data, pos, end)
        else:
            pos = skip_field(data, tag, pos, end)
    if name_size < 0 or value_size < 0:
        raise MissingField
    return at + name_at, at + value_at, name_size, value_size
