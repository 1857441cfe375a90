"""What must hold, for any bytes and however they are cut:

* a stream of valid frames gives exactly what protobuf reads from it, one command after the other;
* anything else raises ProtocolViolation and nothing but that, after a part of the commands that precede it;
* the decoder never holds more than one frame, of at most the legal length.

The quick runs are the same every time. The long ones take FUZZ_EXAMPLES and `--hypothesis-seed`. The last tests plant bugs and
see that the first two statements find them.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from tests.unit.wire.support import (
    MAX_BATCH_MESSAGES,
    MAX_FIELDS,
    MAX_MESSAGE_BYTES,
    Item,
    Stream,
    connected_decoder,
    expected,
    flattened,
    frames,
    streams,
)

from pybroker.errors import ProtocolViolation
from pybroker.model.events import Flow
from pybroker.wire import commands
from pybroker.wire.commands import (
    FRAME_PADDING_BYTES,
    MAX_UNAUTHENTICATED_FRAME_BYTES,
    OWN_BUFFER_BYTES,
    SHARED_BUFFER_BYTES,
    Decoder,
    Event,
)

FUZZ_EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "600"))
QUICK = settings(max_examples=100, deadline=None, database=None, derandomize=True)
LONG = settings(max_examples=FUZZ_EXAMPLES, deadline=None, database=None)
SEARCH = settings(QUICK, max_examples=2000, phases=[Phase.generate])
ERASED = bytes(SHARED_BUFFER_BYTES)
SHARED = memoryview(bytearray(SHARED_BUFFER_BYTES))
cuts = st.lists(st.integers(0, 1 << 17), max_size=12)


def chunks_of(stream: bytes, cut_at: list[int]) -> list[bytes]:
    ends = sorted({cut % (len(stream) + 1) for cut in cut_at} | {0, len(stream)})
    return [stream[start:end] for start, end in itertools.pairwise(ends)]


def drain(decoder: Decoder, events: list[Event]) -> None:
    """What one go left over of many small commands."""
    while decoder.has_more:
        events += decoder.feed(b"")


def feed_like_a_socket(decoder: Decoder, chunks: list[bytes], events: list[Event]) -> None:
    """As a connection does: into the shared buffer, or into the decoder's own buffer of a large frame."""
    for chunk in chunks:
        rest = chunk
        while rest:
            buffer = decoder.buffer(SHARED)
            taken = min(len(buffer), len(rest))
            buffer[:taken] = rest[:taken]
            events += decoder.received(SHARED, taken)
            rest = rest[taken:]
            SHARED[:] = ERASED
            drain(decoder, events)


def feed_plainly(decoder: Decoder, chunks: list[bytes], events: list[Event]) -> None:
    for chunk in chunks:
        events += decoder.feed(chunk)
        drain(decoder, events)


Feed = Callable[[Decoder, list[bytes], list[Event]], None]
feeds = st.sampled_from([feed_like_a_socket, feed_plainly])


def check_reading(stream: bytes, cut_at: list[int], feed: Feed, decoder: Decoder) -> None:
    events: list[Event] = []
    feed(decoder, chunks_of(stream, cut_at), events)
    assert flattened(events) == expected(stream)
    assert decoder.held_bytes == 0


@QUICK
@given(streams, cuts, feeds)
def test_a_valid_stream_says_what_protobuf_reads_however_it_is_cut(
    stream: bytes, cut_at: list[int], feed: Feed
) -> None:
    check_reading(stream, cut_at, feed, connected_decoder())


@settings(QUICK, max_examples=40)
@given(st.lists(frames.filter(lambda data: len(data) < 500), min_size=1, max_size=4).map(b"".join), feeds)
def test_a_valid_stream_may_arrive_byte_by_byte(stream: bytes, feed: Feed) -> None:
    check_reading(stream, list(range(len(stream))), feed, connected_decoder())


@pytest.mark.long
@LONG
@given(streams, cuts, feeds)
def test_many_valid_streams_say_what_protobuf_reads(stream: bytes, cut_at: list[int], feed: Feed) -> None:
    check_reading(stream, cut_at, feed, connected_decoder())


