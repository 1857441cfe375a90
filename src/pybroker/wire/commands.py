"""Decoder of received frames into events.

A frame is `total(4) size(4) BaseCommand`, or for SEND `total size BaseCommand [0x0e01 crc(4)] metaSize(4)
MessageMetadata payload`; all numbers are big-endian, and `total` is the number of bytes after it.

SEND, ACK and FLOW are decoded without protobuf, and consecutive related commands become one event, so that the broker
processes them once per socket read. All other commands are protobuf objects, as are SEND, ACK and FLOW in unusual
encodings. `tests/unit/wire` verifies that both ways agree for any bytes. The compiled core, if it is available, decodes
the usual SENDs, ACKs and FLOWs (`core.py`); the code here decodes all other frames.
"""

from __future__ import annotations

from struct import Struct

from crc32c import crc32c
from google.protobuf.message import DecodeError, Message

from pybroker.errors import BrokerError, ChecksumError, ProtocolViolation
from pybroker.model.ack_set import word_count
from pybroker.model.events import Ack, CommandRefused, Flow, PartialAck, SendRefused, SendRun
from pybroker.model.txn_id import TxnId
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.batch_limits import LEAST_MESSAGE_BYTES, batch_refusal
from pybroker.wire.command_fields import LARGE_COMMAND_BYTES, LENGTH_DELIMITED, FieldCount
from pybroker.wire.core import COMPILED, FrameScanner
from pybroker.wire.entry_metadata import (
    MAGIC_CRC32C,
    MARKER_BYTE,
    MARKER_TAG,
    NUM_MESSAGES_BYTE,
    has_marker_type,
    message_count,
)
from pybroker.wire.many_ids import ManyIds
from pybroker.wire.varint import decode, encode, skip_field

FRAME_PADDING_BYTES = 10240
"""Bytes by which a frame may exceed the maximum message size."""
MAX_UNAUTHENTICATED_FRAME_BYTES = 72 * 1024
"""Maximum frame before CONNECTED: it fits a token of 64 KiB, and bounds the memory of an unauthenticated connection."""
MAX_UNAUTHENTICATED_FIELDS = 1000
"""CONNECT has about thirty fields."""
MAX_SMALL_COMMANDS = 256
"""Maximum number of commands other than SEND decoded at a time: one socket read can bring thousands."""
RECEIVE_BYTES = 64 * 1024
"""Maximum bytes of one read from a connection with small messages."""
LARGE_RECEIVE_BYTES = 512 * 1024
"""Maximum bytes of one read from a connection whose messages have LARGE_MESSAGE_BYTES and more on average: several
batches are then processed together. A byte of a large message costs less time than a byte of a small one.
"""
LARGE_MESSAGE_BYTES = 16 * 1024
"""A frame of this size and more is large for RECEIVE_BYTES."""
MAX_SHARED_FRAME_BYTES = 256 * 1024
"""Maximum incomplete frame that is completed in the shared receive buffer."""
SHARED_BUFFER_BYTES = MAX_SHARED_FRAME_BYTES + LARGE_RECEIVE_BYTES
"""Size of the receive buffer that all connections of an event loop share."""
OWN_BUFFER_BYTES = 32 * 1024
"""If more bytes of a frame than this are missing after a smaller read, the rest is received into separate buffers: each
read copies an incomplete frame in the shared buffer.
"""
PIECE_BYTES = 256 * 1024
"""Size of such a buffer. The next one is allocated when the last one is full, so announced bytes use no memory until
sent.
"""
UNAUTHENTICATED_PIECE_BYTES = 4 * 1024
"""Size of a receive buffer of a connection without CONNECTED."""

# The frame's two sizes, its command type and the tag of its message, and the positions of fields in a usual SEND.
_HEAD = Struct(">IIIBBBB").unpack_from
_HEAD_SIZE = 16
_SIZES = Struct(">II")
_CHECKSUM = Struct(">HII").unpack_from
_MIN_MESSAGE_BYTES = 10
"""Four bytes of size, and the three required fields of MessageMetadata."""
_SEND_KIND = 0x080632
_ACK_KIND = 0x080A52
_FLOW_KIND = 0x080B5A
_SCANNED_TYPES = frozenset({pb.BaseCommand.SEND, pb.BaseCommand.ACK, pb.BaseCommand.FLOW})
# Each command's message has its type number as field number.
_FIELD_OF_TYPE = {number: field.name for number, field in pb.BaseCommand.DESCRIPTOR.fields_by_number.items()}
_MESSAGE_ID = pb.MessageIdData.DESCRIPTOR

