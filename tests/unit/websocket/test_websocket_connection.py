"""Frames of one WebSocket connection, over a transport in memory."""

from __future__ import annotations

import asyncio
import gc
import random
import tracemalloc
import weakref
import zlib
from dataclasses import replace
from itertools import pairwise
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from websockets.extensions.permessage_deflate import PerMessageDeflate
from websockets.frames import CloseCode, Frame, Opcode
from websockets.protocol import Protocol, Side

from pybroker.admin.http.upgrade import Reading
from pybroker.memory.broker_memory import Memory
from pybroker.runtime.clock import Clock
from pybroker.runtime.tasks import TaskOwner
from pybroker.websocket.frame_compression import LEAST_BYTES, session_extensions
from pybroker.websocket.websocket_connection import (
    FREE_FRAME_BYTES,
    MAX_UNSENT_BYTES,
    Hold,
    TextReceiver,
    Timing,
    WebSocketConnection,
)

MAX_TEXT_BYTES = 200_000


class FakeTransport:
    """Records writes. Until `drain`, all of them count as unsent if `is_stuck`."""

    def __init__(self) -> None:
        self.written = bytearray()
        self.unsent = 0
        self.is_stuck = False
        self.has_eof = self.is_aborted = False

    def write(self, data: bytes) -> None:
        self.written += data
        if self.is_stuck:
            self.unsent += len(data)

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def is_closing(self) -> bool:
        return self.is_aborted

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.has_eof = True

    def abort(self) -> None:
        self.is_aborted = True


class Receiver(TextReceiver):
    def __init__(self) -> None:
        self.texts: list[bytes] = []
        self.binaries = self.writables = 0
        self.ends: list[int] = []
        self.connection: WebSocketConnection | None = None  # of a session, which refers to it

    def text_received(self, text: bytes) -> None:
        self.texts.append(text)

    def binary_received(self) -> None:
        self.binaries += 1

    def writable(self) -> None:
        self.writables += 1

    def closed(self, code: int, reason: str) -> None:
        self.ends.append(int(code))


class Line:
    """A connection, its session, and the client's side of the protocol."""

    def __init__(self, *, idle_s: float = 0, ping_s: float = 0, is_compressed: bool = False) -> None:
        self.memory = Memory.ample(Clock())
        self.tasks = TaskOwner("test")
        self.receiver = Receiver()
        self.transport = FakeTransport()
        self.client = Protocol(Side.CLIENT)
        self.is_paused = False
        self.connection = WebSocketConnection(
            "/127.0.0.1:1",
            self.memory,
            Clock(),
            MAX_TEXT_BYTES,
            Timing(ping_s, idle_s),
            self.tasks,
            session_extensions([PerMessageDeflate(True, True, 15, 12)]) if is_compressed else (),
        )
        if is_compressed:
            self.client.extensions = [PerMessageDeflate(True, True, 12, 15)]
        self.connection.serve(self.receiver)
        reading = Reading(lambda: self._paused(True), lambda: self._paused(False))
        self.connection.connection_made(cast(asyncio.Transport, self.transport), reading)

    def _paused(self, is_paused: bool) -> None:
        self.is_paused = is_paused

    def send(self, *frames: Frame, piece_bytes: int = 1 << 20) -> None:
        data = b"".join(serialized(frame) for frame in frames)
        for start in range(0, len(data), piece_bytes):
            self.connection.data_received(data[start : start + piece_bytes])

    async def answers(self) -> list[Frame]:
        await asyncio.sleep(0)
        self.client.receive_data(bytes(self.transport.written))
        self.transport.written.clear()
        return [frame for frame in self.client.events_received() if isinstance(frame, Frame)]

    def lose(self) -> None:
        self.connection.connection_lost()


def serialized(frame: Frame) -> bytes:
    data = replace(frame, rsv1=False).serialize(mask=True)  # the library serializes no reserved bits
    return bytes((data[0] | frame.rsv1 << 6,)) + data[1:]


def text(data: bytes, *, fin: bool = True) -> Frame:
    return Frame(Opcode.TEXT, data, fin)


def rest(data: bytes, *, fin: bool = True) -> Frame:
    return Frame(Opcode.CONT, data, fin)


