"""Packing of Arrow columns into batched entries.

Batch boundaries depend only on rows and limits, never on time, so that a retry forms the same batches.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from pybroker.columns.packed_columns import MessageColumns, PackedColumns, key_bytes, packed_columns
from pybroker.columns.pure_python import python_packer
from pybroker.model.txn_id import TxnId
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.compression import NOT_COMPRESSED, compress
from pybroker.wire.entry_builder import framed

METADATA_ALLOWANCE_BYTES = 4096
"""Bytes of an entry that are reserved for the metadata before the payload."""

try:
    from pybroker.columns import _packer
except ImportError:
    IS_COMPILED = False
    pack = python_packer.pack
else:
    IS_COMPILED = True
    pack = _packer.pack


@dataclass(frozen=True)
class BatchLimits:
    """Limits of the size of one batched entry."""

    max_messages: int = 1000
    max_bytes: int = 128 * 1024
    """Maximum uncompressed payload. A larger row forms a batch of its own."""
    max_entry_bytes: int = 5 * 1024 * 1024 - METADATA_ALLOWANCE_BYTES
    """Maximum payload of one entry. A larger row is a separate batch, and its message must be sent in chunks."""
    by_key: bool = False
    """Put only messages with the same key into a batch, as Key_Shared consumers require."""


@dataclass(frozen=True, slots=True)
class RowBatch:
    """The rows from `first_row` to `end_row` (exclusive) as the payload of one entry."""

    first_row: int
    end_row: int
    payload: bytes
    key: str | None = None
    """With `by_key`: the common key of the messages, as in the metadata."""
    key_is_base64: bool = False

    @property
    def message_count(self) -> int:
        return self.end_row - self.first_row


@dataclass(frozen=True)
class EntryMaker:
    """Creates the entries of one producer."""

    producer_name: str
    compression: pb.CompressionType = NOT_COMPRESSED
    schema_version: bytes = b""
    txn: TxnId | None = None

    def entry(self, batch: RowBatch, first_sequence_id: int, publish_time_ms: int) -> bytes:
        """Return the bytes of one entry as a client sends them: `0x0e01 crc32c metadata_size MessageMetadata
        payload`.
        """
        metadata = pb.MessageMetadata(
            producer_name=self.producer_name,
            sequence_id=first_sequence_id,
            publish_time=publish_time_ms,
            num_messages_in_batch=batch.message_count,
            highest_sequence_id=first_sequence_id + batch.message_count - 1,
        )
        payload = batch.payload
        if self.compression != NOT_COMPRESSED:
            metadata.compression = self.compression
            payload = compress(self.compression, payload)
        metadata.uncompressed_size = len(batch.payload)
        if self.txn is not None:
            metadata.txnid_most_bits, metadata.txnid_least_bits = self.txn
        if self.schema_version:
            metadata.schema_version = self.schema_version
        if batch.key is not None:
            metadata.partition_key = batch.key
            if batch.key_is_base64:
                metadata.partition_key_b64_encoded = True
        return framed(metadata, payload)


def row_batches(rows: MessageColumns, limits: BatchLimits, first_sequence_id: int) -> Iterator[RowBatch]:
    """Divide `rows` into batches for one entry each. Row i has the sequence id `first_sequence_id` + i. Raises
    ValueError for values that a message cannot represent.
    """
    columns = packed_columns(rows)
    borders = _key_borders(rows) if limits.by_key and rows.keys is not None else None
    max_bytes = min(limits.max_bytes, limits.max_entry_bytes)
    count = len(rows)
    start = 0
    while start < count:
        end = min(count, start + limits.max_messages)
        if borders is not None:
            end = min(end, int(borders[np.searchsorted(borders, start, side="right")]))
        payload, end = pack(columns, start, end, max_bytes, first_sequence_id + start)
        key, is_base64 = _key_of(columns, start) if borders is not None else (None, False)
        yield RowBatch(start, end, payload, key, is_base64)
        start = end


def grouped_by_key(rows: MessageColumns) -> MessageColumns:
    """Return the rows reordered: rows with the same key are adjacent, in their original order, and the keys are in the
    order of their first row. Rows without a key form one group.
    """
    if rows.keys is None or len(rows) < 2:
        return rows
    codes = key_bytes(rows.keys).dictionary_encode(null_encoding="encode").indices.to_numpy(zero_copy_only=False)
    return rows.take(np.argsort(codes, kind="stable"))


def _key_borders(rows: MessageColumns) -> np.ndarray[Any, Any]:
    assert rows.keys is not None
    codes = key_bytes(rows.keys).dictionary_encode(null_encoding="encode").indices.to_numpy(zero_copy_only=False)
    return np.append(np.flatnonzero(np.diff(codes)) + 1, len(codes))


def _key_of(columns: PackedColumns, row: int) -> tuple[str | None, bool]:
    offsets, data, valid, is_base64 = columns[3:7]
    if offsets is None or (valid is not None and not valid[row]):
        return None, False
    text = bytes(memoryview(data)[offsets[row] : offsets[row + 1]]).decode()
    return text, bool(is_base64 is not None and is_base64[row])
