"""What arrives: frames cut from the stream and turned into events.

A frame is `total(4) size(4) BaseCommand`, or for SEND `total size BaseCommand [0x0e01 crc(4)] metaSize(4) MessageMetadata payload`;
all big-endian, `total` counts what follows it.

SEND, ACK and FLOW are read by hand from the bytes, and neighbours that belong together become one event: what the layers below
cost is paid once for a whole read of the socket. All other commands are protobuf objects. `tests/unit/wire` holds both readings
equal for any bytes and any chunking.
"""

from __future__ import annotations

from struct import Struct

from crc32c import crc32c
from google.protobuf.message import DecodeError

from pybroker.errors import BrokerError, ChecksumError, NotAllowedError, ProtocolViolation
from pybroker.model.events import Ack, Flow, PartialAck, SendRefused, SendRun
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.entry_metadata import MAGIC_CRC32C, message_count
from pybroker.wire.varint import decode, skip_field

FRAME_PADDING_BYTES = 10240
"""A frame may be this much longer than the maximum message size."""
MAX_UNAUTHENTICATED_FRAME_BYTES = 128 * 1024
"""Before CONNECTED nothing longer than a large token is legal: memory per stranger stays bounded."""
OWN_BUFFER_BYTES = 32 * 1024
"""A frame of which more than this is missing gets a buffer of its own instead of being accumulated."""

_HEAD = Struct(">IIHB").unpack_from
_HEAD_SIZE = 12
_SIZES = Struct(">II").unpack_from
_CHECKSUM = Struct(">HII").unpack_from
_SEND_TYPE = 0x0800 | 6
_ACK_TYPE = 0x0800 | 10
_FLOW_TYPE = 0x0800 | 11
_SEND_FIELD = 6 << 3 | 2
_ACK_FIELD = 10 << 3 | 2
_FLOW_FIELD = 11 << 3 | 2


Event = SendRun | SendRefused | Ack | Flow | pb.BaseCommand


