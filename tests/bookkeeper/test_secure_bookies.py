"""TLS and SASL DIGEST-MD5 with real bookies, and ledgers exchanged with the Java client over them."""

from __future__ import annotations

import asyncio
import secrets
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pulsar
import pytest
import uvloop
from tests.bookkeeper.conftest import connected, init_metadata
from tests.support.bookkeeper_cluster import BookKeeperCluster, JavaClient, bookkeeper_cluster
from tests.support.broker_process import BrokerProcess
from tests.support.credentials import CertificateAuthority

from pybroker.bookkeeper import BookKeeperOptions, Quorums
from pybroker.bookkeeper.errors import BookieUnavailable, BookKeeperError
from pybroker.bookkeeper.secure_connections import SecureConnector
from pybroker.bookkeeper_store.bookie_security import SASL_PLUGIN
from pybroker.zookeeper.digest_md5 import SaslCredentials

OPTIONS = BookKeeperOptions(quorums=Quorums(2, 2, 2), append_timeout_ms=3000)
USER = SaslCredentials("bookkeeper-user", "secret")
_SASL = "org.apache.bookkeeper.sasl."
_JAAS = """
Bookie { org.apache.zookeeper.server.auth.DigestLoginModule required user_bookkeeper-user="secret"; };
BookKeeper { org.apache.zookeeper.server.auth.DigestLoginModule required username="bookkeeper-user" password="secret"; };
"""


@dataclass
class SecureCluster:
    cluster: BookKeeperCluster
    authority: CertificateAuthority
    java: JavaClient
    jaas: Path

    def connector(self, user: SaslCredentials | None = USER, *, has_tls: bool = True) -> SecureConnector:
        tls = ssl.create_default_context(cafile=self.authority.certificate_path) if has_tls else None
        return SecureConnector(tls, user, lambda: secrets.token_hex(16), answer_timeout_ms=1000)


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureCluster]:
    directory: Path = tmp_path_factory.mktemp("secure")
    authority = CertificateAuthority(directory)
    files = authority.server()
    jaas = directory / "jaas.conf"
    jaas.write_text(_JAAS)
    java_options = [f"-Djava.security.auth.login.config={jaas}", "-Dzookeeper.sasl.client=false"]
    tls = {"tlsProviderFactoryClass": "org.apache.bookkeeper.tls.TLSContextFactory", "tlsProvider": "JDK"}
    settings = {
        **tls,
        "tlsKeyStoreType": "PEM",
        "tlsKeyStore": files.key,
        "tlsCertificatePath": files.certificate,
        "tlsClientAuthentication": "false",
        "bookieAuthProviderFactoryClass": f"{_SASL}SASLBookieAuthProviderFactory",
    }
    client = {
        **tls,
        "useV2WireProtocol": "false",
        "clientTrustStoreType": "PEM",
        "clientTrustStore": str(authority.certificate_path),
        "clientAuthProviderFactoryClass": f"{_SASL}SASLClientProviderFactory",
    }
    with bookkeeper_cluster(2, settings, java_options=java_options) as cluster:
        words = [f"{key}={value}" for key, value in client.items()]
        java = JavaClient(cluster.class_path, directory, cluster.zookeeper.address, *words, java_options=java_options)
        try:
            yield SecureCluster(cluster, authority, java, jaas)
        finally:
            java.close()


async def _exchange(secure: SecureCluster, connector: SecureConnector) -> None:
    payloads = [b"x" * size for size in (0, 1, 1000, 100_000)] * 20
    async with connected(secure.cluster, OPTIONS, connector) as client:
        writer = await client.create_ledger()
        await asyncio.gather(*(writer.add(each) for each in payloads))
        assert (await client.bookie_space(writer.ensemble[0])).total_bytes > 0
        length, *read = await asyncio.to_thread(secure.java.run, "read", str(writer.ledger_id), "CRC32C", "")
        assert (int(length), [len(each) for each in read]) == (sum(map(len, payloads)), list(map(len, payloads)))
        reader = await client.recover_ledger(writer.ledger_id)
        assert [entry.payload async for entry in reader.entries(0, 200_000)] == payloads
        (name,) = await asyncio.to_thread(secure.java.run, "write", "30", "2", "2", "2", "CRC32C", "", "open")
        reader = await client.recover_ledger(int(name))
        assert [entry.payload async for entry in reader.entries(0, 100)] == [b"java %d" % each for each in range(30)]


