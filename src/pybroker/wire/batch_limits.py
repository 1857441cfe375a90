"""How many messages an entry can hold at most, told from its size without opening it.

`num_messages_in_batch` is what a producer says; consumers make sets of that many bits and counters rise by it, so that an entry
of a few bytes that says two thousand million would cost everybody who touches it. Each message of a batch takes at least six
bytes before compression: four for the size of its metadata and two for the one field that it must have. How large the batch
is before compression the metadata says, and for most codecs the compressed size bounds that: no more than so many bytes come
out of one. Zstandard has no such bound, so what the metadata says counts there, as it does up to the bound for encrypted batches,
which nobody here can open. `maxMessagesInBatch` bounds all of them.
"""

from __future__ import annotations

from pybroker.errors import BrokerError, NotAllowedError
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.entry_metadata import LARGE_METADATA_BYTES, metadata_head
from pybroker.wire.varint import decode, skip_field

LEAST_MESSAGE_BYTES = 6
"""Of a message in a batch, before compression."""
_CODECS = frozenset(pb.CompressionType.values())
_COMPRESSION_TAG = 8 << 3
_UNCOMPRESSED_SIZE_TAG = 9 << 3
MOST_BYTES_OUT_OF_ONE: dict[int, int] = {pb.NONE: 1, pb.LZ4: 255, pb.ZLIB: 1032, pb.SNAPPY: 22}
"""A match of LZ4 and one of Snappy grow by so many bytes for each of theirs; Deflate codes 258 bytes in two bits."""


def batch_refusal(
    data: bytes, metadata_start: int, metadata_end: int, payload_bytes: int, message_count: int, max_messages: int
) -> BrokerError | None:
    """Why an entry with MessageMetadata at [metadata_start, metadata_end) and that much payload cannot hold so many messages.

    None when it can. Raises ProtocolViolation when the metadata does not parse.
    """
    if message_count > max_messages:
        return NotAllowedError(
            f"a batch of {message_count} messages is over the limit of {max_messages} (maxMessagesInBatch)"
        )
    size_bytes = uncompressed_bytes(data, metadata_start, metadata_end, payload_bytes)
    if message_count * LEAST_MESSAGE_BYTES > size_bytes:
        return NotAllowedError(f"a batch of {size_bytes} bytes cannot hold {message_count} messages")
    return None


def uncompressed_bytes(data: bytes, pos: int, end: int, payload_bytes: int) -> int:
    """How many bytes the payload has at most before compression, by the MessageMetadata at [pos, end)."""
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
            codec = value if value in _CODECS else codec  # protobuf passes over unknown ones
        elif tag == _UNCOMPRESSED_SIZE_TAG:
            value, pos = decode(data, pos, end)
            claimed_bytes = value & 0xFFFF_FFFF
        else:
            pos = skip_field(data, tag, pos, end)
    if codec == pb.NONE or not payload_bytes:  # out of nothing comes nothing, whatever is claimed
        return payload_bytes
    ratio = MOST_BYTES_OUT_OF_ONE.get(codec)
    return claimed_bytes if ratio is None else min(claimed_bytes, payload_bytes * ratio)
