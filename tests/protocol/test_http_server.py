"""The HTTP edge under good and bad clients: limits, deadlines, faults, rights, closing."""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.admin.fake_broker import Served, served

from pybroker.admin.http.protocol import HttpProtocol
from pybroker.errors import AuthorizationError, CannotListen, StoreError
from pybroker.waiting.fair_shares import Holder

ADMIN = "/admin/v2"


async def exchange(http: Served, sent: bytes) -> bytes:
    """Send bytes over a connection of their own and read until the server closes it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", http.port)
    try:
        writer.write(sent)
        async with asyncio.timeout(5):
            return await reader.read()
    finally:
        writer.close()


async def test_an_unknown_path_is_404_with_a_reason(http: Served) -> None:
    answer = await http.call("GET", "/admin/v2/nothing")
    assert (answer.status, "/admin/v2/nothing" in answer.reason) == (404, True)


async def test_closed_connection_is_freed_without_garbage_collection(http: Served) -> None:
    gc.collect()
    gc.disable()
    try:
        for _ in range(5):
            await exchange(http, b"GET /admin/v2/clusters HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        for _ in range(3):
            await asyncio.sleep(0)  # connection_lost, and the end of the request's task
        assert not [each for each in gc.get_objects() if isinstance(each, HttpProtocol)]
    finally:
        gc.enable()


@pytest.mark.parametrize("server", [b"", b"http://127.0.0.1:8080", b"HTTPS://some.where"])
async def test_a_request_may_name_the_server_before_the_path(http: Served, server: bytes) -> None:
    lines = b"GET " + server + b"/admin/v2/clusters HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    assert (await exchange(http, lines)).startswith(b"HTTP/1.1 200 ")


async def test_a_wrong_verb_is_405_without_a_body(http: Served) -> None:
    answer = await http.call("PATCH", f"{ADMIN}/clusters")
    assert (answer.status, answer.body, "date" in answer.headers) == (405, b"", True)


@pytest.mark.parametrize("body", [b"{", b"[]", b'{"adminRoles":5}', b"\xff"])
async def test_bad_json_is_400_as_plain_text(http: Served, body: bytes) -> None:
    answer = await http.call("PUT", f"{ADMIN}/tenants/acme", body)
    assert (answer.status, answer.headers["content-type"]) == (400, "text/plain; charset=utf-8")


async def test_unknown_properties_are_ignored_unless_the_configuration_refuses_them() -> None:
    body = {"adminRoles": None, "allowedClusters": ["standalone"], "colour": "red"}
    nested: dict[str, Any] = {"auth_policies": {"namespace_auth": {}, "colour": {}}}
    async with served() as http:
        assert (await http.call("PUT", f"{ADMIN}/tenants/acme", body)).status == 204
        assert (await http.call("PUT", f"{ADMIN}/namespaces/public/a", nested)).status == 204
    async with served(http_requests_fail_on_unknown_properties_enabled=True) as http:
        answer = await http.call("PUT", f"{ADMIN}/tenants/acme", body)
        assert (answer.status, answer.body) == (400, b"the JSON in the request body has unknown members: colour")
        assert (await http.call("PUT", f"{ADMIN}/namespaces/public/a", nested)).status == 400
        assert (await http.call("PUT", f"{ADMIN}/namespaces/public/a", {"auth_policies": {}})).status == 204


async def test_a_bug_is_answered_without_its_stack_and_logged_with_it(
    http: Served, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("pybroker"), "propagate", True)
    http.broker.sickness = RuntimeError("secret detail")
    answer = await http.call("GET", f"{ADMIN}/brokers/health")
    assert (answer.status, "RuntimeError" in answer.reason, "secret" in answer.reason) == (500, True, False)
    logged = [record for record in caplog.records if record.getMessage() == "http.failed"]
    assert (len(logged), http.broker.runtime.stats.bugs) == (1, 1)
    assert logged[0].exc_info


async def test_a_store_that_fails_is_500_with_its_reason(http: Served) -> None:
    http.broker.sickness = StoreError("disk full")
    answer = await http.call("GET", f"{ADMIN}/brokers/health")
    assert (answer.status, answer.reason) == (500, "The broker's storage failed: disk full")


async def test_a_body_over_the_limit_is_413_declared_or_not() -> None:
    async with served(max_http_request_body_bytes=100) as http:
        declared = await http.call("PUT", f"{ADMIN}/tenants/acme", b"x" * 101)
        assert (declared.status, "maxHttpRequestBodyBytes" in declared.reason) == (413, True)
        head = b"PUT /admin/v2/tenants/acme HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
        chunked = await exchange(http, head + b"80\r\n" + b"x" * 128 + b"\r\n")
        assert chunked.startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize("end", [b"\r\n\r\n", b""], ids=["complete", "without end"])
async def test_headers_over_the_limit_are_431(http: Served, end: bytes) -> None:
    answer = await exchange(http, b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nx: " + b"y" * 10_000 + end)
    assert answer.startswith(b"HTTP/1.1 431 ")


async def test_bytes_that_are_no_http_are_answered_400_and_cut(http: Served) -> None:
    assert (await exchange(http, b"\x00\x00\x00\x10CONNECT\r\n\r\n")).startswith(b"HTTP/1.1 400 ")


async def test_a_head_that_never_ends_is_cut() -> None:
    async with served(http_header_timeout_ms=50) as http:
        assert await exchange(http, b"GET /metrics HT") == b""
        await cut_in_the_second_head(http)


async def cut_in_the_second_head(http: Served) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", http.port)
    writer.write(b"GET /admin/v2/clusters HTTP/1.1\r\nhost: localhost\r\n\r\n")
    await reader.readuntil(b'["standalone"]')
    writer.write(b"GET")
    async with asyncio.timeout(5):
        assert await reader.read() == b""
    writer.close()


async def test_a_body_that_never_ends_is_408() -> None:
    head = b"PUT /admin/v2/tenants/acme HTTP/1.1\r\nhost: localhost\r\ncontent-length: 50\r\n\r\n{"
    async with served(http_body_timeout_ms=50) as http:
        assert (await exchange(http, head)).startswith(b"HTTP/1.1 408 ")


@pytest.mark.parametrize("close", ["", "connection: close\r\n"])
async def test_a_refusal_waits_for_the_body_that_is_coming(http: Served, close: str) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", http.port)
    try:
        writer.write(f"PUT /nothing HTTP/1.1\r\nhost: localhost\r\n{close}content-length: 6\r\n\r\n123".encode())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await reader.read(1)
        writer.write(b"456")
        async with asyncio.timeout(5):
            assert (await reader.readline()).startswith(b"HTTP/1.1 404")
    finally:
        writer.close()


async def test_a_client_that_asks_whether_to_send_its_body_is_refused_at_once(http: Served) -> None:
    head = b"PUT /nothing HTTP/1.1\r\nhost: localhost\r\nexpect: 100-continue\r\nconnection: close\r\ncontent-length: 6\r\n\r\n"
    assert (await exchange(http, head)).startswith(b"HTTP/1.1 404")


async def test_a_client_that_does_not_read_is_cut() -> None:
    async with served(http_write_timeout_ms=100) as http:
        names = [f"{index}-{'x' * 200}" for index in range(40_000)]
        http.broker.resources.namespaces = lambda tenant: names  # type: ignore[assignment, method-assign, return-value]
        # This stream stops reading after a few bytes; the answer is larger than what the kernel keeps on the way.
        reader, writer = await asyncio.open_connection("127.0.0.1", http.port, limit=1)
        writer.write(b"GET /admin/v2/namespaces/public HTTP/1.1\r\nhost: localhost\r\n\r\n")
        await reader.readexactly(1)
        connections = http.server._connections
        assert connections is not None
        async with asyncio.timeout(10):
            await connections.all_closed.wait()
        writer.close()


async def test_one_connection_serves_requests_one_after_the_other(http: Served) -> None:
    request = b"GET /admin/v2/clusters HTTP/1.1\r\nhost: localhost\r\n\r\n"
    last = b"HEAD /admin/v2/clusters HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
    answers = await exchange(http, request * 3 + last)
    assert answers.count(b"HTTP/1.1 200 ") == 4
    assert answers.count(b'["standalone"]') == 3


async def test_an_answer_of_two_writes_does_not_wait_for_the_clients_acknowledgement(http: Served) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", http.port)
    writer.write(b"GET /admin/v2/clusters HTTP/1.1\r\nhost: localhost\r\n\r\n")
    await reader.readuntil(b"\r\n\r\n")
    connections = http.server._connections
    assert connections is not None
    for connection in connections.connections:
        accepted = connection.transport.get_extra_info("socket")
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    writer.close()


async def test_connections_over_the_limit_are_refused() -> None:
    async with served(max_http_server_connections=1) as http:
        reader, writer = await asyncio.open_connection("127.0.0.1", http.port)
        writer.write(b"GET /admin/v2/clusters HTTP/1.1\r\nhost: localhost\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        assert (await exchange(http, b"")).startswith(b"HTTP/1.1 503 ")
        writer.close()


async def test_close_lets_a_request_end_and_cuts_one_that_does_not() -> None:
    async with served() as http:
        entered, released = asyncio.Event(), asyncio.Event()

        async def slow() -> None:
            entered.set()
            await released.wait()

        http.broker.health_check = slow  # type: ignore[method-assign]
        request = b"GET /admin/v2/brokers/health HTTP/1.1\r\nhost: localhost\r\n\r\n"
        answer = asyncio.create_task(exchange(http, request))
        await entered.wait()
        closing = asyncio.create_task(http.server.close(deadline_s=5))
        await asyncio.sleep(0)
        released.set()
        assert (await answer).endswith(b"ok")
        await closing
        assert http.server.port is None

    async with served() as http:
        entered, released = asyncio.Event(), asyncio.Event()
        http.broker.health_check = slow  # type: ignore[method-assign]
        answer = asyncio.create_task(exchange(http, request))
        await entered.wait()
        await http.server.close(deadline_s=0)
        assert b"ok" not in await asyncio.wait_for(answer_or_reset(answer), 5)


async def answer_or_reset(answer: asyncio.Task[bytes]) -> bytes:
    try:
        return await answer
    except ConnectionResetError:
        return b""


async def test_a_busy_port_is_told_before_anything_is_served(http: Served) -> None:
    with pytest.raises(CannotListen, match=r"webServicePort.*in use"):
        async with served(web_service_port=http.port):
            pass


class Rights:
    """Refuses everything, with the name of the check."""

    questions = SimpleNamespace(pending=0, failures={})

    def holder(self, _: str | None, nameless: str) -> Holder:
        return Holder(nameless)

    def with_original_principal(self, role: str | None, original: str, *, may_be_equal: bool = False) -> str | None:
        return role

    async def learn(self, _: object) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        def refuse(*_: object) -> None:
            raise AuthorizationError(f"no {name}")

        return refuse


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", f"{ADMIN}/tenants", 401),
        ("GET", f"{ADMIN}/tenants/public", 401),
        ("PUT", f"{ADMIN}/clusters/x", 401),
        ("GET", f"{ADMIN}/brokers", 401),
        ("GET", f"{ADMIN}/brokers/configuration/runtime", 401),
        ("GET", f"{ADMIN}/namespaces/public", 401),
        ("GET", "/lookup/v2/topic/persistent/public/default/t", 401),
        ("GET", f"{ADMIN}/persistent/public/default/t/partitions", 401),
        ("PUT", f"{ADMIN}/namespaces/public/x", 401),
        ("DELETE", f"{ADMIN}/namespaces/public/default", 401),
        ("GET", f"{ADMIN}/namespaces/public/default", 403),
        ("GET", f"{ADMIN}/namespaces/public/default/topics", 403),
        ("POST", f"{ADMIN}/namespaces/public/default/permissions/r", 403),
        ("GET", f"{ADMIN}/clusters", 200),
        ("GET", f"{ADMIN}/brokers/version", 200),
        ("GET", "/metrics", 200),
    ],
)
async def test_a_role_without_the_right_gets_401_or_403_by_the_kind_of_check(
    http: Served, method: str, path: str, status: int
) -> None:
    http.broker.broker_context.authorization = Rights()  # type: ignore[assignment]
    assert (await http.call(method, path)).status == status


async def test_every_path_but_metrics_and_what_probes_ask_needs_credentials(tmp_path: Path) -> None:
    in_service = tmp_path / "in-service"
    in_service.touch()
    settings: dict[str, Any] = {
        "authentication_enabled": True,
        "authentication_providers": ("token",),
        "token_secret_key": "data:;base64,c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LXNlY3JldA==",
        "status_file_path": str(in_service),
    }
    async with served(**settings) as http:
        needing = (f"{ADMIN}/brokers/{name}" for name in ("health", "ready", "version"))
        for path in (f"{ADMIN}/clusters", *needing, "/nothing", "/lookup/v2/topic/x", "/ready/x", "/live.html"):
            answer = await http.call("GET", path)
            assert (path, answer.status, bool(answer.reason)) == (path, 401, True)
        wrong = await http.call("GET", f"{ADMIN}/clusters", headers={"Authorization": "Bearer x.y.z"})
        assert wrong.status == 401
        for path in ("/metrics", "/metrics/", "/ready", "/live", "/live/", "/status.html", "/status.html?x=1"):
            assert (path, (await http.call("GET", path)).status) == (path, 200)
            # Whatever a probe brings along is not looked at, as with Pulsar.
            answer = await http.call("GET", path, headers={"Authorization": "Bearer x.y.z"})
            assert (path, answer.status) == (path, 200)
    async with served(authenticate_metrics_endpoint=True, **settings) as http:
        assert (await http.call("GET", "/metrics")).status == 401


@pytest.mark.parametrize(
    ("method", "site", "status"),
    [
        ("POST", "cross-site", 403),
        ("DELETE", "same-site", 403),
        ("PUT", "anything", 403),
        ("POST", "same-origin", 404),
        ("POST", "none", 404),
        ("GET", "cross-site", 404),
    ],
)
async def test_page_of_another_site_may_not_change_the_broker(
    http: Served, method: str, site: str, status: int
) -> None:
    head = f"{method} /admin/v2/absent HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 0\r\n"
    answer = await exchange(http, f"{head}Sec-Fetch-Site: {site}\r\n\r\n".encode())
    assert answer.startswith(f"HTTP/1.1 {status} ".encode()), answer
    assert (b"of other sites" in answer) == (status == 403)


@pytest.mark.parametrize("path", ["/admin/v2/clusters", "/metrics", "/live", "/console/"])
@pytest.mark.parametrize(
    ("host", "is_accepted"),
    [("localhost:1", True), ("127.0.0.1", True), ("listed.example", True), ("rebound.example:8080", False)],
)
async def test_requests_without_credentials_need_a_known_host(path: str, host: str, is_accepted: bool) -> None:
    async with served(http_allowed_hosts=("listed.example",)) as http:
        head = f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
        answer = await exchange(http, head.encode())
    if is_accepted:
        assert answer.startswith(b"HTTP/1.1 200 "), answer
    else:
        assert answer.startswith(b"HTTP/1.1 421 "), answer
        assert b"httpAllowedHosts" in answer


async def test_change_by_a_rebound_host_is_refused_and_changes_nothing(http: Served) -> None:
    head = (
        "PUT /admin/v2/tenants/rebound HTTP/1.1\r\nHost: rebound.example\r\nConnection: close\r\nContent-Length: 2\r\n"
    )
    answer = await exchange(http, f"{head}Sec-Fetch-Site: same-origin\r\n\r\n{{}}".encode())
    assert answer.startswith(b"HTTP/1.1 421 "), answer
    assert (await http.call("GET", "/admin/v2/tenants/rebound")).status == 404


@pytest.mark.parametrize(("anonymous_role", "status"), [("visitor", 421), ("", 401)])
async def test_only_credentials_make_an_unknown_host_acceptable(
    tmp_path: Path, anonymous_role: str, status: int
) -> None:
    passwords = tmp_path / "passwords"
    passwords.write_text("admin:{SHA}0DPiKuNIrrVmD8IUCuw1hQxNqZc=\n")
    passwords.chmod(0o600)
    settings = {
        "authentication_enabled": True,
        "authentication_providers": ("basic",),
        "basic_auth_conf": str(passwords),
        "anonymous_user_role": anonymous_role,
    }
    head = "GET /admin/v2/clusters HTTP/1.1\r\nHost: proxy.example\r\nConnection: close\r\n"
    async with served(**settings) as http:
        answer = await exchange(http, f"{head}\r\n".encode())
        assert answer.startswith(f"HTTP/1.1 {status} ".encode()), answer
        answer = await exchange(http, f"{head}Authorization: Basic YWRtaW46YWRtaW4=\r\n\r\n".encode())
        assert answer.startswith(b"HTTP/1.1 200 "), answer