@pytest.mark.parametrize("piece_bytes", [1, 3, 1 << 20])
async def test_texts_in_any_frames_and_pieces_arrive_whole(piece_bytes: int) -> None:
    line = Line()
    line.send(
        text(b"one"),
        text("tü".encode()[:2], fin=False),  # a character is divided between two frames
        Frame(Opcode.PING, b"between"),
        rest("tü".encode()[2:], fin=False),
        rest(b"", fin=False),
        rest(b"o"),
        text(b""),
        piece_bytes=piece_bytes,
    )
    assert line.receiver.texts == [b"one", "tüo".encode(), b""]
    (pong,) = await line.answers()
    assert (pong.opcode, bytes(pong.data)) == (Opcode.PONG, b"between")
    line.lose()


async def test_many_tiny_fragments_form_one_text() -> None:
    line = Line()
    line.send(text(b"a", fin=False), *(rest(b"b", fin=False) for _ in range(5000)), rest(b"c"))
    assert line.receiver.texts == [b"a" + b"b" * 5000 + b"c"]
    line.lose()


async def test_binary_message_is_reported_as_binary() -> None:
    line = Line()
    line.send(Frame(Opcode.BINARY, b"\xff", False), rest(b"\xff"))
    assert (line.receiver.binaries, line.receiver.texts) == (1, [])
    line.lose()


@pytest.mark.parametrize(
    ("frames", "code"),
    [
        ([text(b"\xff\xfe")], CloseCode.INVALID_DATA),
        ([text("ü".encode()[:1], fin=False), rest(b"x")], CloseCode.INVALID_DATA),
        ([text(b"x" * (MAX_TEXT_BYTES + 1))], CloseCode.MESSAGE_TOO_BIG),
        ([text(b"x" * MAX_TEXT_BYTES, fin=False), rest(b"x")], CloseCode.MESSAGE_TOO_BIG),
        ([rest(b"x")], CloseCode.PROTOCOL_ERROR),
        ([text(b"x", fin=False), text(b"y")], CloseCode.PROTOCOL_ERROR),
        ([Frame(Opcode.CLOSE, b"\x03")], CloseCode.PROTOCOL_ERROR),
    ],
)
async def test_invalid_frames_close_connection_with_their_code(frames: list[Frame], code: CloseCode) -> None:
    line = Line()
    line.send(*frames)
    closing = (await line.answers())[-1]
    assert closing.opcode is Opcode.CLOSE
    assert int.from_bytes(bytes(closing.data[:2]), "big") == code
    assert line.receiver.ends == [code]
    line.send(text(b"late"))
    assert line.receiver.texts == []
    line.lose()
    assert line.receiver.ends == [code]


@pytest.mark.parametrize(
    "data", [text(b"x").serialize(mask=False), b"\xc1\x80" + bytes(4), b"\x83\x80" + bytes(4), b"\x09\x80" + bytes(4)]
)
async def test_unmasked_frame_and_frames_outside_of_protocol_close_connection(data: bytes) -> None:
    line = Line()
    line.connection.data_received(data)
    assert line.receiver.ends == [CloseCode.PROTOCOL_ERROR]
    line.lose()


class Answering(Receiver):
    """A session that answers each message."""

    def __init__(self) -> None:
        super().__init__()
        self.connection: WebSocketConnection

    def text_received(self, text: bytes) -> None:
        super().text_received(text)
        self.connection.send_text(b"answer")

    def binary_received(self) -> None:
        super().binary_received()
        self.connection.close(CloseCode.UNSUPPORTED_DATA, "no text")


@pytest.mark.parametrize("message", [text(b"x"), text(b"\xff"), Frame(Opcode.BINARY, b"x")])
@pytest.mark.parametrize(
    ("last", "code"),
    [(Frame(Opcode.CLOSE, b"\x03\xe8"), CloseCode.NORMAL_CLOSURE), (rest(b"x"), CloseCode.PROTOCOL_ERROR)],
)
async def test_message_in_one_read_with_end_of_connection_closes_with_code_of_end(
    message: Frame, last: Frame, code: CloseCode
) -> None:
    line = Line()
    line.receiver = receiver = Answering()
    receiver.connection = line.connection
    line.connection.serve(receiver)
    line.send(message, last)
    (closing,) = await line.answers()
    assert int.from_bytes(bytes(closing.data[:2]), "big") == code
    assert len(receiver.ends) == 1
    line.lose()


async def test_close_of_client_is_answered_and_ends_session() -> None:
    line = Line()
    line.connection.send_text(b"last")
    line.send(Frame(Opcode.CLOSE, b"\x03\xe8bye"))
    sent, closing = await line.answers()
    assert (bytes(sent.data), bytes(closing.data)) == (b"last", b"\x03\xe8bye")
    assert line.receiver.ends == [1000]
    assert line.transport.has_eof
    line.connection.send_text(b"after")
    assert await line.answers() == []
    line.lose()


