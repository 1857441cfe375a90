"""The metrics page over real HTTP, plain and over TLS."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.credentials import CertificateAuthority
from tests.unit.admin.fake_broker import served

from pybroker.admin.metrics.metrics_page import MetricsPage
from pybroker.process.python_build import python_build
from pybroker.wire import core


async def test_the_page_is_text_under_both_paths() -> None:
    async with served() as http:
        http.broker.add_topic("t")
        for path in ("/metrics", "/metrics/"):
            answer = await http.call("GET", path)
            assert (answer.status, answer.headers["content-type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
            assert b"# TYPE pulsar_topics_count gauge\n" in answer.body
        head = await http.call("HEAD", "/metrics")
        assert (head.status, head.body) == (200, b"")


async def test_metrics_diagnostics_and_console_name_the_frame_decoder() -> None:
    async with served() as http:
        page = (await http.call("GET", "/metrics")).body.decode()
        labels = f'crc32c="{core.CRC32C}",implementation="{core.IMPLEMENTATION}"'
        (line,) = [line for line in page.splitlines() if line.startswith("pybroker_wire_core_info{")]
        assert line.endswith(" 1")
        assert all(label in line for label in labels.split(","))
        diagnostics = (await http.call("GET", "/admin/v3/diagnostics")).json
        assert diagnostics["wireCore"] == core.IMPLEMENTATION
        assert diagnostics["pythonBuild"] == python_build()
        assert (await http.call("GET", "/admin/v3/console/broker")).json["wireCore"] == core.IMPLEMENTATION


async def test_a_client_certificate_is_the_role_over_https(tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path)
    server, client = authority.server(), authority.client("boss")
    async with served(
        web_service_port=None,
        web_service_port_tls=0,
        tls_certificate_file_path=str(server.certificate),
        tls_key_file_path=str(server.key),
        tls_trust_certs_file_path=str(authority.certificate_path),
        authentication_enabled=True,
        authentication_providers=("tls",),
        authorization_enabled=True,
        super_user_roles=("boss",),
    ) as http:
        assert (http.server.port, http.server.port_tls is not None) == (None, True)
        trusting = ssl.create_default_context(cafile=str(authority.certificate_path))
        assert (await http.call("GET", "/admin/v2/tenants", tls=trusting)).status == 401
        assert (await http.call("GET", "/metrics", tls=trusting)).status == 200
        trusting.load_cert_chain(client.certificate, client.key)
        assert (await http.call("GET", "/admin/v2/tenants", tls=trusting)).json == ["public", "pulsar"]
        other = authority.client("other")
        trusting.load_cert_chain(other.certificate, other.key)
        refused = await http.call("GET", "/admin/v2/tenants", tls=trusting)
        assert (refused.status, "superuser" in refused.reason) == (401, True)


@pytest.mark.parametrize(
    ("accepted", "is_compressed"),
    [("gzip", True), ("deflate, GZIP;q=0.5", True), ("gzip;q=0", False), ("identity", False), ("br", False)],
)
async def test_the_page_is_compressed_for_those_who_take_it(accepted: str, is_compressed: bool) -> None:
    async with served() as http:
        http.broker.add_topic("t")
        answer = await http.call("GET", "/metrics", headers={"Accept-Encoding": accepted})
        assert (answer.headers.get("content-encoding") == "gzip") is is_compressed
        assert answer.headers["vary"] == "Accept-Encoding"
        page = gzip.decompress(answer.body) if is_compressed else answer.body
        assert b"pulsar_topics_count" in page


async def test_a_scrape_that_takes_too_long_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    def endless(page: MetricsPage) -> Iterator[str]:
        while True:
            yield "# more\n"

    monkeypatch.setattr(MetricsPage, "slices", endless)
    async with served(metrics_servlet_timeout_ms=50) as http:
        reader, writer = await asyncio.open_connection("127.0.0.1", http.port)
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        page = b""
        with contextlib.suppress(ConnectionError), contextlib.closing(writer):
            while more := await reader.read(1 << 16):
                page += more
        assert page.startswith(b"HTTP/1.1 200 OK\r\n")
        assert not page.endswith(b"\r\n0\r\n\r\n"), "the page claims to be whole"
        http.broker.add_topic("t")
        assert (await http.call("GET", "/admin/v2/tenants")).status == 200
