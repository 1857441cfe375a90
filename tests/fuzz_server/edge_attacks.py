"""Sends hostile WebSocket sessions, PROXY headers and tokens over many connections at once, and counts what is answered."""

import asyncio
import base64
import contextlib
import re
import ssl
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from random import Random
from urllib.parse import quote, urlsplit

from tests.fuzz_server.attack import ANSWER_S, PATIENCE_S, Budget
from tests.fuzz_server.frames import FIELDS, frame
from tests.fuzz_server.proxy_headers import HeaderMaker, HostileHeader
from tests.fuzz_server.tally import Tally
from tests.fuzz_server.tokens import HostileToken, TokenMaker
from tests.fuzz_server.websocket_sessions import CLOSE, PING, PONG, HostileSession, SessionMaker, handshake, ws_frame
from tests.support.raw_client import all_frames
from tests.support.websockets import session as websocket_session

from pybroker.wire import pulsar_api_pb2 as pb

SWITCHING_PROTOCOLS = 101
REFUSAL = b"Failed to create producer/consumer"
"""In the answer of a session whose producer or consumer is refused. As in Pulsar, some refusals have status 500."""
CONTENT_LENGTH = re.compile(rb"(?i)\r\ncontent-length: (\d+)\r\n")
CALM = frozenset(("command", "odd members", "fragments", "ping", "pong", "compressed"))
"""Kinds of frames after which a session still closes in order."""
SOUND = CALM | {"no JSON", "large base64", "binary", "too large", "compressed too large"}
"""Kinds that consist of whole frames, so that the next frame begins after them."""
FATAL = frozenset(("too large", "compressed too large", "no mask", "reserved", "control frame", "invalid UTF-8"))
"""Kinds after which the broker must end the session."""
QUIET_S = 0.1
"""How long to wait for the answer to a request that is broken."""
VALID_MESSAGES = 5
MOST_IN_A_SESSION = 41
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def each_worker(connections: int, work: Callable[[int], Awaitable[None]]) -> None:
    """Run `work` for each number below `connections` at once."""
    async with asyncio.TaskGroup() as group:
        for number in range(connections):
            group.create_task(work(number))  # type: ignore[arg-type]


async def _connected(host: str, port: int, tally: Tally) -> Streams | None:
    try:
        async with asyncio.timeout(ANSWER_S):
            streams = await asyncio.open_connection(host, port)
    except (OSError, TimeoutError) as error:
        tally.fault(f"no connection: {error!r}")
        return None
    tally.connections += 1
    return streams


def _close(random: Random, writer: asyncio.StreamWriter) -> None:
    """Close, or reset, the connection."""
    if random.random() < 0.3:
        writer.transport.abort()
    else:
        writer.close()


async def _write_in_pieces(random: Random, writer: asyncio.StreamWriter, data: bytes) -> None:
    """Write all, now and then in pieces that end anywhere. Raises OSError or TimeoutError."""
    async with asyncio.timeout(PATIENCE_S):
        if random.random() < 0.3 and len(data) > 1:
            cut = random.randrange(1, len(data))
            writer.write(data[:cut])
            await writer.drain()
            await asyncio.sleep(0)
            data = data[cut:]
        writer.write(data)
        await writer.drain()


async def _status(reader: asyncio.StreamReader, wait_s: float) -> tuple[int, bytes]:
    """Return status and body of an HTTP answer; 0 if the connection is closed or silent."""
    try:
        async with asyncio.timeout(wait_s):
            head = await reader.readuntil(b"\r\n\r\n")
            length = CONTENT_LENGTH.search(head)
            body = await reader.readexactly(int(length[1])) if length is not None else b""
        return int(head.split(b" ", 2)[1]), body
    except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError, IndexError):
        return 0, b""


# --- WebSocket sessions


async def attack_with_sessions(url: str, count: int, seed: int, connections: int, tally: Tally) -> None:
    """Send `count` handshakes and frames. Sessions of a normal client are among them, and must work."""
    budget = Budget(count)

    async def work(number: int) -> None:
        life = 0
        while budget.left:
            life += 1
            random = Random(f"session {seed} {number} {life}")
            if random.random() < 0.02:
                await _round_trip(url, f"valid-{number}", f"{seed}-{life}", tally)
                continue
            most = budget.take(MOST_IN_A_SESSION)
            session = SessionMaker(random).next(most - 1)
            sent = await run_session(random, url, session, tally)
            budget.left += most - 1 - sent

    await each_worker(connections, work)


