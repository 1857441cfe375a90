"""What is drawn for a fuzz run: the same for a seed, of every kind, and never what would hurt all."""

import asyncio
import time
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.fuzz_server.frames import FIELDS, OF_CLIENTS, FrameMaker
from tests.fuzz_server.http_attack import AnswerReader, Ended, KeptConnection, Target
from tests.fuzz_server.http_requests import HURTS_ALL, RequestMaker
from tests.fuzz_server.logins import Begun, LoginMaker, request
from tests.fuzz_server.proxy_headers import HeaderMaker
from tests.fuzz_server.tally import Tally
from tests.fuzz_server.tokens import TokenMaker
from tests.fuzz_server.websocket_sessions import SessionMaker, masked
from tests.support.credentials import secret_key
from tests.support.identity_provider import IdentityProvider
from tests.unit.wire.support import connected_decoder

from pybroker.auth.token_provider import TokenProvider, TokenSettings
from pybroker.errors import AuthenticationError
from pybroker.runtime.proxy_protocol import Incomplete, InvalidProxyHeader, ProxyHeader, parse_proxy_header
from pybroker.wire import pulsar_api_pb2 as pb

DOCUMENT: dict[str, Any] = {
    "paths": {
        "/admin/v2/tenants/{tenant}": {"get": {}, "put": {}},
        "/admin/v2/brokers/configuration/{name}/{value}": {"post": {}},
        "/admin/v2/brokers/shutdown": {"post": {}},
        "/admin/v2/clusters/{cluster}": {"delete": {}},
    }
}


def test_a_seed_draws_the_same_frames_again() -> None:
    def draw() -> list[tuple[str, str, bytes]]:
        maker = FrameMaker(Random("7"))
        return [*maker.introduction(), *(maker.next() for _ in range(300))]

    assert draw() == draw()


def test_every_command_and_every_kind_is_drawn() -> None:
    drawn = [FrameMaker(Random(seed)).next() for seed in range(8000)]
    assert {kind for kind, _, _ in drawn} >= {
        "plain",
        "odd values",
        "changed bytes",
        "garbage",
        "huge varints",
        "left out",
    }
    assert {name for _, name, _ in drawn} >= {pb.BaseCommand.Type.Name(number) for number in OF_CLIENTS}
    beyond = {name for _, name, _ in drawn} - {pb.BaseCommand.Type.Name(number) for number in OF_CLIENTS}
    assert len(beyond) > len(FIELDS) // 4


def test_what_a_connection_begins_with_is_well_formed() -> None:
    decoder = connected_decoder()
    for seed in range(50):
        for _, _, data in FrameMaker(Random(seed)).introduction():
            assert decoder.feed(data)


def test_requests_are_the_same_for_a_seed_and_spare_what_would_hurt_all() -> None:
    def draw() -> list[bytes]:
        maker = RequestMaker(Random(3), DOCUMENT)
        assert maker.operations() == [
            ("GET", "/admin/v2/tenants/{tenant}"),
            ("PUT", "/admin/v2/tenants/{tenant}"),
            ("DELETE", "/admin/v2/clusters/{cluster}"),
        ]
        return [maker.next().data for _ in range(2000)]

    drawn = draw()
    assert drawn == draw()
    assert any(data.startswith(b"DELETE /admin/v2/clusters/east") for data in drawn)
    assert not [data for data in drawn if HURTS_ALL.match(data.decode("latin-1"))]


def test_seed_draws_the_same_sessions_and_headers_again() -> None:
    def draw() -> list[object]:
        sessions, headers = SessionMaker(Random(5)), HeaderMaker(Random(5))
        return [each for _ in range(60) for each in (sessions.next(40), headers.next())]

    assert draw() == draw()


def test_masked_payload_is_unmasked_by_masking_again() -> None:
    for size in range(9):
        assert masked(masked(b"x" * size, b"abcd"), b"abcd") == b"x" * size


