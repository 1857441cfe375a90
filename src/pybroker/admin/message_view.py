"""A stored entry as REST shows it: what its metadata says in headers, its payload, decompressed, as the body.

Clients put the message together from these again, a batch from the body. What must hold: every header is one line of Latin-1
whatever a producer wrote, and a body is never larger than `MAX_BODY_BYTES`.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pybroker.admin.time_text import iso_text
from pybroker.errors import AdminError, ProtocolViolation
from pybroker.model.position import Position
from pybroker.wire.broker_entry_metadata import BrokerEntryMetadata, broker_metadata
from pybroker.wire.compression import NOT_COMPRESSED, DamagedPayload, compression_name, decompress
from pybroker.wire.entry_metadata import message_metadata, metadata_span

if TYPE_CHECKING:
    from pybroker.wire.pulsar_api_pb2 import MessageMetadata

MAX_BODY_BYTES = 64 * 1024 * 1024
"""A compressed payload may be small and stand for much more; this is far above what clients send as one message."""
_SMALL_BYTES = 64 * 1024
_BLANKS = dict.fromkeys([*range(0x20), *range(0x7F, 0xA0)], " ")


@dataclass(frozen=True, slots=True)
class MessageView:
    """Headers in order, of which some come more than once, and the body."""

    headers: list[tuple[str, str]]
    body: bytes


def is_slow_to_view(entry: bytes) -> bool:
    """Whether the entry may be so large that opening it would keep others waiting."""
    return len(entry) > _SMALL_BYTES or _metadata(entry).uncompressed_size > _SMALL_BYTES


def message_view(position: Position, entry: bytes) -> MessageView:
    """The entry at `position`. Raises AdminError 422 when it cannot be read, 413 when it is too large."""
    metadata = _metadata(entry)
    start, end = metadata_span(entry)
    # Pulsar counts the frame around the metadata as well.
    around_metadata_bytes = len(entry) - (end - start)
    headers = [
        (name, _one_line(value))
        for name, value in _headers(position, metadata, broker_metadata(entry), around_metadata_bytes)
    ]
    return MessageView(headers, _body(metadata, entry[end:]))


def _metadata(entry: bytes) -> MessageMetadata:
    try:
        return message_metadata(entry)
    except ProtocolViolation as error:
        raise AdminError(422, f"The message cannot be read: {error}") from error


def _body(metadata: MessageMetadata, payload: bytes) -> bytes:
    # What is encrypted was compressed before: only who has the key can open it.
    if metadata.compression == NOT_COMPRESSED or metadata.encryption_keys:
        return payload
    if metadata.uncompressed_size > MAX_BODY_BYTES:
        raise AdminError(
            413, f"The message says that it is {metadata.uncompressed_size} bytes large, over {MAX_BODY_BYTES}"
        )
    try:
        return decompress(metadata.compression, payload, metadata.uncompressed_size)
    except DamagedPayload as error:
        raise AdminError(422, f"The message cannot be read: {error}") from error


def _headers(
    position: Position, metadata: MessageMetadata, added: BrokerEntryMetadata, around_metadata_bytes: int
) -> Iterator[tuple[str, str]]:
    yield "X-Pulsar-Message-ID", str(position)
    properties = {pair.key: pair.value for pair in metadata.properties}
    # Escapes keep it ASCII, and the same JSON.
    yield "X-Pulsar-PROPERTY", json.dumps(properties, separators=(",", ":"))
    if added.timestamp_ms is not None:
        yield "X-Pulsar-Broker-Entry-METADATA-timestamp", iso_text(added.timestamp_ms)
    if added.index is not None:
        yield "X-Pulsar-Broker-Entry-METADATA-index", str(added.index)
    yield "X-Pulsar-publish-time", iso_text(_signed(metadata.publish_time))
    if metadata.HasField("event_time"):
        yield "X-Pulsar-event-time", iso_text(_signed(metadata.event_time))
    if metadata.HasField("deliver_at_time"):
        yield "X-Pulsar-deliver-at-time", iso_text(metadata.deliver_at_time)
    if metadata.HasField("num_messages_in_batch"):
        yield "X-Pulsar-num-batch-message", str(metadata.num_messages_in_batch)
        yield "X-Pulsar-batch-size", str(around_metadata_bytes)
    if metadata.HasField("null_value"):
        yield "X-Pulsar-null-value", _flag(metadata.null_value)
    if metadata.HasField("num_chunks_from_msg"):
        yield "X-Pulsar-PROPERTY-TOTAL-CHUNKS", str(metadata.num_chunks_from_msg)
        yield "X-Pulsar-PROPERTY-CHUNK-ID", str(metadata.chunk_id)
    yield "X-Pulsar-Is-Encrypted", _flag(bool(metadata.encryption_keys))
    yield "X-Pulsar-producer-name", metadata.producer_name
    yield "X-Pulsar-sequence-id", str(_signed(metadata.sequence_id))
    yield from _replication_headers(metadata)
    yield from _key_headers(metadata)
    yield from _content_headers(metadata)
    yield from _chunk_headers(metadata)
    yield from _transaction_headers(metadata)


def _replication_headers(metadata: MessageMetadata) -> Iterator[tuple[str, str]]:
    if metadata.HasField("replicated_from"):
        yield "X-Pulsar-replicated-from", metadata.replicated_from
    for cluster in metadata.replicate_to:
        yield "X-Pulsar-replicated-to", cluster
    if metadata.HasField("marker_type"):
        yield "X-Pulsar-marker-type", str(metadata.marker_type)


def _key_headers(metadata: MessageMetadata) -> Iterator[tuple[str, str]]:
    if metadata.HasField("partition_key"):
        yield "X-Pulsar-partition-key", metadata.partition_key
    if metadata.HasField("partition_key_b64_encoded"):
        yield "X-Pulsar-partition-key-b64-encoded", _flag(metadata.partition_key_b64_encoded)
    if metadata.HasField("ordering_key"):
        yield "X-Pulsar-Base64-ordering-key", _base64(metadata.ordering_key)
    if metadata.HasField("null_partition_key"):
        yield "X-Pulsar-null-partition-key", _flag(metadata.null_partition_key)


def _content_headers(metadata: MessageMetadata) -> Iterator[tuple[str, str]]:
    if metadata.HasField("compression"):
        yield "X-Pulsar-compression", compression_name(metadata.compression)
    if metadata.HasField("uncompressed_size"):
        yield "X-Pulsar-uncompressed-size", str(metadata.uncompressed_size)
    if metadata.HasField("encryption_algo"):
        yield "X-Pulsar-encryption-algo", metadata.encryption_algo
    for key in metadata.encryption_keys:
        yield "X-Pulsar-Base64-encryption-keys", _base64(key.SerializeToString())
    if metadata.HasField("encryption_param"):
        yield "X-Pulsar-Base64-encryption-param", _base64(metadata.encryption_param)
    if metadata.HasField("schema_version"):
        yield "X-Pulsar-Base64-schema-version", _base64(metadata.schema_version)


def _chunk_headers(metadata: MessageMetadata) -> Iterator[tuple[str, str]]:
    if metadata.HasField("highest_sequence_id"):
        yield "X-Pulsar-highest-sequence-id", str(_signed(metadata.highest_sequence_id))
    if metadata.HasField("uuid"):
        yield "X-Pulsar-uuid", metadata.uuid
    if metadata.HasField("num_chunks_from_msg"):
        yield "X-Pulsar-num-chunks-from-msg", str(metadata.num_chunks_from_msg)
    if metadata.HasField("total_chunk_msg_size"):
        yield "X-Pulsar-total-chunk-msg-size", str(metadata.total_chunk_msg_size)
    if metadata.HasField("chunk_id"):
        yield "X-Pulsar-chunk-id", str(metadata.chunk_id)


def _transaction_headers(metadata: MessageMetadata) -> Iterator[tuple[str, str]]:
    if metadata.HasField("txnid_least_bits"):
        yield "X-Pulsar-txnid-least-bits", str(_signed(metadata.txnid_least_bits))
    if metadata.HasField("txnid_most_bits"):
        yield "X-Pulsar-txnid-most-bits", str(_signed(metadata.txnid_most_bits))
    if metadata.HasField("txnid_least_bits") and metadata.HasField("txnid_most_bits"):
        yield "X-Pulsar-txn-aborted", "false"
    # Every message that is stored is one that readers may see.
    yield "X-Pulsar-txn-uncommitted", "false"


def _signed(value: int) -> int:
    """An unsigned number of 64 bits as Java has it."""
    return value - (1 << 64) if value >= 1 << 63 else value


def _flag(value: bool) -> str:
    return "true" if value else "false"


def _base64(value: bytes) -> str:
    return b64encode(value).decode("ascii")


def _one_line(value: str) -> str:
    """`value` as a header can hold it: a question mark for what is not Latin-1, a blank for control characters, none around."""
    return value.encode("latin-1", "replace").decode("latin-1").translate(_BLANKS).strip()
