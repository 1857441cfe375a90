"""HTTP in hostile hands: what is held is counted, whoever does not read, does not send, or sends what can be read in two ways."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import re
import socket
import threading
import zlib
from collections.abc import AsyncIterator, Callable, Iterator

import pytest
from tests.support.memory_broker import MemoryBroker, memory_broker
from tests.support.recording_peer import RecordingPeer
from tests.support.waiting import until
from tests.unit.admin.fake_broker import Served, served

from pybroker.admin.calls import call
from pybroker.admin.http.protocol import READ_BYTES, WRITE_BUFFER_BYTES, HttpProtocol
from pybroker.admin.metrics import shared_page
from pybroker.admin.metrics.metrics_page import MetricsPage
from pybroker.admin.metrics.shared_page import WrittenPage
from pybroker.broker_process import loop_factory
from pybroker.memory.broker_memory import Holding
from pybroker.model.events import SendRun
from pybroker.wire import pulsar_api_pb2 as pb

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]
METRICS = b"GET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n"
CLUSTERS = b"GET /admin/v2/clusters HTTP/1.1\r\nhost: localhost\r\n\r\n"
TOPIC = "persistent://public/default/t"


@contextlib.asynccontextmanager
async def unread(port: int, count: int, request: bytes) -> AsyncIterator[list[socket.socket]]:
    """Connections that have asked and take nothing of the answer but what the kernel takes for them."""
    loop = asyncio.get_running_loop()
    sockets: list[socket.socket] = []
    try:
        for _ in range(count):
            asking = socket.socket()
            asking.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            asking.setblocking(False)
            sockets.append(asking)
            await loop.sock_connect(asking, ("127.0.0.1", port))
            await loop.sock_sendall(asking, request)
        yield sockets
    finally:
        for each in sockets:
            each.close()


async def exchange(port: int, sent: bytes) -> bytes:
    """Send bytes over a connection of their own and read until the server closes it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(sent)
        async with asyncio.timeout(10):
            return await reader.read()
    finally:
        writer.close()


# --- /metrics ----------------------------------------------------------------------------------------------------------