def test_proper_headers_are_valid_and_unfinished_headers_are_incomplete() -> None:
    drawn = [HeaderMaker(Random(seed)).next() for seed in range(2000)]
    assert {header.kind for header in drawn} >= {
        "valid",
        "truncated",
        "repeated",
        "version 1",
        "version 2",
        "no header",
    }
    for header in drawn:
        if header.kind == "valid":
            assert isinstance(parse_proxy_header(header.data), ProxyHeader)
        if header.is_unfinished and len(header.data) >= 15:
            assert isinstance(parse_proxy_header(header.data), Incomplete)
    assert any(_is_refused(header.data.ljust(200)) for header in drawn)


def _is_refused(data: bytes) -> bool:
    try:
        parse_proxy_header(data)
    except InvalidProxyHeader:
        return True
    return False


def test_provider_accepts_only_tokens_that_may_be_accepted(tmp_path: Path) -> None:
    secret = secret_key()
    (tmp_path / "secret").write_bytes(secret)
    provider = TokenProvider(TokenSettings(secret_key=str(tmp_path / "secret")))
    maker = TokenMaker(Random(3), IdentityProvider("ES256"), secret)
    drawn = [maker.next() for _ in range(2000)]
    accepted = []
    for token in drawn:
        try:
            provider.verify(token.data, time.time())
        except AuthenticationError:
            continue
        accepted.append(token)
    assert {token.kind for token in accepted} >= {"valid", "odd claims"}
    assert not [token for token in accepted if token.accepted is False]
    assert {token.kind for token in drawn} > {token.kind for token in accepted}


def test_every_kind_of_callback_and_credentials_is_drawn() -> None:
    maker = LoginMaker(Random(1), TokenMaker(Random(1), IdentityProvider("ES256"), secret_key()))
    begun, other = (Begun(f"cookie-of-{name}" * 5, name * 64, f"code-{name}") for name in "ab")
    callbacks = [maker.callback(begun, other) for _ in range(500)]
    assert {each.kind for each in callbacks} == {
        *("forged state", "code of another login", "odd code", "error", "cookie of another login", "forged cookie"),
        "changed cookie",
    }
    own = f"Cookie: pybroker-login={begun.cookie}".encode()
    assert not [each for each in callbacks if each.kind == "changed cookie" and each.cookie == own]
    attempts = [maker.credentials("0" * 64) for _ in range(500)]
    kinds = {attempt.kind for attempt in attempts}
    assert kinds >= {"no credentials", "session", "changed session", "password", "wrong password", "token, valid"}
    assert {attempt.accepted for attempt in attempts} == {True, False, None}


async def test_answers_are_read_in_any_pieces_and_after_the_end() -> None:
    first = b"HTTP/1.1 200 OK\r\nSet-Cookie: a=b; Path=/\r\nContent-Length: 3\r\n\r\nabc"
    second = b"HTTP/1.1 404 Not Found\r\nTransfer-Encoding: chunked\r\nconnection: close\r\n\r\n2\r\nde\r\n1\r\nf\r\n0\r\n\r\n"
    for size in (1, 7, 1000):
        reader, data = AnswerReader(), first + second
        for start in range(0, len(data), size):
            reader.data_received(data[start : start + size])
        reader.connection_lost(None)
        answers = [await reader.next(), await reader.next()]
        assert [(each.status, each.body, each.closes) for each in answers] == [
            (200, b"abc", False),
            (404, b"def", True),
        ]
        assert answers[0].cookies() == {"a": "b"}
        with pytest.raises(Ended):
            await reader.next()


async def test_requests_after_an_answer_that_closes_are_sent_again() -> None:
    heads = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 431 Large\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        tally = Tally()
        target = Target("127.0.0.1", server.sockets[0].getsockname()[1], tally)
        connection = KeptConnection(target)
        requests = [request("a", f"/{number}") for number in range(4)]
        answers = await connection.send(requests)
        connection.close()
    assert [answer and answer.status for answer in answers] == [200, 431, 200, 431]
    assert heads == [each.data for each in requests]
    assert (tally.connections, tally.closed_by_broker, tally.faults) == (2, 2, [])
