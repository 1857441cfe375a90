"""Encoding of messages as entries: one message, a batch, or chunks of a message above the maximum message size.
Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pybroker.client.message import Encryption, OutgoingMessage
from pybroker.model.txn_id import TxnId
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.compression import compress
from pybroker.wire.entry_builder import framed
from pybroker.wire.stored_entry import messages_of_batch

if TYPE_CHECKING:
    from pybroker.encryption.payload_encryption import PayloadEncryptor


@dataclass(frozen=True, slots=True)
class Packing:
    """Fields that all entries of a producer share."""

    producer_name: str
    compression: pb.CompressionType = pb.NONE
    schema_version: bytes = b""
    encryptor: PayloadEncryptor | None = None
    """Encrypts the payload of each entry; None: payloads are not encrypted here."""


@dataclass(frozen=True, slots=True)
class PackedEntry:
    """An entry and the fields of its SEND command."""

    data: bytes
    sequence_id: int
    highest_sequence_id: int
    message_count: int
    is_chunk: bool = False


def pack_one(
    packing: Packing, message: OutgoingMessage, sequence_id: int, now_ms: int, txn: TxnId | None = None
) -> PackedEntry:
    metadata, payload = _single(packing, message, sequence_id, now_ms, txn)
    if message.encryption is None:
        payload = _encrypted(packing, metadata, payload)
    return PackedEntry(framed(metadata, payload), sequence_id, 0, 1)


def pack_batch(
    packing: Packing, messages: Sequence[OutgoingMessage], sequence_ids: Sequence[int], now_ms: int, txn: TxnId | None
) -> PackedEntry:
    singles: list[tuple[pb.SingleMessageMetadata, bytes]] = []
    for message, sequence_id in zip(messages, sequence_ids, strict=True):
        single = pb.SingleMessageMetadata(sequence_id=sequence_id)
        _describe(single, message)
        singles.append((single, message.value or b""))
    payload = batch_payload(singles)
    metadata = _metadata(packing, sequence_ids[0], now_ms, txn)
    metadata.num_messages_in_batch = len(messages)
    metadata.highest_sequence_id = sequence_ids[-1]
    # The keys of the first message stand for the batch, because Key_Shared dispatches whole entries.
    _describe_keys(metadata, messages[0])
    compressed = _compressed(packing, metadata, payload)
    encrypted = _encrypted(packing, metadata, compressed)
    return PackedEntry(framed(metadata, encrypted), sequence_ids[0], sequence_ids[-1], len(messages))


def batch_payload(messages: Iterable[tuple[pb.SingleMessageMetadata, bytes]]) -> bytes:
    parts: list[bytes] = []
    for single, value in messages:
        single.payload_size = len(value)
        header = single.SerializeToString()
        parts += (len(header).to_bytes(4, "big"), header, value)
    return b"".join(parts)


def only_message(batch_payload: bytes) -> OutgoingMessage:
    single, start, end = next(messages_of_batch(batch_payload, 1))
    return OutgoingMessage(
        None if single.null_value else batch_payload[start:end],
        single.partition_key if single.HasField("partition_key") else None,
        single.partition_key_b64_encoded,
        single.ordering_key if single.HasField("ordering_key") else None,
        {pair.key: pair.value for pair in single.properties},
        single.event_time,
    )


def pack_large(
    packing: Packing,
    message: OutgoingMessage,
    sequence_id: int,
    now_ms: int,
    max_message_bytes: int,
    txn: TxnId | None = None,
) -> Iterator[PackedEntry]:
    entry = pack_one(packing, message, sequence_id, now_ms, txn)
    if len(entry.data) <= max_message_bytes:
        yield entry
        return
    # Each chunk contains the metadata. Brokers accept some additional bytes for it.
    metadata_bytes = max(0, message.size_bytes - len(message.value or b"")) + 256
    if packing.encryptor is not None:
        metadata_bytes += packing.encryptor.overhead_bytes
    yield from pack_chunks(packing, message, sequence_id, now_ms, max(1, max_message_bytes - metadata_bytes), txn)


def pack_chunks(
    packing: Packing,
    message: OutgoingMessage,
    sequence_id: int,
    now_ms: int,
    max_payload_bytes: int,
    txn: TxnId | None = None,
) -> Iterator[PackedEntry]:
    metadata, payload = _single(packing, message, sequence_id, now_ms, txn)
    count = -(-len(payload) // max_payload_bytes)
    metadata.uuid = f"{packing.producer_name}-{sequence_id}"
    metadata.num_chunks_from_msg = count
    metadata.total_chunk_msg_size = len(payload)
    for chunk_id in range(count):
        metadata.chunk_id = chunk_id
        part = payload[chunk_id * max_payload_bytes : (chunk_id + 1) * max_payload_bytes]
        if message.encryption is None:
            part = _encrypted(packing, metadata, part)  # each chunk by itself
        yield PackedEntry(framed(metadata, part), sequence_id, 0, 1, is_chunk=True)


def _single(
    packing: Packing, message: OutgoingMessage, sequence_id: int, now_ms: int, txn: TxnId | None
) -> tuple[pb.MessageMetadata, bytes]:
    metadata = _metadata(packing, sequence_id, now_ms, txn)
    _describe(metadata, message)
    if message.deliver_at_ms:
        metadata.deliver_at_time = message.deliver_at_ms
    metadata.replicate_to.extend(message.replicate_to)
    if message.encryption is not None:
        _describe_encryption(metadata, message.encryption)
        return metadata, message.value or b""
    return metadata, _compressed(packing, metadata, message.value or b"")


def _describe_encryption(metadata: pb.MessageMetadata, encryption: Encryption) -> None:
    for key in encryption.keys:
        described = metadata.encryption_keys.add(key=key.name, value=key.value)
        for name, text in key.metadata.items():
            described.metadata.add(key=name, value=text)
    metadata.encryption_param = encryption.param
    if encryption.algorithm is not None:
        metadata.encryption_algo = encryption.algorithm
    if encryption.compression:
        metadata.compression = encryption.compression  # type: ignore[assignment]
    metadata.uncompressed_size = encryption.uncompressed_bytes


def _describe(metadata: pb.MessageMetadata | pb.SingleMessageMetadata, message: OutgoingMessage) -> None:
    _describe_keys(metadata, message)
    for name, text in message.properties.items():
        metadata.properties.add(key=name, value=text)
    if message.event_time_ms:
        metadata.event_time = message.event_time_ms
    if message.value is None:
        metadata.null_value = True


def _describe_keys(metadata: pb.MessageMetadata | pb.SingleMessageMetadata, message: OutgoingMessage) -> None:
    if message.key is not None:
        metadata.partition_key = message.key
        metadata.partition_key_b64_encoded = message.is_key_encoded
    if message.ordering_key is not None:
        metadata.ordering_key = message.ordering_key


def _metadata(packing: Packing, sequence_id: int, now_ms: int, txn: TxnId | None) -> pb.MessageMetadata:
    metadata = pb.MessageMetadata(producer_name=packing.producer_name, sequence_id=sequence_id, publish_time=now_ms)
    if packing.schema_version:
        metadata.schema_version = packing.schema_version
    if txn is not None:
        metadata.txnid_most_bits, metadata.txnid_least_bits = txn
    return metadata


def _compressed(packing: Packing, metadata: pb.MessageMetadata, payload: bytes) -> bytes:
    metadata.uncompressed_size = len(payload)
    if packing.compression == pb.NONE:
        return payload
    metadata.compression = packing.compression
    return compress(packing.compression, payload)


def _encrypted(packing: Packing, metadata: pb.MessageMetadata, payload: bytes) -> bytes:
    return payload if packing.encryptor is None else packing.encryptor.encrypt(metadata, payload)
