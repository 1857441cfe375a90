"""Entries as clients store them, runs of them, and what protobuf says is in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from pybroker.columns.entry_run import EntryRun
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.broker_entry_metadata import with_broker_metadata
from pybroker.wire.compression import compress, decompress

TOPIC = "persistent://public/default/t"


@dataclass
class Message:
    """One message of a batch, or one of its own."""

    value: bytes | None = b""
    key: bytes | None = None
    is_key_encoded: bool = False
    properties: list[tuple[str, str]] = field(default_factory=list)
    event_time_ms: int | None = None
    ordering_key: bytes | None = None
    sequence_id: int | None = None
    is_compacted_out: bool = False


def run_of(entries: Sequence[bytes], ledger_id: int = 3, first_entry_id: int = 0, gap: bytes = b"") -> EntryRun:
    """The entries in one buffer, `gap` in front of each and behind the last one."""
    lengths = np.array([len(entry) for entry in entries], np.int64)
    starts = np.cumsum(lengths + len(gap)) - lengths
    return EntryRun(ledger_id, first_entry_id, gap + gap.join(entries) + gap, starts.astype(np.int64), lengths)


def metadata(**fields: Any) -> pb.MessageMetadata:
    """MessageMetadata with what each must have."""
    return pb.MessageMetadata(**{"producer_name": "p", "sequence_id": 7, "publish_time": 1_700_000_000_000, **fields})


def entry_of(meta: pb.MessageMetadata, payload: bytes, *, has_checksum: bool = True) -> bytes:
    header = meta.SerializeToString()
    checked = len(header).to_bytes(4, "big") + header + payload
    return b"\x0e\x01\0\0\0\0" + checked if has_checksum else checked


def batch_body(messages: Sequence[Message]) -> bytes:
    body = b""
    for message in messages:
        single = pb.SingleMessageMetadata(payload_size=len(message.value or b""))
        if message.value is None:
            single.null_value = True
        if message.key is not None:
            single.partition_key = message.key.decode()
            if message.is_key_encoded:
                single.partition_key_b64_encoded = True
        for name, value in message.properties:
            single.properties.add(key=name, value=value)
        if message.event_time_ms is not None:
            single.event_time = message.event_time_ms
        if message.ordering_key is not None:
            single.ordering_key = message.ordering_key
        if message.sequence_id is not None:
            single.sequence_id = message.sequence_id
        if message.is_compacted_out:
            single.compacted_out = True
        header = single.SerializeToString()
        body += len(header).to_bytes(4, "big") + header + (message.value or b"")
    return body


def batch_entry(messages: Sequence[Message], compression: pb.CompressionType = pb.NONE, **fields: Any) -> bytes:
    body = batch_body(messages)
    meta = metadata(num_messages_in_batch=len(messages), **fields)
    return compressed_entry(meta, body, compression)


def single_entry(message: Message, compression: pb.CompressionType = pb.NONE, **fields: Any) -> bytes:
    meta = metadata(**fields)
    if message.value is None:
        meta.null_value = True
    if message.key is not None:
        meta.partition_key = message.key.decode()
        if message.is_key_encoded:
            meta.partition_key_b64_encoded = True
    for name, value in message.properties:
        meta.properties.add(key=name, value=value)
    if message.event_time_ms is not None:
        meta.event_time = message.event_time_ms
    if message.ordering_key is not None:
        meta.ordering_key = message.ordering_key
    if message.sequence_id is not None:
        meta.sequence_id = message.sequence_id
    return compressed_entry(meta, message.value or b"", compression)


def compressed_entry(meta: pb.MessageMetadata, payload: bytes, compression: pb.CompressionType) -> bytes:
    if compression != pb.NONE:
        meta.compression = compression
        meta.uncompressed_size = len(payload)
    return entry_of(meta, compress(compression, payload))


def indexed(entry: bytes, index: int) -> bytes:
    return with_broker_metadata(entry, 5, index)


def rows_of(batches: Sequence[pa.RecordBatch]) -> list[dict[str, object]]:
    for batch in batches:
        batch.validate(full=True)
    return [row for batch in batches for row in batch.to_pylist()]


def by_protobuf(entry: bytes) -> list[dict[str, object]]:
    """The messages of a whole, unencrypted entry, read with protobuf objects."""
    index = None
    if entry[:2] == b"\x0e\x02":
        size = int.from_bytes(entry[2:6], "big")
        broker = pb.BrokerEntryMetadata.FromString(entry[6 : 6 + size])
        index = broker.index if broker.HasField("index") else None
        entry = entry[6 + size :]
    if entry[:2] == b"\x0e\x01":
        entry = entry[6:]
    size = int.from_bytes(entry[:4], "big")
    meta = pb.MessageMetadata.FromString(entry[4 : 4 + size])
    payload = decompress(meta.compression, entry[4 + size :], meta.uncompressed_size)
    if meta.HasField("marker_type"):
        return []
    if not meta.HasField("num_messages_in_batch"):
        return [_shown(meta, meta, payload, index, -1)]
    rows = []
    pos = 0
    for number in range(meta.num_messages_in_batch):
        size = int.from_bytes(payload[pos : pos + 4], "big")
        single = pb.SingleMessageMetadata.FromString(payload[pos + 4 : pos + 4 + size])
        pos += 4 + size
        value = payload[pos : pos + single.payload_size]
        pos += single.payload_size
        if not single.compacted_out:
            behind = meta.num_messages_in_batch - 1 - number
            rows.append(_shown(meta, single, value, None if index is None else index - behind, number))
    return rows


def _shown(
    meta: pb.MessageMetadata,
    own: pb.MessageMetadata | pb.SingleMessageMetadata,
    value: bytes,
    index: int | None,
    batch_index: int,
) -> dict[str, object]:
    event_time = own.event_time if own.HasField("event_time") else meta.event_time
    is_null = own.null_value if own.HasField("null_value") else meta.null_value
    return {
        "value": None if is_null else value,
        "__key": own.partition_key.encode() if own.HasField("partition_key") and not own.null_partition_key else None,
        "__eventTime": event_time or None,
        "__messageProperties": list({each.key: each.value for each in own.properties}.items()),
        "__sequenceId": own.sequence_id if own.HasField("sequence_id") else meta.sequence_id,
        "__orderingKey": own.ordering_key if own.HasField("ordering_key") else None,
        "__producerName": meta.producer_name,
        "__publishTime": meta.publish_time,
        "__schemaVersion": meta.schema_version if meta.HasField("schema_version") else None,
        "__replicatedFrom": meta.replicated_from if meta.HasField("replicated_from") else None,
        "__batchIndex": batch_index,
        "__index": index,
    }
