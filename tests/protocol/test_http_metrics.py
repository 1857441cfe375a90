"""The metrics page over real HTTP, plain and over TLS."""

from __future__ import annotations

import ssl
from pathlib import Path

from tests.support.credentials import CertificateAuthority
from tests.unit.admin.fake_broker import served


async def test_the_page_is_text_under_both_paths() -> None:
    async with served() as http:
        http.broker.add_topic("t")
        for path in ("/metrics", "/metrics/"):
            answer = await http.call("GET", path)
            assert (answer.status, answer.headers["content-type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
            assert b"# TYPE pulsar_topics_count gauge\n" in answer.body
        head = await http.call("HEAD", "/metrics")
        assert (head.status, head.body) == (200, b"")


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
        assert (refused.status, "super user" in refused.reason) == (401, True)
