"""Construction of Arrow columns from scanned messages, without Python code for each message."""

from __future__ import annotations

from binascii import Error as Base64Error
from binascii import a2b_base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from pybroker.columns.message_columns import ERROR_COLUMN, METADATA_TYPES, VALUE
from pybroker.columns.scanner_layout import REASONS, Flag, ScanError, Wanted
from pybroker.wire import pulsar_api_pb2 as pb

if TYPE_CHECKING:
    import numpy.typing as npt
    from typing_extensions import Buffer

    from pybroker.columns.scanner import Scanner
    from pybroker.columns.scanner_layout import Records

WANTED_BY = {
    VALUE: Wanted.VALUE,
    "__key": Wanted.KEY,
    "__orderingKey": Wanted.ORDERING_KEY,
    "__messageProperties": Wanted.PROPERTIES,
    "__producerName": Wanted.PRODUCER_NAME,
    "__schemaVersion": Wanted.SCHEMA_VERSION,
    "__replicatedFrom": Wanted.REPLICATED_FROM,
}
"""Columns with values of variable size."""
FIRST_TIME_MS = -62_135_596_800_000
"""0001-01-01. Earlier times are shown as this time, and times after LAST_TIME_MS as LAST_TIME_MS."""
LAST_TIME_MS = 253_402_300_799_999
_NO_TEXTS = pa.Array.from_buffers(pa.string(), 0, [None, pa.py_buffer(bytes(4)), pa.py_buffer(b"")])
_UNREADABLE = (
    ScanError.METADATA_TOO_LONG,
    ScanError.MALFORMED_METADATA,
    ScanError.MISSING_FIELD,
    ScanError.BEYOND_SOURCE,
)


@dataclass(frozen=True)
class Window:
    """Scanned messages of consecutive entries of one ledger, and the buffers to which they refer."""

    topic: str
    partition: int
    ledger_id: int
    first_entry_id: int
    sources: Sequence[Buffer]
    entries: Records
    messages: Records
    properties: Records
    reasons: Mapping[int, str] = field(default_factory=dict)
    first_chunks: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    """Ledger id and entry id of the first chunk, by the index of the entry with the last chunk."""

    def error_text(self, row: int) -> str | None:
        message = self.messages[row]
        error = int(message["error"])
        if not error:
            return None
        return self.reasons.get(int(message["entry"])) or REASONS[ScanError(error)]


