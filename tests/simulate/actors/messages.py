"""Entries as simulated clients write and read them: each message has a value that no other has."""

from __future__ import annotations

from dataclasses import dataclass, field

from crc32c import crc32c

from pybroker.client.producing.packing import batch_payload
from pybroker.model.position import Position
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.entry_builder import framed


@dataclass
class Outgoing:
    """What one SEND says, kept until it is answered."""

    sequence_id: int
    values: list[str]
    key: str
    entry: bytes
    message_count: int
    chunk_id: int = -1
    deliver_at_s: float = 0
    txn: tuple[int, int] | None = None


def entry_of(
    producer: str,
    sequence_id: int,
    values: list[str],
    key: str,
    now_ms: int,
    *,
    deliver_at_ms: int = 0,
    is_batch: bool = False,
    txn: tuple[int, int] | None = None,
) -> bytes:
    metadata = pb.MessageMetadata(producer_name=producer, sequence_id=sequence_id, publish_time=now_ms)
    if key:
        metadata.partition_key = key
    if deliver_at_ms:
        metadata.deliver_at_time = deliver_at_ms
    _say_txn(metadata, txn)
    if not is_batch:
        return framed(metadata, values[0].encode())
    metadata.num_messages_in_batch = len(values)
    return framed(metadata, batch_payload((pb.SingleMessageMetadata(), value.encode()) for value in values))


def _say_txn(metadata: pb.MessageMetadata, txn: tuple[int, int] | None) -> None:
    if txn is not None:
        metadata.txnid_most_bits, metadata.txnid_least_bits = txn


def chunk_of(
    producer: str,
    sequence_id: int,
    value: str,
    chunk_id: int,
    chunk_count: int,
    now_ms: int,
    txn: tuple[int, int] | None = None,
) -> bytes:
    metadata = pb.MessageMetadata(
        producer_name=producer,
        sequence_id=sequence_id,
        publish_time=now_ms,
        uuid=f"{producer}-{sequence_id}",
        num_chunks_from_msg=chunk_count,
        total_chunk_msg_size=chunk_count * len(value),
        chunk_id=chunk_id,
    )
    _say_txn(metadata, txn)
    return framed(metadata, f"{value}/{chunk_id}".encode())


@dataclass
class Incoming:
    """An entry that a consumer holds; `left` are the indexes of its messages that are not acknowledged."""

    position: Position
    values: list[str]
    key: str
    is_batch: bool
    is_chunk: bool
    redeliveries: int
    left: set[int] = field(default_factory=set)


def incoming(command: pb.CommandMessage, tail: bytes) -> Incoming | str:
    """What a MESSAGE brings; a text for one that is damaged."""
    if tail[:2] == b"\x0e\x02":
        tail = tail[6 + int.from_bytes(tail[2:6], "big") :]
    if tail[:2] == b"\x0e\x01":
        if crc32c(tail[6:]) != int.from_bytes(tail[2:6], "big"):
            return "a MESSAGE whose checksum does not hold"
        tail = tail[6:]
    size = int.from_bytes(tail[:4], "big")
    metadata = pb.MessageMetadata.FromString(tail[4 : 4 + size])
    payload = tail[4 + size :]
    position = Position(command.message_id.ledgerId, command.message_id.entryId)
    is_batch = metadata.HasField("num_messages_in_batch")
    values = _values(payload, metadata.num_messages_in_batch) if is_batch else [payload.decode()]
    left = set(range(len(values)))
    if command.ack_set:
        left = {index for index in left if _bit(command.ack_set, index)}  # type: ignore[arg-type]
        if not left:
            return "a MESSAGE with nothing left in it"
    is_chunk = metadata.HasField("chunk_id")
    return Incoming(position, values, metadata.partition_key, is_batch, is_chunk, command.redelivery_count, left)


def ack_set(left: set[int], count: int) -> list[int]:
    """Words with a bit for each message that is left, as Java's BitSet writes them."""
    words = [0] * ((count + 63) // 64)
    for index in left:
        words[index // 64] |= 1 << (index % 64)
    return [word - (1 << 64) if word >> 63 else word for word in words]


def _bit(words: list[int], index: int) -> bool:
    return index // 64 < len(words) and bool(words[index // 64] >> (index % 64) & 1)


def _values(payload: bytes, count: int) -> list[str]:
    values: list[str] = []
    at = 0
    for _ in range(count):
        size = int.from_bytes(payload[at : at + 4], "big")
        single = pb.SingleMessageMetadata.FromString(payload[at + 4 : at + 4 + size])
        at += 4 + size
        values.append(payload[at : at + single.payload_size].decode())
        at += single.payload_size
    return values
