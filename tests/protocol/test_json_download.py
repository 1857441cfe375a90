"""Downloads of documents of an identity provider that is slow, broken or hostile: each ends with a clear error."""

from __future__ import annotations

import http.server
import itertools
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.credentials import CertificateAuthority
from tests.support.identity_provider import DISCOVERY, Fault, IdentityProvider, send

from pybroker.auth.openid.json_download import DownloadFailed, DownloadLimits, download_json

LIMITS = DownloadLimits(connect_s=5.0, response_s=5.0)
HASTY = DownloadLimits(connect_s=0.3, response_s=0.3)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> CertificateAuthority:
    return CertificateAuthority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def served(authority: CertificateAuthority) -> Iterator[IdentityProvider]:
    with IdentityProvider("ES256").serving(authority.server()) as provider:
        yield provider


@pytest.fixture
def provider(served: IdentityProvider) -> IdentityProvider:
    served.faults.clear()
    return served


def trusting(path: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(path))


async def failure(provider: IdentityProvider, authority: CertificateAuthority, limits: DownloadLimits = LIMITS) -> str:
    with pytest.raises(DownloadFailed) as caught:
        await download_json(provider.issuer + DISCOVERY, limits, trusting(authority.certificate_path))
    return str(caught.value)


async def test_document_is_downloaded_over_tls(provider: IdentityProvider, authority: CertificateAuthority) -> None:
    found = await download_json(provider.issuer + DISCOVERY, LIMITS, trusting(authority.certificate_path))
    assert found["issuer"] == provider.issuer


def send_endless(handler: http.server.BaseHTTPRequestHandler) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    for _ in itertools.count():
        handler.wfile.write(b"10000\r\n" + bytes(0x10000) + b"\r\n")


def send_slowly(handler: http.server.BaseHTTPRequestHandler) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10000\r\n\r\n")
    for _ in range(10_000):
        handler.wfile.write(b" ")
        handler.wfile.flush()
        time.sleep(0.02)


def send_raw(content: bytes) -> Fault:
    def fault(handler: http.server.BaseHTTPRequestHandler) -> None:
        handler.wfile.write(content)
        handler.close_connection = True

    return fault


FAULTS: dict[str, tuple[Fault, str]] = {
    "error": (lambda handler: send(handler, {}, 500), "status 500, an error"),
    "redirect": (
        lambda handler: send(handler, {}, 302, Location="http://127.0.0.1:1/"),
        "status 302, a redirect, which is not followed",
    ),
    "html": (
        lambda handler: send(handler, b"<html>", content_type="text/html"),
        "is not a JSON object; its content type is 'text/html'",
    ),
    "list": (lambda handler: send(handler, []), "is not a JSON object"),
    "nested": (lambda handler: send(handler, b"[" * 500_000), "is not a JSON object"),
    "not unicode": (lambda handler: send(handler, b"\xff\xfe{}\x00"), "is not a JSON object"),
    "large": (lambda handler: send(handler, bytes(3 << 20)), "larger than 1048576 bytes"),
    "endless": (send_endless, "larger than 1048576 bytes"),
    "cut": (send_raw(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{}"), "is not valid HTTP"),
    "closed": (send_raw(b""), "without a response"),
    "no http": (send_raw(b"220 smtp ready\r\n\r\n"), "is not valid HTTP"),
    "large header": (send_raw(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 200_000), "is not valid HTTP"),
}


@pytest.mark.parametrize("kind", FAULTS)
async def test_wrong_response_is_refused(
    provider: IdentityProvider, authority: CertificateAuthority, kind: str
) -> None:
    provider.faults[DISCOVERY], text = FAULTS[kind]
    found = await failure(provider, authority)
    assert text in found
    assert found.startswith(provider.issuer)


@pytest.mark.parametrize("fault", [send_slowly, lambda handler: time.sleep(1)], ids=["drip", "silent"])
async def test_slow_response_is_abandoned(
    provider: IdentityProvider, authority: CertificateAuthority, fault: Fault
) -> None:
    provider.faults[DISCOVERY] = fault
    assert "no complete response within 0.3 s" in await failure(provider, authority, HASTY)


async def test_untrusted_certificate_is_refused(provider: IdentityProvider, tmp_path: Path) -> None:
    other = CertificateAuthority(tmp_path, "other")
    assert "the certificate is not trusted" in await failure(provider, other)


async def test_certificate_of_another_host_is_refused(authority: CertificateAuthority) -> None:
    with IdentityProvider("ES256").serving(authority.server("other", addresses=())) as provider:
        provider.issuer = provider.issuer.replace("localhost", "127.0.0.1")
        assert "the certificate is not trusted (IP address mismatch" in await failure(provider, authority)


@pytest.mark.parametrize("url", ["https://localhost:1/", "https://no-such-host.invalid/", f"https://{'x' * 300}/"])
async def test_unreachable_server_is_reported(authority: CertificateAuthority, url: str) -> None:
    with pytest.raises(DownloadFailed, match=url[:40]):
        await download_json(url, LIMITS, trusting(authority.certificate_path))


async def test_server_that_accepts_no_tls_is_abandoned(authority: CertificateAuthority) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"https://127.0.0.1:{silent.getsockname()[1]}/"
        with pytest.raises(DownloadFailed, match=r"no connection within 0\.3 s"):
            await download_json(url, HASTY, trusting(authority.certificate_path))