@pytest.mark.parametrize("has_tls", [True, False])
async def test_ledgers_are_exchanged_over_tls_and_sasl(secure: SecureCluster, has_tls: bool) -> None:
    await _exchange(secure, secure.connector(has_tls=has_tls))


def test_ledgers_are_exchanged_on_uvloop(secure: SecureCluster) -> None:
    uvloop.run(_exchange(secure, secure.connector()))


async def test_wrong_user_is_refused(secure: SecureCluster) -> None:
    bookie_id = secure.cluster.bookies[0].bookie_id
    for user in (SaslCredentials(USER.user, "wrong"), SaslCredentials("bookkeeper-nobody", "secret")):
        async with connected(secure.cluster, OPTIONS, secure.connector(user)) as client:
            with pytest.raises(BookieUnavailable, match="check user and password"):
                await client.bookie_space(bookie_id)
    async with connected(secure.cluster, OPTIONS, secure.connector(None)) as client:
        with pytest.raises(BookieUnavailable, match="requires that its clients authenticate"):
            await client.bookie_space(bookie_id)


async def test_client_without_user_is_refused(secure: SecureCluster) -> None:
    async with connected(secure.cluster, OPTIONS) as client:
        writer = await client.create_ledger()
        with pytest.raises(BookKeeperError, match="authentication"):
            await writer.add(b"never stored")


async def test_untrusted_certificate_is_refused(secure: SecureCluster, tmp_path: Path) -> None:
    other = SecureCluster(secure.cluster, CertificateAuthority(tmp_path), secure.java, secure.jaas)
    async with connected(secure.cluster, OPTIONS, other.connector()) as client:
        with pytest.raises(BookieUnavailable, match="certificate verify failed"):
            await client.bookie_space(secure.cluster.bookies[0].bookie_id)


def test_whole_broker_uses_secure_bookies_by_configuration(secure: SecureCluster, tmp_path: Path) -> None:
    """An acknowledgement survives a restart, and messages survive kill -9."""
    init_metadata("secure", secure.cluster.zookeeper.address)
    settings = {
        "clusterName": "secure",
        "metadataStoreUrl": f"zk:{secure.cluster.zookeeper.address}",
        "bookkeeperTLSClientAuthentication": "true",
        "bookkeeperTLSTrustCertsFilePath": str(secure.authority.certificate_path),
        "bookkeeperClientAuthenticationPlugin": SASL_PLUGIN,
        "bookkeeperClientAuthenticationParametersName": "saslJaasClientSectionName",
        "bookkeeperClientAuthenticationParameters": "BookKeeper",
        "bookkeeperClientSaslJaasFilePath": str(secure.jaas),
        "ledgerStore": "bookkeeper",
    }
    broker = BrokerProcess(tmp_path, settings)
    topic = "persistent://public/default/secure"
    broker.start()
    try:
        client = pulsar.Client(broker.url)
        consumer = client.subscribe(topic, "sub", initial_position=pulsar.InitialPosition.Earliest)
        producer = client.create_producer(topic, batching_enabled=False)
        for number in range(20):
            producer.send(b"%d" % number)
        assert consumer.receive(20_000).data() == b"0"
        consumer.acknowledge(consumer.receive(20_000))
        client.close()
        assert broker.stop() == 0
        broker.start()
        client = pulsar.Client(broker.url)
        client.create_producer(topic, batching_enabled=False).send(b"20")
        broker.kill()
        client.close()
        broker.start()
        client = pulsar.Client(broker.url)
        consumer = client.subscribe(topic, "sub")
        received = {consumer.receive(20_000).data() for _ in range(20)}
        assert received == {b"%d" % number for number in range(21)} - {b"1"}
        client.close()
    finally:
        broker.stop()
