"""Messages of one stored entry for display: keys, sizes and properties.

Publishers control the bytes, so no function raises, and results are limited: long keys and many properties are
truncated and marked. A batch is decompressed only if its declared size is within the caller's limit. Of an encrypted or
damaged batch, only the entry's metadata is returned.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from google.protobuf.message import DecodeError

from pybroker.errors import ProtocolViolation
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.compression import NOT_COMPRESSED, DamagedPayload, decompress
from pybroker.wire.entry_metadata import entry_head, from_base64, metadata_head, metadata_span
from pybroker.wire.metadata_head_pb2 import MetadataHead
from pybroker.wire.stored_entry import messages_of_batch
from pybroker.wire.varint import decode, skip_field

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_KEY_BYTES = 1024
MAX_PROPERTIES_CHARACTERS = 16 * 1024
_PROPERTIES_TAG = 4 << 3 | 2
_MAX_OTHER_FIELDS = 10_000
"""Real clients send about thirty."""


class MessageOfEntry(NamedTuple):
    """A message of an entry for display. `batch_index` is -1 for an entry that is not a batch. `size_bytes` is the
    stored size, or for a message of a batch its uncompressed payload; -1 if unknown.

    `key` is the key by which Key_Shared would select the consumer of this message: the ordering key, else the key.
    """

    batch_index: int
    key: bytes | None
    is_key_cut: bool
    size_bytes: int
    properties: dict[str, str]
    are_properties_cut: bool


class EntryView(NamedTuple):
    """The messages of an entry for display. `problem` is the reason why they cannot be shown separately; empty if they
    can.
    """

    messages: Sequence[MessageOfEntry]
    batch_size: int
    publish_time_ms: int
    deliver_at_ms: int
    is_encrypted: bool
    problem: str


def is_slow_to_open(entry: bytes, quick_bytes: int) -> bool:
    """Return whether the entry may take long to decode: its size or its declared uncompressed size is above
    `quick_bytes`, or its number of messages is above `quick_bytes` / 64.
    """
    if len(entry) > quick_bytes:
        return True
    try:
        head = entry_head(entry)
    except ProtocolViolation:
        return False
    return head.uncompressed_size > quick_bytes or head.num_messages_in_batch > quick_bytes // 64


def entry_view(entry: bytes, wanted: Iterable[int] | None, max_opened_bytes: int) -> EntryView:
    try:
        start, end = metadata_span(entry)
        head = metadata_head(entry, start, end)
    except ProtocolViolation as error:
        return EntryView((), 1, 0, 0, is_encrypted=False, problem=f"the metadata cannot be read: {error}")
    is_encrypted = head.HasField("encryption_keys")
    times = _time(head.publish_time), _time(head.deliver_at_time)
    if not head.HasField("num_messages_in_batch"):
        message = _message(_key(head, head.partition_key), _properties_at(entry, start, end), -1, len(entry))
        return EntryView([message], 1, *times, is_encrypted=is_encrypted, problem="")
    count = max(1, head.num_messages_in_batch) if head.num_messages_in_batch < 1 << 31 else 1
    problem = ""
    if is_encrypted:
        problem = "the batch is encrypted"
    elif head.compression != NOT_COMPRESSED and head.uncompressed_size > max_opened_bytes:
        problem = f"the batch is too large to open: its metadata states {head.uncompressed_size} bytes"
    else:
        try:
            payload = entry[end:]
            if head.compression != NOT_COMPRESSED:
                payload = decompress(head.compression, payload, head.uncompressed_size)
            return EntryView(_messages(payload, count, wanted), count, *times, is_encrypted=is_encrypted, problem="")
        except (DamagedPayload, DecodeError) as error:
            problem = f"the batch cannot be read: {error}"
    # The entry's metadata has the common key of the messages, if the producer batches by key.
    indexes = range(count) if wanted is None else wanted
    of_batch = _message(_key(head, head.partition_key), _properties_at(entry, start, end), 0, -1)
    return EntryView(
        [of_batch._replace(batch_index=index) for index in indexes],
        count,
        *times,
        is_encrypted=is_encrypted,
        problem=problem,
    )


def key_of_entry(entry: bytes) -> bytes | None:
    try:
        head = entry_head(entry)
    except ProtocolViolation:
        return None
    key = _key(head, head.partition_key)
    return key[:MAX_KEY_BYTES] if key is not None else None


def _messages(payload: bytes, count: int, wanted: Iterable[int] | None) -> list[MessageOfEntry]:
    asked = None if wanted is None else set(wanted)
    found: list[MessageOfEntry] = []
    for index, (single, _, _) in enumerate(messages_of_batch(payload, count)):
        if asked is None or index in asked:
            pairs = ((pair.key, pair.value) for pair in single.properties)
            found.append(_message(_key(single, single.partition_key.encode()), pairs, index, single.payload_size))
            if asked is not None and len(found) == len(asked):
                break
    return found


def _key(metadata: MetadataHead | pb.SingleMessageMetadata, partition_key: bytes) -> bytes | None:
    if metadata.HasField("ordering_key"):
        return metadata.ordering_key
    if not metadata.HasField("partition_key"):
        return None
    return from_base64(partition_key) if metadata.partition_key_b64_encoded else partition_key


def _message(key: bytes | None, pairs: Iterable[tuple[str, str]], batch_index: int, size_bytes: int) -> MessageOfEntry:
    properties: dict[str, str] = {}
    left = MAX_PROPERTIES_CHARACTERS
    for name, value in pairs:
        left -= len(name) + len(value) + 1
        if left < 0:
            break
        properties[name] = value
    is_key_cut = key is not None and len(key) > MAX_KEY_BYTES
    return MessageOfEntry(
        batch_index,
        key[:MAX_KEY_BYTES] if key is not None and is_key_cut else key,
        is_key_cut,
        size_bytes,
        properties,
        left < 0,
    )


def _properties_at(entry: bytes, pos: int, end: int) -> Iterator[tuple[str, str]]:
    """Yield the properties of the MessageMetadata in `entry[pos:end]` one by one, because there may be hundreds of
    thousands.

    Stops at the first invalid property, and after `_MAX_OTHER_FIELDS` other fields.
    """
    others_left = _MAX_OTHER_FIELDS
    try:
        while pos < end and others_left:
            tag, pos = decode(entry, pos, end)
            if tag != _PROPERTIES_TAG:
                pos = skip_field(entry, tag, pos, end)
                others_left -= 1
                continue
            size, start = decode(entry, pos, end)
            pos = start + size
            if pos > end:
                return
            pair = pb.KeyValue.FromString(entry[start:pos])
            yield pair.key, pair.value
    except (ProtocolViolation, DecodeError):
        return


def _time(value: int) -> int:
    return value if value < 1 << 63 else 0
