"""Sends hostile HTTP requests and WebSocket handshakes over many connections at once, and judges what is answered.

Proper requests are sent over connections that the broker keeps, several at a time without waiting for answers (pipelining).
Each other request, and each handshake, has its own connection. The broker may wait for the rest of these requests, so
they run beside the proper ones.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any
from urllib.parse import urlsplit

from tests.fuzz.test_admin_routes import INTENDED
from tests.fuzz_server.attack import ANSWER_S, PATIENCE_S, Budget
from tests.fuzz_server.edge_attacks import CONTENT_LENGTH, run_session
from tests.fuzz_server.http_requests import HttpRequest, RequestMaker
from tests.fuzz_server.tally import Tally
from tests.fuzz_server.websocket_sessions import HostileSession, SessionMaker

HANDSHAKES = 0.1
"""The share of WebSocket handshakes."""
PIPELINED = (1, 1, 2, 4, 8)
"""How many requests are drawn at a time."""
LARGE_BYTES = 50_000
"""Larger requests are not pipelined: the broker may refuse their body, and close the connection."""
MOST_ALONE = 192
"""Connections for one request each, at a time; below `maxHttpServerConnectionsPerIp` with the kept ones."""
IDLE_S = 3.0
"""Idle time after which the broker may close a kept connection."""
COOKIE = re.compile(rb"(?i)\r\nset-cookie: ([^=;\r]+)=([^;\r]*)")


class Ended(Exception):
    """The connection ended in place of an answer."""


@dataclass(frozen=True)
class HttpAnswer:
    """An answer; `head` begins with the status line and ends with CRLF."""

    status: int
    head: bytes
    body: bytes

    @property
    def closes(self) -> bool:
        return b"\r\nconnection: close\r\n" in self.head.lower()

    def header(self, name: str) -> str:
        """Return the value of a header; "" without it."""
        found = re.search(rb"(?i)\r\n" + name.encode() + rb": ([^\r]*)", self.head)
        return found[1].decode("latin-1") if found is not None else ""

    def cookies(self) -> dict[str, str]:
        return {name.decode(): value.decode() for name, value in COOKIE.findall(self.head)}


class AnswerReader(asyncio.Protocol):
    """Reads answers. What arrived before the connection ended can still be read after its end."""

    def __init__(self) -> None:
        self.is_over = False
        self.used_s = 0.0
        """When the last answer was returned, of the event loop's clock."""
        self._data = bytearray()
        self._arrived: asyncio.Future[None] | None = None

    def data_received(self, data: bytes) -> None:
        self._data += data
        self._wake()

    def connection_lost(self, error: Exception | None) -> None:
        self.is_over = True
        self._wake()

    def _wake(self) -> None:
        if self._arrived is not None and not self._arrived.done():
            self._arrived.set_result(None)

    async def next(self, *, has_body: bool = True) -> HttpAnswer:
        """Return the next answer. Raises Ended, and ValueError if the answer is malformed."""
        loop = asyncio.get_running_loop()
        while (answer := self._complete(has_body=has_body)) is None:
            if self.is_over:
                raise Ended
            self._arrived = loop.create_future()
            await self._arrived
        self.used_s = loop.time()
        return answer

    def _complete(self, *, has_body: bool) -> HttpAnswer | None:
        data = self._data
        end = data.find(b"\r\n\r\n")
        if end < 0:
            return None
        head, stop = bytes(data[: end + 2]), end + 4
        if not head.startswith(b"HTTP/1.1 "):
            raise ValueError(f"{head[:100]!r} is no status line")
        length = CONTENT_LENGTH.search(head)
        body = b""
        if not has_body:
            pass
        elif length is not None:
            start, stop = stop, stop + int(length[1])
            if len(data) < stop:
                return None
            body = bytes(data[start:stop])
        elif b"\r\ntransfer-encoding: chunked\r\n" in head.lower():
            chunks = _chunked(data, stop)
            if chunks is None:
                return None
            body, stop = chunks
        del data[:stop]
        return HttpAnswer(int(head[9:12]), head, body)