class ColumnBuilder:
    """Builds the columns of one window on request."""

    def __init__(self, window: Window, scanner: Scanner) -> None:
        self._window = window
        self._scanner = scanner
        self._rows = window.messages
        self._entry_numbers: npt.NDArray[np.int64] = window.messages["entry"].astype(np.int64)
        self._is_bad: npt.NDArray[np.bool_] = window.messages["error"] != 0
        self._has_bad = bool(self._is_bad.any())

    def column(self, name: str) -> pa.Array:
        return _BUILDERS[name](self)

    # Fields of variable size

    def value(self) -> pa.Array:
        return self._of_message("value", "value_source")

    def key(self) -> pa.Array:
        return self._of_message("key", "metadata_source", self._decode_keys)

    def ordering_key(self) -> pa.Array:
        return self._of_message("ordering_key", "metadata_source")

    def schema_version(self) -> pa.Array:
        return self._of_entry("schema_version")

    def producer_name(self) -> pa.Array:
        return as_text(self._of_entry("producer_name"))

    def replicated_from(self) -> pa.Array:
        return as_text(self._of_entry("replicated_from"))

    def properties(self) -> pa.Array:
        counts = self._rows["property_count"]
        offsets = np.zeros(len(counts) + 1, np.int32)
        np.cumsum(counts, out=offsets[1:])
        records = self._window.properties
        sources = np.repeat(self._rows["metadata_source"], counts)
        names = values = _NO_TEXTS
        if len(records):
            names = as_text(self._gathered(sources, records["key_at"], records["key_bytes"]))
            values = as_text(self._gathered(sources, records["value_at"], records["value_bytes"]))
        array = pa.MapArray.from_arrays(_numbers(offsets, pa.int32()), names, values)
        if (self._rows["flags"] & int(Flag.REPEATED_PROPERTIES)).any():
            # The last value of a repeated name is used, as in Pulsar's clients.
            array = pa.array(
                [list(dict(each).items()) for each in array.to_pylist()], METADATA_TYPES["__messageProperties"]
            )
        return array

    def error(self) -> pa.Array:
        texts: list[str | None] = [None] * len(self._rows)
        for row in np.flatnonzero(self._is_bad).tolist():
            texts[row] = self._window.error_text(row)
        return pa.array(texts, pa.string())

    # Numbers and times

    def publish_time(self) -> pa.Array:
        unreadable = (
            np.isin(self._rows["error"], _UNREADABLE) & (self._rows["batch_index"] < 0) if self._has_bad else None
        )
        return _times(self._window.entries["publish_time_ms"][self._entry_numbers], unreadable)

    def event_time(self) -> pa.Array:
        times = self._rows["event_time_ms"]
        is_set = (self._rows["flags"] & int(Flag.EVENT_TIME)) != 0
        return _times(times, ~is_set | (times == 0))

    def sequence_id(self) -> pa.Array:
        return _numbers(self._rows["sequence_id"], pa.int64(), self._is_bad if self._has_bad else None)

    def index(self) -> pa.Array:
        entries = self._window.entries
        numbers = self._entry_numbers
        is_there = (entries["flags"][numbers] & int(Flag.INDEX)) != 0
        batch_indexes = self._rows["batch_index"].astype(np.int64)
        behind = np.where(batch_indexes < 0, 0, entries["message_count"][numbers] - 1 - batch_indexes)
        return _numbers(entries["broker_index"][numbers] - behind, pa.int64(), ~is_there)

    def entry_id(self) -> pa.Array:
        return _numbers(self._entry_ids(), pa.int64())

    def batch_index(self) -> pa.Array:
        return _numbers(self._rows["batch_index"], pa.int32())

    # Constant columns

    def topic(self) -> pa.Array:
        name, count = self._window.topic.encode(), len(self._rows)
        offsets = np.arange(count + 1, dtype=np.int32) * len(name)
        return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(offsets), pa.py_buffer(name * count)], 0)

    def ledger_id(self) -> pa.Array:
        return self._constant(self._window.ledger_id, pa.int64())

    def partition(self) -> pa.Array:
        return self._constant(self._window.partition, pa.int32())

    def redelivery_count(self) -> pa.Array:
        return self._constant(0, pa.int32())

    def message_id(self) -> pa.Array:
        window = self._window
        batch_indexes = np.ascontiguousarray(self._rows["batch_index"])
        counts = np.where(batch_indexes < 0, -1, window.entries["message_count"][self._entry_numbers]).astype(np.int32)
        ids = self._scanner.message_ids(window.ledger_id, window.partition, self._entry_ids(), batch_indexes, counts)
        array = _binary(len(batch_indexes), None, 0, *ids)
        if window.first_chunks:
            array = self._with_first_chunks(array)
        return array

    def _with_first_chunks(self, ids: pa.Array) -> pa.Array:
        values = ids.to_pylist()
        for row, number in enumerate(self._entry_numbers.tolist()):
            first = self._window.first_chunks.get(number)
            if first is not None:
                data = pb.MessageIdData.FromString(values[row])
                data.first_chunk_message_id.ledgerId, data.first_chunk_message_id.entryId = first
                if self._window.partition >= 0:
                    data.first_chunk_message_id.partition = self._window.partition
                values[row] = data.SerializeToString()
        return pa.array(values, pa.binary())

    # Helpers

    def _of_message(
        self, name: str, source: str, change: Callable[[pa.Array], pa.Array] = lambda array: array
    ) -> pa.Array:
        rows = self._rows
        return change(self._gathered(rows[source], rows[name + "_at"], rows[name + "_bytes"]))

    def _of_entry(self, name: str) -> pa.Array:
        entries, numbers = self._window.entries, self._entry_numbers
        source = np.zeros(len(numbers), np.int32)
        return self._gathered(source, entries[name + "_at"][numbers], entries[name + "_bytes"][numbers])

    def _gathered(self, source: Any, at: Any, sizes: Any) -> pa.Array:
        found = self._scanner.gather(
            self._window.sources,
            np.ascontiguousarray(source, np.int32),
            np.ascontiguousarray(at, np.int64),
            np.ascontiguousarray(sizes, np.int32),
        )
        return _binary(len(at), *found)

    def _decode_keys(self, keys: pa.Array) -> pa.Array:
        encoded = np.flatnonzero(self._rows["flags"] & int(Flag.KEY_IS_BASE64)).tolist()
        if not encoded:
            return keys
        values = keys.to_pylist()
        for row in encoded:
            if values[row] is not None:
                values[row] = _from_base64(values[row])
        return pa.array(values, pa.binary())

    def _entry_ids(self) -> npt.NDArray[np.int64]:
        return self._entry_numbers + self._window.first_entry_id

    def _constant(self, number: int, kind: pa.DataType) -> pa.Array:
        return _numbers(np.full(len(self._rows), number, kind.to_pandas_dtype()), kind)


