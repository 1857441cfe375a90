"""Validation of message columns, and their conversion to the flat buffers that the packer reads.

Keys that are not UTF-8 become base64. Errors for values that the protocol cannot represent name column and row.
"""

from __future__ import annotations

from base64 import b64encode
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

PackedColumns = tuple[Any, ...]
"""Offsets (int32, one more than rows), data and validity (one byte per row, None: all valid) of: value; key, and its
base64 flags; ordering key; event time (int64 ms) with validity; properties: offsets into items, validity, offsets and
data of names and of values. All parts of a missing column are None. `python_packer` unpacks this tuple.
"""
_NOTHING = np.zeros(0, np.uint8)


@dataclass(frozen=True)
class MessageColumns:
    """Message columns of equal length. Keys are text or bytes; null means no key."""

    values: pa.Array
    keys: pa.Array | None = None
    ordering_keys: pa.Array | None = None
    event_times: pa.Array | None = None
    """Milliseconds as int64, or timestamps."""
    properties: pa.Array | None = None

    def __len__(self) -> int:
        return len(self.values)

    def take(self, rows: np.ndarray[Any, Any]) -> MessageColumns:
        indexes = pa.array(rows)
        columns = (self.values, self.keys, self.ordering_keys, self.event_times, self.properties)
        return MessageColumns(*(None if column is None else column.take(indexes) for column in columns))


def packed_columns(rows: MessageColumns) -> PackedColumns:
    """Convert message columns to the packer's buffers. Raises ValueError, which names the column, for values that a
    message cannot represent.
    """
    values = _binary(rows.values, "the payload")
    no_column = (None, _NOTHING, None)
    keys: tuple[Any, ...] = (*no_column, None)
    if rows.keys is not None and rows.keys.null_count < len(rows.keys):
        text, is_base64 = key_text(rows.keys)
        keys = (*_buffers(text), is_base64)
    ordering = no_column
    if rows.ordering_keys is not None and rows.ordering_keys.null_count < len(rows.ordering_keys):
        ordering = _buffers(_binary(rows.ordering_keys, "__orderingKey"))
    return (*_buffers(values), *keys, *ordering, *_event_times(rows.event_times), *_properties(rows.properties))


def key_bytes(keys: pa.Array) -> pa.Array:
    return _binary(keys, "__key")


def _binary(array: pa.Array, column: str) -> pa.Array:
    if pa.types.is_binary(array.type):
        return array
    if pa.types.is_string(array.type) or pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type):
        return array.cast(pa.binary())
    if pa.types.is_null(array.type):
        return array.cast(pa.binary())
    raise ValueError(f"the column {column} has type {array.type}: use string or binary")


def _buffers(array: pa.Array) -> tuple[Any, Any, Any]:
    _, offsets, data = array.buffers()
    count = len(array)
    places = (
        np.zeros(count + 1, np.int32)
        if offsets is None or count == 0
        else np.frombuffer(offsets, np.int32, count + 1, array.offset * 4)
    )
    return places, _NOTHING if data is None or not data.size else data, _valid(array)


def _valid(array: pa.Array) -> Any:
    if array.null_count == 0:
        return None
    return array.is_valid().cast(pa.uint8()).to_numpy(zero_copy_only=False)


def key_text(keys: pa.Array) -> tuple[pa.Array, Any]:
    raw = _binary(keys, "__key")
    if pa.types.is_string(keys.type) or pa.types.is_large_string(keys.type):
        return raw, None
    try:
        raw.cast(pa.string())
    except pa.ArrowInvalid:
        pass
    else:
        return raw, None
    texts: list[bytes | None] = []
    flags = np.zeros(len(raw), np.uint8)
    for row, key in enumerate(raw.to_pylist()):
        if key is not None and not _is_text(key):
            flags[row] = 1
            key = b64encode(key)  # noqa: PLW2901
        texts.append(key)
    return pa.array(texts, pa.binary()), flags


def _is_text(key: bytes) -> bool:
    try:
        key.decode()
    except UnicodeDecodeError:
        return False
    return True


def event_times_ms(array: pa.Array) -> pa.Array:
    if pa.types.is_timestamp(array.type):
        return array.cast(pa.timestamp("ms", array.type.tz), safe=False).cast(pa.int64())
    if pa.types.is_integer(array.type):
        return array.cast(pa.int64())
    raise ValueError(f"the column __eventTime has type {array.type}: use a timestamp, or milliseconds as long")


def _event_times(array: pa.Array | None) -> tuple[Any, Any]:
    if array is None or array.null_count == len(array):
        return None, None
    times = event_times_ms(array)
    if (least := pc.min(times).as_py()) is not None and least < 0:
        raise ValueError(f"the column __eventTime contains {least} ms: times before 1970 cannot be sent")
    return np.ascontiguousarray(times.fill_null(0).to_numpy(zero_copy_only=False)), _valid(times)


def _properties(array: pa.Array | None) -> tuple[Any, ...]:
    nothing = (None, None, None, _NOTHING, None, _NOTHING)
    if array is None or array.null_count == len(array):
        return nothing
    if not pa.types.is_map(array.type):
        raise ValueError(f"the column __messageProperties has type {array.type}: use map<string,string>")
    names, texts = array.keys, array.items
    if names.null_count or texts.null_count:
        raise ValueError("the column __messageProperties has a null name or value: remove this property")
    offsets = np.frombuffer(array.buffers()[1], np.int32, len(array) + 1, array.offset * 4)
    name_offsets, name_data, _ = _buffers(_binary(names, "__messageProperties"))
    text_offsets, text_data, _ = _buffers(_binary(texts, "__messageProperties"))
    return offsets, _valid(array), name_offsets, name_data, text_offsets, text_data
