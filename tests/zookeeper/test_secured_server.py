"""A real ZooKeeper with TLS and with SASL: right credentials work, and each wrong one is named by the error."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.support.credentials import CertificateAuthority, CertificateFiles
from tests.support.frame_proxy import Direction, FrameProxy, frame_proxy
from tests.support.waiting import until
from tests.support.zookeeper_server import ZooKeeperServer, free_port, zookeeper_server

from pybroker.config import BrokerConfig, ConfigError
from pybroker.errors import StoreError
from pybroker.metadata.shared_metadata import client_options, open_shared_metadata, shared_addresses
from pybroker.zookeeper import ClientOptions, ServerAddresses, SessionEvent, ZooKeeperClient
from pybroker.zookeeper.digest_md5 import SaslCredentials
from pybroker.zookeeper.errors import AuthFailed, ConnectionLoss, NoAuth
from pybroker.zookeeper.operations import CREATOR_ACL

MODULE = "org.apache.zookeeper.server.auth.DigestLoginModule"
RIGHT = SaslCredentials("broker", "s\u00e9cret")
SESSION_MS = 4000


class Secured(NamedTuple):
    server: ZooKeeperServer
    tls_port: int
    directory: Path
    authority: CertificateAuthority
    client_certificate: CertificateFiles


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """A server with a plain port and one with TLS, which asks for client certificates; SASL on both."""
    directory = tmp_path_factory.mktemp("secured")
    authority = CertificateAuthority(directory)
    own = authority.server(addresses=())
    pem = directory / "server.pem"
    pem.write_bytes(own.key.read_bytes() + own.certificate.read_bytes())
    jaas = directory / "server-jaas.conf"
    jaas.write_text(f'Server {{ {MODULE} required user_{RIGHT.user}="{RIGHT.password}"; }};\n', encoding="utf-8")
    tls_port = free_port()
    with zookeeper_server(
        "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory",
        f"secureClientPort={tls_port}",
        "secureClientPortAddress=127.0.0.1",
        f"ssl.keyStore.location={pem}",
        "ssl.keyStore.type=PEM",
        f"ssl.trustStore.location={authority.certificate_path}",
        "ssl.trustStore.type=PEM",
        "ssl.clientAuth=need",
        "authProvider.1=org.apache.zookeeper.server.auth.SASLAuthenticationProvider",
        defines=(f"java.security.auth.login.config={jaas}", "file.encoding=UTF-8"),
    ) as server:
        yield Secured(server, tls_port, directory, authority, authority.client("broker"))


def tls_config(secured: Secured, **changes: str) -> BrokerConfig:
    values: dict[str, str] = {
        "metadata_store_url": f"zk:localhost:{secured.tls_port}",
        "metadata_store_tls_trust_certs_file_path": str(secured.authority.certificate_path),
        "metadata_store_tls_certificate_file_path": str(secured.client_certificate.certificate),
        "metadata_store_tls_key_file_path": str(secured.client_certificate.key),
    }
    return BrokerConfig(
        ledger_store="local",
        cluster_name="c1",
        metadata_store_tls_enabled=True,
        metadata_store_session_timeout_millis=SESSION_MS,
        metadata_store_start_timeout_seconds=2,
    ).replace(**(values | changes))


async def opened(config: BrokerConfig) -> None:
    addresses = shared_addresses(config)
    assert addresses is not None
    store = await open_shared_metadata(config, addresses)
    assert await store.children("/admin/clusters") == ["c1"]
    await store.close()


async def test_broker_uses_a_store_with_tls(secured: Secured) -> None:
    config = tls_config(secured)
    client = ZooKeeperClient(ServerAddresses((("localhost", secured.tls_port),)), client_options(config))
    await client.start(30)
    await client.create("/admin/clusters/c1", b"{}", makes_parents=True)
    await client.close()
    await opened(config)


async def test_wrong_tls_is_named_by_the_error(secured: Secured) -> None:
    other = CertificateAuthority(secured.directory, "other-ca")
    wrong = {
        "certificate verify failed": {"metadata_store_tls_trust_certs_file_path": str(other.certificate_path)},
        "IP address mismatch": {"metadata_store_url": f"zk:127.0.0.1:{secured.tls_port}"},
        "no session with ZooKeeper": {"metadata_store_url": f"zk:localhost:{secured.server.port}"},
        "lost|closed|alert|reset": {
            "metadata_store_tls_certificate_file_path": "",
            "metadata_store_tls_key_file_path": "",
        },
    }
    configs = [tls_config(secured, **changes) for changes in wrong.values()]
    results = await asyncio.gather(*map(opened, configs), return_exceptions=True)
    for expected, result in zip(wrong, results, strict=True):
        with pytest.raises(StoreError, match=expected):
            raise result if isinstance(result, BaseException) else AssertionError(f"no error: {expected}")


async def test_client_without_tls_is_not_served_by_a_port_with_tls(secured: Secured) -> None:
    client = ZooKeeperClient(
        ServerAddresses((("localhost", secured.tls_port),)), ClientOptions(session_timeout_ms=SESSION_MS)
    )
    with pytest.raises(ConnectionLoss):
        await client.start(1)


@asynccontextmanager
async def started(port: int, sasl: SaslCredentials | None) -> AsyncIterator[ZooKeeperClient]:
    options = ClientOptions(session_timeout_ms=SESSION_MS, sasl=sasl, acl=CREATOR_ACL)
    client = ZooKeeperClient(ServerAddresses((("127.0.0.1", port),)), options)
    await client.start(10)
    try:
        yield client
    finally:
        await client.close()


async def test_sasl_identity_alone_may_change_its_nodes_also_after_a_lost_connection(secured: Secured) -> None:
    host, port = "127.0.0.1", secured.server.port
    async with frame_proxy(host, port) as proxy, started(proxy.port, RIGHT) as client, started(port, None) as other:
        await client.create("/private", b"1")
        with pytest.raises(NoAuth):
            await other.get("/private")
        events: list[SessionEvent] = []
        client.listen(events.append)
        proxy.cut()
        await until(lambda: SessionEvent.SUSPENDED in events)
        assert (await client.get("/private"))[0] == b"1", "the request waited for the login of the next connection"
        assert events == [SessionEvent.SUSPENDED, SessionEvent.RECONNECTED]
        await client.delete("/private")


async def test_wrong_password_ends_the_start_with_a_clear_error(secured: Secured) -> None:
    for wrong in (SaslCredentials("broker", "wrong"), SaslCredentials("nobody", RIGHT.password)):
        with pytest.raises(AuthFailed, match=rf"SASL login as {wrong.user}: the server refused the credentials"):
            async with started(secured.server.port, wrong):
                pass


async def test_server_without_sasl_is_named_by_the_error(chroot: ServerAddresses) -> None:
    with pytest.raises(AuthFailed, match="the ZooKeeper server offers no SASL login"):
        async with started(chroot.servers[0][1], RIGHT):
            pass


async def test_server_that_does_not_prove_the_password_is_not_used(secured: Secured) -> None:
    """A proxy that changes the server's proof: the client sends no request after it."""
    requests: list[bytes] = []

    class Changed(FrameProxy):
        def changed(self, direction: Direction, frame: bytes) -> bytes:
            if direction is Direction.REQUEST:
                requests.append(frame)
            return frame.replace(b"rspauth=", b"rspauth=0") if direction is Direction.ANSWER else frame

    proxy = Changed("127.0.0.1", secured.server.port)
    await proxy.start()
    try:
        with pytest.raises(AuthFailed, match="did not prove that it knows the password"):
            async with started(proxy.port, RIGHT):
                pass
        await until(lambda: len(requests) == 3)  # the session, the empty token, the response
        assert all(RIGHT.password.encode() not in frame for frame in requests)
    finally:
        await proxy.close()


def test_options_come_from_the_jaas_file(tmp_path: Path) -> None:
    path = tmp_path / "client-jaas.conf"
    path.write_text(f'Client {{ {MODULE} required username="broker" password="geheim"; }};')
    config = BrokerConfig(metadata_store_sasl_jaas_file_path=str(path))
    assert client_options(config).sasl == SaslCredentials("broker", "geheim")
    assert "geheim" not in repr(client_options(config))
    with pytest.raises(ConfigError, match="has no section Other") as raised:
        client_options(config.replace(metadata_store_sasl_jaas_section="Other"))
    assert "geheim" not in str(raised.value)
    with pytest.raises(ConfigError, match="cannot be used"):
        client_options(config.replace(metadata_store_sasl_jaas_file_path=str(tmp_path / "missing")))