def _numbers(values: npt.NDArray[Any], kind: pa.DataType, is_null: npt.NDArray[np.bool_] | None = None) -> pa.Array:
    """Convert `values` to an Arrow array of a type of the same width.

    Uses buffers, because the first call of `pyarrow.array` or `pyarrow.repeat` imports pandas if it is installed,
    which takes 0.5 s in each process.
    """
    buffer = pa.py_buffer(np.array(values))  # always a copy, because records are reused for the next batch
    if is_null is None:
        return pa.Array.from_buffers(kind, len(values), [None, buffer], 0)
    validity = pa.py_buffer(np.packbits(~is_null, bitorder="little"))
    return pa.Array.from_buffers(kind, len(values), [validity, buffer], int(np.count_nonzero(is_null)))


def _binary(length: int, validity: bytes | None, null_count: int, offsets: bytes, data: bytes) -> pa.Array:
    buffers = [None if validity is None else pa.py_buffer(validity), pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), length, buffers, null_count)


def _times(times_ms: npt.NDArray[np.int64], is_null: npt.NDArray[np.bool_] | None) -> pa.Array:
    micros = np.clip(times_ms, FIRST_TIME_MS, LAST_TIME_MS) * 1000
    return _numbers(micros, METADATA_TYPES["__publishTime"], is_null)


def as_text(array: pa.Array) -> pa.Array:
    """Convert bytes to strings. Invalid UTF-8 is replaced, as in Pulsar's clients."""
    try:
        return array.cast(pa.string())
    except pa.ArrowInvalid:
        texts = [None if each is None else each.decode("utf-8", "replace") for each in array.to_pylist()]
        return pa.array(texts, pa.string())


def _from_base64(text: bytes) -> bytes:
    try:
        return a2b_base64(text, strict_mode=True)
    except Base64Error:
        return text


_BUILDERS: dict[str, Callable[[ColumnBuilder], pa.Array]] = {
    VALUE: ColumnBuilder.value,
    "__key": ColumnBuilder.key,
    "__topic": ColumnBuilder.topic,
    "__messageId": ColumnBuilder.message_id,
    "__publishTime": ColumnBuilder.publish_time,
    "__eventTime": ColumnBuilder.event_time,
    "__messageProperties": ColumnBuilder.properties,
    "__ledgerId": ColumnBuilder.ledger_id,
    "__entryId": ColumnBuilder.entry_id,
    "__batchIndex": ColumnBuilder.batch_index,
    "__partition": ColumnBuilder.partition,
    "__index": ColumnBuilder.index,
    "__producerName": ColumnBuilder.producer_name,
    "__sequenceId": ColumnBuilder.sequence_id,
    "__schemaVersion": ColumnBuilder.schema_version,
    "__redeliveryCount": ColumnBuilder.redelivery_count,
    "__orderingKey": ColumnBuilder.ordering_key,
    "__replicatedFrom": ColumnBuilder.replicated_from,
    ERROR_COLUMN: ColumnBuilder.error,
}