_REDELIVER = pb.BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES

Event = SendRun | SendRefused | Ack | Flow | ManyIds | CommandRefused | pb.BaseCommand


class Decoder:
    """Decodes the bytes of one connection into events.

    A connection receives into `buffer` and then calls `received`; `feed` takes bytes from elsewhere. Invariants: `_rest`
    contains less than one whole frame, unless `has_more`. While a large frame is incomplete, `missing_bytes` of it have
    not been received, and only the last of its `_pieces` has free space.
    """

    __slots__ = (
        "_filled",
        "_max_batch_messages",
        "_max_fields",
        "_max_frame_bytes",
        "_piece_bytes",
        "_pieces",
        "_receive_bytes",
        "_rest",
        "_scanner",
        "has_more",
        "holds_large_frame",
        "missing_bytes",
    )

    def __init__(self, scanner: FrameScanner | None = COMPILED) -> None:
        self._scanner = scanner
        self._rest = b""
        self.has_more = False
        """Whether whole frames wait. Then call `feed` without data, after other connections were served."""
        self.holds_large_frame = False
        """Whether more than OWN_BUFFER_BYTES of an incomplete frame are held, or have separate buffers."""
        self._receive_bytes = RECEIVE_BYTES
        self._pieces: list[bytearray] = []
        self._filled = 0  # bytes used in the last piece
        self.missing_bytes = 0
        """Not 0 while a large frame is incomplete: the next bytes must be received into `own_buffer`."""
        self._piece_bytes = UNAUTHENTICATED_PIECE_BYTES
        self._max_frame_bytes = MAX_UNAUTHENTICATED_FRAME_BYTES
        self._max_batch_messages = 1
        self._max_fields = MAX_UNAUTHENTICATED_FIELDS

    def accept_messages(self, max_message_bytes: int, max_batch_messages: int, max_fields: int) -> None:
        """Allow messages, batches and commands with many fields, after the client is authenticated."""
        self._max_batch_messages = max_batch_messages
        self._max_fields = max_fields
        self._piece_bytes = PIECE_BYTES
        # `total` excludes its own four bytes; the limit includes them.
        self._max_frame_bytes = max_message_bytes + FRAME_PADDING_BYTES - 4

    @property
    def held_bytes(self) -> int:
        return sum(map(len, self._pieces)) + len(self._rest)

    def release(self) -> None:
        """Free the memory of an incomplete frame when the connection ends, because other objects may still refer to
        this decoder.
        """
        self._rest = b""
        self._pieces = []
        self.missing_bytes = 0
        self.has_more = self.holds_large_frame = False

    def buffer(self, shared: memoryview) -> memoryview:
        """Return the memory for the next bytes of the connection, from which `received` decodes them.

        While a large frame is incomplete, this is a buffer of that frame. Otherwise it is a part of `shared`, and a small
        incomplete frame is copied in front of it. `shared` has SHARED_BUFFER_BYTES, and must not be used for another
        connection before `received` is called.
        """
        if self.missing_bytes and (own := self.own_buffer()) is not None:
            return own
        kept_bytes = len(self._rest)
        if not 0 < kept_bytes <= MAX_SHARED_FRAME_BYTES:
            return shared[: self._receive_bytes]
        shared[:kept_bytes] = self._rest
        return shared[kept_bytes : kept_bytes + self._receive_bytes]

    def received(self, shared: memoryview, size_bytes: int) -> list[Event]:
        """Return the events of the next `size_bytes`, which the caller has received into the memory that
        `buffer(shared)` returned. Raises ProtocolViolation for invalid data.

        The events contain copies of the data, so the caller may use `shared` again afterwards.
        """
        if self.missing_bytes:
            return self.own_buffer_filled(size_bytes)
        rest, self._rest = self._rest, b""
        kept_bytes = len(rest)
        if kept_bytes > MAX_SHARED_FRAME_BYTES:
            # Whole frames: the connection had paused reading, but data was under way.
            return self._decode(rest + shared[:size_bytes], size_bytes, [])
        end = kept_bytes + size_bytes
        data = shared[:end]
        events: list[Event] = []
        pos = 0
        if self._scanner is not None:
            scan_sends = self._scanner.scan_sends
            while pos < end:
                scanned = scan_sends(data, pos, self._max_frame_bytes, self._max_batch_messages)
                if scanned is None:
                    break
                run = SendRun(scanned[1])
                frames_bytes, _, run.size_bytes, run.sequence_ids, run.highest_sequence_ids = scanned[:5]
                run.message_counts, run.payloads = scanned[5:]
                pos += frames_bytes
                events.append(run)
        if pos < end:
            self._decode(bytes(data[pos:]), size_bytes, events)
        else:
            self.has_more = self.holds_large_frame = False
        if events and isinstance(first := events[0], SendRun):
            is_large = first.size_bytes >= LARGE_MESSAGE_BYTES * len(first.payloads)
            self._receive_bytes = LARGE_RECEIVE_BYTES if is_large else RECEIVE_BYTES
        return events

    def own_buffer(self) -> memoryview | None:
        if not self.missing_bytes:
            return None
        if self._filled == len(self._pieces[-1]):
            self._pieces.append(bytearray(min(self.missing_bytes, self._piece_bytes)))
            self._filled = 0
        return memoryview(self._pieces[-1])[self._filled :]

    def own_buffer_filled(self, size_bytes: int) -> list[Event]:
        assert self.missing_bytes >= size_bytes
        self._filled += size_bytes
        self.missing_bytes -= size_bytes
        if self.missing_bytes:
            return []
        data = b"".join(self._pieces)
        self._pieces = []
        return self.feed(data)

    def hold(self, shared: memoryview, size_bytes: int) -> None:
        """Store the `size_bytes` that were received into the memory from `buffer(shared)`, without decoding them. The
        caller later calls `feed` with empty data to decode them.
        """
        assert not self.missing_bytes, "large frames are received into `own_buffer`"
        kept_bytes = len(self._rest)
        start = kept_bytes if kept_bytes <= MAX_SHARED_FRAME_BYTES else 0
        self._rest += shared[start : start + size_bytes]
        self.has_more = True

    def feed(self, data: bytes) -> list[Event]:
        """Decode `data`, which follows all data fed before. Raises ProtocolViolation for invalid data."""
        if self.missing_bytes:
            events: list[Event] = []
            while data and (own := self.own_buffer()) is not None:
                taken = min(len(own), len(data))
                own[:taken] = data[:taken]
                events = self.own_buffer_filled(taken)
                data = data[taken:]
            return events + self.feed(data) if data else events
        rest, self._rest = self._rest, b""
        return self._decode(rest + data, len(data), [])

    def _decode(self, data: bytes, received_bytes: int, events: list[Event]) -> list[Event]:
        """Decode `data`, of which the last `received_bytes` have been received now. Add the events to `events`, which
        has the usual SENDs in front of `data`.
        """
        pos = 0
        end = len(data)
        max_frame = self._max_frame_bytes
        scanner = self._scanner
        view = memoryview(data)
        run_producer_id = -1  # the producer with SENDs that may join the last event; in a transaction: -2 - producer id
        run_txn: TxnId | None = None
        run: SendRun
        if events:
            scanned_run = events[-1]
            assert isinstance(scanned_run, SendRun)
            run = scanned_run
            run_producer_id = run.producer_id
            sequence_ids = run.sequence_ids
            highest_sequence_ids = run.highest_sequence_ids
            message_counts = run.message_counts
            payloads = run.payloads
        ack: Ack | None = None
        ack_prefix = b""  # start of an ACK of the next entry: sizes, consumer, ledger, and the tag of the entry id
        small_commands = 0
        self.has_more = self.holds_large_frame = False
        next_count = 0  # earliest position of the next num_messages_in_batch: most metadata does not contain its byte
        next_marker = 0  # The same for marker_type.
        while end - pos >= _HEAD_SIZE:
            total, size, head, first_tag, producer_id, second_tag, sequence_id = _HEAD(data, pos)
            frame_end = pos + 4 + total
            if frame_end > end:
                break
            start = pos + 8 + size  # of the bytes after the command
            if total < 4 or start > frame_end:
                raise ProtocolViolation(
                    f"the client sent a frame of {total} bytes with a command of {size} bytes, which does not fit into it"
                )
            if total > max_frame:
                raise ProtocolViolation(
                    f"the client sent a frame of {total} bytes, which is longer than the limit of {max_frame} bytes"
                )
            kind = head >> 8
            if size > LARGE_COMMAND_BYTES:
                run_producer_id, ack = -1, None
                events.append(self._large(data, pos + 8, start))
                pos = frame_end
                continue
            try:
                if kind == _SEND_KIND:
                    if scanner is not None:
                        scanned = scanner.scan_sends(data, pos, max_frame, self._max_batch_messages)
                        if scanned is not None:
                            frames_bytes, producer_id, run_bytes, ids, highest_ids, counts, messages = scanned
                            if producer_id != run_producer_id:
                                ack = None
                                run_producer_id = producer_id
                                run = SendRun(producer_id)
                                events.append(run)
                                sequence_ids = run.sequence_ids
                                highest_sequence_ids = run.highest_sequence_ids
                                message_counts = run.message_counts
                                payloads = run.payloads
                            sequence_ids += ids
                            highest_sequence_ids += highest_ids
                            message_counts += counts
                            payloads += messages
                            run.size_bytes += run_bytes
                            pos += frames_bytes
                            continue
                    # The usual SEND: 08 06 32 len { 08 producer 10 sequence }, one byte of producer id, one to four of
                    # sequence id. Unrolled, because a loop costs more than all the rest.
                    highest = is_chunk = 0
                    if head & 0xFF != size - 4 or first_tag != 0x08 or second_tag != 0x10 or producer_id >= 0x80:
                        sequence_id = -1
                    elif sequence_id < 0x80:
                        if size != 8:
                            sequence_id = -1
                    elif size == 9 and (last := data[pos + 16]) < 0x80:
                        sequence_id += (last << 7) - 0x80
                    elif size == 10 and (second := data[pos + 16]) >= 0x80 and (last := data[pos + 17]) < 0x80:
                        sequence_id += (second << 7) + (last << 14) - 0x4080
                    elif (
                        size == 11
                        and (second := data[pos + 16]) >= 0x80
                        and (third := data[pos + 17]) >= 0x80
                        and (last := data[pos + 18]) < 0x80
                    ):
                        sequence_id += (second << 7) + (third << 14) + (last << 21) - 0x204080
                    else:
                        sequence_id = -1
                    refusal: BrokerError | None = None
                    if sequence_id < 0:
                        producer_id, sequence_id, highest, is_chunk, txn = _scan_send(data, pos + 10, start)
                        if txn is not None:
                            producer_id = -2 - producer_id
                            if txn != run_txn:
                                run_producer_id, run_txn = -1, txn
                    if frame_end - start < _MIN_MESSAGE_BYTES:
                        raise ProtocolViolation("the client sent a SEND command without a message")
                    magic, checksum, metadata_size = _CHECKSUM(data, start)
                    if magic == MAGIC_CRC32C:
                        if crc32c(view[start + 6 : frame_end]) != checksum:
                            refusal = ChecksumError("the message's checksum does not match")
                        metadata_start = start + 10
                    else:
                        metadata_start = start + 4
                        metadata_size = magic << 16 | checksum >> 16
                    if refusal is not None:
                        run_producer_id, ack = -1, None
                        events.append(SendRefused(max(producer_id, -2 - producer_id), sequence_id, refusal))
                        pos = frame_end
                        continue
                    metadata_end = metadata_start + metadata_size
                    if metadata_end > frame_end:
                        raise ProtocolViolation("the client sent a message whose metadata is longer than its frame")
                    if next_count < metadata_start:
                        next_count = data.find(NUM_MESSAGES_BYTE, metadata_start)
                        if next_count < 0:
                            next_count = end
                    count = 1
                    if next_count < metadata_end:
                        count = message_count(data, metadata_start, metadata_end)
                        payload_bytes = frame_end - metadata_end
                        # Most batches are compressed little or not at all: their size alone proves them valid.
                        if count > self._max_batch_messages or (
                            count > 1 and count * LEAST_MESSAGE_BYTES > payload_bytes
                        ):
                            refusal = batch_refusal(
                                data, metadata_start, metadata_end, payload_bytes, count, self._max_batch_messages
                            )
                            if refusal is not None:
                                run_producer_id, ack = -1, None
                                events.append(SendRefused(max(producer_id, -2 - producer_id), sequence_id, refusal))
                                pos = frame_end
                                continue
                    if next_marker < metadata_start:
                        next_marker = data.find(MARKER_BYTE, metadata_start)
                        if next_marker < 0:
                            next_marker = end
                    if producer_id != run_producer_id:
                        ack = None
                        run_producer_id = producer_id
                        run = SendRun(producer_id) if producer_id >= 0 else SendRun(-2 - producer_id, run_txn)
                        events.append(run)
                        sequence_ids = run.sequence_ids
                        highest_sequence_ids = run.highest_sequence_ids
                        message_counts = run.message_counts
                        payloads = run.payloads
                    sequence_ids.append(sequence_id)
                    highest_sequence_ids.append(highest)
                    message_counts.append(count)
                    payloads.append(data[start:frame_end])
                    run.size_bytes += frame_end - start
                    if is_chunk:
                        run.chunk_count += 1
                    # A publish time can contain the first byte. Both bytes are searched in the metadata only, because
                    # a search for two bytes is much slower than a search for one.
                    if (
                        next_marker < metadata_end
                        and data.find(MARKER_TAG, next_marker, metadata_end) >= 0
                        and has_marker_type(data, metadata_start, metadata_end)
                    ):
                        run.has_markers = True
                elif kind == _ACK_KIND:
                    run_producer_id = -1
                    small_commands += 1
                    acks = None
                    at = -1
                    if scanner is not None:
                        acks = scanner.scan_acks(data, pos, max_frame, MAX_SMALL_COMMANDS + 1 - small_commands)
                    elif ack is not None and ack_prefix and data.startswith(ack_prefix, pos + 4):
                        entry_id, at = decode(data, pos + 4 + len(ack_prefix), start)
                    if acks is not None:
                        frames_bytes, commands, consumer_id, groups = acks
                        frame_end = pos + frames_bytes
                        small_commands += commands - 1
                        if ack is not None and ack.consumer_id == consumer_id:
                            _join_groups(ack.groups, groups)
                        else:
                            ack = Ack(consumer_id)
                            ack.groups = groups
                            events.append(ack)
                    elif at == start and ack is not None:
                        ack.groups[-1][1].append(entry_id)
                    else:
                        ack = _scan_ack(data, pos + 11, start, ack, events)
                        if scanner is None:
                            ack_prefix = _ack_prefix(data, pos + 4, start, ack)
                else:
                    run_producer_id, ack = -1, None
                    small_commands += 1
                    if kind == _FLOW_KIND:
                        flow = None if scanner is None else scanner.scan_flow(data, pos, max_frame)
                        events.append(_scan_flow(data, pos + 11, start) if flow is None else Flow(*flow))
                    else:
                        events.append(_parse(data[pos + 8 : start]))
            except ProtocolViolation:
                command = data[pos + 8 : start]
                ordered = _in_order(command)
                if ordered == command:
                    raise
                run_producer_id, ack = -1, None
                events += self.feed(
                    _SIZES.pack(total + len(ordered) - size, len(ordered)) + ordered + data[start:frame_end]
                )
            pos = frame_end
            if small_commands >= MAX_SMALL_COMMANDS:
                self.has_more = end - pos >= 4
                break
        else:
            if end - pos >= _SIZES.size:
                pos = self._decode_short(data, pos, events)
        if pos < end:
            self._keep(data, pos, received_bytes)
        return events

    def _keep(self, data: bytes, pos: int, received_bytes: int) -> None:
        kept = len(data) - pos
        self.holds_large_frame = kept > OWN_BUFFER_BYTES
        if kept >= 4:
            total = int.from_bytes(data[pos : pos + 4], "big")
            if total > self._max_frame_bytes:
                raise ProtocolViolation(
                    f"the client sent a frame of {total} bytes, which is longer than the limit of "
                    f"{self._max_frame_bytes} bytes"
                )
            missing_bytes = total + 4 - kept
            if self._needs_own_buffer(kept, missing_bytes, received_bytes):
                self._pieces = [bytearray(data[pos:])]
                self._filled = kept
                self.missing_bytes = missing_bytes
                self.holds_large_frame = True
                self.has_more = False  # only the rest of this frame can come next
                return
        self._rest = data[pos:]

    @staticmethod
    def _needs_own_buffer(kept_bytes: int, missing_bytes: int, received_bytes: int) -> bool:
        """Whether an incomplete frame is too large for the shared buffer, or arrives in reads that are too small for
        copies of it.
        """
        if missing_bytes <= 0 or (missing_bytes <= OWN_BUFFER_BYTES and kept_bytes <= RECEIVE_BYTES):
            return False
        return kept_bytes + missing_bytes > MAX_SHARED_FRAME_BYTES or received_bytes < OWN_BUFFER_BYTES

    def _large(self, data: bytes, pos: int, end: int) -> Event:
        """Decode the large command in `data[pos:end]` at the same cost per byte as a small one.

        Its fields must be in order, as clients write them: the type, then the message of that type.
        """
        command_start = pos
        tag, pos = decode(data, pos, end)
        command_type, pos = decode(data, pos, end)
        field = pb.BaseCommand.DESCRIPTOR.fields_by_number.get(command_type)
        if tag != 8 or field is None:
            raise ProtocolViolation("the client sent a command of an unknown type, or a damaged command")
        tag, pos = decode(data, pos, end)
        start, end = _enter(data, pos, end)
        if tag >> 3 != command_type or tag & 7 != LENGTH_DELIMITED:
            raise ProtocolViolation(
                f"the client sent a {field.name} command with its fields in another order than all Pulsar clients"
            )
        max_words = word_count(self._max_batch_messages)
        if command_type == pb.BaseCommand.ACK:
            return ManyIds("ACK", data, start, end, max_words)
        if command_type == _REDELIVER:
            return ManyIds("REDELIVER", data, start, end, max_words)
        if command_type in _SCANNED_TYPES:
            raise ProtocolViolation(f"the client sent a {field.name} command of {end - start} bytes, which is too long")
        fields = FieldCount(self._max_fields)
        refusal = fields.refusal(data, start, end, getattr(pb.BaseCommand(), field.name))
        if refusal is None:
            return _parse(data[command_start:end])
        if fields.request_id is None:
            raise ProtocolViolation(str(refusal))
        return CommandRefused(pb.BaseCommand.Type.Name(command_type), fields.request_id, refusal)

    def _decode_short(self, data: bytes, pos: int, events: list[Event]) -> int:
        """Decode frames of less than 16 bytes at the end of the data, which cannot be SEND, ACK or FLOW."""
        while len(data) - pos >= 8:
            total, size = _SIZES.unpack_from(data, pos)
            if pos + 4 + total > len(data):
                break
            if total < 4 or size > total - 4:
                raise ProtocolViolation(
                    f"the client sent a frame of {total} bytes with a command of {size} bytes, which does not fit into it"
                )
            events.append(_parse(data[pos + 8 : pos + 8 + size]))
            pos += 4 + total
        return pos


