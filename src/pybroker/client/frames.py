"""The client's half of the wire format: decodes frames from the broker, and encodes SEND frames.

    total(4) size(4) BaseCommand                                    any command
    total(4) size(4) BaseCommand entry                              MESSAGE, SEND

Invariants: the result does not depend on how the bytes are split into reads; no frame above the limit is buffered;
invalid input raises ProtocolViolation. MESSAGE is decoded without protobuf for speed.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Generic, NamedTuple, TypeVar

from google.protobuf.message import DecodeError

from pybroker.errors import ProtocolViolation
from pybroker.model.txn_id import TxnId
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.commands import FRAME_PADDING_BYTES
from pybroker.wire.varint import decode, encode, skip_field

DEFAULT_MAX_MESSAGE_BYTES = 5 * 1024 * 1024
"""Limit of a broker that announces none in CONNECTED."""
_SIZES = Struct(">II")
_MESSAGE_KIND = b"\x08\x09\x4a"
_MASK_63 = (1 << 63) - 1
_MASK_64 = (1 << 64) - 1


class ReceivedEntry(NamedTuple):
    """A stored entry that a consumer received."""

    consumer_id: int
    ledger_id: int
    entry_id: int
    redelivery_count: int
    data: bytes
    """`[0x0e02 ...] [0x0e01 crc32c] metadata_size MessageMetadata payload`. The checksum is not verified."""
    ack_set: tuple[int, ...] = ()
    """Unacknowledged messages of a partly acknowledged batch: one bit each, 64 in each unsigned number."""
    epoch: int = -1
    """The consumer epoch at the time of sending; -1 if there was none."""


Event = pb.BaseCommand | ReceivedEntry
Read = TypeVar("Read")


class FrameReader(Generic[Read]):
    """Splits the bytes of one connection into frames, and decodes each frame with the function `read` (`read_event` or
    `command_and_rest`).

    Invariant: `_parts` contains less than one whole frame, and a frame has at most `max_frame_bytes` bytes.
    """

    def __init__(self, read: Callable[[bytes, int, int], Read]) -> None:
        """`read` gets the bytes, the offset of the command's size field, and the end of the frame. It may raise
        ProtocolViolation.
        """
        self._read = read
        self._parts: list[bytes] = []
        self._held_bytes = 0
        self._wanted_bytes = 4
        """Bytes needed before the next attempt to decode, so that the parts of a large frame are joined once."""
        self.max_frame_bytes = DEFAULT_MAX_MESSAGE_BYTES + FRAME_PADDING_BYTES

    def feed(self, data: bytes) -> list[Read]:
        self._held_bytes += len(data)
        self._parts.append(data)
        if self._held_bytes < self._wanted_bytes:
            return []
        if len(self._parts) > 1:
            data = b"".join(self._parts)
        events: list[Read] = []
        position = 0
        end = len(data)
        wanted = 4
        while end - position >= 4:
            total = int.from_bytes(data[position : position + 4], "big")
            if not 4 <= total <= self.max_frame_bytes:
                raise ProtocolViolation(
                    f"the broker sent a frame of {total} bytes; the limit is {self.max_frame_bytes}. Check that the address "
                    "belongs to the binary protocol of a Pulsar broker."
                )
            if end - position < 4 + total:
                wanted = 4 + total
                break
            events.append(self._read(data, position + 4, position + 4 + total))
            position += 4 + total
        self._parts = [data[position:]] if position < end else []
        self._held_bytes = end - position
        self._wanted_bytes = wanted
        return events


def read_event(data: bytes, start: int, end: int) -> Event:
    command_end = _command_end(data, start, end)
    if data[start + 4 : start + 7] == _MESSAGE_KIND:
        return _message(data, start + 7, command_end, end)
    command = _parsed(data, start + 4, command_end)
    if command.type == pb.BaseCommand.MESSAGE:
        id_data = command.message.message_id
        return ReceivedEntry(
            command.message.consumer_id,
            id_data.ledgerId,
            id_data.entryId,
            command.message.redelivery_count,
            data[command_end:end],
            tuple(word & _MASK_64 for word in command.message.ack_set),
            command.message.consumer_epoch if command.message.HasField("consumer_epoch") else -1,
        )
    return command


def command_and_rest(data: bytes, start: int, end: int) -> tuple[pb.BaseCommand, bytes]:
    command_end = _command_end(data, start, end)
    return _parsed(data, start + 4, command_end), data[command_end:end]


def _command_end(data: bytes, start: int, end: int) -> int:
    size = int.from_bytes(data[start : start + 4], "big")
    if start + 4 + size > end:
        raise ProtocolViolation(
            f"the broker sent an invalid frame: its command ({size} bytes) does not fit into the frame ({end - start} bytes). "
            "Check that the address belongs to the binary protocol of a Pulsar broker."
        )
    return start + 4 + size


def _parsed(data: bytes, start: int, end: int) -> pb.BaseCommand:
    try:
        return pb.BaseCommand.FromString(data[start:end])
    except DecodeError as error:
        raise ProtocolViolation(f"the broker sent a command that cannot be decoded: {error}") from error


def _message(data: bytes, position: int, command_end: int, frame_end: int) -> ReceivedEntry:
    length, position = decode(data, position, command_end)
    if position + length != command_end:
        raise ProtocolViolation("the broker sent an invalid MESSAGE command: bytes follow its last field")
    consumer_id = ledger_id = entry_id = -1
    redeliveries, epoch = 0, -1
    ack_set: tuple[int, ...] = ()
    while position < command_end:
        tag, position = decode(data, position, command_end)
        if tag == 0x08:
            consumer_id, position = decode(data, position, command_end)
        elif tag == 0x12:
            length, position = decode(data, position, command_end)
            id_end = position + length
            if id_end > command_end:
                raise ProtocolViolation("the broker sent an invalid MESSAGE command, which ends within its message id")
            while position < id_end:
                tag, position = decode(data, position, id_end)
                if tag == 0x08:
                    ledger_id, position = decode(data, position, id_end)
                elif tag == 0x10:
                    entry_id, position = decode(data, position, id_end)
                else:
                    position = skip_field(data, tag, position, id_end)
        elif tag == 0x18:
            redeliveries, position = decode(data, position, command_end)
        elif tag == 0x20:
            word, position = decode(data, position, command_end)
            ack_set += (word & _MASK_64,)
        elif tag == 0x28:
            epoch, position = decode(data, position, command_end)
        else:
            position = skip_field(data, tag, position, command_end)
    if consumer_id < 0 or not 0 <= ledger_id <= _MASK_63 or not 0 <= entry_id <= _MASK_63:
        raise ProtocolViolation("the broker sent an invalid MESSAGE command without consumer id or message id")
    return ReceivedEntry(consumer_id, ledger_id, entry_id, redeliveries, data[command_end:frame_end], ack_set, epoch)


def send_head(
    producer_id: int,
    sequence_id: int,
    highest_sequence_id: int,
    message_count: int,
    entry_bytes: int,
    *,
    is_chunk: bool = False,
    txn: TxnId | None = None,
) -> bytes:
    fields = b"\x08" + encode(producer_id) + b"\x10" + encode(sequence_id)
    if message_count != 1:
        fields += b"\x18" + encode(message_count)
    if txn is not None:
        fields += b"\x20" + encode(txn.least) + b"\x28" + encode(txn.most)
    if highest_sequence_id > sequence_id:
        fields += b"\x30" + encode(highest_sequence_id)
    if is_chunk:
        fields += b"\x38\x01"
    command = b"\x08\x06\x32" + encode(len(fields)) + fields
    return _SIZES.pack(4 + len(command) + entry_bytes, len(command)) + command