async def run_session(random: Random, url: str, session: HostileSession, tally: Tally) -> int:
    """Run one session, and judge the answers. Return how many frames were sent."""
    tally.kinds[session.kind] += 1
    tally.sent[f"handshake of a {session.role}"] += 1
    parts = urlsplit(url)
    streams = await _connected(parts.hostname or "", parts.port or 0, tally)
    if streams is None:
        return 0
    reader, writer = streams
    frames = list(session.frames)
    first = session.handshake
    if frames and random.random() < 0.2:  # a client that does not wait for the answer
        kind, data = frames.pop(0)
        tally.kinds[kind] += 1
        first += data
    try:
        await _write_in_pieces(random, writer, first)
        status, body = await _status(reader, ANSWER_S if session.is_proper else QUIET_S)
        tally.answers[str(status or "closed or silent")] += 1
        if (status >= 500 and REFUSAL not in body) or (not status and session.is_proper):
            tally.fault(f"{status or 'no answer'} {body[:200]!r} to {first[:500]!r}")
        if status == SWITCHING_PROTOCOLS:
            await _talk(random, streams, session, frames, tally)
    except (OSError, TimeoutError):
        tally.closed_by_broker += 1
    finally:
        _close(random, writer)
    return len(session.frames) - len(frames)


async def _talk(
    random: Random, streams: Streams, session: HostileSession, frames: list[tuple[str, bytes]], tally: Tally
) -> None:
    reader, writer = streams
    answers = _SessionAnswers(reader, tally)
    reading = asyncio.ensure_future(answers.read())
    seen = {kind for kind, _ in session.frames[: len(session.frames) - len(frames)]}
    try:
        while frames:
            kind, data = frames.pop(0)
            is_fatal = kind in FATAL and SOUND.issuperset(seen)
            seen.add(kind)
            tally.kinds[kind] += 1
            tally.sent[f"frame of a {session.role}"] += 1
            await _write_in_pieces(random, writer, data)
            if random.random() < 0.2 or is_fatal:
                continues = await answers.heard(writer, PATIENCE_S)
                if continues and is_fatal and not answers.has_close:
                    tally.fault(f"the session of a {session.role} continues after {kind}: {data[:300]!r}")
                if not continues:
                    break
        if not reading.done() and CALM.issuperset(kind for kind, _ in session.frames):
            writer.write(ws_frame(CLOSE, b"\x03\xe8"))
            async with asyncio.timeout(PATIENCE_S):
                await writer.drain()
            done, _ = await asyncio.wait([reading], timeout=ANSWER_S)
            if not done:
                tally.fault(
                    f"a close frame is not answered after {[kind for kind, _ in session.frames]} of a {session.role}"
                )
    finally:
        if reading.done():
            tally.closed_by_broker += 1
        reading.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await reading


class _SessionAnswers:
    """Reads the frames of the broker until it closes the session."""

    def __init__(self, reader: asyncio.StreamReader, tally: Tally) -> None:
        self._reader = reader
        self._tally = tally
        self._heard = asyncio.Event()  # the pong, or the end
        self._number = 0
        self._awaited = b""
        self._has_pong = self._is_over = False
        self.has_close = False
        """Whether the broker sent a close frame. After it, the broker may still answer pings."""

    async def read(self) -> None:
        reader = self._reader
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                first, size = await reader.readexactly(2)
                if size == 126:
                    (size,) = struct.unpack(">H", await reader.readexactly(2))
                elif size == 127:
                    (size,) = struct.unpack(">Q", await reader.readexactly(8))
                payload = await reader.readexactly(size)
                self._take(first & 15, payload)
        self._is_over = True
        self._heard.set()

    def _take(self, opcode: int, payload: bytes) -> None:
        if opcode == CLOSE:
            self.has_close = True
            code = int.from_bytes(payload[:2], "big")
            self._tally.answers[f"close {code}"] += 1
            if code == 1011 and b"Internal error" in payload:
                self._tally.fault(f"a session ends with {payload!r}")
        elif opcode == PONG:
            if payload == self._awaited:
                self._has_pong = True
                self._heard.set()
        else:
            self._tally.answers["text"] += 1

    async def heard(self, writer: asyncio.StreamWriter, wait_s: float) -> bool:
        """Send a ping, and return whether its pong arrived."""
        self._number += 1
        self._awaited, self._has_pong = b"sync %d" % self._number, False
        if not self._is_over:
            self._heard.clear()
        writer.write(ws_frame(PING, self._awaited))
        try:
            async with asyncio.timeout(wait_s):
                await self._heard.wait()
        except TimeoutError:
            return False
        return self._has_pong


