"""Helpers of the decoder tests: frames built by protobuf, events in a comparable form, and random commands.

`flattened` and `expected` describe the same stream: the first from the decoder's events, the second from protobuf
alone. Both join neighbouring acknowledgements, since the grouping of events depends on how the bytes arrived.
"""

from __future__ import annotations

import struct
from typing import Any

from crc32c import crc32c
from hypothesis import settings
from hypothesis import strategies as st

from pybroker.model.events import Ack, Flow, SendRefused, SendRun
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.commands import Decoder, Event

MASK_64 = (1 << 64) - 1
MAX_MESSAGE_BYTES = 5 << 20
MAX_BATCH_MESSAGES = 1000
MAX_FIELDS = 1000
Item = tuple[Any, ...]
EXAMPLES = settings(deadline=None, database=None, derandomize=True)
"""For tests of random values that are the same in every run."""


def frame(command: pb.BaseCommand | bytes, message: bytes = b"") -> bytes:
    body = command if isinstance(command, bytes) else command.SerializeToString()
    return struct.pack(">II", 4 + len(body) + len(message), len(body)) + body + message


def message(metadata: pb.MessageMetadata | bytes, payload: bytes = b"payload", checksum: str = "good") -> bytes:
    """Return the bytes behind the command of a SEND; `checksum` is good, bad or none."""
    encoded = metadata if isinstance(metadata, bytes) else metadata.SerializeToString()
    body = struct.pack(">I", len(encoded)) + encoded + payload
    if checksum == "none":
        return body
    value = crc32c(body) ^ (checksum == "bad")
    return struct.pack(">HI", 0x0E01, value) + body


def metadata(**fields: Any) -> pb.MessageMetadata:
    return pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1_700_000_000_000, **fields)


def send(producer_id: int, sequence_id: int, **fields: Any) -> pb.BaseCommand:
    command = pb.CommandSend(producer_id=producer_id, sequence_id=sequence_id, **fields)
    return pb.BaseCommand(type=pb.BaseCommand.SEND, send=command)


def ack(consumer_id: int, *positions: tuple[int, int], **fields: Any) -> pb.BaseCommand:
    ids = [pb.MessageIdData(ledgerId=ledger_id, entryId=entry_id) for ledger_id, entry_id in positions]
    command = pb.CommandAck(
        consumer_id=consumer_id,
        **{"ack_type": pb.CommandAck.Individual, "message_id": ids} | fields,  # type: ignore[arg-type]
    )
    return pb.BaseCommand(type=pb.BaseCommand.ACK, ack=command)


def flow(consumer_id: int, permits: int) -> pb.BaseCommand:
    command = pb.CommandFlow(consumer_id=consumer_id, messagePermits=permits)
    return pb.BaseCommand(type=pb.BaseCommand.FLOW, flow=command)


def connected_decoder() -> Decoder:
    decoder = Decoder()
    decoder.accept_messages(MAX_MESSAGE_BYTES, MAX_BATCH_MESSAGES, MAX_FIELDS)
    return decoder


# --- one form for events and for what protobuf reads -------------------------------------------------------------------


def _joined(items: list[Item]) -> list[Item]:
    joined: list[Item] = []
    for item in items:
        if item[0] == "acks" and joined and joined[-1][:2] == item[:2]:
            _, consumer_id, whole, partial = joined.pop()
            item = ("acks", consumer_id, whole + item[2], partial + item[3])  # noqa: PLW2901
        joined.append(item)
    return joined


def _ack_item(
    consumer_id: int,
    is_cumulative: bool,
    request_id: int,
    txn: tuple[int, int] | None,
    whole: tuple[Any],
    partial: tuple[Any],
) -> Item:
    if is_cumulative or request_id >= 0 or txn is not None:
        return ("ack", consumer_id, is_cumulative, request_id, txn, whole, partial)
    return ("acks", consumer_id, whole, partial)


