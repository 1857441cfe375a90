"""Builder of entries that the broker or tools write or change, in the form in which clients send them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from crc32c import crc32c

from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.entry_metadata import MAGIC_CRC32C


def framed(metadata: pb.MessageMetadata, payload: bytes, *, has_checksum: bool = True) -> bytes:
    """Return the bytes of an entry: `[0x0e01 crc32c(4)] metadata_size(4) MessageMetadata payload`."""
    header = metadata.SerializeToString()
    if not has_checksum:
        return len(header).to_bytes(4, "big") + header + payload
    return framed_header(header, payload)


def framed_header(header: bytes, payload: bytes) -> bytes:
    front = len(header).to_bytes(4, "big") + header
    checksum = crc32c(payload, crc32c(front))  # in two steps, with one join, because payloads are large
    return b"".join((MAGIC_CRC32C.to_bytes(2, "big"), checksum.to_bytes(4, "big"), front, payload))


def build_entry(
    producer_name: str,
    sequence_id: int,
    publish_time_ms: int,
    payload: bytes | None,
    *,
    key: str = "",
    is_key_encoded: bool = False,
    properties: Mapping[str, str] = MappingProxyType({}),
    event_time_ms: int = 0,
    deliver_at_ms: int = 0,
    replicate_to: Sequence[str] = (),
    schema_version: bytes = b"",
) -> bytes:
    """Build an entry with a single message. Payload None is a null value, which deletes the key in compaction.

    `is_key_encoded`: the key is Base64 of the actual key.
    """
    metadata = pb.MessageMetadata(
        producer_name=producer_name,
        sequence_id=sequence_id,
        publish_time=publish_time_ms,
        uncompressed_size=len(payload or b""),
        replicate_to=replicate_to,
    )
    if key:
        metadata.partition_key = key
        metadata.partition_key_b64_encoded = is_key_encoded
    for name, value in properties.items():
        metadata.properties.add(key=name, value=value)
    if event_time_ms:
        metadata.event_time = event_time_ms
    if deliver_at_ms:
        metadata.deliver_at_time = deliver_at_ms
    if schema_version:
        metadata.schema_version = schema_version
    if payload is None:
        metadata.null_value = True
    return framed(metadata, payload or b"")