def _chunked(data: bytearray, at: int) -> tuple[bytes, int] | None:
    """Return a body in chunks and the position after it; None if it is incomplete."""
    body = bytearray()
    while (line_end := data.find(b"\r\n", at)) >= 0:
        size, at = int(data[at:line_end], 16), line_end + 2
        if len(data) < at + size + 2:
            return None
        if not size:
            return bytes(body), at + 2
        body += data[at : at + size]
        at += size + 2
    return None


Exchange = tuple[asyncio.Transport, AnswerReader]


@dataclass(frozen=True)
class Target:
    """The HTTP port of a broker, and what is counted of its answers."""

    host: str
    port: int
    tally: Tally

    @classmethod
    def of(cls, url: str, tally: Tally) -> Target:
        parts = urlsplit(url)
        return cls(parts.hostname or "", parts.port or 0, tally)

    async def connected(self) -> Exchange:
        transport, reader = await asyncio.get_running_loop().create_connection(AnswerReader, self.host, self.port)
        self.tally.connections += 1
        return transport, reader

    async def send_alone(self, request: HttpRequest) -> HttpAnswer | None:
        """Send a request over its own connection, and return the answer. None if the broker closes the connection, or
        waits for more.
        """
        answer = transport = None
        try:
            async with asyncio.timeout(ANSWER_S if request.is_proper else PATIENCE_S):
                transport, reader = await self.connected()
                transport.write(request.data)
                if not request.is_proper and len(request.data) % 2:
                    transport.write_eof()
                answer = await reader.next(has_body=not request.data.startswith(b"HEAD"))
        except (OSError, TimeoutError, Ended, ValueError) as error:
            if request.is_proper:
                self.tally.fault(f"{error!r} in place of an answer: {request.data[:300]!r}")
        finally:
            if transport is not None:
                transport.close()
        self.judge(request, answer)
        return answer

    def judge(self, request: HttpRequest, answer: HttpAnswer | None) -> None:
        """Count a request and its answer. A status that is a server's fault is a fault of the broker."""
        tally = self.tally
        tally.kinds[request.kind] += 1
        tally.sent[request.route] += 1
        tally.answers[str(answer.status) if answer is not None else "closed or silent"] += 1
        if answer is not None and answer.status >= 500 and not _is_meant(request, answer):
            tally.fault(f"{answer.status} {answer.body[:200]!r} to {request.data[:300]!r}")


def _is_meant(request: HttpRequest, answer: HttpAnswer) -> bool:
    """A fault that is an answer: 501 and 505 to what is no HTTP/1.1, 503 that says when to come back, and what is known."""
    if answer.status == 503 and answer.header("retry-after"):
        return True
    if not request.is_proper:
        return answer.status in {501, 505} or b"packages" in request.data or b"/lookup/v2" in request.data
    path = request.data.split(b" ", 2)[1].decode("latin-1")
    return any(path.startswith(start) and answer.status == allowed for start, allowed in INTENDED)


