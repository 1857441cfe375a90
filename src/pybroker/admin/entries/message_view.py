"""REST form of a stored entry: metadata as headers, decompressed payload as body. Clients decode the messages.

Each header is one line of Latin-1, whatever a producer has set; all together have at most `MAX_HEADER_BYTES`.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pybroker.admin.time_text import iso_text
from pybroker.errors import AdminError, ProtocolViolation
from pybroker.model.position import Position
from pybroker.wire.broker_entry_metadata import BrokerEntryMetadata, broker_metadata
from pybroker.wire.compression import NOT_COMPRESSED, DamagedPayload, compression_name, decompress
from pybroker.wire.entry_metadata import metadata_span, parsed_metadata

if TYPE_CHECKING:
    from pybroker.wire.pulsar_api_pb2 import MessageMetadata

MAX_HEADER_BYTES = 64 * 1024
"""Maximum size that clients accept."""
MAX_METADATA_BYTES = 4 * MAX_HEADER_BYTES
"""Maximum size of parsed metadata. Protobuf objects of properties take up to 20 times their bytes."""
_SMALL_BYTES = 64 * 1024
_BLANKS = dict.fromkeys([*range(0x20), *range(0x7F, 0xA0)], " ")


@dataclass(frozen=True, slots=True)
class MessageView:
    """Headers (a name can repeat) and body of one entry."""

    headers: list[tuple[str, str]]
    body: bytes


def is_slow_to_view(entry: bytes) -> bool:
    """Return whether decoding the entry may block the event loop for too long."""
    return len(entry) > _SMALL_BYTES or _metadata(entry).uncompressed_size > _SMALL_BYTES


def message_view(
    position: Position, entry: bytes, max_body_bytes: int, *, is_aborted: bool = False, is_uncommitted: bool = False
) -> MessageView:
    """Decode the entry at `position`. `is_aborted` and `is_uncommitted`, the state of its transaction, become headers.
    Raises AdminError 422 if the entry is unreadable, 413 if headers or body are too large.
    """
    metadata = _metadata(entry)
    start, end = metadata_span(entry)
    # Pulsar includes the frame around the metadata.
    around_metadata_bytes = len(entry) - (end - start)
    transactions = _in_transactions(metadata, is_aborted=is_aborted, is_uncommitted=is_uncommitted)
    headers = [
        (name, _one_line(value))
        for name, value in (
            *_headers(position, metadata, broker_metadata(entry), around_metadata_bytes),
            *transactions,
        )
    ]
    header_bytes = sum(len(name) + len(value) for name, value in headers)
    if header_bytes > MAX_HEADER_BYTES:
        raise AdminError(
            413,
            f"The message cannot be shown, because its headers have {header_bytes} bytes; the limit is {MAX_HEADER_BYTES}",
        )
    return MessageView(headers, _body(metadata, entry[end:], max_body_bytes))


def _metadata(entry: bytes) -> MessageMetadata:
    try:
        start, end = metadata_span(entry)
        if end - start > MAX_METADATA_BYTES:
            raise AdminError(
                413,
                f"The message cannot be shown, because its metadata has {end - start} bytes; the limit is {MAX_METADATA_BYTES}",
            )
        return parsed_metadata(entry, start, end)
    except ProtocolViolation as error:
        raise AdminError(
            422, f"The message cannot be shown, because its stored metadata is damaged: {error}"
        ) from error


def _body(metadata: MessageMetadata, payload: bytes, max_body_bytes: int) -> bytes:
    # An encrypted payload was compressed before encryption. Only a client with the key can decompress it.
    if metadata.compression == NOT_COMPRESSED or metadata.encryption_keys:
        return payload
    size_bytes = metadata.uncompressed_size
    if size_bytes > max_body_bytes:
        raise AdminError(
            413,
            f"The message cannot be shown, because it has {size_bytes} bytes after decompression; the limit is "
            f"maxMessageSize ({max_body_bytes} bytes)",
        )
    try:
        return decompress(metadata.compression, payload, size_bytes)
    except DamagedPayload as error:
        raise AdminError(
            422, f"The message cannot be shown, because its payload cannot be decompressed: {error}"
        ) from error


def _headers(
    position: Position, metadata: MessageMetadata, added: BrokerEntryMetadata, around_metadata_bytes: int
) -> Iterator[tuple[str, str]]:
    yield "X-Pulsar-Message-ID", str(position)
    properties = {pair.key: pair.value for pair in metadata.properties}
    # Escapes keep the JSON in ASCII.
    yield "X-Pulsar-PROPERTY", json.dumps(properties, separators=(",", ":"))
    if added.timestamp_ms is not None:
        yield "X-Pulsar-Broker-Entry-METADATA-timestamp", iso_text(added.timestamp_ms)
    if added.index is not None:
        yield "X-Pulsar-Broker-Entry-METADATA-index", str(added.index)
    yield "X-Pulsar-publish-time", iso_text(_signed(metadata.publish_time))
    if metadata.HasField("num_messages_in_batch"):
        yield "X-Pulsar-batch-size", str(around_metadata_bytes)
    if metadata.HasField("num_chunks_from_msg"):
        yield "X-Pulsar-PROPERTY-TOTAL-CHUNKS", str(metadata.num_chunks_from_msg)
        yield "X-Pulsar-PROPERTY-CHUNK-ID", str(metadata.chunk_id)
    yield "X-Pulsar-Is-Encrypted", _flag(bool(metadata.encryption_keys))
    yield "X-Pulsar-producer-name", metadata.producer_name
    yield "X-Pulsar-sequence-id", str(_signed(metadata.sequence_id))
    for cluster in metadata.replicate_to:
        yield "X-Pulsar-replicated-to", cluster
    for key in metadata.encryption_keys:
        yield "X-Pulsar-Base64-encryption-keys", _base64(key.SerializeToString())
    for field, name, text in _OPTIONAL:
        if metadata.HasField(field):
            yield f"X-Pulsar-{name}", text(getattr(metadata, field))


def _in_transactions(metadata: MessageMetadata, *, is_aborted: bool, is_uncommitted: bool) -> Iterator[tuple[str, str]]:
    if metadata.HasField("txnid_least_bits") and metadata.HasField("txnid_most_bits"):
        yield "X-Pulsar-txn-aborted", _flag(is_aborted)
    yield "X-Pulsar-txn-uncommitted", _flag(is_uncommitted)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def _flag(value: bool) -> str:
    return "true" if value else "false"


def _base64(value: bytes) -> str:
    return b64encode(value).decode("ascii")


def _one_line(value: str) -> str:
    """Return a valid header value: `?` for characters outside Latin-1, spaces for control characters, trimmed."""
    return value.encode("latin-1", "replace").decode("latin-1").translate(_BLANKS).strip()


def _signed_text(value: int) -> str:
    return str(_signed(value))


def _time_text(value: int) -> str:
    return iso_text(_signed(value))


_OPTIONAL: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
    ("event_time", "event-time", _time_text),
    ("deliver_at_time", "deliver-at-time", _time_text),
    ("num_messages_in_batch", "num-batch-message", str),
    ("null_value", "null-value", _flag),
    ("replicated_from", "replicated-from", str),
    ("marker_type", "marker-type", str),
    ("partition_key", "partition-key", str),
    ("partition_key_b64_encoded", "partition-key-b64-encoded", _flag),
    ("ordering_key", "Base64-ordering-key", _base64),
    ("null_partition_key", "null-partition-key", _flag),
    ("compression", "compression", compression_name),
    ("uncompressed_size", "uncompressed-size", str),
    ("encryption_algo", "encryption-algo", str),
    ("encryption_param", "Base64-encryption-param", _base64),
    ("schema_version", "Base64-schema-version", _base64),
    ("highest_sequence_id", "highest-sequence-id", _signed_text),
    ("uuid", "uuid", str),
    ("num_chunks_from_msg", "num-chunks-from-msg", str),
    ("total_chunk_msg_size", "total-chunk-msg-size", str),
    ("chunk_id", "chunk-id", str),
    ("txnid_least_bits", "txnid-least-bits", _signed_text),
    ("txnid_most_bits", "txnid-most-bits", _signed_text),
)
"""Optional headers: field, header without prefix, conversion to text."""
