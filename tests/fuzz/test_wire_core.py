"""The compiled core of `wire` and pure Python give the same results for any bytes: events, errors, columns, ledger entries.

Streams of usual and unusual frames are damaged, and most checksums are then corrected, so that damaged metadata is read.
`python -m tests.fuzz.test_wire_core SEED COUNT` runs the same comparison without pytest: `make sanitize` does.
"""

from __future__ import annotations

import os
import random
import struct
import sys
from collections.abc import Callable
from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fuzz.test_decoder import (
    Feed,
    chunks_of,
    cuts,
    damaged_streams,
    feed_like_a_socket,
    feed_plainly,
    feeds,
)
from tests.unit.wire.support import (
    MAX_BATCH_MESSAGES,
    MAX_FIELDS,
    MAX_MESSAGE_BYTES,
    ack,
    flow,
    frame,
    message,
    metadata,
    send,
    streams,
)

from pybroker.errors import ProtocolViolation
from pybroker.model.events import Ack, Flow, SendRefused, SendRun
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.commands import Decoder, Event
from pybroker.wire.core import COMPILED, FrameScanner
from pybroker.wire.entry_columns import entry_key_hash
from pybroker.wire.entry_metadata import chunk_of, deliver_at_ms, entry_message_count, is_marker

pytestmark = pytest.mark.skipif(COMPILED is None, reason="the core of wire is not compiled here")
QUICK = settings(max_examples=60, deadline=None, database=None, derandomize=True)
STREAMS = 6_000
BYTES = bytes(
    (0, 1, 2, 3, 4, 8, 10, 16, 18, 26, 32, 40, 42, 48, 50, 56, 82, 88, 90, 0x7F, 0x80, 0x98, 0xA0, 0xD2, 0xFF)
)
Values = tuple[Any, ...]


def plain(event: Event) -> Values:
    """Return all attributes of an event, with the grouping of commands in it."""
    if isinstance(event, SendRefused):
        return ("refused", event.producer_id, event.sequence_id, repr(event.error))
    if isinstance(event, Ack):
        partials = [[getattr(each, name) for name in each.__slots__] for each in event.partials]
        return ("ack", partials, *(getattr(event, name) for name in Ack.__slots__ if name != "partials"))
    if isinstance(event, SendRun | Flow):
        return (type(event).__name__, *(getattr(event, name) for name in type(event).__slots__))
    if isinstance(event, pb.BaseCommand):
        return ("command", event.SerializeToString(deterministic=True))
    return (type(event).__name__,)


def decoded(scanner: FrameScanner | None, chunks: list[bytes], feed: Feed) -> tuple[list[Values], str, int]:
    """Return the events, the text of the violation, and the bytes that the decoder still holds."""
    decoder = Decoder(scanner)
    decoder.accept_messages(MAX_MESSAGE_BYTES, MAX_BATCH_MESSAGES, MAX_FIELDS)
    events: list[Event] = []
    violation = ""
    try:
        feed(decoder, chunks, events)
    except ProtocolViolation as error:
        violation = str(error)
    return [plain(event) for event in events], violation, decoder.held_bytes


def check_stream(stream: bytes, cut_at: list[int], feed: Feed) -> None:
    chunks = chunks_of(stream, cut_at)
    assert decoded(COMPILED, chunks, feed) == decoded(None, chunks, feed)


@QUICK
@given(streams, cuts, feeds)
def test_valid_streams_give_equal_events(stream: bytes, cut_at: list[int], feed: Feed) -> None:
    check_stream(stream, cut_at, feed)


@QUICK
@given(damaged_streams, cuts, feeds)
def test_damaged_streams_give_equal_events_and_violations(stream: bytes, cut_at: list[int], feed: Feed) -> None:
    check_stream(stream, cut_at, feed)


@QUICK
@given(st.binary(max_size=60), st.sampled_from([b"\x08\x06\x32", b"\x08\x0a\x52", b"\x08\x0b\x5a"]), st.integers(0, 12))
def test_garbage_in_scanned_commands_gives_equal_violations(garbage: bytes, prefix: bytes, tail: int) -> None:
    command = prefix + garbage
    data = struct.pack(">II", len(command) + 4, max(0, len(command) - tail)) + command
    check_stream(data, [], feed_plainly)


# --- damaged streams, many and fast ------------------------------------------------------------------------------------


