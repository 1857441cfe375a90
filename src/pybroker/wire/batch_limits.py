"""Upper bound of the number of messages in an entry, derived from its size without decompressing it.

The broker allocates bit sets for the messages of a batch, so a tiny entry that claims two billion messages would be
expensive. Each message takes at least six bytes before compression. The uncompressed size is the declared one, limited
by the maximum expansion of the codec. For Zstandard, which has no maximum, and for encrypted batches only the declared
size counts. `maxMessagesInBatch` limits all batches.
"""

from __future__ import annotations

from pybroker.errors import BrokerError, NotAllowedError
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.entry_metadata import LARGE_METADATA_BYTES, metadata_head
from pybroker.wire.varint import decode, skip_field

LEAST_MESSAGE_BYTES = 6
"""Minimum size of a message in a batch, before compression."""
_CODECS = frozenset(pb.CompressionType.values())
_COMPRESSION_TAG = 8 << 3
_UNCOMPRESSED_SIZE_TAG = 9 << 3
MOST_BYTES_OUT_OF_ONE: dict[int, int] = {pb.NONE: 1, pb.LZ4: 255, pb.ZLIB: 1032, pb.SNAPPY: 22}
"""Maximum expansion: one input byte of LZ4 or Snappy gives at most this many; Deflate codes 258 bytes in two bits."""


def batch_refusal(
    data: bytes, metadata_start: int, metadata_end: int, payload_bytes: int, message_count: int, max_messages: int
) -> BrokerError | None:
    """Return the error for an entry with more than `max_messages` messages, or with more messages than fit into its
    uncompressed size; otherwise None.

    The MessageMetadata is `data[metadata_start:metadata_end]`. Raises ProtocolViolation if it is invalid.
    """
    if message_count > max_messages:
        return NotAllowedError(
            f"a batch of {message_count} messages exceeds the limit of {max_messages} (maxMessagesInBatch)"
        )
    size_bytes = uncompressed_bytes(data, metadata_start, metadata_end, payload_bytes)
    if message_count * LEAST_MESSAGE_BYTES > size_bytes:
        return NotAllowedError(f"a batch of {size_bytes} bytes cannot hold {message_count} messages")
    return None


def uncompressed_bytes(data: bytes, pos: int, end: int, payload_bytes: int) -> int:
    codec: int = pb.NONE
    claimed_bytes = 0
    if end - pos > LARGE_METADATA_BYTES:
        head = metadata_head(data, pos, end)
        codec, claimed_bytes = head.compression, head.uncompressed_size
        pos = end
    while pos < end:
        tag, pos = decode(data, pos, end)
        if tag == _COMPRESSION_TAG:
            value, pos = decode(data, pos, end)
            codec = value if value in _CODECS else codec  # protobuf ignores unknown values
        elif tag == _UNCOMPRESSED_SIZE_TAG:
            value, pos = decode(data, pos, end)
            claimed_bytes = value & 0xFFFF_FFFF
        else:
            pos = skip_field(data, tag, pos, end)
    if codec == pb.NONE or not payload_bytes:  # an empty payload expands to nothing, regardless of the stated size
        return payload_bytes
    ratio = MOST_BYTES_OUT_OF_ONE.get(codec)
    return claimed_bytes if ratio is None else min(claimed_bytes, payload_bytes * ratio)