class KeptConnection:
    """One connection after the other, each for as many proper requests as the broker lets it live."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._exchange: Exchange | None = None

    async def send(self, requests: Sequence[HttpRequest]) -> list[HttpAnswer | None]:
        """Send all requests without waiting, and return their answers in order; None: the answer is missing, which is a
        fault. Requests that follow an answer with which the broker closes the connection are sent again.
        """
        answers: list[HttpAnswer | None] = []
        while len(answers) < len(requests):
            answers += await self._send_some(requests[len(answers) :])
        for request, answer in zip(requests, answers, strict=True):
            self._target.judge(request, answer)
        return answers

    async def _send_some(self, requests: Sequence[HttpRequest]) -> list[HttpAnswer | None]:
        """Return the answers of one connection, at least one."""
        tally = self._target.tally
        try:
            async with asyncio.timeout(ANSWER_S):
                transport, reader = await self._connected()
        except (OSError, TimeoutError) as error:
            tally.fault(f"no connection: {error!r}")
            return [None] * len(requests)
        transport.write(b"".join(request.data for request in requests))
        answers: list[HttpAnswer | None] = []
        for request in requests:
            answer = await self._answer(reader, request)
            answers.append(answer)
            if answer is None or answer.closes:
                tally.closed_by_broker += answer is not None
                self.close()
                break
        return answers

    async def _answer(self, reader: AnswerReader, request: HttpRequest) -> HttpAnswer | None:
        try:
            async with asyncio.timeout(ANSWER_S):
                return await reader.next()
        except TimeoutError:
            self._target.tally.fault(f"no answer within {ANSWER_S:g} s: {request.data[:300]!r}")
        except (Ended, ValueError) as error:
            self._target.tally.fault(f"{error!r} in place of an answer: {request.data[:300]!r}")
        return None

    async def _connected(self) -> Exchange:
        if self._exchange is not None:
            transport, reader = self._exchange
            if reader.is_over or transport.is_closing() or asyncio.get_running_loop().time() - reader.used_s > IDLE_S:
                self.close()
        if self._exchange is None:
            self._exchange = await self._target.connected()
            self._exchange[1].used_s = asyncio.get_running_loop().time()
        return self._exchange

    def close(self) -> None:
        if self._exchange is not None:
            self._exchange[0].close()
        self._exchange = None


class Beside:
    """Runs exchanges that may take their time beside those that may not, at most MOST_ALONE at a time."""

    def __init__(self, group: asyncio.TaskGroup) -> None:
        self._group = group
        self._slots = asyncio.Semaphore(MOST_ALONE)

    async def start(self, work: Callable[[], Awaitable[object]]) -> None:
        """Start `work` when a slot is free."""
        await self._slots.acquire()
        self._group.create_task(self._run(work))

    async def _run(self, work: Callable[[], Awaitable[object]]) -> None:
        try:
            await work()
        finally:
            self._slots.release()


def batches(requests: Sequence[HttpRequest]) -> list[list[int]]:
    """Divide requests, given by their numbers, into those that are sent at once; large ones are sent one by one."""
    small = [number for number, request in enumerate(requests) if len(request.data) <= LARGE_BYTES]
    large = [[number] for number, request in enumerate(requests) if len(request.data) > LARGE_BYTES]
    return [small, *large] if small else large


async def attack_with_requests(
    url: str, document: dict[str, Any], count: int, seed: int, connections: int, tally: Tally, handshakes: Tally
) -> None:
    """Send `count` requests and handshakes for the operations of the OpenAPI document, over `connections` kept
    connections and further ones.
    """
    budget, target = Budget(count), Target.of(url, tally)
    async with asyncio.TaskGroup() as group:
        beside = Beside(group)
        for number in range(connections):
            random = Random(f"{seed} {number}")
            group.create_task(
                _requests(random, url, RequestMaker(random, document), target, budget, beside, handshakes)
            )


async def _requests(
    random: Random,
    url: str,
    maker: RequestMaker,
    target: Target,
    budget: Budget,
    beside: Beside,
    handshakes: Tally,
) -> None:
    connection, sessions = KeptConnection(target), SessionMaker(random)
    while taken := budget.take(random.choice(PIPELINED)):
        proper = []
        for _ in range(taken):
            if random.random() < HANDSHAKES:
                await beside.start(_handshake(Random(random.random()), url, sessions.next(0), handshakes))
            elif (request := maker.next()).is_proper:
                proper.append(request)
            else:
                await beside.start(_alone(target, request))
        for batch in batches(proper):
            await connection.send([proper[number] for number in batch])
    connection.close()


def _handshake(random: Random, url: str, session: HostileSession, tally: Tally) -> Callable[[], Awaitable[object]]:
    return lambda: run_session(random, url, session, tally)


def _alone(target: Target, request: HttpRequest) -> Callable[[], Awaitable[object]]:
    return lambda: target.send_alone(request)
