"""What compaction has to know of an entry: its messages, their keys, and whether they say that a key is gone.

A batch is opened, one message after the other, without copying payloads. What cannot be opened, encrypted batches among it, counts
as one thing that stays as it is: nobody here can say which keys are in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from crc32c import crc32c
from google.protobuf.message import DecodeError

from pybroker.errors import ProtocolViolation
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.compression import DamagedPayload, compress, decompress
from pybroker.wire.entry_metadata import MAGIC_CRC32C, message_metadata, message_start, metadata_span

MAX_BATCH_BYTES = 64 * 1024 * 1024
"""A batch that claims to be larger, uncompressed, is not opened."""
_SIZE_BYTES = 4
_MAGIC = MAGIC_CRC32C.to_bytes(2, "big")
_NO_LONGER_THERE = pb.SingleMessageMetadata(payload_size=0, compacted_out=True).SerializeToString()
_REMOVED_MESSAGE = len(_NO_LONGER_THERE).to_bytes(_SIZE_BYTES, "big") + _NO_LONGER_THERE
"""What stands in a batch for a message that is gone, so that the others keep their numbers."""


class Message(NamedTuple):
    """One message of a batch; [start, end) are its bytes in the opened payload. `key` None: it has none."""

    key: bytes | None
    is_tombstone: bool
    is_removed: bool
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Whole:
    """Nobody can say what is in it."""


@dataclass(frozen=True, slots=True)
class Marker:
    """A note between brokers, which no client gets."""


@dataclass(frozen=True, slots=True)
class Single:
    """One message, or, with `chunk_uuid`, a part of a larger one."""

    key: bytes | None
    is_tombstone: bool
    chunk_uuid: bytes = b""
    is_last_chunk: bool = True


@dataclass(frozen=True, slots=True)
class Batch:
    """Several messages, or one in the form of several."""

    metadata: pb.MessageMetadata
    payload: bytes
    messages: Sequence[Message]


WHOLE = Whole()
MARKER = Marker()
Content = Whole | Marker | Single | Batch


def read_entry(entry: bytes) -> Content:
    """What is in `entry`; never raises."""
    try:
        metadata = message_metadata(entry)
        end = metadata_span(entry)[1]
        if metadata.HasField("marker_type"):
            return MARKER
        if not metadata.HasField("num_messages_in_batch"):
            return _single(metadata, len(entry) - end)
        return WHOLE if metadata.encryption_keys else _batch(metadata, entry[end:])
    except (ProtocolViolation, DamagedPayload, DecodeError):
        return WHOLE


def _single(metadata: pb.MessageMetadata, payload_bytes: int) -> Single:
    size_bytes = metadata.uncompressed_size if metadata.HasField("uncompressed_size") else payload_bytes
    key = metadata.partition_key.encode() if metadata.HasField("partition_key") else None
    is_tombstone = size_bytes == 0 or metadata.null_value
    if metadata.HasField("uuid") and metadata.num_chunks_from_msg > 1:
        is_last = metadata.chunk_id == metadata.num_chunks_from_msg - 1
        return Single(key, is_tombstone, metadata.uuid.encode(), is_last)
    return Single(key, is_tombstone)


def _batch(metadata: pb.MessageMetadata, compressed: bytes) -> Batch:
    size_bytes = metadata.uncompressed_size if metadata.HasField("uncompressed_size") else len(compressed)
    if size_bytes > MAX_BATCH_BYTES:
        raise DamagedPayload(f"a batch of {size_bytes} bytes")
    payload = decompress(metadata.compression, compressed, size_bytes)
    messages: list[Message] = []
    start = 0
    for _ in range(metadata.num_messages_in_batch):
        size_end = start + _SIZE_BYTES
        metadata_end = size_end + int.from_bytes(payload[start:size_end], "big")
        if size_end > len(payload) or metadata_end > len(payload):
            raise DamagedPayload("a batch ends before its messages do")
        single = pb.SingleMessageMetadata.FromString(payload[size_end:metadata_end])
        end = metadata_end + single.payload_size
        if single.payload_size < 0 or end > len(payload):
            raise DamagedPayload("a message of a batch is longer than the batch")
        key = single.partition_key.encode() if single.HasField("partition_key") else None
        is_tombstone = single.payload_size == 0 or single.null_value
        messages.append(Message(key, is_tombstone, single.compacted_out, start, end))
        start = end
    return Batch(metadata, payload, messages)


def with_messages(entry: bytes, batch: Batch, kept: Sequence[bool]) -> bytes:
    """`entry` with only the messages of `kept`, compressed as before; the others are marked as gone."""
    view = memoryview(batch.payload)
    parts: list[memoryview | bytes] = [
        view[message.start : message.end] if keep else _REMOVED_MESSAGE
        for message, keep in zip(batch.messages, kept, strict=True)
    ]
    payload = b"".join(parts)
    metadata = pb.MessageMetadata()
    metadata.CopyFrom(batch.metadata)
    metadata.uncompressed_size = len(payload)
    header = metadata.SerializeToString()
    body = len(header).to_bytes(_SIZE_BYTES, "big") + header + compress(metadata.compression, payload)
    start = message_start(entry)  # what the broker has put in front of it stays
    if entry[start : start + 2] == _MAGIC:
        body = _MAGIC + crc32c(body).to_bytes(4, "big") + body
    return entry[:start] + body