async def _round_trip(url: str, topic: str, name: str, tally: Tally) -> None:
    """Publish and receive like a normal client, which must succeed."""
    path = f"persistent/websocket/ns/{topic}"
    tally.kinds["valid session"] += 1
    try:
        async with asyncio.timeout(3 * ANSWER_S):
            async with (
                websocket_session(url, f"v2/consumer/{path}/{name}?subscriptionMode=NonDurable") as consumer,
                websocket_session(url, f"v2/producer/{path}") as producer,
            ):
                for number in range(VALID_MESSAGES):
                    body = f"{name} {number}".encode()
                    answer = await producer.publish(body, context=str(number))
                    message = await consumer.receive()
                    await consumer.ack(message)
                    if answer.get("result") != "ok" or answer.get("context") != str(number):
                        tally.fault(f"a valid message is answered with {answer}")
                    if message.get("payload") != base64.b64encode(body).decode():
                        tally.fault(f"a valid session received {message} in place of {body!r}")
    except Exception as error:  # noqa: BLE001  (any failure is a fault of the broker)
        tally.fault(f"a valid session failed: {error!r}")


# --- PROXY headers and tokens


@dataclass(frozen=True)
class SecuredPorts:
    """The ports of a broker that expects PROXY headers and tokens."""

    host: str
    plain: int
    tls: int
    http: int
    context: ssl.SSLContext

    def number(self, port: str) -> int:
        return {"plain": self.plain, "tls": self.tls, "http": self.http}[port]


def connect_frame(token: bytes, method: str = "token") -> bytes:
    command = pb.BaseCommand(type=pb.BaseCommand.CONNECT)
    command.connect.client_version = "fuzz"
    command.connect.protocol_version = 21
    command.connect.auth_method_name = method
    command.connect.auth_data = token
    return frame(command.SerializeToString())


def http_request(token: bytes) -> bytes:
    return (
        b"GET /admin/v2/tenants HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAuthorization: Bearer "
        + token
        + b"\r\n\r\n"
    )


async def _first_answer(reader: asyncio.StreamReader, wait_s: float) -> str:
    """Return the name of the first command of the broker; "" if the connection is closed or silent."""
    frames = all_frames()
    try:
        async with asyncio.timeout(wait_s):
            while data := await reader.read(1 << 16):
                for command, _ in frames.feed(data):
                    assert command.type in FIELDS
                    return str(pb.BaseCommand.Type.Name(command.type))
    except (OSError, TimeoutError):
        pass
    return ""


async def attack_with_headers(
    ports: SecuredPorts, tokens: Callable[[Random], TokenMaker], count: int, seed: int, connections: int, tally: Tally
) -> None:
    """Open `count` connections, each with a header."""
    budget = Budget(count)
    hello = _client_hello(ports.context)

    async def work(number: int) -> None:
        random = Random(f"header {seed} {number}")
        maker, valid = HeaderMaker(random), tokens(random).valid()
        while budget.take(1):
            header = maker.next()
            tally.kinds[header.kind] += 1
            tally.sent[header.port] += 1
            if (streams := await _connected(ports.host, ports.number(header.port), tally)) is None:
                return
            try:
                if header.is_proper:
                    answer = await _proper_connection(random, ports, header, valid, streams)
                    if answer not in {"CONNECTED", "200"}:
                        tally.fault(f"{answer or 'no answer'} on port {header.port} after the header {header.data!r}")
                else:
                    answer = await _hostile_connection(random, header, valid, hello, streams)
                    if answer == "open":
                        tally.fault(f"a connection remains open on port {header.port} after {header.data!r}")
            except (OSError, TimeoutError) as error:
                answer = type(error).__name__
                if header.is_proper:
                    tally.fault(f"{error!r} on port {header.port} after the header {header.data!r}")
            finally:
                _close(random, streams[1])
            tally.answers[answer or "closed or silent"] += 1

    await each_worker(connections, work)


