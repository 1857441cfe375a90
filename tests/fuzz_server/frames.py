"""Hostile frames of the binary protocol, drawn from a seed. No IO.

Half of them are commands that a client may send, with values that mean something to the broker, so that they get beyond its door:
topics and subscriptions of a small set, ids that other frames have used. The rest are the same with something wrong in them: values
beyond every range, what is required left out, fields that nobody knows, bytes changed, lengths that lie, checksums that do not fit,
messages in the wrong place.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from crc32c import crc32c
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from pybroker.wire import pulsar_api_pb2 as pb

Type = pb.BaseCommand
MOST_ELEMENTS = 3000  # of a repeated field, now and then
NUMBERS = (0, 1, 2, 3, 7, 127, 128, 255, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1)
TENANTS = ("public/default", "fuzz/ns", "fuzz/ns", "fuzz/ns", "nobody/here", "public/nothing")
TEXTS = (
    "",
    " ",
    "\0",
    "x" * 300,
    "x" * 9000,
    "é☃\U0001f600",
    "../..",
    "a/b/c/d",
    "%2F",
    "persistent://",
    "(" * 50,
    "__change_events",
)
PATTERNS = ("persistent://fuzz/ns/.*", "(a*)*b", "[", "x" * 2000, ".*")

# A command's own message stands in the field whose number is the command's type.
FIELDS = {field.number: field.name for field in pb.BaseCommand.DESCRIPTOR.fields if field.number > 1}
OF_CLIENTS = (
    *(Type.SUBSCRIBE, Type.PRODUCER, Type.SEND, Type.SEND, Type.SEND, Type.ACK, Type.ACK, Type.FLOW, Type.FLOW),
    *(Type.UNSUBSCRIBE, Type.CLOSE_PRODUCER, Type.CLOSE_CONSUMER, Type.PING, Type.PONG, Type.SEEK, Type.LOOKUP),
    *(Type.REDELIVER_UNACKNOWLEDGED_MESSAGES, Type.PARTITIONED_METADATA, Type.CONSUMER_STATS, Type.GET_SCHEMA),
    *(Type.GET_LAST_MESSAGE_ID, Type.GET_TOPICS_OF_NAMESPACE, Type.GET_OR_CREATE_SCHEMA, Type.WATCH_TOPIC_LIST),
    *(Type.WATCH_TOPIC_LIST_CLOSE, Type.SUBSCRIBE, Type.PRODUCER, Type.PARTITIONED_METADATA, Type.LOOKUP),
)
ANY = tuple(FIELDS)


class FrameMaker:
    """Draws frames. Each connection has one of its own, made from its own seed, so that what it sends follows from that alone."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._request_id = 0
        self._ids = 1  # of producers and consumers: an unknown producer ends the connection at once
        # By weight: how a frame is made. Most of what is hostile ends a connection, so that half of them send less of it.
        self._kinds: list[tuple[str, Callable[[], tuple[str, bytes]]]] = [
            *[("plain", self._plain)] * 60,
            *[("odd values", self._odd)] * 15,
            *[("unknown fields", self._unknown_fields)] * 6,
            *[("bad checksum", self._bad_checksum)] * 3,
            *[("many elements", self._many_elements)] * 1,
        ]
        if random.random() < 0.5:
            self._kinds += [
                *[("left out", self._left_out)] * 3,
                *[("any command", self._any_command)] * 3,
                *[("changed bytes", self._changed)] * 8,
                *[("wrong lengths", self._wrong_lengths)] * 2,
                *[("huge varints", self._huge_varints)] * 2,
                *[("garbage", self._garbage)] * 1,
            ]

    def introduction(self) -> list[tuple[str, str, bytes]]:
        """What an honest client would begin with: CONNECT, producers and consumers."""
        first = [("proper", "CONNECT", self.connect())]
        self._ids = self._random.randrange(1, 4)
        for number in range(self._ids):
            topic = f"persistent://fuzz/ns/f{self._random.randrange(12)}"
            producer = pb.BaseCommand(type=Type.PRODUCER)
            producer.producer.topic, producer.producer.producer_id = topic, number
            producer.producer.request_id = self._number("request_id")
            subscribe = pb.BaseCommand(type=Type.SUBSCRIBE)
            subscribe.subscribe.topic, subscribe.subscribe.subscription = topic, f"s{self._random.randrange(4)}"
            subscribe.subscribe.subType = self._random.choice((0, 1, 1, 2, 3))  # type: ignore[assignment]
            subscribe.subscribe.consumer_id, subscribe.subscribe.request_id = number, self._number("request_id")
            subscribe.subscribe.initialPosition = pb.CommandSubscribe.Earliest
            flow = pb.BaseCommand(type=Type.FLOW)
            flow.flow.consumer_id, flow.flow.messagePermits = number, 100
            commands = (producer, subscribe, flow)
            first += [("proper", Type.Type.Name(each.type), frame(each.SerializeToString())) for each in commands]
        return first

    def connect(self) -> bytes:
        command = pb.BaseCommand(type=Type.CONNECT)
        command.connect.client_version = "fuzz"
        command.connect.protocol_version = self._random.choice((21, 21, 21, 20, 15, 6, 0, 2**31 - 1))
        command.connect.feature_flags.supports_broker_entry_metadata = self._random.random() < 0.5
        command.connect.feature_flags.supports_topic_watchers = True
        return frame(command.SerializeToString())

    def next(self) -> tuple[str, str, bytes]:
        """What was done to it, the name of its command, and the frame."""
        kind, make = self._random.choice(self._kinds)
        name, data = make()
        return kind, name, data

    # --- kinds

    def _plain(self) -> tuple[str, bytes]:
        kind = self._random.choice(OF_CLIENTS)
        return Type.Type.Name(kind), self._framed(self._command(kind))

    def _odd(self) -> tuple[str, bytes]:
        kind = self._random.choice(OF_CLIENTS)
        return Type.Type.Name(kind), self._framed(self._command(kind, odd=0.4))

    def _any_command(self) -> tuple[str, bytes]:
        kind = self._random.choice(ANY)
        return Type.Type.Name(kind), self._framed(self._command(kind, odd=0.1))  # type: ignore[arg-type]

    def _many_elements(self) -> tuple[str, bytes]:
        kind = self._random.choice(
            (Type.ACK, Type.REDELIVER_UNACKNOWLEDGED_MESSAGES, Type.SUBSCRIBE, Type.SEEK, Type.PRODUCER)
        )
        return Type.Type.Name(kind), self._framed(self._command(kind, most=MOST_ELEMENTS))

    def _left_out(self) -> tuple[str, bytes]:
        kind = self._random.choice(OF_CLIENTS)
        command = self._command(kind)
        message = getattr(command, FIELDS[kind])
        present = [field.name for field, _ in message.ListFields()]
        if present:
            message.ClearField(self._random.choice(present))
        return Type.Type.Name(kind), self._framed(command)

    def _unknown_fields(self) -> tuple[str, bytes]:
        kind = self._random.choice(OF_CLIENTS)
        command = self._command(kind)
        message = getattr(command, FIELDS[kind])
        data = message.SerializePartialToString() + self._unknown()
        encoded = _varint(8) + _varint(kind) + _varint(kind << 3 | 2) + _varint(len(data)) + data + self._unknown()
        return Type.Type.Name(kind), frame(encoded, self._tail() if kind == Type.SEND else b"")

    def _changed(self) -> tuple[str, bytes]:
        kind = self._random.choice(OF_CLIENTS)
        data = bytearray(self._framed(self._command(kind)))
        for _ in range(self._random.choice((1, 1, 2, 5, 20))):
            # Mostly behind the lengths, or nothing else would be tried.
            first = 8 if self._random.random() < 0.9 and len(data) > 8 else 0
            data[self._random.randrange(first, len(data))] = self._random.randrange(256)
        return Type.Type.Name(kind), bytes(data)

    def _wrong_lengths(self) -> tuple[str, bytes]:
        kind = self._random.choice(OF_CLIENTS)
        data = bytearray(self._framed(self._command(kind)))
        place = self._random.choice((0, 4))
        length = int.from_bytes(data[place : place + 4], "big")
        wrong = self._random.choice(
            (0, 1, 3, 4, length - 1, length + 1, length * 2, 5 << 20, 6 << 20, 2**31, 2**32 - 1)
        )
        data[place : place + 4] = struct.pack(">I", wrong & 0xFFFFFFFF)
        return Type.Type.Name(kind), bytes(data)

    def _bad_checksum(self) -> tuple[str, bytes]:
        command = self._command(Type.SEND)
        return "SEND", frame(
            command.SerializePartialToString(), self._tail(checksum=self._random.choice(("bad", "none", "cut")))
        )

    def _huge_varints(self) -> tuple[str, bytes]:
        kind = self._random.choice(OF_CLIENTS)
        name = FIELDS[kind]
        fields = getattr(pb.BaseCommand(), name).DESCRIPTOR.fields
        body = b""
        for field in self._random.sample(list(fields), min(3, len(fields))):
            body += _varint(field.number << 3) + b"\xff" * self._random.choice((9, 10, 11, 40)) + b"\x01"
        encoded = _varint(8) + _varint(kind) + _varint(kind << 3 | 2) + _varint(len(body)) + body
        return Type.Type.Name(kind), frame(encoded)

    def _garbage(self) -> tuple[str, bytes]:
        size = self._random.choice((0, 1, 3, 4, 9, 60, 2000))
        data = self._random.randbytes(size)
        return "(none)", data if self._random.random() < 0.5 else struct.pack(">I", size) + data

    # --- commands

    def _framed(self, command: pb.BaseCommand) -> bytes:
        return frame(command.SerializePartialToString(), self._tail() if command.type == Type.SEND else b"")

    def _command(self, kind: "pb.BaseCommand.Type", odd: float = 0.0, most: int = 3) -> pb.BaseCommand:
        command = pb.BaseCommand(type=kind)
        message = getattr(command, FIELDS[kind])
        message.SetInParent()
        self._fill(message, odd, most, 0)
        return command

    def _fill(self, message: Any, odd: float, most: int, depth: int) -> None:
        random = self._random
        for field in _fields_of(message.DESCRIPTOR):
            if not field.is_required and random.random() < 0.55:
                continue
            if field.is_repeated:
                count = random.choice((0, 1, 1, most))
                if field.is_message:
                    if depth < 3:
                        for _ in range(count if depth == 0 else min(count, 3)):
                            self._fill(getattr(message, field.name).add(), odd, min(most, 3), depth + 1)
                else:
                    getattr(message, field.name).extend([self._value(field, odd) for _ in range(count)])
            elif field.is_message:
                if depth < 3:
                    inner = getattr(message, field.name)
                    inner.SetInParent()
                    self._fill(inner, odd, min(most, 3), depth + 1)
            else:
                setattr(message, field.name, self._value(field, odd))

    def _value(self, field: "_Field", odd: float) -> Any:
        random = self._random
        if field.choices:
            return random.choice(field.choices)
        if field.is_text:
            text = random.choice(TEXTS) if random.random() < odd else self._text(field.name)
            return text.encode() if field.is_bytes else text
        value = random.choice(NUMBERS) if random.random() < odd else self._number(field.name)
        value &= (1 << field.bits) - 1
        return value - (1 << field.bits) if field.is_signed and value >> (field.bits - 1) else value

    def _number(self, name: str) -> int:
        """One that means something more often than not."""
        random = self._random
        if name == "request_id":
            self._request_id += 1
            return self._request_id
        if name in {"producer_id", "consumer_id", "watcher_id"}:
            return random.randrange(self._ids + (random.random() < 0.02))
        if name == "messagePermits":
            return random.choice((1, 10, 1000))
        if name in {"ledgerId", "ledger_id"}:
            return random.randrange(40)
        if name.startswith("txnid"):
            return 0 if random.random() < 0.9 else 7
        return random.choice((0, 1, 2, 5, 60, 2**64 - 1))

    def _text(self, name: str) -> str:
        random = self._random
        if "topic" in name and "pattern" not in name:
            domain = random.choice(("persistent", "persistent", "persistent", "non-persistent"))
            local = random.choice((f"f{random.randrange(12)}", "parts", f"parts-partition-{random.randrange(4)}"))
            return f"{domain}://{random.choice(TENANTS)}/{local}"
        if "pattern" in name:
            return random.choice(PATTERNS)
        if name == "namespace":
            return random.choice(TENANTS)
        if "subscription" in name:
            return f"s{random.randrange(4)}"
        return random.choice(("a", "b", "key", "5", '{"type":"string"}'))

    def _tail(self, checksum: str = "good") -> bytes:
        """What follows a SEND: metadata and payload, of a single message or of a batch."""
        random = self._random
        metadata = pb.MessageMetadata()
        if random.random() < 0.3:
            self._fill(metadata, random.choice((0.0, 0.3)), 3, 1)
        metadata.producer_name, metadata.sequence_id, metadata.publish_time = (
            "fuzz",
            random.randrange(1000),
            1_700_000_000_000,
        )
        payload = random.randbytes(random.choice((0, 1, 20, 20, 300, 5000)))
        if random.random() < 0.3:
            singles = [
                pb.SingleMessageMetadata(payload_size=5, partition_key="k").SerializeToString() for _ in range(3)
            ]
            payload = b"".join(struct.pack(">I", len(each)) + each + b"12345" for each in singles)
            metadata.num_messages_in_batch = random.choice((3, 3, 3, 1, 0, -1, 4, 1000, 2**31 - 1))
        header = metadata.SerializePartialToString()
        body = struct.pack(">I", len(header)) + header + payload
        if checksum == "cut":
            return (struct.pack(">HI", 0x0E01, crc32c(body)) + body)[: random.randrange(12)]
        if checksum == "none":
            return body
        return struct.pack(">HI", 0x0E01, crc32c(body) ^ (checksum == "bad")) + body

    def _unknown(self) -> bytes:
        random = self._random
        number = random.choice((100, 1000, 19_000, 2**28))
        data = random.randbytes(random.choice((0, 3, 100)))
        return random.choice(
            (
                _varint(number << 3) + _varint(random.choice(NUMBERS)),
                _varint(number << 3 | 2) + _varint(len(data)) + data,
                _varint(number << 3 | 1) + random.randbytes(8),
                _varint(number << 3 | 5) + random.randbytes(4),
                _varint(number << 3 | 3) * 3 + _varint(number << 3 | 4) * 3,
            )
        )