def _parse(command: bytes) -> pb.BaseCommand:
    parsed = _parse_any(command)
    if parsed.type in _SCANNED_TYPES:
        raise ProtocolViolation("the client sent a command with its fields in another order than all Pulsar clients")
    return parsed


def _parse_any(command: bytes) -> pb.BaseCommand:
    try:
        parsed = pb.BaseCommand.FromString(command)
    except DecodeError as error:
        raise ProtocolViolation("the client sent a command that cannot be decoded as protobuf") from error
    # Unknown types count as missing, like unknown enum values.
    if not parsed.IsInitialized() or not parsed.HasField(_FIELD_OF_TYPE[parsed.type]):
        raise ProtocolViolation("the client sent a command that lacks one of its required fields")
    if not command.isascii() and _has_broken_text(parsed):
        raise ProtocolViolation("the client sent a command with a text that is not UTF-8")
    return parsed


def _has_broken_text(message: Message) -> bool:
    for field, value in message.ListFields():
        values = value if field.is_repeated else (value,)
        if field.type == field.TYPE_STRING:
            is_broken = any(isinstance(text, bytes) for text in values)
        elif field.type == field.TYPE_MESSAGE and field.message_type is not _MESSAGE_ID:  # many, without strings
            is_broken = any(_has_broken_text(inner) for inner in values)
        else:
            is_broken = False
        if is_broken:
            return True
    return False


