"""Entries as clients write them, and the messages that a client reads from an entry."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from crc32c import crc32c

from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.compression import compress, decompress
from pybroker.wire.entry_metadata import message_metadata, metadata_span

CODECS = (pb.NONE, pb.LZ4, pb.ZLIB, pb.ZSTD, pb.SNAPPY)


@dataclass(frozen=True)
class Said:
    """One message as an application sees it; `key` None: no key."""

    key: str | None
    value: bytes


def framed(metadata: pb.MessageMetadata, payload: bytes) -> bytes:
    """Return an entry with its checksum."""
    header = metadata.SerializeToString()
    body = len(header).to_bytes(4, "big") + header + payload
    return b"\x0e\x01" + crc32c(body).to_bytes(4, "big") + body


def single(said: Said, codec: pb.CompressionType = pb.NONE, **fields: Any) -> bytes:
    """Return a message that is not in a batch."""
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=2, **fields)
    metadata.uncompressed_size = len(said.value)
    metadata.compression = codec
    if said.key is not None:
        metadata.partition_key = said.key
    return framed(metadata, compress(codec, said.value))


def batch(messages: Sequence[Said], codec: pb.CompressionType = pb.NONE, **fields: Any) -> bytes:
    """Messages in one entry."""
    payload = b""
    for said in messages:
        own = pb.SingleMessageMetadata(payload_size=len(said.value))
        if said.key is not None:
            own.partition_key = said.key
        header = own.SerializeToString()
        payload += len(header).to_bytes(4, "big") + header + said.value
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=2, **fields)
    metadata.num_messages_in_batch = len(messages)
    metadata.uncompressed_size = len(payload)
    metadata.compression = codec
    return framed(metadata, compress(codec, payload))


def read(entry: bytes) -> dict[int, Said]:
    """Return the messages that a client passes to its application, by index."""
    start, end = metadata_span(entry)
    assert int.from_bytes(entry[start - 8 : start - 4], "big") == crc32c(entry[start - 4 :]), "a wrong checksum"
    metadata = message_metadata(entry)
    payload = decompress(metadata.compression, entry[end:], metadata.uncompressed_size)
    if not metadata.HasField("num_messages_in_batch"):
        return {0: Said(metadata.partition_key if metadata.HasField("partition_key") else None, payload)}
    found = {}
    pos = 0
    for index in range(metadata.num_messages_in_batch):
        size = int.from_bytes(payload[pos : pos + 4], "big")
        own = pb.SingleMessageMetadata.FromString(payload[pos + 4 : pos + 4 + size])
        pos += 4 + size
        if not own.compacted_out:
            key = own.partition_key if own.HasField("partition_key") else None
            found[index] = Said(key, payload[pos : pos + own.payload_size])
        pos += own.payload_size
    assert pos == len(payload)
    return found