class Pages:
    """Counts the pages that are written, and makes them large."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
        self.written: list[WrittenPage] = []
        begun = shared_page.WrittenPage

        def begin(room: Holding) -> WrittenPage:
            self.written.append(begun(room))
            return self.written[-1]

        def slices(page: MetricsPage) -> Iterator[str]:
            for number in range(size // 1000):
                yield f"row{number:0995}\n"

        monkeypatch.setattr(shared_page, "WrittenPage", begin)
        monkeypatch.setattr(MetricsPage, "slices", slices)


async def test_three_hundred_that_do_not_read_hold_one_page_together(monkeypatch: pytest.MonkeyPatch) -> None:
    pages = Pages(monkeypatch, 8_000_000)
    limits = {"metrics_max_concurrent_requests": 8, "metrics_max_pending_requests": 30, "http_write_timeout_ms": 2000}
    async with (
        served(metrics_page_interval_ms=60_000, **limits) as http,
        unread(http.port, 300, METRICS) as sockets,
    ):
        connections = http.server._connections
        assert connections is not None
        await until(lambda: connections.total_requests >= 300 - 38)  # those that are refused
        await until(lambda: pages.written[0].is_whole)
        assert len(pages.written) == 1
        assert pages.written[0].size_bytes < 300_000
        held = [each.transport.get_write_buffer_size() for each in connections.connections]
        # What is written is counted by who waits for room; one part more may be under way.
        assert sum(held) <= 8 * (WRITE_BUFFER_BYTES + shared_page.PLAIN_PART_BYTES + 100)
        # An honest reader has its turn once those that stall have lost theirs.
        answer = await exchange(http.port, METRICS.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"))
        while answer.startswith(b"HTTP/1.1 503"):
            assert b"\r\nretry-after: 1\r\n" in answer
            answer = await exchange(http.port, METRICS.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"))
        assert answer.startswith(b"HTTP/1.1 200")
        assert answer.endswith(b"\r\n0\r\n\r\n")
        assert len(pages.written) == 1
        assert len(sockets) == 300


async def test_all_who_ask_within_the_interval_are_shown_the_same_page(monkeypatch: pytest.MonkeyPatch) -> None:
    pages = Pages(monkeypatch, 300_000)
    async with served(metrics_page_interval_ms=60_000) as http:
        plain, packed = await asyncio.gather(
            http.call("GET", "/metrics"), http.call("GET", "/metrics", headers={"Accept-Encoding": "gzip"})
        )
        again = await http.call("GET", "/metrics")
    assert plain.body == again.body == gzip.decompress(packed.body)
    assert plain.body == b"".join(b"row%0995d\n" % number for number in range(300))
    assert len(pages.written) == 1


async def test_a_page_is_forgotten_after_its_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    pages = Pages(monkeypatch, 3000)
    async with served(metrics_page_interval_ms=1) as http:
        await http.call("GET", "/metrics")
        await until(lambda: http.server.metrics_page is None)
        await http.call("GET", "/metrics")
    assert len(pages.written) == 2


async def test_a_head_request_writes_no_page(monkeypatch: pytest.MonkeyPatch) -> None:
    pages = Pages(monkeypatch, 3000)
    async with served() as http:
        assert (await http.call("HEAD", "/metrics")).status == 200
    assert pages.written == []


# --- messages that are looked at -----------------------------------------------------------------------------------------


async def publish(broker: MemoryBroker, body: bytes) -> None:
    """One message that is small as it is stored."""
    topic = await broker.topic(TOPIC)
    peer = RecordingPeer()
    producer = broker.producer(topic, peer)
    meta = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
    meta.compression, meta.uncompressed_size = pb.ZLIB, len(body)
    header = meta.SerializeToString()
    run = SendRun(1)
    run.sequence_ids, run.highest_sequence_ids, run.message_counts = [0], [0], [1]
    run.payloads = [len(header).to_bytes(4, "big") + header + zlib.compress(body)]
    run.size_bytes = len(run.payloads[0])
    topic.publish(producer, run)
    await producer.drained()
    producer.detach()


EXAMINE = "/admin/v2/persistent/public/default/t/examinemessage?initialPosition=earliest"


async def test_forty_who_do_not_read_a_message_hold_no_more_than_the_total() -> None:
    size = 4 * 1024 * 1024
    limits = {"max_message_size": size, "http_max_viewed_message_bytes": 4 * size, "http_max_pending_requests": 5}
    async with memory_broker(http_write_timeout_ms=60_000, http_pending_request_timeout_ms=200, **limits) as broker:  # type: ignore[arg-type]
        await publish(broker, bytes(size))
        memory = broker.http_limits.memory
        viewed = memory.views
        request = f"GET {EXAMINE} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode()
        async with unread(broker.port, 40, request) as sockets:
            await until(lambda: viewed.used_bytes == viewed.bound_bytes)
            refused = [await asyncio.get_running_loop().sock_recv(each, 12) for each in sockets[7:]]
            assert set(refused) == {b"HTTP/1.1 503"}
            assert memory.answers.used_bytes <= 2 * size
        await until(lambda: viewed.used_bytes == 0)
        answer = await exchange(broker.port, request.replace(b"host: ", b"connection: close\r\nhost: "))
        assert answer.endswith(b"\r\n\r\n" + bytes(size))


async def test_a_message_that_becomes_larger_than_messages_may_be_is_413() -> None:
    async with memory_broker(max_message_size=100_000) as broker:
        await publish(broker, bytes(100_001))
        assert (await broker.rest("GET", EXAMINE.removeprefix("/admin/v2"))).status == 413


# --- answers and bodies ------------------------------------------------------------------------------------------------


async def test_large_answers_have_a_total() -> None:
    async with served(http_max_response_bytes=1_000_000, http_pending_request_timeout_ms=200) as http:
        http.broker.resources.namespaces = lambda tenant: ["x" * 900_000]  # type: ignore[list-item, method-assign]
        request = b"GET /admin/v2/namespaces/public HTTP/1.1\r\nhost: localhost\r\n\r\n"
        http.server._plain_port.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # type: ignore[union-attr]
        responses = http.server.limits.memory.answers
        async with unread(http.port, 1, request):
            await until(lambda: responses.used_bytes > 900_000)
            refused = await http.call("GET", "/admin/v2/namespaces/public")
            assert (refused.status, refused.headers["retry-after"]) == (503, "1")
            assert (await http.call("GET", "/admin/v2/clusters")).status == 200
            page = (await http.call("GET", "/metrics")).body
            shown = re.search(rb'pybroker_http_response_bytes{cluster="standalone"} (\d+)\n', page)
            assert shown is not None
            assert 900_000 < int(shown[1]) < 1_100_000, "with the page of metrics itself"
        await until(lambda: responses.used_bytes == 0)
        assert (await http.call("GET", "/admin/v2/namespaces/public")).status == 200


async def test_an_answer_that_nobody_takes_is_dropped_with_its_connection() -> None:
    async with served(http_write_timeout_ms=200) as http:
        http.broker.resources.namespaces = lambda tenant: ["x" * 60_000]  # type: ignore[list-item, method-assign]
        http.server._plain_port.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # type: ignore[union-attr]
        request = b"GET /admin/v2/namespaces/public HTTP/1.1\r\nhost: localhost\r\n\r\n"
        connections = http.server._connections
        assert connections is not None
        for head in (request, request.replace(b"host: h", b"connection: close\r\nhost: h")):
            async with unread(http.port, 1, head):
                await until(lambda: connections.connections)
                await until(lambda: not connections.connections)


async def test_large_bodies_have_a_total_and_wait_in_the_socket() -> None:
    settings = {"http_max_request_bytes": 150_000, "http_pending_request_timeout_ms": 300}
    async with served(**settings) as http:
        head = b"POST /admin/v2/tenants/acme HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: 100000\r\n\r\n"
        body = b'{"adminRoles": [], "allowedClusters": ["standalone"]}'.ljust(100_000)
        requests = http.server.limits.memory.requests
        reader, writer = await asyncio.open_connection("127.0.0.1", http.port)
        writer.write(head + body[:70_000])
        await until(lambda: requests.used_bytes == 100_000)
        refused = await exchange(http.port, head + body)
        assert refused.startswith(b"HTTP/1.1 503")
        writer.write(body[70_000:])
        assert (await reader.read()).startswith(b"HTTP/1.1 404")
        writer.close()
        await until(lambda: requests.used_bytes == 0)


async def put_tenant(http: Served, body: bytes) -> int:
    head = (
        b"PUT /admin/v2/tenants/acme HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
        % len(body)
    )
    return int((await exchange(http.port, head + body)).split()[1])


async def test_a_document_has_a_size_and_more_in_it_than_brackets() -> None:
    body = b'{"adminRoles": [], "allowedClusters": ["standalone"], "x": %s}'
    async with served(max_http_document_bytes=50_000) as http:
        declared = b"PUT /admin/v2/tenants/acme HTTP/1.1\r\nhost: localhost\r\ncontent-length: 50001\r\n\r\n"
        assert (await exchange(http.port, declared)).startswith(b"HTTP/1.1 413")
        assert await put_tenant(http, body % (b"[" + b"[]," * 1100 + b"1]")) == 400
        assert await put_tenant(http, body % (b"[" + b'"[]"' + b',{"a": [1, 2]}' * 2000 + b"]")) == 204


async def test_large_documents_are_read_in_a_thread_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[bool] = []
    decoded = call.Call._decoded

    def noting(self: call.Call, body: bytes, body_type: type[object]) -> object:
        read.append(threading.current_thread() is threading.main_thread())
        return decoded(self, body, body_type)

    monkeypatch.setattr(call.Call, "_decoded", noting)
    body = b'{"adminRoles": [], "allowedClusters": ["standalone"]}'
    async with served() as http:
        assert await put_tenant(http, body) == 204
        statuses = await asyncio.gather(*(put_tenant(http, body.ljust(50_000)) for _ in range(5)))
        assert statuses == [409] * 5
        assert http.server.limits.documents.taken == 0
    assert read == [True] + [False] * 5


@pytest.mark.parametrize("factory", [None, loop_factory()], ids=["asyncio", "brokers"])
def test_a_connection_is_read_a_share_of_each_turn(
    factory: Callable[[], asyncio.AbstractEventLoop] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    taken = HttpProtocol.data_received

    def noting(self: HttpProtocol, data: bytes) -> None:
        sizes.append(len(data))
        taken(self, data)

    monkeypatch.setattr(HttpProtocol, "data_received", noting)

    async def put() -> None:
        async with served() as http:
            assert (
                await put_tenant(http, b'{"adminRoles": [], "allowedClusters": ["standalone"]}'.ljust(200_000)) == 204
            )

    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(put())
    assert sum(sizes) > 200_000
    assert max(sizes) <= READ_BYTES


# --- connections -------------------------------------------------------------------------------------------------------


async def served_once(port: int) -> Stream:
    """A connection on which a request was answered."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(CLUSTERS)
    async with asyncio.timeout(10):
        await reader.readuntil(b'["standalone"]')
    return reader, writer