async def test_lost_connection_ends_session_once() -> None:
    line = Line()
    line.lose()
    line.lose()
    assert line.receiver.ends == [CloseCode.ABNORMAL_CLOSURE]


async def test_lost_connection_is_freed_without_garbage_collection() -> None:
    line = Line(idle_s=10)
    line.receiver.connection = line.connection
    line.send(Frame(Opcode.TEXT, b"{}"))
    await line.answers()
    freed = weakref.ref(line.connection), weakref.ref(line.receiver), weakref.ref(line.connection._protocol)
    gc.collect()
    gc.disable()
    try:
        line.lose()
        del line
        assert [each() for each in freed] == [None, None, None]
    finally:
        gc.enable()


async def test_connection_whose_client_does_not_read_is_not_read() -> None:
    line = Line()
    line.transport.is_stuck = True
    line.connection.pause_writing()
    assert not line.connection.is_writable
    for _ in range(MAX_UNSENT_BYTES // 1000 + 1):
        line.connection.send_text(b"x" * 1000)
    await asyncio.sleep(0)
    assert line.is_paused
    assert line.connection.holds == [Hold.UNSENT]
    line.transport.unsent = 0
    line.connection.resume_writing()
    assert (line.is_paused, line.connection.holds, line.receiver.writables) == (False, [], 1)
    line.lose()


async def test_pings_without_reading_client_stop_reading() -> None:
    line = Line()
    line.transport.is_stuck = True
    for _ in range(MAX_UNSENT_BYTES // 100 + 1):
        line.send(Frame(Opcode.PING, b"p" * 125))
    assert line.is_paused
    line.lose()


async def test_large_text_waits_for_memory_of_requests() -> None:
    line = Line()
    part = line.memory.requests
    held = await line.memory.take(part, "other", part.most_bytes)
    data = text(b"x" * (FREE_FRAME_BYTES + 20_000)).serialize(mask=True)
    line.connection.data_received(data[: FREE_FRAME_BYTES + 1000])
    await asyncio.sleep(0)
    assert line.is_paused
    line.memory.give_back(part, held)
    for _ in range(3):
        await asyncio.sleep(0)
    assert not line.is_paused
    assert part.used_bytes == MAX_TEXT_BYTES
    line.connection.data_received(data[FREE_FRAME_BYTES + 1000 :])
    assert len(line.receiver.texts) == 1
    assert part.used_bytes == 0
    line.lose()


async def test_connection_lost_while_text_waits_for_memory_returns_all() -> None:
    line = Line()
    part = line.memory.requests
    held = await line.memory.take(part, "other", part.most_bytes)
    data = text(b"x" * (FREE_FRAME_BYTES + 20_000)).serialize(mask=True)
    line.connection.data_received(data[: FREE_FRAME_BYTES + 1000])
    await asyncio.sleep(0)
    line.lose()
    line.memory.give_back(part, held)
    for _ in range(3):
        await asyncio.sleep(0)
    assert part.used_bytes == 0
    await line.tasks.close()


async def test_idle_connection_is_closed_and_pings_keep_it_open() -> None:
    idle, pinged = Line(idle_s=0.05), Line(idle_s=0.05, ping_s=0.01)
    while not idle.receiver.ends:
        for frame in await pinged.answers():
            pinged.send(Frame(Opcode.PONG, bytes(frame.data)))
        await asyncio.sleep(0.005)
    assert idle.receiver.ends == [CloseCode.GOING_AWAY]
    assert pinged.receiver.ends == []
    for line in (idle, pinged):
        line.lose()


async def test_session_can_close_with_long_reason() -> None:
    line = Line()
    line.connection.close(CloseCode.INTERNAL_ERROR, "ü" * 200)
    (closing,) = await line.answers()
    assert len(closing.data) <= 125
    assert bytes(closing.data[2:]).decode()
    line.lose()


@settings(max_examples=200, deadline=None)
@given(st.lists(st.binary(max_size=40), max_size=20), st.booleans())
def test_random_bytes_never_raise_and_end_session_at_most_once(pieces: list[bytes], starts_valid: bool) -> None:
    async def play() -> None:
        line = Line()
        if starts_valid:
            line.send(text(b"valid"))
        for piece in pieces:
            line.connection.data_received(piece)
        line.lose()
        assert len(line.receiver.ends) == 1
        await line.tasks.close()
        parts = line.memory.budget.parts.values()
        assert sum(part.used_bytes for part in parts) == 0

    asyncio.run(play())


# --- compressed frames -------------------------------------------------------------------------------------------------


def deflated(content: bytes, *, fin: bool = True) -> Frame:
    encoder = zlib.compressobj(wbits=-15)
    return Frame(Opcode.TEXT, (encoder.compress(content) + encoder.flush(zlib.Z_SYNC_FLUSH))[:-4], fin, rsv1=True)


@pytest.mark.parametrize("piece_bytes", [1, 7, 1 << 20])
async def test_compressed_texts_arrive_whole_beside_plain_ones(piece_bytes: int) -> None:
    line = Line(is_compressed=True)
    whole = deflated(b"in two frames" * 100)
    cut = bytes(whole.data)[:10]
    line.send(
        deflated(b"one"),
        text(b"plain"),
        Frame(Opcode.TEXT, cut, False, rsv1=True),
        Frame(Opcode.PING, b"between"),
        rest(bytes(whole.data)[10:]),
        piece_bytes=piece_bytes,
    )
    assert line.receiver.texts == [b"one", b"plain", b"in two frames" * 100]
    line.lose()


async def test_only_texts_from_a_minimum_size_are_sent_compressed() -> None:
    line = Line(is_compressed=True)
    sent = [b"x" * (LEAST_BYTES - 1), b"x" * LEAST_BYTES]
    for each in sent:
        line.connection.send_text(each)
    await asyncio.sleep(0)
    assert len(line.transport.written) < LEAST_BYTES + 50
    assert [bytes(frame.data) for frame in await line.answers()] == sent
    line.lose()


@pytest.mark.parametrize("size_bytes", [MAX_TEXT_BYTES + 1, 100 * MAX_TEXT_BYTES])
async def test_text_that_is_too_large_after_decompression_closes_connection(size_bytes: int) -> None:
    line = Line(is_compressed=True)
    bomb = deflated(b"x" * size_bytes)
    tracemalloc.start()
    line.send(bomb)
    _, most_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert line.receiver.ends == [CloseCode.MESSAGE_TOO_BIG]
    assert most_bytes < 4 * MAX_TEXT_BYTES + 4 * len(bomb.data)
    line.lose()


async def test_fragments_that_are_too_large_after_decompression_close_connection() -> None:
    line = Line(is_compressed=True)
    encoder = zlib.compressobj(wbits=-15)
    parts = [encoder.compress(b"x" * MAX_TEXT_BYTES) + encoder.flush(zlib.Z_SYNC_FLUSH), encoder.compress(b"y" * 10)]
    parts[1] += encoder.flush(zlib.Z_SYNC_FLUSH)
    line.send(Frame(Opcode.TEXT, parts[0], False, rsv1=True))
    assert line.receiver.ends == []
    await asyncio.sleep(0)
    line.send(rest(parts[1]))
    for _ in range(5):
        await asyncio.sleep(0)
    assert line.receiver.ends == [CloseCode.MESSAGE_TOO_BIG]
    assert line.receiver.texts == []
    line.lose()
    await line.tasks.close()


class Holding(Receiver):
    """A session that stops reading after each text."""

    def __init__(self) -> None:
        super().__init__()
        self.connection: WebSocketConnection

    def text_received(self, text: bytes) -> None:
        super().text_received(text)
        self.connection.hold_reading(Hold.INBOX)


async def test_texts_of_one_read_are_decompressed_only_while_the_session_reads() -> None:
    line = Line(is_compressed=True)
    line.receiver = receiver = Holding()
    receiver.connection = line.connection
    line.connection.serve(receiver)
    one = deflated(random.Random(1).randbytes(700).hex().encode() + b"x" * 100_000)
    line.send(*[one] * 20, Frame(Opcode.CLOSE, b"\x03\xe8"))
    counts = [len(receiver.texts)]
    while not receiver.ends:
        assert line.is_paused
        line.connection.release_reading(Hold.INBOX)
        await asyncio.sleep(0)
        counts.append(len(receiver.texts))
    assert counts[0] <= 2
    assert max(after - before for before, after in pairwise(counts)) <= 2
    assert (counts[-1], receiver.ends) == (20, [1000])
    line.lose()


@pytest.mark.parametrize("data", [b"\xff" * 50, b"{}", b""])
async def test_damaged_compression_closes_connection_or_gives_a_text(data: bytes) -> None:
    line = Line(is_compressed=True)
    line.send(Frame(Opcode.TEXT, data, rsv1=True))
    assert len(line.receiver.ends) + len(line.receiver.texts) == 1
    line.lose()
