"""Whatever is sent to the REST interface: no answer is a server's fault, every request is answered, the broker stays well."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from starlette.responses import Response
from starlette.routing import Route
from tests.fuzz.admin_requests import Request, in_order, requests, sweep
from tests.support.memory_broker import MemoryBroker, memory_broker
from tests.support.recording_peer import RecordingPeer

from pybroker.admin import server
from pybroker.admin.calls.call import Call, empty_ok
from pybroker.admin.calls.routing import route

# Longer than any handler waits for anything; a machine that is busy takes a while for what should take a millisecond.
HANG_S = 8.0
EXAMPLES, REQUESTS_EACH = 15, 30
LONG_EXAMPLES, LONG_REQUESTS_EACH = 300, 60
SWEEP_PARTS, SWEEP_EVERY = 4, 12

# A fault that is meant: the beginning of the path, and the status.
INTENDED = (
    ("/admin/v3/packages", 503),  # not served; what a Pulsar broker without packages answers
    ("/lookup/v2/topic", 503),  # of a listener that this broker does not have, as by the binary protocol
)


PLANTED = "/planted/"


async def serve_fault(_call: Call) -> Response:
    raise ValueError("planted")


async def serve_nothing(_call: Call) -> Response:
    await asyncio.Event().wait()
    return empty_ok()


class Fault(AssertionError):
    """What must not happen has."""


class Caller:
    """Sends requests as they are over one connection after another."""

    def __init__(self, port: int, hang_s: float) -> None:
        self._port = port
        self._hang_s = hang_s
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def send(self, request: Request) -> tuple[int, bytes]:
        """Status and body of the answer; 0 when the connection was closed without one."""
        # Only what is known to hang is given up soon: on a busy machine everything else may take its time.
        hang_s = self._hang_s if PLANTED in request.target else HANG_S
        try:
            async with asyncio.timeout(hang_s):
                return await self._exchange(request)
        except TimeoutError:
            self.close()
            raise Fault(f"no answer within {hang_s:g} s: {request}") from None

    async def _exchange(self, request: Request) -> tuple[int, bytes]:
        if self._writer is None:
            self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._reader, self._writer
        assert reader is not None
        head = f"{request.method} {request.target} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(request.body)}\r\n\r\n"
        try:
            writer.write(head.encode("utf-8") + request.body)
            answer = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            headers = dict(line.lower().split(": ", 1) for line in answer[1:] if ": " in line)
            body = await self._body(reader, headers)
        except (asyncio.IncompleteReadError, ConnectionError):
            self.close()
            return 0, b""
        if headers.get("connection") == "close":
            self.close()
        return int(answer[0].split(" ")[1]), body

    async def _body(self, reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
        if "chunked" not in headers.get("transfer-encoding", ""):
            return await reader.readexactly(int(headers.get("content-length", "0")))
        body = b""
        while size := int(await reader.readuntil(b"\r\n"), 16):
            body += (await reader.readexactly(size + 2))[:-2]
        await reader.readexactly(2)
        return body

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._reader = self._writer = None


class Target:
    """A broker with something of everything in it."""

    def __init__(self, broker: MemoryBroker, hang_s: float) -> None:
        self.broker = broker
        self.routes = [each for each in broker.routes if isinstance(each, Route)]
        self._caller = Caller(broker.port, hang_s)

    async def send(self, request: Request) -> None:
        """Send it; Fault when the answer is none that the caller has earned."""
        status, body = await self._caller.send(request)
        is_meant = any(request.target.startswith(path) and status == allowed for path, allowed in INTENDED)
        if status >= 500 and not is_meant:
            raise Fault(f"{status} {body[:300]!r} to {request}")
        if not status:
            raise Fault(f"the connection was closed without an answer: {request}")

    async def check_health(self) -> None:
        """Ask the broker how it is, and publish something where nobody was."""
        await self.send(Request("GET", "/admin/v2/brokers/health", b""))
        broker = self.broker.service
        assert broker.runtime.stats.bugs == 0, "a topic or a task met a bug"
        for key in broker.dynamic.overrides():
            await broker.dynamic.unset(key)
        # Where nobody was: policies that were set may well forbid to publish anywhere else.
        for path, body in UNTOUCHED:
            await self._caller.send(Request("PUT", f"/admin/v2{path}", body))
        topic = await self.broker.topic("untouched/ns/t")
        assert await self.broker.publish(topic, 1)

    def close(self) -> None:
        self._caller.close()


UNTOUCHED = (
    ("/clusters/standalone", b"{}"),
    ("/tenants/untouched", b'{"allowedClusters":["standalone"]}'),
    ("/namespaces/untouched/ns", b""),
)
PREPARED = (
    ("PUT", "/clusters/standalone", b"{}"),
    ("PUT", "/clusters/east", b"{}"),
    ("PUT", "/tenants/public", b'{"allowedClusters":["standalone"]}'),
    ("PUT", "/namespaces/public/default", b""),
    ("PUT", "/tenants/acme", b'{"allowedClusters":["standalone"]}'),
    ("PUT", "/namespaces/acme/ns", b""),
    ("PUT", "/persistent/public/default/parts/partitions", b"2"),
)


@asynccontextmanager
async def target(hang_s: float = HANG_S) -> AsyncIterator[Target]:
    async with memory_broker() as broker:
        found = Target(broker, hang_s)
        for method, path, body in PREPARED:
            await found.send(Request(method, f"/admin/v2{path}", body))
        topic = await broker.topic("t")
        await broker.consumer(topic, "s", RecordingPeer())
        await broker.publish(topic, 3, messages_each=2)
        try:
            yield found
        finally:
            found.close()


def walk(walked: Sequence[Request], hang_s: float = HANG_S, most_faults: int = 1) -> None:
    """A fresh broker, some requests, and a look at its health. Ends with the first fault, or with so many."""

    async def run() -> None:
        faults: list[Fault] = []
        async with target(hang_s) as found:
            for request in walked:
                try:
                    await found.send(request)
                except Fault as fault:
                    faults.append(fault)
                    if len(faults) >= most_faults:
                        break
            if not faults:
                await found.check_health()
        if faults:
            raise Fault("\n".join(map(str, faults)))

    asyncio.run(run())


def all_routes() -> list[Route]:
    """The routes of a broker: the same for every one."""

    async def find() -> list[Route]:
        async with memory_broker() as broker:
            return [each for each in broker.routes if isinstance(each, Route)]

    return asyncio.run(find())


def explore(examples: int, most_requests: int, routes: Sequence[Route], hang_s: float = HANG_S) -> None:
    """Walk with drawn requests; the smallest walk that ends in a fault is reported."""

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.explicit, Phase.generate, Phase.shrink),
    )
    @given(st.lists(requests(routes), min_size=most_requests // 2, max_size=most_requests))
    def walks(walked: list[Request]) -> None:
        walk(walked, hang_s)

    walks()


@pytest.mark.parametrize("part", range(SWEEP_PARTS))
def test_every_route_answers_names_and_bodies_of_every_kind(part: int) -> None:
    walk(list(sweep(in_order(all_routes())[part::SWEEP_PARTS], SWEEP_EVERY)), most_faults=20)


@pytest.mark.long
@pytest.mark.parametrize("part", range(SWEEP_PARTS))
def test_every_route_answers_each_name_and_each_body(part: int) -> None:
    walk(list(sweep(in_order(all_routes())[part::SWEEP_PARTS])), most_faults=20)


def test_no_walk_of_requests_is_answered_with_a_servers_fault() -> None:
    explore(EXAMPLES, REQUESTS_EACH, all_routes())


@pytest.mark.long
def test_no_long_walk_of_requests_is_answered_with_a_servers_fault() -> None:
    explore(LONG_EXAMPLES, LONG_REQUESTS_EACH, all_routes())


@pytest.mark.parametrize("handler", [serve_fault, serve_nothing])
@pytest.mark.parametrize("is_swept", [True, False])
def test_a_planted_fault_is_found(monkeypatch: pytest.MonkeyPatch, handler: Any, is_swept: bool) -> None:
    planted = SimpleNamespace(routes=lambda: [route("POST", PLANTED + "{topic}", handler)])
    monkeypatch.setattr(server, "NOUNS", (*server.NOUNS, planted))
    routes = [each for each in all_routes() if each.path in {PLANTED + "{topic}", "/admin/v2/clusters"}]
    hang_s = 0.15 if handler is serve_nothing else HANG_S
    search = partial(walk, list(sweep(routes)), hang_s) if is_swept else partial(explore, 10, 4, routes, hang_s)
    with pytest.raises(Fault, match=r"POST /planted/"):
        search()