def flattened(events: list[Event]) -> list[Item]:
    """Return the events as plain values, one for each SEND, and neighbouring acknowledgements joined."""
    items: list[Item] = []
    for event in events:
        if isinstance(event, SendRun):
            assert event.sequence_ids
            assert event.size_bytes == sum(map(len, event.payloads))
            columns = (event.sequence_ids, event.highest_sequence_ids, event.message_counts, event.payloads)
            items += [("send", event.producer_id, event.txn, *row) for row in zip(*columns, strict=True)]
        elif isinstance(event, SendRefused):
            items.append(("refused", event.producer_id, event.sequence_id, type(event.error).__name__))
        elif isinstance(event, Ack):
            whole = tuple((ledger_id, entry_id) for ledger_id, entries in event.groups for entry_id in entries)
            partial = tuple((p.ledger_id, p.entry_id, tuple(p.ack_set), p.batch_size) for p in event.partials)
            items.append(_ack_item(event.consumer_id, event.is_cumulative, event.request_id, event.txn, whole, partial))  # type: ignore[arg-type]
        elif isinstance(event, Flow):
            items.append(("flow", event.consumer_id, event.permits))
        else:
            items.append(("command", event.SerializeToString(deterministic=True)))  # type: ignore[union-attr]
    return _joined(items)


def expected(stream: bytes) -> list[Item]:
    """Read a stream of valid frames with protobuf only."""
    items: list[Item] = []
    pos = 0
    while pos < len(stream):
        total, size = struct.unpack_from(">II", stream, pos)
        command = pb.BaseCommand.FromString(stream[pos + 8 : pos + 8 + size])
        assert command.IsInitialized()
        tail = stream[pos + 8 + size : pos + 4 + total]
        if command.type == pb.BaseCommand.SEND:
            items.append(_expected_send(command.send, tail))
        elif command.type == pb.BaseCommand.ACK:
            items.append(_expected_ack(command.ack))
        elif command.type == pb.BaseCommand.FLOW:
            items.append(("flow", command.flow.consumer_id, command.flow.messagePermits))
        else:
            items.append(("command", command.SerializeToString(deterministic=True)))
        pos += 4 + total
    return _joined(items)


def _expected_send(command: pb.CommandSend, tail: bytes) -> Item:
    ids = (command.producer_id, command.sequence_id)
    start = 0
    if tail[:2] == b"\x0e\x01":
        if int.from_bytes(tail[2:6], "big") != crc32c(tail[6:]):
            return ("refused", *ids, "ChecksumError")
        start = 6
    size = int.from_bytes(tail[start : start + 4], "big")
    read = pb.MessageMetadata.FromString(tail[start + 4 : start + 4 + size])
    if read.num_messages_in_batch > min(MAX_BATCH_MESSAGES, _most_messages(read, len(tail) - start - 4 - size)):
        return ("refused", *ids, "NotAllowedError")
    return ("send", ids[0], _txn(command), ids[1], command.highest_sequence_id, read.num_messages_in_batch, tail)


def _txn(command: pb.CommandSend | pb.CommandAck) -> tuple[int, int] | None:
    bits = (command.txnid_most_bits, command.txnid_least_bits)
    return bits if any(bits) else None