def _in_order(command: bytes) -> bytes:
    parsed = _parse_any(command)
    ordered = pb.BaseCommand(type=parsed.type)
    name = _FIELD_OF_TYPE[parsed.type]
    getattr(ordered, name).CopyFrom(getattr(parsed, name))
    ordered.DiscardUnknownFields()
    return ordered.SerializeToString()


def _enter(data: bytes, pos: int, end: int) -> tuple[int, int]:
    length, pos = decode(data, pos, end)
    if pos + length != end:
        raise ProtocolViolation("the client sent a command with a damaged type or length")
    return pos, end


def _skip(data: bytes, pos: int, end: int) -> int:
    tag, after_tag = decode(data, pos, end)
    # A tag in a non-minimal encoding may be one that the scanner looks for.
    if not 8 <= tag < 1 << 32 or (tag < 0x80 and after_tag - pos > 1):
        raise ProtocolViolation("the client sent a command with a damaged field")
    return skip_field(data, tag, after_tag, end)


def _scan_send(data: bytes, pos: int, end: int) -> tuple[int, int, int, int, TxnId | None]:
    pos, end = _enter(data, pos + 1, end)
    producer_id = sequence_id = -1
    highest = is_chunk = 0
    transaction_least = transaction_most = 0
    while pos < end:
        tag = data[pos]
        pos += 1
        if tag == 0x08:
            producer_id, pos = decode(data, pos, end)
        elif tag == 0x10:
            sequence_id, pos = decode(data, pos, end)
        elif tag == 0x30:
            highest, pos = decode(data, pos, end)
        elif tag == 0x20:
            transaction_least, pos = decode(data, pos, end)
        elif tag == 0x28:
            transaction_most, pos = decode(data, pos, end)
        elif tag == 0x38:
            is_chunk, pos = decode(data, pos, end)
        elif tag in (0x18, 0x40):  # num_messages, marker: taken from the entry's own metadata
            pos = decode(data, pos, end)[1]
        else:
            pos = _skip(data, pos - 1, end)
    if producer_id < 0 or sequence_id < 0:
        raise ProtocolViolation("the client sent a SEND command without producer id or sequence id")
    txn = TxnId(transaction_most, transaction_least) if transaction_least or transaction_most else None
    return producer_id, sequence_id, highest, is_chunk, txn