@pytest.mark.parametrize("key", ["max_http_server_connections", "max_http_server_connections_per_ip"])
async def test_half_requests_keep_nobody_out_and_who_is_in_stays(key: str) -> None:
    async with served(**{key: 10}) as http:
        port = http.port
        reader, writer = await served_once(port)
        async with unread(port, 50, b"GET /admin/v2/clu"):
            for _ in range(5):
                _, late = await served_once(port)
                late.close()
            connections = http.server._connections
            assert connections is not None
            await until(lambda: len(connections.connections) <= 10)
            writer.write(CLUSTERS)
            async with asyncio.timeout(10):
                await reader.readuntil(b'["standalone"]')
        writer.close()


async def test_who_was_only_refused_makes_way() -> None:
    async with served(max_http_server_connections_per_ip=2) as http:
        port = http.port
        async with unread(port, 2, b"GET /nothing HTTP/1.1\r\nhost: localhost\r\n\r\n") as sockets:
            for each in sockets:
                assert await asyncio.get_running_loop().sock_recv(each, 12) == b"HTTP/1.1 404"
            _, writer = await served_once(port)
            writer.close()


# --- requests that could be read in two ways ---------------------------------------------------------------------------


HOST = b"GET /admin/v2/clusters HTTP/1.1\r\nhost: localhost\r\n"
PUT = b"PUT /admin/v2/tenants/acme HTTP/1.1\r\nhost: localhost\r\n"


