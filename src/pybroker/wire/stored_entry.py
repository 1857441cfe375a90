"""The format of a stored entry: its metadata, its payload, and the messages of a batch.

    entry    [0x0e02 size(4) BrokerEntryMetadata]  [0x0e01 crc32c(4)]  size(4) MessageMetadata  payload
    batch    for each message: size(4) SingleMessageMetadata value

The payload is compressed and then encrypted, as MessageMetadata states. The uncompressed payload of a batch has the
second form. `entry_metadata.metadata_span` finds MessageMetadata; `compression.decompress` decompresses a payload.

Other readers of the format: `entry_metadata`, `broker_entry_metadata` and `commands` on hot paths, without protobuf
objects; `columns/_scanner.c` and `columns/pure_python` in bulk; `console/decode.js` in the browser. The vectors in
`tests/vectors/stored_entries.json` test all of them.
"""

from __future__ import annotations

from collections.abc import Iterator

from crc32c import crc32c

from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.compression import DamagedPayload
from pybroker.wire.entry_metadata import message_start, metadata_span, parsed_metadata

_SIZE_BYTES = 4


def split_entry(entry: bytes) -> tuple[pb.MessageMetadata, bytes]:
    start, end = metadata_span(entry)
    return parsed_metadata(entry, start, end), entry[end:]


def messages_of_batch(payload: bytes, count: int) -> Iterator[tuple[pb.SingleMessageMetadata, int, int]]:
    """Yield the metadata of each message, and start and end of its value in `payload`, the uncompressed payload of a
    batch.

    Raises DamagedPayload if `payload` is too short for `count` messages, DecodeError if a message's metadata is
    invalid. Consecutive messages with identical metadata share one object, which callers must not change.
    """
    payload_bytes = len(payload)
    header = b""
    single = pb.SingleMessageMetadata()
    end = 0
    for index in range(count):
        start = end + _SIZE_BYTES
        value_start = start + int.from_bytes(payload[end:start], "big")
        if value_start > payload_bytes:
            raise DamagedPayload("the batch is damaged: it ends within its last message")
        own_header = payload[start:value_start]
        if own_header != header or not index:
            single = pb.SingleMessageMetadata.FromString(own_header)
            header = own_header
        value_bytes = single.payload_size
        end = value_start + value_bytes
        if value_bytes < 0 or end > payload_bytes:
            raise DamagedPayload("the batch is damaged: a message extends beyond the end of the batch")
        yield single, value_start, end


def is_checksum_wrong(entry: bytes) -> bool:
    start = message_start(entry)
    if entry[start : start + 2] != b"\x0e\x01":
        return False
    stated = int.from_bytes(entry[start + 2 : start + 6], "big")
    return crc32c(memoryview(entry)[start + 6 :]) != stated
