"""Frames that are encoded once and sent many times. Pure.

Encodes SEND, FLOW and ACK, and splits received bytes into frames. Invariant: an official client could send every frame:
checksums are correct, and sequence ids increase by one per message.

    SEND frame = total(4) command_size(4) BaseCommand 0x0e01 crc32c(4) metadata_size(4) MessageMetadata payload

The sequence id precedes the checksummed part, so a block of frames that differ only in that id is encoded once. Ids
start where their varint has four bytes, so all frames are equally long.
"""

import struct
import time

import crc32c

from pybroker.wire import pulsar_api_pb2 as pb

MAGIC = b"\x0e\x01"
FIRST_SEQUENCE_ID = 1 << 21  # smallest number with a four-byte varint
LAST_SEQUENCE_ID = (1 << 28) - 1  # largest one
SEQUENCE_ID_BYTES = 4

SEND_RECEIPT, SEND_ERROR, MESSAGE, PING = 7, 8, 9, 18

_SIZES = struct.Struct(">II")


def encode_command(command: pb.BaseCommand) -> bytes:
    body = command.SerializeToString()
    return _SIZES.pack(len(body) + 4, len(body)) + body


def encode_varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def encode_tail(metadata: pb.MessageMetadata, payload: bytes) -> bytes:
    """Encode checksum, metadata and payload: the stored part of a SEND frame."""
    header = metadata.SerializeToString()
    body = struct.pack(">I", len(header)) + header + payload
    return MAGIC + struct.pack(">I", crc32c.crc32c(body)) + body


def message_tail(producer_name: str, payload: bytes) -> bytes:
    metadata = pb.MessageMetadata(
        producer_name=producer_name, sequence_id=FIRST_SEQUENCE_ID, publish_time=int(time.time() * 1000)
    )
    return encode_tail(metadata, payload)


def batch_tail(producer_name: str, payload: bytes, messages_per_batch: int) -> bytes:
    """Encode the stored part of an uncompressed batch of equal messages."""
    metadata = pb.MessageMetadata(
        producer_name=producer_name,
        sequence_id=FIRST_SEQUENCE_ID,
        highest_sequence_id=FIRST_SEQUENCE_ID + messages_per_batch - 1,
        publish_time=int(time.time() * 1000),
        num_messages_in_batch=messages_per_batch,
    )
    singles = bytearray()
    for index in range(messages_per_batch):
        single = pb.SingleMessageMetadata(payload_size=len(payload), sequence_id=FIRST_SEQUENCE_ID + index)
        header = single.SerializeToString()
        singles += struct.pack(">I", len(header)) + header + payload
    return encode_tail(metadata, bytes(singles))


class SendBlock:
    """`frame_count` SEND frames with increasing sequence ids, in one buffer that is updated in place.

    Invariant: all frames have `frame_bytes` bytes; frame i has the sequence id `first_sequence_id + i *
    messages_per_entry`.
    """

    def __init__(self, producer_id: int, tail: bytes, frame_count: int, messages_per_entry: int = 1) -> None:
        assert 0 <= producer_id < 128, "the fast walk over receipts reads a one-byte producer id"
        self.frame_count = frame_count
        self.messages_per_entry = messages_per_entry
        self.first_sequence_id = FIRST_SEQUENCE_ID
        filler = encode_varint(FIRST_SEQUENCE_ID)
        send = b"\x08" + encode_varint(producer_id) + b"\x10" + filler
        offsets = [len(send) - SEQUENCE_ID_BYTES]
        if messages_per_entry > 1:
            send += b"\x18" + encode_varint(messages_per_entry) + b"\x30" + filler
            offsets.append(len(send) - SEQUENCE_ID_BYTES)
        command = b"\x08\x06\x32" + encode_varint(len(send)) + send
        frame = _SIZES.pack(4 + len(command) + len(tail), len(command)) + command + tail
        self._offsets = [8 + len(command) - len(send) + offset for offset in offsets]
        self.frame_bytes = len(frame)
        self.buffer = bytearray(frame * frame_count)
        self.view = memoryview(self.buffer)
        self._patch()

    def advance(self) -> None:
        self.first_sequence_id += self.frame_count * self.messages_per_entry
        if self.first_sequence_id + self.frame_count * self.messages_per_entry > LAST_SEQUENCE_ID:
            self.first_sequence_id = (
                FIRST_SEQUENCE_ID  # repeats after 260 million messages, which matters only with deduplication
            )
        self._patch()

    def _patch(self) -> None:
        for offset, extra in zip(self._offsets, (0, self.messages_per_entry - 1), strict=False):
            first = self.first_sequence_id + extra
            last = first + (self.frame_count - 1) * self.messages_per_entry
            for group in range(SEQUENCE_ID_BYTES):
                shift, more = 7 * group, 0x80 if group < SEQUENCE_ID_BYTES - 1 else 0
                if first >> shift == last >> shift:
                    plane = bytes((first >> shift & 0x7F | more,)) * self.frame_count
                else:
                    ids = range(first, last + 1, self.messages_per_entry)
                    plane = bytes([sequence_id >> shift & 0x7F | more for sequence_id in ids])
                self.buffer[offset + group :: self.frame_bytes] = plane