def _scan_flow(data: bytes, pos: int, end: int) -> Flow:
    pos, end = _enter(data, pos, end)
    consumer_id = permits = -1
    while pos < end:
        tag = data[pos]
        pos += 1
        if tag == 0x08:
            consumer_id, pos = decode(data, pos, end)
        elif tag == 0x10:
            permits, pos = decode(data, pos, end)
        else:
            pos = _skip(data, pos - 1, end)
    if consumer_id < 0 or permits & 0xFFFF_FFFF == 0 or permits < 0:
        raise ProtocolViolation("the client sent a FLOW command without consumer id or permits")
    return Flow(consumer_id, permits & 0xFFFF_FFFF)


def _scan_ack(data: bytes, pos: int, end: int, previous: Ack | None, events: list[Event]) -> Ack | None:
    """Decode one CommandAck. Return the event to which the next ACK may be added.

    The ACK is added to `previous` if both are individual and request no receipt; otherwise it is a new event.
    """
    pos, end = _enter(data, pos, end)
    ack = Ack(-1)
    ack_type = -1
    transaction_least = transaction_most = 0
    while pos < end:
        tag = data[pos]
        pos += 1
        if tag == 0x1A:
            length, pos = decode(data, pos, end)
            if pos + length > end:
                raise ProtocolViolation("the client sent a damaged ACK command, which ends within a message id")
            _scan_message_id(data, pos, pos + length, ack)
            pos += length
        elif tag == 0x08:
            ack.consumer_id, pos = decode(data, pos, end)
        elif tag == 0x10:
            ack_type, pos = decode(data, pos, end)
        elif tag == 0x40:
            ack.request_id, pos = decode(data, pos, end)
        elif tag == 0x20:
            ack.validation_error, pos = decode(data, pos, end)
        elif tag == 0x30:
            transaction_least, pos = decode(data, pos, end)
        elif tag == 0x38:
            transaction_most, pos = decode(data, pos, end)
        else:
            pos = _skip(data, pos - 1, end)
    if transaction_least or transaction_most:
        ack.txn = TxnId(transaction_most, transaction_least)
    if ack.consumer_id < 0 or ack_type not in (0, 1):
        raise ProtocolViolation("the client sent an ACK command without consumer id or type")
    if ack_type == 1 or ack.request_id >= 0 or ack.txn is not None or ack.validation_error >= 0:
        ack.is_cumulative = ack_type == 1
        events.append(ack)
        return None
    if previous is not None and previous.consumer_id == ack.consumer_id:
        _join_groups(previous.groups, ack.groups)
        previous.partials += ack.partials
        return previous
    events.append(ack)
    return ack