def _most_messages(read: pb.MessageMetadata, payload_bytes: int) -> int:
    """Six bytes for each message before compression; one message may be empty and in no batch."""
    ratio = {pb.NONE: 1, pb.LZ4: 255, pb.ZLIB: 1032, pb.ZSTD: 1 << 32, pb.SNAPPY: 22}[read.compression]
    bytes_out = payload_bytes if read.compression == pb.NONE else min(read.uncompressed_size, payload_bytes * ratio)
    return max(1, bytes_out // 6, payload_bytes // 6)


def _expected_ack(command: pb.CommandAck) -> Item:
    whole = tuple((m.ledgerId, m.entryId) for m in command.message_id if not m.ack_set)
    partial = tuple(
        (m.ledgerId, m.entryId, tuple(word & MASK_64 for word in m.ack_set), max(0, m.batch_size))
        for m in command.message_id
        if m.ack_set
    )
    return _ack_item(
        command.consumer_id,
        command.ack_type == pb.CommandAck.Cumulative,
        command.request_id if command.HasField("request_id") else -1,
        _txn(command),
        whole,  # type: ignore[arg-type]
        partial,  # type: ignore[arg-type]
    )


class Stream(bytes):
    """Bytes with a short repr in reports."""

    def __repr__(self) -> str:
        return f"bytes.fromhex({self.hex()!r})" if len(self) <= 2000 else f"<{len(self)} bytes>"


# --- random frames -----------------------------------------------------------------------------------------------------

# Every length of varint, and the form in which clients write -1.
ids = st.one_of(
    st.integers(0, 3),
    st.integers(0, 63).flatmap(lambda bits: st.integers(0, (1 << bits + 1) - 1)),
    st.sampled_from([127, 128, (1 << 14) - 1, 1 << 14, (1 << 21) - 1, 1 << 21, (1 << 28) - 1, 1 << 28, MASK_64]),
)
_INT32 = st.integers(-(1 << 31), (1 << 31) - 1)
_INT64 = st.integers(-(1 << 63), (1 << 63) - 1)


def _tag(number: int, wire_type: int) -> bytes:
    return _varint(number << 3 | wire_type)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(out) + bytes((value,))


_UNKNOWN_FIELD = st.integers(100, 5000).flatmap(
    lambda number: st.one_of(
        ids.map(lambda value: _tag(number, 0) + _varint(value)),
        st.binary(min_size=8, max_size=8).map(lambda data: _tag(number, 1) + data),
        st.binary(max_size=200).map(lambda data: _tag(number, 2) + _varint(len(data)) + data),
        st.binary(min_size=4, max_size=4).map(lambda data: _tag(number, 5) + data),
    )
)
_UNKNOWN_FIELDS = st.one_of(st.just(b""), st.lists(_UNKNOWN_FIELD, max_size=3).map(b"".join))


def _optional(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=fields)


def _with_unknown(fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """The same message, sometimes with fields of a later version of the protocol."""
    return st.builds(
        lambda built, unknown: type(built).FromString(built.SerializeToString() + unknown), fields, _UNKNOWN_FIELDS
    )


_TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
message_ids = _with_unknown(
    st.builds(
        lambda ledger_id, entry_id, rest: pb.MessageIdData(ledgerId=ledger_id, entryId=entry_id, **rest),
        ids,
        ids,
        _optional(
            partition=_INT32,
            batch_index=_INT32,
            batch_size=_INT32,
            ack_set=st.one_of(st.just([]), st.lists(_INT64, max_size=4)),
        ),
    )
)
metadatas = _with_unknown(
    st.builds(
        lambda rest: pb.MessageMetadata(**rest),
        st.fixed_dictionaries(
            {"producer_name": st.one_of(_TEXT, st.just("X-1")), "sequence_id": ids, "publish_time": ids},
            optional={
                "num_messages_in_batch": st.one_of(st.integers(1, 4), st.integers(1, (1 << 31) - 1)),
                "compression": st.sampled_from(pb.CompressionType.values()),
                "partition_key": _TEXT,
                "properties": st.lists(st.builds(lambda k, v: pb.KeyValue(key=k, value=v), _TEXT, _TEXT), max_size=3),
                "uncompressed_size": st.integers(0, (1 << 32) - 1),
                "ordering_key": st.binary(max_size=20),
                "deliver_at_time": _INT64,
                "num_chunks_from_msg": _INT32,
                "highest_sequence_id": ids,
            },
        ),
    )
)
_MANY_PROPERTIES = pb.MessageMetadata(properties=[pb.KeyValue(key="k", value="X")] * 200).SerializePartialToString()
metadatas = st.one_of(
    metadatas,
    metadatas,
    metadatas.map(lambda built: type(built).FromString(built.SerializeToString() + _MANY_PROPERTIES)),
)
"""every third one is too large for a loop in Python"""
_SEND_COMMANDS = _with_unknown(
    st.builds(
        lambda producer_id, sequence_id, rest: pb.CommandSend(producer_id=producer_id, sequence_id=sequence_id, **rest),
        ids,
        ids,
        st.one_of(
            st.just({}),
            _optional(
                num_messages=_INT32,
                highest_sequence_id=ids,
                is_chunk=st.booleans(),
                marker=st.booleans(),
                txnid_least_bits=st.one_of(st.just(0), ids),
                txnid_most_bits=st.one_of(st.just(0), ids),
                message_id=message_ids,
            ),
        ),
    )
)
_ACK_COMMANDS = _with_unknown(
    st.builds(
        lambda consumer_id, ack_type, positions, rest: pb.CommandAck(
            consumer_id=consumer_id, ack_type=ack_type, message_id=positions, **rest
        ),
        st.integers(0, 2),
        st.sampled_from([0, 0, 0, 1]),
        st.lists(message_ids, max_size=4),
        st.one_of(
            st.just({}),
            _optional(
                request_id=ids,
                txnid_least_bits=st.one_of(st.just(0), ids),
                txnid_most_bits=st.one_of(st.just(0), ids),
                validation_error=st.integers(0, 4),
                properties=st.lists(st.builds(lambda k, v: pb.KeyLongValue(key=k, value=v), _TEXT, ids), max_size=2),
            ),
        ),
    )
)
_FLOW_COMMANDS = _with_unknown(
    st.builds(lambda c, p: pb.CommandFlow(consumer_id=c, messagePermits=p), ids, st.integers(1, (1 << 32) - 1))
)
_PAYLOADS = st.one_of(
    st.binary(max_size=100),
    st.binary(max_size=100),
    st.integers(30_000, 70_000).map(lambda size: bytes((size & 0xFF,)) * size),
)
_MESSAGES = st.builds(message, metadatas, _PAYLOADS, st.sampled_from(["good", "good", "good", "none", "bad"]))
_ORDINARY_SENDS = st.builds(
    lambda producer_id, sequence_id, payload: frame(send(producer_id, sequence_id), message(metadata(), payload)),
    st.integers(0, 1),
    ids,
    st.binary(max_size=40),
)
_OTHER_COMMANDS = st.one_of(
    st.just(pb.BaseCommand(type=pb.BaseCommand.PING, ping=pb.CommandPing())),
    st.builds(
        lambda consumer_id, request_id: pb.BaseCommand(
            type=pb.BaseCommand.UNSUBSCRIBE,
            unsubscribe=pb.CommandUnsubscribe(consumer_id=consumer_id, request_id=request_id),
        ),
        ids,
        ids,
    ),
    st.builds(
        lambda topic, request_id: pb.BaseCommand(
            type=pb.BaseCommand.LOOKUP, lookupTopic=pb.CommandLookupTopic(topic=topic, request_id=request_id)
        ),
        _TEXT,
        ids,
    ),
)


def _in_unusual_layout(command: pb.BaseCommand, layout: str) -> bytes:
    """Encode the same command: as usual, with its message before its type, or with a field behind its message."""
    if layout == "swapped":
        type_only = pb.BaseCommand(type=command.type).SerializeToString()
        return command.SerializeToString().removeprefix(type_only) + type_only
    if layout == "trailing":
        return command.SerializeToString() + _tag(3000, 0) + b"\x07"
    return command.SerializeToString()


_LAYOUTS = st.sampled_from(["usual"] * 8 + ["swapped", "trailing"])
frames = st.one_of(
    _ORDINARY_SENDS,
    st.builds(
        lambda command, layout, tail: frame(
            _in_unusual_layout(pb.BaseCommand(type=pb.BaseCommand.SEND, send=command), layout), tail
        ),
        _SEND_COMMANDS,
        _LAYOUTS,
        _MESSAGES,
    ),
    st.builds(
        lambda command, layout: frame(_in_unusual_layout(pb.BaseCommand(type=pb.BaseCommand.ACK, ack=command), layout)),
        _ACK_COMMANDS,
        _LAYOUTS,
    ),
    st.builds(
        lambda command, layout: frame(
            _in_unusual_layout(pb.BaseCommand(type=pb.BaseCommand.FLOW, flow=command), layout)
        ),
        _FLOW_COMMANDS,
        _LAYOUTS,
    ),
    st.builds(frame, _OTHER_COMMANDS, st.one_of(st.just(b""), st.binary(max_size=20))),
)
streams = st.lists(frames, min_size=1, max_size=8).map(lambda parts: Stream(b"".join(parts)))