def _frames() -> list[bytes]:
    batch = metadata(num_messages_in_batch=3, highest_sequence_id=9, uncompressed_size=60)
    packed = batch.__class__.FromString(batch.SerializeToString())
    packed.compression = pb.LZ4
    many = metadata(properties=[pb.KeyValue(key="k", value="X")] * 300)
    metadatas = [
        *[metadata()] * 4,
        metadata(partition_key="key", deliver_at_time=1 << 40),
        metadata(ordering_key=b"ordering", partition_key="aGk=", partition_key_b64_encoded=True),
        metadata(partition_key="aGk=", partition_key_b64_encoded=True),
        metadata(partition_key="aGk=", partition_key_b64_encoded=False),
        metadata(uuid="u", chunk_id=1, num_chunks_from_msg=3, total_chunk_msg_size=99),
        metadata(marker_type=20, txnid_least_bits=1, txnid_most_bits=2),
        *[batch] * 3,
        packed,
        many,
    ]
    sends = [
        *[send(1, number) for number in (0, 1, 127, 128, 1 << 14, 1 << 28, (1 << 64) - 1)],
        send(1, 5, num_messages=3, highest_sequence_id=9),
        send(2, 5),
        send(1 << 40, 5),
        send(1, 5, txnid_least_bits=3, txnid_most_bits=4),
        send(1, 5, is_chunk=True),
        send(1, 5, marker=True),
    ]
    others = [
        *[ack(1, (7, entry)) for entry in (0, 1, 2, 3, 200)],
        ack(1, (7, 5), (7, 6), (8, 1)),
        ack(2, (7, 5)),
        ack(1, (7, 5), request_id=3),
        ack(1, (7, 5), ack_type=pb.CommandAck.Cumulative),
        ack(1, message_id=[pb.MessageIdData(ledgerId=7, entryId=9, ack_set=[5, -1], batch_size=90, batch_index=4)]),
        ack(1, message_id=[pb.MessageIdData(ledgerId=7, entryId=9, partition=3, batch_index=-1, batch_size=9)]),
        flow(1, 1000),
        flow(300, 1),
    ]
    payloads = [b"", b"payload", b"x" * 100, bytes(range(256)) * 4]
    made = [
        frame(command, message(each, payload)) for command in sends for each in metadatas for payload in payloads[:3]
    ]
    made += [frame(sends[0], message(metadata(), payload)) for payload in payloads]
    made += [frame(sends[0], message(metadata(), checksum=kind)) for kind in ("none", "bad")]
    made += [frame(command) for command in others] * 20
    return made


FRAMES = _frames()


def mutated(dice: random.Random, made: bytes) -> bytes:
    data = bytearray(made)
    for _ in range(dice.choice([1, 1, 2, 5])):
        at = dice.randrange(len(data) + 1)
        match dice.randrange(6):
            case 0:
                data[at:at] = dice.randbytes(dice.randrange(4))
            case 1:
                del data[at : at + dice.randrange(5)]
            case 2:
                data[at : at + 1] = bytes((dice.randrange(256),))
            case _:
                data[at : at + 1] = bytes((dice.choice(BYTES),))
    return bytes(data)


def corrected(dice: random.Random, data: bytes) -> bytes:
    """Correct the sizes of a frame, and usually the checksum of its message."""
    if len(data) < 8:
        return data
    size = min(struct.unpack_from(">I", data, 4)[0], len(data) - 8)
    fixed = bytearray(struct.pack(">II", len(data) - 4, size) + data[8:])
    start = 8 + size
    if fixed[start : start + 2] == b"\x0e\x01" and len(fixed) >= start + 6 and dice.random() < 0.9:
        fixed[start + 2 : start + 6] = struct.pack(">I", crc32c(bytes(fixed[start + 6 :])))
    return bytes(fixed)


def random_stream(dice: random.Random) -> bytes:
    parts = []
    for _ in range(dice.randrange(1, 6)):
        made = dice.choice(FRAMES)
        if dice.random() < 0.5:
            made = mutated(dice, made)
            if dice.random() < 0.9:
                made = corrected(dice, made)
        parts.append(made)
    return b"".join(parts)


def compare_streams(dice: random.Random) -> None:
    stream = random_stream(dice)
    cut_at = [dice.randrange(len(stream) + 1) for _ in range(dice.choice([0, 0, 1, 3]))]
    check_stream(stream, cut_at, dice.choice([feed_plainly, feed_like_a_socket]))


