"""Decoding of entries into messages, and joining of chunks. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError

from pybroker.client.frames import ReceivedEntry
from pybroker.client.message import Encryption, EncryptionKey, Message, MessageId
from pybroker.encryption.payload_encryption import decrypted
from pybroker.errors import ProtocolViolation
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.batch_limits import LEAST_MESSAGE_BYTES
from pybroker.wire.compression import DamagedPayload, decompress
from pybroker.wire.stored_entry import messages_of_batch, split_entry

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

MAX_MESSAGE_BYTES = 1 << 30
"""Size limit of a decompressed entry and of a chunked message. A larger declared size means damaged data."""
MAX_CHUNKED_MESSAGES = 10
"""Maximum number of incomplete chunked messages. Above it, the oldest one is dropped."""


class EncryptedMessage(DamagedPayload):
    """The message is encrypted, and this client has no key for it."""


@dataclass(slots=True)
class _Parts:
    first: tuple[int, int]
    payload: bytearray
    next_chunk: int = 0
    entries: list[tuple[int, int]] = field(default_factory=list)


class ChunkedMessages:
    """Chunks of incomplete messages of one consumer. The number of messages is limited, and the size of each message by
    the total that its first chunk declares.
    """

    def __init__(self, max_messages: int = MAX_CHUNKED_MESSAGES) -> None:
        self._max_messages = max_messages
        self._parts: OrderedDict[str, _Parts] = OrderedDict()
        self.given_up_count = 0
        """Dropped incomplete messages. They are complete only after a redelivery."""

    def __len__(self) -> int:
        return len(self._parts)

    def add(self, metadata: pb.MessageMetadata, at: tuple[int, int], part: bytes) -> _Parts | None:
        """Add a chunk, which is stored at the ledger id and entry id `at`. Return the message if it is now complete,
        else None. A chunk out of order is ignored. Chunk 0 discards earlier chunks of the same message.
        """
        uuid, total_bytes = metadata.uuid, metadata.total_chunk_msg_size
        if not 0 <= total_bytes <= MAX_MESSAGE_BYTES:
            raise DamagedPayload(
                f"the chunked message to which entry {at[0]}:{at[1]} belongs has {total_bytes} bytes; this client accepts at most "
                f"{MAX_MESSAGE_BYTES} bytes"
            )
        if metadata.chunk_id == 0:
            self._parts[uuid] = _Parts(at, bytearray())
            while len(self._parts) > self._max_messages:
                self._parts.popitem(last=False)
                self.given_up_count += 1
        parts = self._parts.get(uuid)
        if parts is None or parts.next_chunk != metadata.chunk_id or len(parts.payload) + len(part) > total_bytes:
            return None
        parts.payload += part
        parts.next_chunk += 1
        parts.entries.append(at)
        if parts.next_chunk < metadata.num_chunks_from_msg:
            return None
        return self._parts.pop(uuid)

    def clear(self) -> None:
        """Drop all chunks. For a lost connection: the broker then sends incomplete messages again from their first
        chunk.
        """
        self._parts.clear()


@dataclass(slots=True)
class Unpacked:
    """The unacknowledged messages of an entry, and the number of permits that the entry has used."""

    messages: list[Message]
    permits: int
    chunk_entries: list[tuple[int, int]] = field(default_factory=list)


def unpack(
    entry: ReceivedEntry,
    topic: str,
    partition: int,
    chunked: ChunkedMessages,
    *,
    takes_encrypted: bool = False,
    data_keys: Sequence[AESGCM] = (),
) -> Unpacked:
    """Return the messages of an entry. `data_keys`: the decrypted data keys of an encrypted entry. If none of them
    fits, return one encrypted message if `takes_encrypted` is set, else raise EncryptedMessage. Raises DamagedPayload
    for an entry that cannot be decoded.
    """
    try:
        metadata, payload = split_entry(entry.data)
        if not metadata.encryption_keys:
            return _unpack_plain(entry, metadata, payload, topic, partition, chunked)
        plain = decrypted(data_keys, metadata, payload)
        if plain is not None:
            unpacked = _unpack_plain(entry, metadata, plain, topic, partition, chunked)
            encryption = _encryption(metadata)._replace(is_decrypted=True)
            unpacked.messages = [each._replace(encryption=encryption) for each in unpacked.messages]
            return unpacked
        if takes_encrypted:
            return _unpack_encrypted(entry, metadata, payload, topic, partition)
        raise EncryptedMessage(
            f"the message {entry.ledger_id}:{entry.entry_id} of topic {topic} is encrypted, and this client has no private key "
            "for it"
        )
    except (ProtocolViolation, DecodeError) as error:
        raise DamagedPayload(
            f"entry {entry.ledger_id}:{entry.entry_id} of topic {topic} contains no valid message: {error}. The entry stays "
            "unacknowledged: `pybroker ack` acknowledges it, so that the broker does not deliver it again"
        ) from error


def _unpack_plain(
    entry: ReceivedEntry,
    metadata: pb.MessageMetadata,
    payload: bytes,
    topic: str,
    partition: int,
    chunked: ChunkedMessages,
) -> Unpacked:
    if metadata.num_chunks_from_msg > 1 and metadata.HasField("uuid"):
        return _unpack_chunk(entry, metadata, payload, topic, partition, chunked)
    opened = _opened(metadata, payload)
    if not metadata.HasField("num_messages_in_batch"):
        message_id = MessageId(entry.ledger_id, entry.entry_id, partition)
        return Unpacked([_single(entry, metadata, opened, topic, message_id)], 1)
    return unpack_batch(entry, metadata, opened, topic, partition)


def _unpack_encrypted(
    entry: ReceivedEntry, metadata: pb.MessageMetadata, payload: bytes, topic: str, partition: int
) -> Unpacked:
    """Return the entry as one message with its encrypted bytes, also if it is a batch or a chunk."""
    encryption = _encryption(metadata)
    message_id = MessageId(entry.ledger_id, entry.entry_id, partition)
    message = _single(entry, metadata, bytes(payload), topic, message_id)
    return Unpacked([message._replace(encryption=encryption)], max(1, encryption.batch_size or 1))


def _encryption(metadata: pb.MessageMetadata) -> Encryption:
    count = metadata.num_messages_in_batch if metadata.HasField("num_messages_in_batch") else None
    keys = tuple(
        EncryptionKey(key.key, key.value, {pair.key: pair.value for pair in key.metadata})
        for key in metadata.encryption_keys
    )
    return Encryption(
        keys,
        metadata.encryption_param,
        metadata.encryption_algo if metadata.HasField("encryption_algo") else None,
        metadata.compression,
        metadata.uncompressed_size,
        count,
    )


def _unpack_chunk(
    entry: ReceivedEntry,
    metadata: pb.MessageMetadata,
    payload: bytes,
    topic: str,
    partition: int,
    chunked: ChunkedMessages,
) -> Unpacked:
    at = (entry.ledger_id, entry.entry_id)
    whole = chunked.add(metadata, at, payload)
    if whole is None:
        return Unpacked([], 1)
    opened = _opened(metadata, bytes(whole.payload))
    message = _single(entry, metadata, opened, topic, MessageId(*at, partition, first_chunk=whole.first))
    return Unpacked([message], 1, whole.entries)


def _opened(metadata: pb.MessageMetadata, payload: bytes) -> bytes:
    size_bytes = metadata.uncompressed_size if metadata.HasField("uncompressed_size") else len(payload)
    if size_bytes > MAX_MESSAGE_BYTES:
        raise DamagedPayload(
            f"the message of producer {metadata.producer_name!r} has {size_bytes} bytes after decompression; this client accepts "
            f"at most {MAX_MESSAGE_BYTES} bytes"
        )
    return decompress(metadata.compression, payload, size_bytes)


def _single(entry: ReceivedEntry, metadata: pb.MessageMetadata, value: bytes, topic: str, at: MessageId) -> Message:
    return _message(
        at,
        topic,
        metadata,
        value,
        metadata.sequence_id,
        metadata.publish_time,
        metadata.producer_name,
        entry.redelivery_count,
        metadata.schema_version,
    )


def _message(
    at: MessageId,
    topic: str,
    said: pb.MessageMetadata | pb.SingleMessageMetadata,
    value: bytes,
    sequence_id: int,
    publish_time_ms: int,
    producer_name: str,
    redelivery_count: int,
    schema_version: bytes,
) -> Message:
    key = said.partition_key if said.HasField("partition_key") else None
    properties = said.properties
    return Message(
        at,
        topic,
        None if said.null_value else value,
        key,
        key is not None and said.partition_key_b64_encoded,
        said.ordering_key if said.HasField("ordering_key") else None,
        {pair.key: pair.value for pair in properties} if properties else {},
        publish_time_ms,
        said.event_time,
        producer_name,
        sequence_id,
        redelivery_count,
        schema_version,
    )


def unpack_batch(
    entry: ReceivedEntry, metadata: pb.MessageMetadata, payload: bytes, topic: str, partition: int
) -> Unpacked:
    count = metadata.num_messages_in_batch
    if not 0 <= count <= len(payload) // LEAST_MESSAGE_BYTES:
        raise DamagedPayload(
            f"the batch {entry.ledger_id}:{entry.entry_id} of topic {topic} is damaged: it claims {count} messages in "
            f"{len(payload)} bytes"
        )
    messages: list[Message] = []
    ledger_id, entry_id, redelivery_count, ack_set = (
        entry.ledger_id,
        entry.entry_id,
        entry.redelivery_count,
        entry.ack_set,
    )
    # Read the fields once: a batch may have thousands of messages.
    first_sequence_id, publish_time_ms = metadata.sequence_id, metadata.publish_time
    producer_name, schema_version = metadata.producer_name, metadata.schema_version
    try:
        for index, (single, start, end) in enumerate(messages_of_batch(payload, count)):
            if single.compacted_out or (ack_set and not _is_left(ack_set, index)):
                continue
            messages.append(
                _message(
                    MessageId(ledger_id, entry_id, partition, index, count),
                    topic,
                    single,
                    payload[start:end],
                    single.sequence_id if single.HasField("sequence_id") else first_sequence_id + index,
                    publish_time_ms,
                    producer_name,
                    redelivery_count,
                    schema_version,
                )
            )
    except DamagedPayload as error:
        raise DamagedPayload(
            f"the batch {ledger_id}:{entry_id} of topic {topic} is damaged: it ends within its last message"
        ) from error
    return Unpacked(messages, count)


def _is_left(ack_set: tuple[int, ...], index: int) -> bool:
    word = index >> 6
    return word < len(ack_set) and bool(ack_set[word] >> (index & 63) & 1)