@pytest.mark.parametrize(
    "request_bytes",
    [
        PUT + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        PUT + b"Transfer-Encoding: chunked\r\nX: y\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
        PUT + b"content-length: 5\r\ncontent-length: 6\r\n\r\n{}   ",
        HOST + b"x: y\r\n folded\r\n\r\n",
        HOST + b"x: y\r\n\tfolded\r\n\r\n",
        HOST.replace(b"\r\n", b"\n") + b"\n",
        HOST + b"x: y\n\r\n",
        HOST + b"\n",
        HOST + b"x: y\nz: w\r\n",  # as soon as it is seen
        HOST + b"content-length : 5\r\n\r\n",
        PUT + b"transfer-encoding: chunked\r\n\r\n2\n{}\r\n0\r\n\r\n",
    ],
)
@pytest.mark.parametrize("split", [False, True])
async def test_what_could_be_read_in_two_ways_is_400_and_closed(request_bytes: bytes, split: bool) -> None:
    async with served() as http:
        reader, writer = await asyncio.open_connection("127.0.0.1", http.port)
        with contextlib.suppress(ConnectionError):
            for part in (
                [request_bytes[at : at + 7] for at in range(0, len(request_bytes), 7)] if split else [request_bytes]
            ):
                writer.write(part)
                await asyncio.sleep(0)
        async with asyncio.timeout(10):
            assert (await reader.read(12)) == b"HTTP/1.1 400"
            with contextlib.suppress(ConnectionError):
                assert b"HTTP/1.1" not in await reader.read()
        writer.close()


async def test_a_body_of_tiny_chunks_is_400(http: Served) -> None:
    request = PUT + b"transfer-encoding: chunked\r\n\r\n" + b"1\r\n \r\n" * 500
    assert (await exchange(http.port, request)).startswith(b"HTTP/1.1 400")


async def test_chunks_of_a_usual_size_and_a_few_small_ones_are_taken(http: Served) -> None:
    body = b'{"adminRoles": [], "allowedClusters": ["standalone"]}'
    chunks = b"".join(b"1\r\n%c\r\n" % each for each in body) + b"1000\r\n" + b" " * 4096 + b"\r\n0\r\nx: y\r\n\r\n"
    head = b"PUT /admin/v2/tenants/acme HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n"
    assert (await exchange(http.port, head + chunks)).startswith(b"HTTP/1.1 204")
