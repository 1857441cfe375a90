"""A certificate that does not verify is told at the first attempt, whatever patience there is: no later one goes otherwise."""

import asyncio
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from tests.support.credentials import CertificateAuthority

from pybroker.client import ClientError, PulsarClient, connect
from pybroker.client.access import Access
from pybroker.client.failures import NotTrusted
from pybroker.reading.positions import EntryRange
from pybroker.reading.read_options import SourceOptions
from pybroker.reading.sources import open_source

ANSWER = b'HTTP/1.1 200 OK\r\ncontent-length: 16\r\n\r\n{"lastBatch": 7}'
TOPIC = "persistent://public/default/t"
LONGER_THAN_ANY_TEST_S = 3600.0


class Stranger:
    """Speaks TLS with a certificate of its own, and counts who comes."""

    def __init__(self, directory: Path) -> None:
        files = CertificateAuthority(directory, "stranger").server()
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(files.certificate, files.key)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.connections = 0
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            connection.settimeout(10)
            try:
                self._context.wrap_socket(connection, server_side=True).close()
            except OSError:  # the other side has seen the certificate and gone
                connection.close()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()


@pytest.fixture
def stranger(tmp_path: Path) -> Iterator[Stranger]:
    server = Stranger(tmp_path)
    yield server
    server.close()


def access(stranger: Stranger, directory: Path) -> Access:
    trusted = CertificateAuthority(directory, "trusted").certificate_path
    return Access(
        f"pulsar+ssl://localhost:{stranger.port}",
        f"https://localhost:{stranger.port}",
        tls_trust_certs_file=str(trusted),
        operation_timeout_s=LONGER_THAN_ANY_TEST_S,
    )


@pytest.mark.parametrize("mode", ["binary", "bulk"])
def test_a_certificate_that_is_not_trusted_ends_reading_at_once(stranger: Stranger, tmp_path: Path, mode: str) -> None:
    options = SourceOptions(access(stranger, tmp_path), mode, patience_s=LONGER_THAN_ANY_TEST_S)

    def read() -> None:
        for _ in open_source(options).read(EntryRange(TOPIC, 1, 0, 1)):
            pytest.fail("a stranger's entries")

    with pytest.raises(ClientError, match=r"is not trusted: .*certificate.*\. Add the authority"):
        read()
    assert stranger.connections == 1


async def test_a_certificate_that_is_not_trusted_ends_a_call_over_http_at_once(
    stranger: Stranger, tmp_path: Path
) -> None:
    async with PulsarClient(access(stranger, tmp_path)) as client:
        with pytest.raises(NotTrusted, match=r"the certificate of https://localhost:.* is not trusted"):
            await client.sink("s").last_batch()
    assert stranger.connections == 1


async def test_rest_call_follows_redirect_to_another_broker() -> None:
    asked = []

    def answering(answer: bytes) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
        async def answer_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            asked.append((await reader.readuntil(b"\r\n\r\n")).split()[:2])
            writer.write(answer)
            writer.close()

        return answer_once

    owner = await asyncio.start_server(answering(ANSWER), "127.0.0.1", 0)
    location = f"http://127.0.0.1:{owner.sockets[0].getsockname()[1]}/there"
    redirect = b"HTTP/1.1 307 Temporary Redirect\r\nlocation: %s\r\ncontent-length: 0\r\n\r\n" % location.encode()
    other = await asyncio.start_server(answering(redirect), "127.0.0.1", 0)
    url = f"http://127.0.0.1:{other.sockets[0].getsockname()[1]}"
    async with owner, other, connect("pulsar://127.0.0.1:1", admin_url=url) as client:
        assert await client.sink("s").last_batch() == 7
    assert asked == [[b"GET", b"/admin/v3/transactions/sinks/s"], [b"GET", b"/there"]]