COLUMNS: list[tuple[str, Callable[[bytes], Any]]] = [
    ("key_hashes", entry_key_hash),
    ("deliver_at_times", deliver_at_ms),
    ("message_counts", entry_message_count),
    ("markers", is_marker),
    ("chunks", chunk_of),
]


def compare_columns(dice: random.Random) -> None:
    entries = []
    for _ in range(8):
        made = dice.choice(FRAMES)
        entry = made[8 + struct.unpack_from(">I", made, 4)[0] :]
        if dice.random() < 0.3:
            entry = b"\x0e\x02\0\0\0\x05index" + entry
        entries.append(mutated(dice, entry) if dice.random() < 0.8 else entry)
    for name, decide in COLUMNS:
        assert getattr(COMPILED, name)(decide, entries) == [decide(entry) for entry in entries], name


def compare(seed: int, count: int) -> None:
    for number in range(count):
        dice = random.Random(seed * 1_000_003 + number)
        try:
            compare_streams(dice)
            compare_columns(dice)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, number {number}: {error}") from error


def test_damaged_streams_and_entries_give_equal_results() -> None:
    compare(int(os.environ.get("FUZZ_SEED", "1")), STREAMS)


class _Counting:
    """The compiled scanner, with the number of its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __getattr__(self, name: str) -> Any:
        self.calls += 1
        return getattr(COMPILED, name)


@pytest.mark.parametrize(
    "kinds",
    [
        [frame(send(1, 5), message(metadata())), frame(send(2, 5), message(metadata()))],
        [frame(send(1, 5), message(metadata(), checksum="bad"))],
        [frame(send(1, 5, is_chunk=True), message(metadata())), frame(send(1, 5), message(metadata()))],
        [frame(ack(1, (7, 5))), frame(ack(2, (7, 5)))],
        [frame(ack(1, (7, 5), request_id=3)), frame(flow(1, 5))],
    ],
    ids=["two producers", "wrong checksums", "chunks", "two consumers", "receipts and permits"],
)
def test_worst_alternation_costs_at_most_one_scan_per_frame(kinds: list[bytes]) -> None:
    """A scan reads its frames and at most one more, so the cost is linear in the bytes."""
    scanner: Any = _Counting()
    decoder = Decoder(scanner)
    decoder.accept_messages(MAX_MESSAGE_BYTES, MAX_BATCH_MESSAGES, MAX_FIELDS)
    decoder.feed(b"".join(kinds * 50))
    while decoder.has_more:
        decoder.feed(b"")
    assert 0 < scanner.calls <= 50 * len(kinds)


# --- mutants -----------------------------------------------------------------------------------------------------------


class _Mutant:
    """The compiled scanner with one wrong result."""

    def __getattr__(self, name: str) -> Any:
        return getattr(COMPILED, name)


class _SkipsCounts(_Mutant):
    def scan_sends(self, *arguments: Any) -> Any:
        found = COMPILED.scan_sends(*arguments)  # type: ignore[union-attr]
        return None if found is None else (*found[:5], [1] * len(found[5]), found[6])


class _IgnoresTheLimit(_Mutant):
    def scan_sends(self, data: bytes, pos: int, max_frame_bytes: int, _max: int) -> Any:
        return COMPILED.scan_sends(data, pos, max_frame_bytes, 1 << 62)  # type: ignore[union-attr]


class _JoinsConsumers(_Mutant):
    def scan_acks(self, *arguments: Any) -> Any:
        found = COMPILED.scan_acks(*arguments)  # type: ignore[union-attr]
        return None if found is None else (*found[:2], 1, found[3])


class _ReadsOneByteOfPermits(_Mutant):
    def scan_flow(self, *arguments: Any) -> Any:
        found = COMPILED.scan_flow(*arguments)  # type: ignore[union-attr]
        return None if found is None else (found[0], found[1] & 0x7F)


@pytest.mark.parametrize("mutant", [_SkipsCounts, _IgnoresTheLimit, _JoinsConsumers, _ReadsOneByteOfPermits])
def test_comparison_finds_a_wrong_scanner(mutant: Any) -> None:
    too_many = frame(send(1, 2), message(metadata(num_messages_in_batch=2000), bytes(12_000)))
    dice = random.Random(1)
    found = False
    for stream in [too_many, *(random_stream(dice) for _ in range(1000))]:
        found = found or decoded(mutant(), [stream], feed_plainly) != decoded(None, [stream], feed_plainly)
    assert found


if __name__ == "__main__":
    compare(int(sys.argv[1]), int(sys.argv[2]))