class Decoder:
    """Turns the bytes of one connection into events.

    Owner: the connection. `feed` takes what was received; `own_buffer` is where the rest of a large frame wants to be received.
    Invariant: `_rest` holds less than one whole frame.
    """

    __slots__ = ("_filled", "_frame", "_max_frame_bytes", "_rest")

    def __init__(self) -> None:
        self._rest = b""
        self._frame: bytearray | None = None
        self._filled = 0
        self._max_frame_bytes = MAX_UNAUTHENTICATED_FRAME_BYTES

    def accept_messages(self, max_message_bytes: int) -> None:
        """The client is authenticated: from now on frames may be as long as a message."""
        self._max_frame_bytes = max_message_bytes + FRAME_PADDING_BYTES

    def own_buffer(self) -> memoryview | None:
        """Where the next bytes belong while a large frame is incomplete; None when any buffer will do."""
        if self._frame is None:
            return None
        return memoryview(self._frame)[self._filled :]

    def own_buffer_filled(self, size_bytes: int) -> list[Event]:
        """`size_bytes` were received into `own_buffer()`."""
        assert self._frame is not None
        self._filled += size_bytes
        if self._filled < len(self._frame):
            return []
        data = bytes(self._frame)
        self._frame = None
        return self._decode(data)

    def feed(self, data: bytes) -> list[Event]:
        """Decode `data`, which follows everything fed before. Raises ProtocolViolation for what no client may send."""
        if self._frame is not None:
            room = len(self._frame) - self._filled
            self._frame[self._filled : self._filled + room] = data[:room]
            events = self.own_buffer_filled(min(room, len(data)))
            if len(data) > room:
                events += self._decode(data[room:])
            return events
        if self._rest:
            data = self._rest + data
            self._rest = b""
        return self._decode(data)

    def _keep(self, data: bytes, pos: int) -> None:
        """Remember the incomplete frame that begins at `pos`."""
        kept = len(data) - pos
        if kept >= 4:
            total = int.from_bytes(data[pos : pos + 4], "big")
            if total > self._max_frame_bytes:
                raise ProtocolViolation(f"frame of {total} bytes is longer than the limit of {self._max_frame_bytes}")
            if total + 4 - kept > OWN_BUFFER_BYTES:
                self._frame = bytearray(total + 4)
                self._frame[:kept] = data[pos:]
                self._filled = kept
                return
        self._rest = data[pos:]

    def _decode(self, data: bytes) -> list[Event]:
        events: list[Event] = []
        pos = 0
        end = len(data)
        max_frame = self._max_frame_bytes
        view = memoryview(data)
        run: SendRun | None = None
        ack: Ack | None = None
        while end - pos >= _HEAD_SIZE:
            total, size, command_type, field = _HEAD(data, pos)
            frame_end = pos + 4 + total
            if frame_end > end:
                break
            command_start = pos + 8
            command_end = command_start + size
            if total < 4 or command_end > frame_end:
                raise ProtocolViolation(f"command of {size} bytes in a frame of {total}")
            if total > max_frame:
                raise ProtocolViolation(f"frame of {total} bytes is longer than the limit of {max_frame}")
            if command_type == _SEND_TYPE and field == _SEND_FIELD:
                # The usual SEND: one-byte length and producer id, then the sequence id and nothing else.
                # 08 06 32 len 08 pid 10 seq
                sequence_id = -1
                highest = 0
                if size >= 8 and data[pos + 11] == size - 4 and data[pos + 12] == 0x08 and data[pos + 14] == 0x10:
                    producer_id = data[pos + 13]
                    sequence_id = data[pos + 15]
                    at = pos + 16
                    if sequence_id >= 0x80:
                        sequence_id &= 0x7F
                        shift = 7
                        while at < command_end:
                            byte = data[at]
                            at += 1
                            sequence_id |= (byte & 0x7F) << shift
                            if byte < 0x80:
                                break
                            shift += 7
                        else:
                            sequence_id = -1
                        if shift > 56:
                            sequence_id = -1
                    if at != command_end or producer_id >= 0x80:
                        sequence_id = -1
                if sequence_id < 0:
                    refusal, producer_id, sequence_id, highest = _scan_send(data, command_start + 2, command_end)
                    if refusal is not None:
                        run = None
                        events.append(SendRefused(producer_id, sequence_id, refusal))
                        pos = frame_end
                        continue
                start = command_end
                if frame_end - start >= 10:
                    magic, checksum, metadata_size = _CHECKSUM(data, start)
                    if magic == MAGIC_CRC32C:
                        if crc32c(view[start + 6 : frame_end]) != checksum:
                            run = None
                            events.append(
                                SendRefused(producer_id, sequence_id, ChecksumError("the message's checksum does not match"))
                            )
                            pos = frame_end
                            continue
                        metadata_start = start + 10
                    else:
                        metadata_start = start + 4
                        metadata_size = int.from_bytes(data[start:metadata_start], "big")
                elif frame_end - start >= 4:
                    metadata_start = start + 4
                    metadata_size = int.from_bytes(data[start:metadata_start], "big")
                else:
                    raise ProtocolViolation("SEND without a message")
                metadata_end = metadata_start + metadata_size
                if metadata_end > frame_end:
                    raise ProtocolViolation("message metadata is longer than its frame")
                if run is None or run.producer_id != producer_id:
                    run = SendRun(producer_id)
                    events.append(run)
                    add_sequence_id = run.sequence_ids.append
                    add_highest = run.highest_sequence_ids.append
                    add_count = run.message_counts.append
                    add_payload = run.payloads.append
                add_sequence_id(sequence_id)
                add_highest(highest)
                # Field 11 (0x58) is num_messages_in_batch; most metadata has no such byte at all.
                add_count(1 if data.find(b"X", metadata_start, metadata_end) < 0 else message_count(data, metadata_start, metadata_end))
                add_payload(data[start:frame_end])
                run.size_bytes += frame_end - start
                ack = None
            elif command_type == _ACK_TYPE and field == _ACK_FIELD:
                run = None
                ack = _scan_ack(data, command_start + 3, command_end, ack, events)
            else:
                run = None
                ack = None
                if command_type == _FLOW_TYPE and field == _FLOW_FIELD:
                    events.append(_scan_flow(data, command_start + 3, command_end))
                else:
                    events.append(_parse(data[command_start:command_end]))
            pos = frame_end
        else:
            pos = self._decode_short(data, pos, events)
        if pos < end:
            self._keep(data, pos)
        return events

    def _decode_short(self, data: bytes, pos: int, events: list[Event]) -> int:
        """Frames of less than 12 bytes at the end of what was received (a command without fields)."""
        while len(data) - pos >= 8:
            total, size = _SIZES(data, pos)
            if total < 4 or size > total - 4:
                raise ProtocolViolation(f"command of {size} bytes in a frame of {total}")
            if pos + 4 + total > len(data):
                break
            events.append(_parse(data[pos + 8 : pos + 8 + size]))
            pos += 4 + total
        return pos


def _parse(command: bytes) -> pb.BaseCommand:
    try:
        return pb.BaseCommand.FromString(command)
    except DecodeError as error:
        raise ProtocolViolation("malformed command") from error


def _enter(data: bytes, pos: int, end: int) -> tuple[int, int]:
    """The span of the length-prefixed message at `pos`, which must end the command."""
    length, pos = decode(data, pos, end)
    if pos + length != end:
        raise ProtocolViolation("malformed command")
    return pos, end