@dataclass(frozen=True)
class _Field:
    """What is to know of a field of a message; asking the descriptor each time costs more than all the rest."""

    name: str
    is_required: bool
    is_repeated: bool
    is_message: bool
    is_text: bool
    is_bytes: bool
    bits: int
    is_signed: bool
    choices: tuple[Any, ...]  # all values, of enumerations and the like


_known: dict[str, tuple[_Field, ...]] = {}


def _fields_of(descriptor: Descriptor) -> tuple[_Field, ...]:
    name = descriptor.full_name
    if name not in _known:
        _known[name] = tuple(map(_field_of, descriptor.fields))
    return _known[name]


def _field_of(field: FieldDescriptor) -> _Field:
    choices: tuple[Any, ...] = ()
    if field.enum_type is not None:
        choices = tuple(value.number for value in field.enum_type.values)
    elif field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        choices = (False, True)
    elif field.cpp_type in {FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT}:
        choices = (0.0, -1.0, 1e308, float("nan"), float("inf"))
    type_name = _TYPE_NAMES[field.type]
    return _Field(
        field.name,
        field.is_required,
        field.is_repeated,
        field.message_type is not None,
        field.cpp_type == FieldDescriptor.CPPTYPE_STRING,
        field.type == FieldDescriptor.TYPE_BYTES,
        32 if "32" in type_name else 64,
        not type_name.startswith(("u", "fixed")),
        choices,
    )


_TYPE_NAMES = {value: name[5:].lower() for name, value in vars(FieldDescriptor).items() if name.startswith("TYPE_")}


def frame(command: bytes, tail: bytes = b"") -> bytes:
    return struct.pack(">II", 4 + len(command) + len(tail), len(command)) + command + tail


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