def decoded_before_violation(decoder: Decoder, chunks: list[bytes], feed: Feed) -> tuple[list[Item], bool]:
    events: list[Event] = []
    try:
        feed(decoder, chunks, events)
    except ProtocolViolation:
        return flattened(events), True
    return flattened(events), False


def damaged(stream: bytes, damage: list[tuple[int, int]]) -> Stream:
    changed = bytearray(stream)
    for position, value in damage:
        changed[position % len(changed)] = value
    return Stream(changed)


damages = st.lists(st.tuples(st.integers(0), st.integers(0, 255)), min_size=1, max_size=4)
damaged_streams = st.builds(damaged, streams, damages)


@QUICK
@given(damaged_streams, cuts, feeds)
def test_damaged_bytes_raise_nothing_but_a_violation(stream: bytes, cut_at: list[int], feed: Feed) -> None:
    check_damaged(stream, cut_at, feed)


@pytest.mark.long
@LONG
@given(damaged_streams, cuts, feeds)
def test_many_damaged_streams_raise_nothing_but_a_violation(stream: bytes, cut_at: list[int], feed: Feed) -> None:
    check_damaged(stream, cut_at, feed)


@QUICK
@given(st.one_of(st.binary(max_size=200), streams), st.binary(min_size=1, max_size=50), cuts, feeds)
def test_garbage_raises_nothing_but_a_violation(before: bytes, garbage: bytes, cut_at: list[int], feed: Feed) -> None:
    check_damaged(before + garbage, cut_at, feed)


@QUICK
@given(st.binary(max_size=60), st.sampled_from([b"\x08\x06\x32", b"\x08\x0a\x52", b"\x08\x0b\x5a"]), cuts, feeds)
def test_garbage_in_a_command_read_by_hand_raises_nothing_but_a_violation(
    garbage: bytes, prefix: bytes, cut_at: list[int], feed: Feed
) -> None:
    command = prefix + garbage
    for length in (len(command), max(0, len(command) - 12)):
        sizes = (len(command) + 4).to_bytes(4, "big") + length.to_bytes(4, "big")
        check_damaged(sizes + command, cut_at, feed)


def check_damaged(stream: bytes, cut_at: list[int], feed: Feed) -> None:
    whole, is_violation = decoded_before_violation(connected_decoder(), [stream], feed)
    decoder = connected_decoder()
    cut, is_violation_when_cut = decoded_before_violation(decoder, chunks_of(stream, cut_at), feed)
    assert is_violation_when_cut == is_violation
    if not is_violation:
        assert cut == whole
        assert decoder.held_bytes <= MAX_MESSAGE_BYTES + FRAME_PADDING_BYTES + 4


@QUICK
@given(st.binary(max_size=64), st.integers(0, (1 << 32) - 1), st.booleans())
def test_no_announced_length_makes_the_decoder_hold_more_than_a_legal_frame(
    rest: bytes, total: int, is_connected: bool
) -> None:
    decoder = connected_decoder() if is_connected else Decoder()
    limit = MAX_MESSAGE_BYTES + FRAME_PADDING_BYTES - 4 if is_connected else MAX_UNAUTHENTICATED_FRAME_BYTES
    try:
        decoder.feed(total.to_bytes(4, "big") + rest)
    except ProtocolViolation:
        return
    assert total <= limit
    assert decoder.held_bytes <= limit + 4


# --- planted bugs ------------------------------------------------------------------------------------------------------


class DropsAByteBetweenReads(Decoder):
    def _keep(self, data: bytes, pos: int, received_bytes: int) -> None:
        super()._keep(data, pos + (len(data) - pos == 7), received_bytes)


class ForgetsWhatWasKept(Decoder):
    def feed(self, data: bytes) -> list[Event]:
        if len(self._rest) == 3:
            self._rest = b""
        return super().feed(data)

    def received(self, shared: memoryview, size_bytes: int) -> list[Event]:
        if len(self._rest) == 3:
            self._rest = b""
        return super().received(shared, size_bytes)


