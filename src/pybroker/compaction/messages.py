"""The content of an entry for compaction: its messages, their keys, and whether they delete a key.

A batch is decoded message by message, without copying payloads. An entry that cannot be decoded, such as an encrypted
batch, is one unit that stays unchanged, because its keys are unknown.

The cost of decoding is the uncompressed size of the batch, which can be thousands of times the stored size:
`opening_cost` reads it from the metadata in advance.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from google.protobuf.message import DecodeError

from pybroker.errors import ProtocolViolation
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.batch_limits import LEAST_MESSAGE_BYTES, uncompressed_bytes
from pybroker.wire.compression import DamagedPayload, compress, decompress
from pybroker.wire.entry_builder import framed
from pybroker.wire.entry_metadata import (
    MAGIC_CRC32C,
    NUM_MESSAGES_BYTE,
    message_count,
    message_metadata,
    message_start,
    metadata_head,
    metadata_span,
)
from pybroker.wire.metadata_head_pb2 import MetadataHead
from pybroker.wire.stored_entry import messages_of_batch

MAX_BATCH_BYTES = 64 * 1024 * 1024
"""A batch with a larger uncompressed size is not opened."""
MAX_BATCH_MESSAGES = 1_000_000
"""A batch with more messages, stored before such batches were refused, is not opened."""
_MESSAGE_COST_BYTES = 128
"""In bytes that could be decompressed in the same time: about a microsecond."""
_IS_TOMBSTONE = 1
_IS_REMOVED = 2
_SIZE_BYTES = 4
_MAGIC = MAGIC_CRC32C.to_bytes(2, "big")
_NO_LONGER_THERE = pb.SingleMessageMetadata(payload_size=0, compacted_out=True).SerializeToString()
_REMOVED_MESSAGE = len(_NO_LONGER_THERE).to_bytes(_SIZE_BYTES, "big") + _NO_LONGER_THERE
"""Replaces a removed message, so that the other messages keep their indexes."""


class Message(NamedTuple):
    """A message in an entry. `payload[start:end]` are its bytes in the decoded batch."""

    key: bytes | None
    is_tombstone: bool
    is_removed: bool
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Whole:
    """An entry with unknown contents, which compaction does not change."""


@dataclass(frozen=True, slots=True)
class Marker:
    """A marker for brokers, which clients do not receive."""


@dataclass(frozen=True, slots=True)
class Single:
    """One message, or, with `chunk_uuid`, a chunk of a larger one."""

    key: bytes | None
    is_tombstone: bool
    chunk_uuid: bytes = b""
    is_last_chunk: bool = True


class Batch:
    """The messages of a batch, as columns instead of an object for each message."""

    __slots__ = ("_ends", "_flags", "_keys", "metadata", "payload")

    def __init__(self, metadata: pb.MessageMetadata, payload: bytes) -> None:
        """Raises DamagedPayload and DecodeError if `payload` does not match `metadata`."""
        self.metadata = metadata
        self.payload = payload
        self._ends = array("I")  # message i begins where the previous one ends
        self._keys: list[bytes | None] = []
        self._flags = bytearray()
        previous: pb.SingleMessageMetadata | None = None
        key: bytes | None = None
        flags = 0
        for single, _, end in messages_of_batch(payload, metadata.num_messages_in_batch):
            if single is not previous:  # Neighbours are often equal, in highly compressed batches nearly always.
                previous = single
                if single.HasField("partition_key"):
                    own_key = single.partition_key.encode()
                    key = key if own_key == key else own_key
                else:
                    key = None
                flags = _IS_TOMBSTONE if single.payload_size == 0 or single.null_value else 0
                flags |= _IS_REMOVED if single.compacted_out else 0
            self._ends.append(end)
            self._keys.append(key)
            self._flags.append(flags)

    @property
    def messages(self) -> Iterator[Message]:
        start = 0
        for key, flags, end in zip(self._keys, self._flags, self._ends, strict=True):
            yield Message(key, bool(flags & _IS_TOMBSTONE), bool(flags & _IS_REMOVED), start, end)
            start = end


WHOLE = Whole()
MARKER = Marker()
Content = Whole | Marker | Single | Batch


def read_entry(entry: bytes) -> Content:
    try:
        start, end = metadata_span(entry)
        head = metadata_head(entry, start, end)
        if head.HasField("marker_type"):
            return MARKER
        if not head.HasField("num_messages_in_batch"):
            return _single(head, len(entry) - end)
        return WHOLE if head.HasField("encryption_keys") else _batch(message_metadata(entry), entry[end:])
    except (ProtocolViolation, DamagedPayload, DecodeError):
        return WHOLE


def _single(head: MetadataHead, payload_bytes: int) -> Single:
    size_bytes = head.uncompressed_size if head.HasField("uncompressed_size") else payload_bytes
    key = head.partition_key if head.HasField("partition_key") else None
    is_tombstone = size_bytes == 0 or head.null_value
    if head.HasField("uuid") and 1 < head.num_chunks_from_msg < 1 << 31:
        return Single(key, is_tombstone, head.uuid, head.chunk_id == head.num_chunks_from_msg - 1)
    return Single(key, is_tombstone)


def opening_cost(entry: bytes) -> int:
    """Return the cost of opening `entry`: the number of bytes that must be decompressed and decoded, plus a fixed
    number for each message. Never raises.
    """
    try:
        start, end = metadata_span(entry)
        if entry.find(NUM_MESSAGES_BYTE, start, end) < 0:  # no batch
            return len(entry)
        count = message_count(entry, start, end)
        size_bytes = uncompressed_bytes(entry, start, end, len(entry) - end)
    except ProtocolViolation:
        return len(entry)
    if not _may_open(size_bytes, count):
        return len(entry)
    return len(entry) + size_bytes + count * _MESSAGE_COST_BYTES


def _may_open(size_bytes: int, message_count: int) -> bool:
    return (
        size_bytes <= MAX_BATCH_BYTES
        and message_count <= MAX_BATCH_MESSAGES
        and (message_count == 1 or message_count * LEAST_MESSAGE_BYTES <= size_bytes)
    )


def _batch(metadata: pb.MessageMetadata, compressed: bytes) -> Batch:
    size_bytes = metadata.uncompressed_size if metadata.HasField("uncompressed_size") else len(compressed)
    if not _may_open(size_bytes, metadata.num_messages_in_batch):
        raise DamagedPayload(
            f"a batch of producer {metadata.producer_name!r} is damaged: it claims {metadata.num_messages_in_batch} messages in "
            f"{size_bytes} bytes"
        )
    return Batch(metadata, decompress(metadata.compression, compressed, size_bytes))


def with_messages(entry: bytes, batch: Batch, kept: Sequence[bool]) -> bytes:
    """Return the batch `entry` without the messages whose value in `kept` is False, compressed as before. A placeholder
    replaces each removed message, so that batch indexes stay.
    """
    view = memoryview(batch.payload)
    payload = bytearray()
    for keeps, run in groupby(zip(batch.messages, kept, strict=True), key=lambda row: row[1]):
        if keeps:
            messages = [message for message, _ in run]
            payload += view[messages[0].start : messages[-1].end]
        else:
            payload += _REMOVED_MESSAGE * sum(1 for _ in run)
    metadata = pb.MessageMetadata()
    metadata.CopyFrom(batch.metadata)
    metadata.uncompressed_size = len(payload)
    start = message_start(entry)  # the broker entry metadata stays
    compressed = compress(metadata.compression, bytes(payload))
    return entry[:start] + framed(metadata, compressed, has_checksum=entry[start : start + 2] == _MAGIC)