class FrameWalker:
    """Splits received bytes of one connection into frames without decoding them.

    Invariant: `buffer[:filled]` starts at a frame boundary between calls of `frames`.
    """

    def __init__(self, capacity_bytes: int = 1 << 20) -> None:
        self.buffer = bytearray(capacity_bytes)
        self.view = memoryview(self.buffer)
        self.filled = 0

    def space(self) -> memoryview:
        """Return the buffer for the next bytes; never empty."""
        if self.filled == len(self.buffer):  # one frame fills it: a large message or batch
            self.view.release()
            self.buffer += bytes(len(self.buffer))
            self.view = memoryview(self.buffer)
        return self.view[self.filled :]

    def frames(self, received_bytes: int) -> list[tuple[int, int, int]]:
        self.filled += received_bytes
        buffer, filled, position, found = self.buffer, self.filled, 0, []
        while filled - position >= 10:
            end = position + 4 + int.from_bytes(buffer[position : position + 4], "big")
            if end > filled:
                break
            # A command begins with field 1, its type: 0x08 and one byte.
            assert buffer[position + 8] == 8, "a command that does not start with its type"
            found.append((buffer[position + 9], position + 8, end))
            position = end
        return found

    def consumed(self, end: int) -> None:
        rest = self.filled - end
        if rest and end:
            self.buffer[:rest] = self.buffer[end : self.filled]
        self.filled = rest

    def decode(self, start: int) -> pb.BaseCommand:
        size = int.from_bytes(self.buffer[start - 4 : start], "big")
        return pb.BaseCommand.FromString(bytes(self.buffer[start : start + size]))


def message_id_field(buffer: bytearray, start: int) -> tuple[int, bytes]:
    """Return the consumer id of the MESSAGE command at `start`, and its message id as a field of an ACK command.

    The command is `08 09 4a size 08 consumer_id 12 id_size id ...`; an ACK has the same id after tag 0x1a.
    """
    size_at = start + 6
    assert buffer[start + 4] == 8 and buffer[size_at] == 0x12, "a MESSAGE with a consumer id above 127"
    return buffer[start + 5], b"\x1a" + buffer[size_at + 1 : size_at + 2 + buffer[size_at + 1]]


def encode_ack(consumer_id: int, message_id_fields: list[bytes]) -> bytes:
    ack = b"\x08" + encode_varint(consumer_id) + b"\x10\x00" + b"".join(message_id_fields)
    command = b"\x08\x0a\x52" + encode_varint(len(ack)) + ack
    return _SIZES.pack(len(command) + 4, len(command)) + command


def encode_flow(consumer_id: int, permits: int) -> bytes:
    flow = pb.CommandFlow(consumer_id=consumer_id, messagePermits=permits)
    return encode_command(pb.BaseCommand(type=pb.BaseCommand.FLOW, flow=flow))


PONG = encode_command(pb.BaseCommand(type=pb.BaseCommand.PONG, pong=pb.CommandPong()))