class CopiesNoRestIntoTheSharedBuffer(Decoder):
    def buffer(self, shared: memoryview) -> memoryview:
        buffer = super().buffer(shared)
        shared[: len(self._rest)] = ERASED[: len(self._rest)]
        return buffer


class FillsItsOwnBufferTooFar(Decoder):
    def own_buffer_filled(self, size_bytes: int) -> list[Event]:
        return super().own_buffer_filled(size_bytes + (size_bytes > OWN_BUFFER_BYTES))


def found_by_reading(decoder_type: type[Decoder]) -> None:
    @SEARCH
    @given(streams, cuts, feeds)
    def search(stream: bytes, cut_at: list[int], feed: Feed) -> None:
        decoder = decoder_type()
        decoder.accept_messages(MAX_MESSAGE_BYTES, MAX_BATCH_MESSAGES, MAX_FIELDS)
        check_reading(stream, cut_at, feed, decoder)

    with pytest.raises((AssertionError, ProtocolViolation, ExceptionGroup)):
        search()


@pytest.mark.parametrize(
    "decoder_type",
    [DropsAByteBetweenReads, ForgetsWhatWasKept, CopiesNoRestIntoTheSharedBuffer, FillsItsOwnBufferTooFar],
)
def test_a_planted_bug_in_chunking_is_found(decoder_type: type[Decoder]) -> None:
    found_by_reading(decoder_type)


def without_highest_sequence_id(data: bytes, pos: int, end: int) -> Any:
    producer_id, sequence_id, _, is_chunk, txn = SCAN_SEND(data, pos, end)
    return producer_id, sequence_id, 0, is_chunk, txn


def without_transaction(data: bytes, pos: int, end: int) -> Any:
    return (*SCAN_SEND(data, pos, end)[:4], None)


def with_permits_of_one_byte(data: bytes, pos: int, end: int) -> Flow:
    read = SCAN_FLOW(data, pos, end)
    return Flow(read.consumer_id, read.permits & 0x7F or 1)


def joining_acks_of_all_consumers(data: bytes, pos: int, end: int, previous: Any, events: list[Event]) -> Any:
    joined = SCAN_ACK(data, pos, end, None, events)
    if joined is not None and previous is not None:
        previous.groups += joined.groups
        previous.partials += joined.partials
        events.pop()
        return previous
    return joined


SCAN_SEND = commands._scan_send
SCAN_FLOW = commands._scan_flow
SCAN_ACK = commands._scan_ack


@pytest.mark.parametrize(
    ("function", "broken"),
    [
        ("_scan_send", without_highest_sequence_id),
        ("_scan_send", without_transaction),
        ("_scan_flow", with_permits_of_one_byte),
        ("_scan_ack", joining_acks_of_all_consumers),
        ("message_count", lambda data, start, end: 1),
        ("_in_order", lambda command: command),
        ("MAGIC_CRC32C", 0x0E02),
        ("NUM_MESSAGES_BYTE", b"Y"),
    ],
)
def test_a_planted_bug_in_a_scanner_is_found(monkeypatch: pytest.MonkeyPatch, function: str, broken: Any) -> None:
    monkeypatch.setattr(commands, function, broken)
    found_by_reading(Decoder)


def test_a_planted_crash_on_malformed_bytes_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_a_bound(data: bytes, pos: int, end: int) -> tuple[int, int]:
        value = shift = 0
        while True:
            value |= (data[pos] & 0x7F) << shift
            pos += 1
            if data[pos - 1] < 0x80:
                return value, pos
            shift += 7

    @SEARCH
    @given(st.binary(max_size=60))
    def search(garbage: bytes) -> None:
        command = b"\x08\x0a\x52" + garbage
        sizes = (len(command) + 4).to_bytes(4, "big") + len(command).to_bytes(4, "big")
        check_damaged(sizes + command, [], feed_plainly)

    monkeypatch.setattr(commands, "decode", without_a_bound)
    with pytest.raises((IndexError, ExceptionGroup)):
        search()
