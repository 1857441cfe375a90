"""Any WebSocket frames, valid or damaged, in any pieces: a connection raises nothing, and gives the texts that were sent.

The texts are then read like those of producers and consumers. `python -m tests.fuzz.test_websocket_frames SEED COUNT` runs
`COUNT` streams without pytest, and prints the number of their frames.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import sys
from binascii import a2b_base64
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from tests.fuzz_server.websocket_sessions import (
    CLOSE,
    COMPRESSION,
    CONTINUATION,
    PING,
    TEXT,
    SessionMaker,
    compressed,
    ws_frame,
)
from tests.support.planting import Plant, found_by_walk
from websockets.datastructures import Headers
from websockets.http11 import Request
from websockets.server import ServerProtocol

from pybroker.admin.http.upgrade import Reading
from pybroker.memory.broker_memory import Memory
from pybroker.runtime.clock import Clock
from pybroker.runtime.tasks import TaskOwner
from pybroker.websocket import json_forms
from pybroker.websocket.frame_compression import OFFER, FrameCompression, session_extensions
from pybroker.websocket.json_forms import Unreadable
from pybroker.websocket.websocket_connection import TextReceiver, Timing, WebSocketConnection

MAX_TEXT_BYTES = 20_000
MAX_FRAME_BYTES = 3000
SEED = int(os.environ.get("FUZZ_SEED", "1"))
STREAMS = int(os.environ.get("FUZZ_EXAMPLES", "1500"))
STREAMS_OF_A_PLANT = 6000
MEMORY = Memory.ample(Clock())
BYTES = (0, 1, 2, 8, 9, 10, 34, 91, 123, 125, 126, 127, 0x80, 0x81, 0x82, 0x88, 0x89, 0xC1, 0xFE, 0xFF)


@dataclass(frozen=True)
class Piece:
    """Bytes of one or more frames. `text`: the text that they are; None for other frames."""

    frames: int
    data: bytes
    text: bytes | None = None
    is_valid: bool = False
    """The connection stays open after these frames."""


def pools() -> dict[bool, list[Piece]]:
    """Return frames for connections without and with compression."""
    dice = random.Random("pool")
    found: dict[bool, list[Piece]] = {False: [], True: []}
    for number in range(1500):
        session = SessionMaker(random.Random(f"pool {number}")).next(40)
        is_compressed = COMPRESSION.encode() in session.handshake
        found[is_compressed] += [Piece(1, data) for _, data in session.frames if len(data) <= MAX_FRAME_BYTES]
    for pool in found.values():
        for role in ("producer", "consumer"):
            for _ in range(len(pool) // 4):
                text = SessionMaker(dice)._valid(role)[:MAX_FRAME_BYTES]
                pool.append(Piece(1, ws_frame(TEXT, text, dice.randbytes(4)), text, is_valid=True))
        pool.extend([Piece(1, ws_frame(PING, b"ping"), is_valid=True)] * 50)
        pool.extend(divided(dice, b'{"payload": "%s"}' % (b"\xc3\xa9" * 50)) for _ in range(100))
    for _ in range(500):
        text = b'{"payload": "%s"}' % (b"QQ==" * dice.choice((1, 50, 4000)))
        found[True].append(Piece(1, ws_frame(TEXT, compressed(text), reserved=4), text, is_valid=True))
    found[True] += [
        Piece(1, ws_frame(TEXT, compressed(b" " * size), reserved=4)) for size in (MAX_TEXT_BYTES + 1, 1 << 22)
    ]
    return found


def divided(dice: random.Random, text: bytes) -> Piece:
    cuts = sorted(dice.randrange(len(text) + 1) for _ in range(dice.choice((1, 3, 6))))
    data, opcode = b"", TEXT
    for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        data += ws_frame(opcode, text[start:end], is_last=False)
        opcode = CONTINUATION
    return Piece(len(cuts) + 2, data + ws_frame(CONTINUATION, b""), text, is_valid=True)


class Transport:
    def write(self, data: bytes) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        pass

    def abort(self) -> None:
        pass


@dataclass
class Seen(TextReceiver):
    """What a session gets."""

    texts: list[bytes] = field(default_factory=list)
    binaries: int = 0
    ends: list[tuple[int, str]] = field(default_factory=list)

    def text_received(self, text: bytes) -> None:
        assert not self.ends, "a text after the end"
        assert len(text) <= MAX_TEXT_BYTES, f"a text of {len(text)} bytes"
        assert text.decode(errors="replace").encode() == text, "a text that is not UTF-8"
        self.texts.append(text)

    def binary_received(self) -> None:
        assert not self.ends, "a message after the end"
        self.binaries += 1

    def writable(self) -> None:
        pass

    def closed(self, code: int, reason: str) -> None:
        self.ends.append((int(code), reason))


def play(chunks: list[bytes], *, is_compressed: bool) -> Seen:
    """Return what the session gets."""
    seen = Seen()
    extensions = session_extensions(NEGOTIATED) if is_compressed else ()
    connection = WebSocketConnection("", MEMORY, Clock(), MAX_TEXT_BYTES, Timing(0, 0), TaskOwner("fuzz"), extensions)
    connection.serve(seen)
    connection.connection_made(cast(asyncio.Transport, Transport()), Reading(lambda: None, lambda: None))
    for chunk in chunks:
        connection.data_received(chunk)
    assert connection.is_open != bool(seen.ends)
    connection.connection_lost()
    assert len(seen.ends) == 1
    return seen


def negotiated() -> Any:
    server = ServerProtocol(extensions=[OFFER])
    server.accept(
        Request(
            "/",
            Headers(
                {
                    "Connection": "Upgrade",
                    "Upgrade": "websocket",
                    "Sec-WebSocket-Version": "13",
                    "Sec-WebSocket-Key": "MDEyMzQ1Njc4OWFiY2RlZg==",
                    "Sec-WebSocket-Extensions": "permessage-deflate",
                }
            ),
        )
    )
    return server.extensions


NEGOTIATED = negotiated()
POOLS = pools()


def damaged(dice: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(dice.choice((1, 1, 2, 5))):
        at = dice.randrange(len(changed) + 1) if dice.random() < 0.5 else min(len(changed), dice.randrange(8))
        match dice.randrange(5):
            case 0:
                changed[at:at] = dice.randbytes(dice.randrange(1, 4))
            case 1:
                del changed[at : at + dice.randrange(1, 5)]
            case _:
                changed[at : at + 1] = bytes((dice.choice(BYTES) if dice.random() < 0.7 else dice.randrange(256),))
    return bytes(changed)


def read_texts(texts: list[bytes]) -> None:
    """Read the texts like the sessions do; each is readable, or refused with `Unreadable`."""
    for text in texts:
        for read in READERS:
            with contextlib.suppress(Unreadable):
                read(text)


def _command(text: bytes) -> None:
    command = json_forms.command_of(text)
    json_forms.decoded_id(command.messageId)


READERS: tuple[Callable[[bytes], object], ...] = (lambda text: json_forms.outgoing_message(text, 1), _command)


def run_stream(dice: random.Random) -> int:
    """Play a stream in one piece and in several, and compare. Return the number of frames."""
    is_compressed = dice.random() < 0.5
    pieces = [dice.choice(POOLS[is_compressed]) for _ in range(dice.choice((1, 3, 6, 12)))]
    if dice.random() < 0.3:
        pieces = [piece for piece in pieces if piece.is_valid] or pieces
    is_valid = all(piece.is_valid for piece in pieces)
    parts = [piece.data for piece in pieces]
    if not is_valid:
        parts = [damaged(dice, part) if dice.random() < 0.3 else part for part in parts]
    stream = b"".join(parts)
    if is_valid:
        stream += ws_frame(CLOSE, b"\x03\xe8")
    cuts = sorted(dice.randrange(len(stream) + 1) for _ in range(dice.choice((1, 3, 10))))
    chunks = [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    if dice.random() < 0.05:
        is_valid, stream = False, stream[:3000]
        chunks = [stream[at : at + 1] for at in range(len(stream))]
    whole, in_pieces = play([stream], is_compressed=is_compressed), play(chunks, is_compressed=is_compressed)
    assert whole == in_pieces, f"{whole} in one piece, {in_pieces} in {len(chunks)} pieces of {stream!r}"
    if is_valid:
        expected = [piece.text for piece in pieces if piece.text is not None]
        assert (whole.texts, whole.ends[0][0]) == (expected, 1000), f"{whole} after {stream!r}"
    read_texts(whole.texts)
    return 2 * sum(piece.frames for piece in pieces)


async def fuzz(seed: int, count: int) -> int:
    """Run `count` streams. Return the number of frames that connections have read."""
    frames = 0
    for number in range(count):
        try:
            frames += run_stream(random.Random(seed * 1_000_003 + number))
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, number {number}: {error}") from error
    return frames


def test_frames_in_any_pieces_give_equal_texts_and_ends() -> None:
    asyncio.run(fuzz(SEED, STREAMS))


def text_may_be_any_bytes(patch: pytest.MonkeyPatch) -> None:
    def text(self: WebSocketConnection, text: bytes) -> None:
        if self._is_text and self._receiver is not None:
            self._receiver.text_received(text)

    patch.setattr(WebSocketConnection, "_text", text)


def size_is_unlimited_after_decompression(patch: pytest.MonkeyPatch) -> None:
    before = FrameCompression.decode

    def decode(self: FrameCompression, frame: Any, *, max_size: int | None = None) -> Any:
        return before(self, frame)

    patch.setattr(FrameCompression, "decode", decode)


def texts_after_a_close_are_given_to_the_session(patch: pytest.MonkeyPatch) -> None:
    def frame(self: WebSocketConnection, opcode: Any, data: bytes, *, is_last: bool) -> None:
        if data and self._receiver is not None and opcode == TEXT and is_last:
            self._text(data)

    patch.setattr(WebSocketConnection, "_frame", frame)


def fragments_of_one_read_are_lost(patch: pytest.MonkeyPatch) -> None:
    before = WebSocketConnection._parse

    def parse(self: WebSocketConnection, data: bytes) -> None:
        self._parts = []
        before(self, data)

    patch.setattr(WebSocketConnection, "_parse", parse)


def invalid_base64_is_not_expected(patch: pytest.MonkeyPatch) -> None:
    def decoded(text: str) -> bytes:
        try:
            return a2b_base64(text)
        except ValueError as error:
            raise RuntimeError(str(error)) from error

    patch.setattr(json_forms, "decoded_base64", decoded)


PLANTS: tuple[tuple[Plant, tuple[type[BaseException], ...]], ...] = (
    (text_may_be_any_bytes, ()),
    (size_is_unlimited_after_decompression, ()),
    (texts_after_a_close_are_given_to_the_session, ()),
    (fragments_of_one_read_are_lost, ()),
    (invalid_base64_is_not_expected, (RuntimeError,)),
)


@pytest.mark.parametrize(("plant", "errors"), PLANTS, ids=[plant.__name__ for plant, _ in PLANTS])
def test_planted_bug_is_found(plant: Plant, errors: tuple[type[BaseException], ...]) -> None:
    with found_by_walk(plant, *errors):
        asyncio.run(fuzz(1, STREAMS_OF_A_PLANT))


if __name__ == "__main__":
    print(asyncio.run(fuzz(int(sys.argv[1]), int(sys.argv[2]))), "frames")