def _scan_send(data: bytes, pos: int, end: int) -> tuple[BrokerError | None, int, int, int]:
    """Any CommandSend, its tag at `pos`: (refusal, producer id, sequence id, highest sequence id)."""
    pos, end = _enter(data, pos + 1, end)
    producer_id = sequence_id = -1
    highest = 0
    refusal: BrokerError | None = None
    while pos < end:
        tag, pos = decode(data, pos, end)
        if tag & 7 == 0:
            value, pos = decode(data, pos, end)
            number = tag >> 3
            if number == 1:
                producer_id = value
            elif number == 2:
                sequence_id = value
            elif number == 6:
                highest = value
            elif number == 8 and value:
                refusal = NotAllowedError("markers are written by brokers only")
            elif number in (4, 5) and value:
                refusal = NotAllowedError("transactions are not supported yet")
        else:
            pos = skip_field(data, tag, pos, end)
    if producer_id < 0 or sequence_id < 0:
        raise ProtocolViolation("SEND without producer or sequence id")
    return refusal, producer_id, sequence_id, highest


def _scan_flow(data: bytes, pos: int, end: int) -> Flow:
    pos, end = _enter(data, pos, end)
    consumer_id = permits = -1
    while pos < end:
        tag, pos = decode(data, pos, end)
        if tag == 0x08:
            consumer_id, pos = decode(data, pos, end)
        elif tag == 0x10:
            permits, pos = decode(data, pos, end)
        else:
            pos = skip_field(data, tag, pos, end)
    if consumer_id < 0 or permits & 0xFFFF_FFFF == 0 or permits < 0:
        raise ProtocolViolation("FLOW without consumer id or permits")
    return Flow(consumer_id, permits & 0xFFFF_FFFF)


def _scan_ack(data: bytes, pos: int, end: int, previous: Ack | None, events: list[Event]) -> Ack | None:
    """Read one CommandAck. It joins `previous` when both are individual and ask for no receipt; else it is a new event.
    Returns what the next one may join."""
    pos, end = _enter(data, pos, end)
    ack = Ack(-1)
    ack_type = -1
    while pos < end:
        tag = data[pos]
        pos += 1
        if tag == 0x1A:
            length, pos = decode(data, pos, end)
            if pos + length > end:
                raise ProtocolViolation("message id longer than its ACK")
            _scan_message_id(data, pos, pos + length, ack)
            pos += length
        elif tag == 0x08:
            ack.consumer_id, pos = decode(data, pos, end)
        elif tag == 0x10:
            ack_type, pos = decode(data, pos, end)
        elif tag == 0x40:
            ack.request_id, pos = decode(data, pos, end)
        elif tag in (0x30, 0x38):
            value, pos = decode(data, pos, end)
            ack.has_transaction = ack.has_transaction or value != 0
        else:
            tag, pos = decode(data, pos - 1, end)
            pos = skip_field(data, tag, pos, end)
    if ack.consumer_id < 0 or ack_type not in (0, 1):
        raise ProtocolViolation("ACK without consumer id or type")
    if ack_type == 1 or ack.request_id >= 0 or ack.has_transaction:
        ack.is_cumulative = ack_type == 1
        events.append(ack)
        return None
    if previous is not None and previous.consumer_id == ack.consumer_id:
        for ledger_id, entry_ids in ack.groups:
            if previous.groups and previous.groups[-1][0] == ledger_id:
                previous.groups[-1][1].extend(entry_ids)
            else:
                previous.groups.append((ledger_id, entry_ids))
        previous.partials += ack.partials
        return previous
    events.append(ack)
    return ack


def _scan_message_id(data: bytes, pos: int, end: int, ack: Ack) -> None:
    ledger_id = entry_id = -1
    batch_size = 0
    ack_set: list[int] | None = None
    while pos < end:
        tag = data[pos]
        if tag & 0x87 or tag == 0:
            tag, pos = decode(data, pos, end)
            if tag == 0x2A:  # ack_set, packed
                length, pos = decode(data, pos, end)
                packed_end = pos + length
                if packed_end > end:
                    raise ProtocolViolation("ack set longer than its message id")
                ack_set = ack_set or []
                while pos < packed_end:
                    value, pos = decode(data, pos, packed_end)
                    ack_set.append(value)
            else:
                pos = skip_field(data, tag, pos, end)
            continue
        value, pos = decode(data, pos + 1, end)
        if tag == 0x08:
            ledger_id = value
        elif tag == 0x10:
            entry_id = value
        elif tag == 0x28:
            ack_set = ack_set or []
            ack_set.append(value)
        elif tag == 0x30:
            batch_size = value
    if ledger_id < 0 or entry_id < 0:
        raise ProtocolViolation("message id without ledger or entry id")
    if ack_set:
        ack.partials.append(PartialAck(ledger_id, entry_id, ack_set, batch_size))
    elif ack.groups and ack.groups[-1][0] == ledger_id:
        ack.groups[-1][1].append(entry_id)
    else:
        ack.groups.append((ledger_id, [entry_id]))
