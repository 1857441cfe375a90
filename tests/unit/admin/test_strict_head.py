"""Strict parsing of HTTP requests: each request as a whole, byte by byte, and with another request behind it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import h11
import pytest

from pybroker.admin.http.strict_head import FREE_CHUNKS, StrictConnection

MAX_HEAD_BYTES = 1024
GET = b"GET /a HTTP/1.1\r\nHost: b\r\n\r\n"
CHUNKED = b"POST /a HTTP/1.1\r\nHost: b\r\nTransfer-Encoding: chunked\r\n\r\n"


def whole(data: bytes) -> list[bytes]:
    return [data]


def byte_by_byte(data: bytes) -> list[bytes]:
    return [bytes((byte,)) for byte in data]


Split = Callable[[bytes], list[bytes]]
SPLITS = pytest.mark.parametrize("split", [whole, byte_by_byte])


def events(connection: StrictConnection, parts: Iterable[bytes]) -> list[object]:
    """Feed `parts`, and return the events without NEED_DATA, up to the first PAUSED."""
    found: list[object] = []
    for part in parts:
        connection.receive_data(part)
        while (event := connection.next_event()) is not h11.NEED_DATA:
            found.append(event)
            if event is h11.PAUSED:
                break
    return found


def answer(connection: StrictConnection) -> None:
    connection.send(h11.Response(status_code=200, headers=[("content-length", "0")]))
    connection.send(h11.EndOfMessage())


def body(found: Iterable[object]) -> bytes:
    return b"".join(event.data for event in found if isinstance(event, h11.Data))


def chunks(count: int, data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data) * count + b"0\r\n\r\n"


@SPLITS
@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (GET, b""),
        (b"POST /a HTTP/1.1\r\nHost: b\r\nContent-Length: 5\r\n\r\na\nb\r\n", b"a\nb\r\n"),
        (CHUNKED + chunks(3, b"a\n b"), b"a\n ba\n ba\n b"),
        (CHUNKED + b"1;x=y\r\na\r\n0\r\nDigest: c\r\n\r\n", b"a"),
        (CHUNKED + b"0\r\n\r\n", b""),
        (CHUNKED + chunks(FREE_CHUNKS, b"a"), b"a" * FREE_CHUNKS),
        (CHUNKED + chunks(2 * FREE_CHUNKS, b"a" * 64), b"a" * 128 * FREE_CHUNKS),
    ],
)
def test_valid_requests_are_read(split: Split, data: bytes, expected: bytes) -> None:
    connection = StrictConnection(MAX_HEAD_BYTES)
    for _ in range(2):  # chunks are counted for each request
        found = events(connection, split(data))
        assert isinstance(found[0], h11.Request)
        assert isinstance(found[-1], h11.EndOfMessage)
        assert body(found) == expected
        answer(connection)
        connection.start_next_cycle()


def test_pipelined_head_is_checked_after_previous_answer() -> None:
    connection = StrictConnection(MAX_HEAD_BYTES)
    assert events(connection, [GET + GET + b"GET /a HTTP/1.1\nHost: b\r\n\r\n"])[-1] is h11.PAUSED
    answer(connection)
    connection.start_next_cycle()
    assert isinstance(connection.next_event(), h11.Request)
    assert isinstance(connection.next_event(), h11.EndOfMessage)
    answer(connection)
    connection.start_next_cycle()
    with pytest.raises(h11.RemoteProtocolError, match="without CR"):
        connection.next_event()


@SPLITS
@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"GET /a HTTP/1.1\nHost: b\r\n\r\n", "without CR"),
        (b"GET /a HTTP/1.1\r\nHost: b\n\r\n", "without CR"),
        (b"GET /a HTTP/1.1\r\nHost: b\r\n\n", "without CR"),
        (b"\nGET /a HTTP/1.1\r\nHost: b\r\n\r\n", "without CR"),
        (b"GET /a HTTP/1.1\r\nHost: b\r\n c\r\n\r\n", "folded"),
        (b"GET /a HTTP/1.1\r\nHost: b\r\n\tc\r\n\r\n", "folded"),
        (b"POST /a HTTP/1.1\r\nHost: b\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", "both"),
        (CHUNKED + b"1\r\na\r\n0\r\nDigest: c\n\r\n", "without CR"),
        (CHUNKED + b"0\r\n\n", "without CR"),
        (CHUNKED + b"0\r\nDigest: c\r\n d\r\n\r\n", "folded"),
        (CHUNKED + b"0\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", "both"),
        (CHUNKED + chunks(FREE_CHUNKS + 1, b"a"), "too small"),
        (CHUNKED + chunks(FREE_CHUNKS + 1, b"a" * 50), "too small"),
    ],
)
def test_lenient_requests_are_refused(split: Split, data: bytes, reason: str) -> None:
    connection = StrictConnection(MAX_HEAD_BYTES)
    with pytest.raises(h11.RemoteProtocolError, match=reason):
        events(connection, split(data))
    with pytest.raises(h11.RemoteProtocolError):
        connection.next_event()


@SPLITS
def test_head_above_limit_is_refused_with_431(split: Split) -> None:
    connection = StrictConnection(MAX_HEAD_BYTES)
    with pytest.raises(h11.RemoteProtocolError) as refusal:
        events(connection, split(b"GET /a HTTP/1.1\r\nHost: " + b"b" * MAX_HEAD_BYTES))
    assert refusal.value.error_status_hint == 431