def _client_hello(context: ssl.SSLContext) -> bytes:
    out = ssl.MemoryBIO()
    connection = context.wrap_bio(ssl.MemoryBIO(), out, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        connection.do_handshake()
    return out.read()


async def _proper_connection(
    random: Random, ports: SecuredPorts, header: HostileHeader, token: bytes, streams: Streams
) -> str:
    reader, writer = streams
    if header.port == "http":
        await _write_in_pieces(random, writer, header.data + http_request(token))
        return str((await _status(reader, ANSWER_S))[0])
    if header.port == "plain":
        await _write_in_pieces(random, writer, header.data + connect_frame(token))
        return await _first_answer(reader, ANSWER_S)
    await _write_in_pieces(random, writer, header.data)
    async with asyncio.timeout(ANSWER_S):
        await writer.start_tls(ports.context, server_hostname="localhost")
    writer.write(connect_frame(token))
    return await _first_answer(reader, ANSWER_S)


async def _hostile_connection(
    random: Random, header: HostileHeader, token: bytes, hello: bytes, streams: Streams
) -> str:
    """Return the first answer; "open" if the broker had to close the connection and did not."""
    reader, writer = streams
    if header.is_unfinished:
        await _write_in_pieces(random, writer, header.data)
        draw = random.random()
        if draw < 0.02:
            try:
                async with asyncio.timeout(ANSWER_S):
                    return "closed in time" if not await reader.read(1) else "data"
            except TimeoutError:
                return "open"
        if draw < 0.5:
            writer.write_eof()
        await asyncio.sleep(random.choice((0, 0, 0.01)))
        return "unfinished"
    follow = {"plain": connect_frame(token), "tls": hello, "http": http_request(token)}[header.port]
    if random.random() < 0.3:
        changed = bytearray(follow)
        changed[random.randrange(min(60, len(changed)))] = random.randrange(256)
        follow = bytes(changed[: random.randrange(1, len(changed))] if random.random() < 0.3 else changed)
    await _write_in_pieces(random, writer, header.data + follow)
    if header.port == "plain":
        return await _first_answer(reader, QUIET_S)
    if header.port == "http":
        return str((await _status(reader, QUIET_S))[0] or "")
    try:
        async with asyncio.timeout(QUIET_S):
            return "TLS record" if await reader.read(1) else ""
    except TimeoutError:
        return ""


async def attack_with_tokens(
    ports: SecuredPorts, tokens: Callable[[Random], TokenMaker], count: int, seed: int, connections: int, tally: Tally
) -> None:
    """Send `count` tokens: in CONNECT, in AUTH_RESPONSE, in the header Authorization, and in the URL of a session."""
    budget = Budget(count)

    async def work(number: int) -> None:
        random = Random(f"token {seed} {number}")
        maker = tokens(random)
        while budget.take(1):
            token = maker.next()
            tally.kinds[token.kind] += 1
            draw = random.random()
            way = _by_connect if draw < 0.5 else _by_header if draw < 0.9 else _by_query
            port = ports.plain if way is _by_connect else ports.http
            tally.sent[way.__name__.removeprefix("_by_")] += 1
            if (streams := await _connected(ports.host, port, tally)) is None:
                return
            try:
                answer = await way(random, maker, token, streams)
            except (OSError, TimeoutError) as error:
                answer = type(error).__name__
            finally:
                _close(random, streams[1])
            tally.answers[answer or "closed or silent"] += 1
            if answer.isdigit() and int(answer) >= 500:
                tally.fault(f"{answer} to a token, {token.kind}: {token.data[:500]!r}")
            if token.accepted is not None and token.accepted != (answer in {"CONNECTED", "200", "101"}):
                tally.fault(f"{answer or 'no answer'} to a token, {token.kind}: {token.data[:1000]!r}")

    await each_worker(connections, work)


async def _by_connect(random: Random, maker: TokenMaker, token: HostileToken, streams: Streams) -> str:
    reader, writer = streams
    method = "token"
    if token.accepted is not True and random.random() < 0.05:
        method = random.choice(("", "tls", "basic", "x" * 3000, "\0", "none"))
    await _write_in_pieces(random, writer, connect_frame(token.data, method))
    answer = await _first_answer(reader, ANSWER_S)
    if answer == "CONNECTED" and random.random() < 0.5:
        for _ in range(random.choice((1, 3))):
            command = pb.BaseCommand(type=pb.BaseCommand.AUTH_RESPONSE)
            command.authResponse.response.auth_method_name = random.choice(("token", "token", "", "tls"))
            command.authResponse.response.auth_data = maker.next().data
            with contextlib.suppress(OSError, TimeoutError):  # the broker has refused the one before
                await _write_in_pieces(random, writer, frame(command.SerializeToString()))
    return answer


async def _by_header(random: Random, maker: TokenMaker, token: HostileToken, streams: Streams) -> str:
    reader, writer = streams
    data = token.data
    is_whole = all(32 < each < 127 for each in data)
    if token.accepted is not True and random.random() < 0.05:
        data = data.replace(b".", random.choice((b" ", b"\t", b",", b". .")))
    await _write_in_pieces(random, writer, http_request(data))
    return str((await _status(reader, ANSWER_S if is_whole else QUIET_S))[0] or "")


async def _by_query(random: Random, maker: TokenMaker, token: HostileToken, streams: Streams) -> str:
    reader, writer = streams
    text = (
        quote(token.data, safe="")
        if random.random() < 0.9 or token.accepted
        else token.data.decode("latin-1").replace("\r", "")
    )
    await _write_in_pieces(random, writer, handshake(f"/ws/v2/producer/persistent/public/default/t?token={text}"))
    is_whole = text.isascii() and text.isprintable() and " " not in text
    return str((await _status(reader, ANSWER_S if is_whole else QUIET_S))[0] or "")