def _join_groups(previous: list[tuple[int, list[int]]], groups: list[tuple[int, list[int]]]) -> None:
    for ledger_id, entry_ids in groups:
        if previous and previous[-1][0] == ledger_id:
            previous[-1][1].extend(entry_ids)
        else:
            previous.append((ledger_id, entry_ids))


def _ack_prefix(data: bytes, pos: int, end: int, ack: Ack | None) -> bytes:
    """Return the bytes before the entry id of the decoded ACK, if the entry id is its only one and its last field; else
    empty.
    """
    # size(4) 08 0a 52 len { 08 consumer 10 type 1a len { 08 ledger 10 entry } }, one byte of consumer id
    if ack is None or not ack.groups or data[pos + 10] != 0x10 or data[pos + 12 : pos + 13] != b"\x1a":
        return b""
    entry = encode(ack.groups[-1][1][-1])
    entry_start = end - len(entry)
    if pos + 14 + data[pos + 13] != end or data[entry_start - 1 : end] != b"\x10" + entry:
        return b""
    return data[pos:entry_start]


def _scan_message_id(data: bytes, pos: int, end: int, ack: Ack) -> None:
    ledger_id = entry_id = -1
    batch_size = 0
    ack_set: list[int] | None = None
    while pos < end:
        tag = data[pos]
        pos += 1
        if tag == 0x08:
            ledger_id, pos = decode(data, pos, end)
        elif tag == 0x10:
            entry_id, pos = decode(data, pos, end)
        elif tag == 0x28:
            word, pos = decode(data, pos, end)
            ack_set = ack_set or []
            ack_set.append(word)
        elif tag == 0x2A:  # the same, packed
            length, pos = decode(data, pos, end)
            packed_end = pos + length
            if packed_end > end:
                raise ProtocolViolation("the client sent a message id that ends within its ack set")
            ack_set = ack_set or []
            while pos < packed_end:
                word, pos = decode(data, pos, packed_end)
                ack_set.append(word)
        elif tag == 0x30:
            batch_size, pos = decode(data, pos, end)
        else:
            pos = _skip(data, pos - 1, end)
    if ledger_id < 0 or entry_id < 0:
        raise ProtocolViolation("the client sent a message id without ledger id or entry id")
    if ack_set:
        batch_size &= 0xFFFF_FFFF
        if batch_size >= 1 << 31:
            batch_size = 0  # Negative sizes count as absent.
        ack.partials.append(PartialAck(ledger_id, entry_id, ack_set, batch_size))
    elif ack.groups and ack.groups[-1][0] == ledger_id:
        ack.groups[-1][1].append(entry_id)
    else:
        ack.groups.append((ledger_id, [entry_id]))
