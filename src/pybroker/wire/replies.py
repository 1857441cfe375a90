"""Encoder of the commands that the broker sends.

SEND_RECEIPT and MESSAGE are encoded without protobuf, many at a time, by the compiled core or the Python functions here
(`core.py`). All other commands are protobuf objects.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, repeat
from struct import Struct
from typing import cast

from pybroker.errors import BrokerError, ServiceNotReady
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.core import COMPILED
from pybroker.wire.varint import encode, encode_range

NO_REQUEST_ID = (1 << 64) - 1
"""Request id -1, unsigned, of an ERROR or CLOSE_* that is no response to a request."""
_MASK_64 = (1 << 64) - 1

_SIZES = Struct(">II").pack


_KEEPING_CONNECTION = ("is being unloaded", "Failed to acquire ownership", "KeeperException")


def code_and_text(failure: BrokerError) -> tuple[pb.ServerError, str]:
    """Return the protocol's error code and the text for an error response.

    On ServiceNotReady, clients based on the C++ client (Python, Node.js) close the connection with all its producers
    and consumers, unless the text contains one of three phrases of Pulsar. The function adds a phrase to other texts.
    """
    text = str(failure)
    if isinstance(failure, ServiceNotReady) and not any(phrase in text for phrase in _KEEPING_CONNECTION):
        text += " (Failed to acquire ownership)"
    return cast(pb.ServerError, failure.code), text


def frame(command: pb.BaseCommand) -> bytes:
    """Encode a command as a frame: `total(4) size(4) BaseCommand`."""
    body = command.SerializeToString()
    return _SIZES(len(body) + 4, len(body)) + body


# SEND_RECEIPT: 08 07 3a len { 08 producer  10 sequence  1a len { 08 ledger  10 entry }  20 highest }
# _RECEIPT_HEADS[n]: both sizes, command type and tag for a CommandSendReceipt of n bytes.
_RECEIPT_HEADS: list[bytes] = [_SIZES(n + 8, n + 4) + b"\x08\x07\x3a" + bytes((n,)) for n in range(128)]
# Pulsar sends the highest sequence id -1 if the SEND had none.
_NO_HIGHEST = b"\x20" + encode(-1)
_ID_HEADS: list[bytes] = [b"\x1a" + bytes((n,)) for n in range(64)]


def python_send_receipts(
    producer_id: int,
    sequence_ids: list[int],
    highest_sequence_ids: list[int],
    ledger_id: int,
    first_entry_id: int,
) -> bytes:
    """Encode SEND_RECEIPT commands for consecutive entries of one producer. A highest sequence id of 0 means that there
    is none.
    """
    producer = b"\x08" + encode(producer_id) + b"\x10"
    ledger = b"\x08" + encode(ledger_id) + b"\x10"
    count = len(sequence_ids)
    assert len(highest_sequence_ids) == count, "the lists run in parallel"
    first_sequence_id = sequence_ids[0]
    if count > 1 and not any(highest_sequence_ids):
        # Usually both sequences are consecutive; then the pieces are slices of tables, joined in C.
        sequences = encode_range(first_sequence_id, count)
        entries = encode_range(first_entry_id, count)
        if (
            sequences is not None
            and entries is not None
            and sequence_ids == list(range(first_sequence_id, first_sequence_id + count))
        ):
            entry_size = len(entries[0][0]) + len(entries[1])
            sequence_size = len(sequences[0][0]) + len(sequences[1])
            size = len(producer) + sequence_size + 2 + len(ledger) + entry_size + len(_NO_HIGHEST)
            head = _RECEIPT_HEADS[size] + producer
            middle = sequences[1] + _ID_HEADS[len(ledger) + entry_size] + ledger
            tail = entries[1] + _NO_HIGHEST
            rows = zip(repeat(head), sequences[0], repeat(middle), entries[0], repeat(tail))
            return b"".join(chain.from_iterable(rows))
    parts: list[bytes] = []
    for index, sequence_id in enumerate(sequence_ids):
        sequence = encode(sequence_id)
        message_id = ledger + encode(first_entry_id + index)
        highest = highest_sequence_ids[index]
        tail = b"\x20" + encode(highest) if highest else _NO_HIGHEST
        size = len(producer) + len(sequence) + 2 + len(message_id) + len(tail)
        parts += (_RECEIPT_HEADS[size], producer, sequence, _ID_HEADS[len(message_id)], message_id, tail)
    return b"".join(parts)


def send_receipts_of_one_id(
    producer_id: int, sequence_ids: list[int], highest_sequence_ids: list[int], id_part: int
) -> bytes:
    """Encode SEND_RECEIPT commands for messages of a non-persistent topic. All have the same message id: ledger id and
    entry id are both `id_part`.
    """
    producer = b"\x08" + encode(producer_id) + b"\x10"
    message_id = b"\x08" + encode(id_part) + b"\x10" + encode(id_part)
    message_id = _ID_HEADS[len(message_id)] + message_id
    parts_size = -1
    head = b""
    parts: list[bytes] = []
    for sequence_id, highest_sequence_id in zip(sequence_ids, highest_sequence_ids, strict=True):
        sequence = encode(sequence_id)
        highest = b"\x20" + encode(highest_sequence_id) if highest_sequence_id else _NO_HIGHEST
        size = len(sequence) + len(highest)
        if size != parts_size:  # neighbours usually have the same length
            parts_size = size
            head = _RECEIPT_HEADS[len(producer) + size + len(message_id)] + producer
        parts += (head, sequence, message_id, highest)
    return b"".join(parts)


def python_messages(
    consumer_id: int,
    ledger_id: int,
    entry_ids: Sequence[int],
    payloads: list[bytes],
    redelivery_counts: list[int] | None,
    ack_sets: list[list[int] | None] | None,
    consumer_epoch: int,
    partition: int,
) -> tuple[list[bytes], int, int]:
    """Encode MESSAGE commands for entries of one ledger. Return parts to write in order, their total bytes, and the bytes
    of the largest payload. Payloads are not copied. -1 omits `consumer_epoch` or `partition`. Without
    redeliveries, `redelivery_counts` may be None; without partly acknowledged batches, `ack_sets` may be None.
    """
    # MESSAGE: 08 09 4a len { 08 consumer  12 len { 08 ledger  10 entry  18 partition }  20 ack_set ..  18 redeliveries  28 epoch }
    consumer = b"\x08" + encode(consumer_id) + b"\x12"
    ledger = b"\x08" + encode(ledger_id) + b"\x10"
    id_end = b"" if partition < 0 else b"\x18" + encode(partition)
    epoch = b"" if consumer_epoch < 0 else b"\x28" + encode(consumer_epoch)
    id_and_epoch = id_end + epoch
    fixed_size = len(consumer) + 1 + len(ledger)
    # Neighbouring ids usually have the same lengths: parts that depend only on the lengths are rebuilt when these
    # change.
    entry_size = tail_size = command_size = -1
    head = b""
    parts: list[bytes] = []
    for index, entry_id in enumerate(entry_ids):
        payload = payloads[index]
        entry = encode(entry_id)
        tail = id_and_epoch
        if redelivery_counts is not None and redelivery_counts[index]:
            tail = id_end + b"\x18" + encode(redelivery_counts[index]) + epoch
        if ack_sets is not None and (ack_set := ack_sets[index]):
            # CommandMessage.ack_set (field 4): the unacknowledged messages of the batch.
            words = b"".join(b"\x20" + encode(word & _MASK_64) for word in ack_set)
            tail = id_end + words + tail[len(id_end) :]
        if len(entry) != entry_size or len(tail) != tail_size:
            entry_size = len(entry)
            tail_size = len(tail)
            size = fixed_size + entry_size + tail_size
            length = encode(size)
            command_size = 3 + len(length) + size
            id_length = bytes((len(ledger) + entry_size + len(id_end),))  # below 0x80
            head = b"\x08\x09\x4a" + length + consumer + id_length + ledger
        parts += (_SIZES(command_size + 4 + len(payload), command_size) + head + entry + tail, payload)
    return parts, sum(map(len, parts)), max(map(len, payloads), default=0)


send_receipts = python_send_receipts if COMPILED is None else COMPILED.send_receipts
messages = python_messages if COMPILED is None else COMPILED.messages


def error(request_id: int, failure: BrokerError) -> bytes:
    command = pb.BaseCommand(type=pb.BaseCommand.ERROR)
    command.error.request_id = request_id & _MASK_64
    command.error.error, command.error.message = code_and_text(failure)
    return frame(command)


def send_error(producer_id: int, sequence_id: int, failure: BrokerError) -> bytes:
    command = pb.BaseCommand(type=pb.BaseCommand.SEND_ERROR)
    command.send_error.producer_id = producer_id
    command.send_error.sequence_id = sequence_id
    command.send_error.error, command.send_error.message = code_and_text(failure)
    return frame(command)


def success(request_id: int) -> bytes:
    command = pb.BaseCommand(type=pb.BaseCommand.SUCCESS)
    command.success.request_id = request_id
    return frame(command)


def ack_response(consumer_id: int, request_id: int, failure: BrokerError | None) -> bytes:
    command = pb.BaseCommand(type=pb.BaseCommand.ACK_RESPONSE)
    command.ackResponse.consumer_id = consumer_id
    command.ackResponse.request_id = request_id
    if failure is not None:
        command.ackResponse.error, command.ackResponse.message = code_and_text(failure)
    return frame(command)


def close_producer(producer_id: int) -> bytes:
    """Encode CLOSE_PRODUCER, after which the client looks the topic up again."""
    command = pb.BaseCommand(type=pb.BaseCommand.CLOSE_PRODUCER)
    command.close_producer.producer_id = producer_id
    command.close_producer.request_id = NO_REQUEST_ID
    return frame(command)


def close_consumer(consumer_id: int) -> bytes:
    """Encode CLOSE_CONSUMER, after which the client subscribes again."""
    command = pb.BaseCommand(type=pb.BaseCommand.CLOSE_CONSUMER)
    command.close_consumer.consumer_id = consumer_id
    command.close_consumer.request_id = NO_REQUEST_ID
    return frame(command)


def active_consumer_change(consumer_id: int, is_active: bool) -> bytes:
    command = pb.BaseCommand(type=pb.BaseCommand.ACTIVE_CONSUMER_CHANGE)
    command.active_consumer_change.consumer_id = consumer_id
    command.active_consumer_change.is_active = is_active
    return frame(command)


def reached_end_of_topic(consumer_id: int) -> bytes:
    """Encode REACHED_END_OF_TOPIC: the topic is terminated, and the consumer has received all messages."""
    command = pb.BaseCommand(type=pb.BaseCommand.REACHED_END_OF_TOPIC)
    command.reachedEndOfTopic.consumer_id = consumer_id
    return frame(command)


PING: bytes = frame(pb.BaseCommand(type=pb.BaseCommand.PING, ping=pb.CommandPing()))
PONG: bytes = frame(pb.BaseCommand(type=pb.BaseCommand.PONG, pong=pb.CommandPong()))
