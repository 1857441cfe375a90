"""TLS contexts: accepted clients, certificates, and renewed files. Without a socket."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from cryptography import x509
from tests.support.credentials import CertificateAuthority, CertificateFiles

from pybroker.auth.authentication_provider import PeerCertificate
from pybroker.auth.server_tls import (
    CertificateRefresher,
    FileMark,
    changed_files,
    openssl_ciphers,
    peer_certificate,
    server_context,
    version_range,
)
from pybroker.config.broker_config import BrokerConfig
from pybroker.config.setting_types import ConfigError
from pybroker.model.counters import BrokerStats


@pytest.fixture
def authority(tmp_path: Path) -> CertificateAuthority:
    return CertificateAuthority(tmp_path)


@pytest.fixture
def config(authority: CertificateAuthority) -> BrokerConfig:
    files = authority.server()
    return BrokerConfig().replace(
        tls_certificate_file_path=str(files.certificate),
        tls_key_file_path=str(files.key),
        tls_trust_certs_file_path=str(authority.certificate_path),
    )


def client_context(authority: CertificateAuthority, files: CertificateFiles | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(authority.certificate_path))
    if files is not None:
        context.load_cert_chain(files.certificate, files.key)
    return context


def handshake(server: ssl.SSLContext, client: ssl.SSLContext) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """Complete a handshake in memory; return the server's and the client's side."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server_side = server.wrap_bio(to_server, to_client, server_side=True)
    client_side = client.wrap_bio(to_client, to_server, server_hostname="localhost")
    waiting = [client_side, server_side]
    for _ in range(20):
        for side in list(waiting):
            try:
                side.do_handshake()
                waiting.remove(side)
            except ssl.SSLWantReadError:
                pass
        if not waiting:
            return server_side, client_side
    raise AssertionError("the handshake did not end")


def test_the_role_of_a_trusted_client_certificate_is_its_common_name(
    config: BrokerConfig, authority: CertificateAuthority
) -> None:
    server, _ = handshake(server_context(config), client_context(authority, authority.client("app-1")))
    assert peer_certificate(server) == PeerCertificate("app-1")


def test_a_certificate_without_a_common_name_has_no_role(config: BrokerConfig, authority: CertificateAuthority) -> None:
    server, _ = handshake(server_context(config), client_context(authority, authority.client(None)))
    assert peer_certificate(server) == PeerCertificate(None)


def test_a_client_without_a_certificate_may_connect_unless_one_is_required(
    config: BrokerConfig, authority: CertificateAuthority
) -> None:
    server, _ = handshake(server_context(config), client_context(authority))
    assert peer_certificate(server) is None
    assert peer_certificate(None) is None
    required = server_context(config.replace(tls_require_trusted_client_cert_on_connect=True))
    with pytest.raises(ssl.SSLError):
        handshake(required, client_context(authority))
    server, _ = handshake(required, client_context(authority, authority.client("app")))
    assert peer_certificate(server) == PeerCertificate("app")


def test_a_certificate_of_an_unknown_authority_is_refused(
    config: BrokerConfig, authority: CertificateAuthority, tmp_path: Path
) -> None:
    stranger = CertificateAuthority(tmp_path, "stranger").client("root")
    with pytest.raises(ssl.SSLError):
        handshake(server_context(config), client_context(authority, stranger))


def test_an_insecure_listener_lets_a_stranger_in_without_a_role(
    config: BrokerConfig, authority: CertificateAuthority, tmp_path: Path
) -> None:
    stranger = CertificateAuthority(tmp_path, "stranger").client("root")
    insecure = server_context(config.replace(tls_allow_insecure_connection=True))
    server, _ = handshake(insecure, client_context(authority, stranger))
    assert peer_certificate(server) is None


def test_versions_before_tls_1_2_are_refused(config: BrokerConfig, authority: CertificateAuthority) -> None:
    context = server_context(config)
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
    only_13 = server_context(config.replace(tls_protocols=("TLSv1.3",)))
    client = client_context(authority)
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLError):
        handshake(only_13, client)


def test_the_configured_versions_make_a_range() -> None:
    old, new = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3
    assert version_range(()) == (old, new)
    assert version_range(("TLSv1.3", "TLSv1.2")) == (old, new)
    assert version_range(("TLSv1.2",)) == (old, old)
    with pytest.raises(ConfigError, match=r"tlsProtocols contains TLSv1\.1"):
        version_range(("TLSv1.1", "TLSv1.2"))


def test_ciphers_have_javas_or_openssls_names(config: BrokerConfig, authority: CertificateAuthority) -> None:
    assert openssl_ciphers(
        (
            "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
            "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
            "TLS_RSA_WITH_AES_256_CBC_SHA256",
            "TLS_AES_128_GCM_SHA256",
            "ECDHE-ECDSA-AES128-GCM-SHA256",
        )
    ) == [
        "ECDHE-RSA-AES128-GCM-SHA256",
        "ECDHE-ECDSA-CHACHA20-POLY1305",
        "AES256-SHA256",
        "ECDHE-ECDSA-AES128-GCM-SHA256",
    ]
    chosen = config.replace(tls_protocols=("TLSv1.2",), tls_ciphers=("TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",))
    _, client = handshake(server_context(chosen), client_context(authority))
    cipher = client.cipher()
    assert cipher is not None
    assert cipher[0] == "ECDHE-ECDSA-AES256-GCM-SHA384"
    with pytest.raises(ConfigError, match="tlsCiphers"):
        server_context(config.replace(tls_ciphers=("NO-SUCH-CIPHER",)))


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"tls_certificate_file_path": ""}, "tlsCertificateFilePath must be set"),
        ({"tls_key_file_path": "/nowhere/key.pem"}, "tlsKeyFilePath: .* cannot be read"),
        ({"tls_trust_certs_file_path": "/nowhere/ca.pem"}, "tlsTrustCertsFilePath: .* cannot be read"),
        (
            {"tls_trust_certs_file_path": "", "tls_require_trusted_client_cert_on_connect": True},
            "needs tlsTrustCertsFilePath",
        ),
        ({"tls_enabled_with_key_store": True}, "tlsEnabledWithKeyStore"),
    ],
)
def test_a_configuration_that_cannot_work_names_its_key(
    config: BrokerConfig, changes: dict[str, object], match: str
) -> None:
    with pytest.raises(ConfigError, match=match):
        server_context(config.replace(**changes))


def test_files_that_hold_no_certificates_are_refused(config: BrokerConfig, tmp_path: Path) -> None:
    broken = tmp_path / "broken.pem"
    broken.write_text("nothing")
    with pytest.raises(ConfigError, match="tlsCertificateFilePath"):
        server_context(config.replace(tls_certificate_file_path=str(broken)))
    with pytest.raises(ConfigError, match="tlsTrustCertsFilePath"):
        server_context(config.replace(tls_trust_certs_file_path=str(broken)))


def server_name(client: ssl.SSLObject) -> object:
    certificate = client.getpeercert()
    assert certificate is not None
    return certificate["subject"]


def test_new_handshakes_use_renewed_files(config: BrokerConfig, authority: CertificateAuthority) -> None:
    context = server_context(config)
    refresher = CertificateRefresher(context, config, BrokerStats())
    _, before = handshake(context, client_context(authority))
    assert not refresher.refresh()

    renewed = authority.server("renewed")
    renewed.key.replace(config.tls_key_file_path)
    renewed.certificate.replace(config.tls_certificate_file_path)
    assert refresher.refresh()
    _, after = handshake(context, client_context(authority))
    assert server_name(before) == ((("commonName", "localhost"),),)
    assert server_name(after) == ((("commonName", "renewed"),),)


def test_a_removed_authority_is_trusted_no_more(
    config: BrokerConfig, authority: CertificateAuthority, tmp_path: Path
) -> None:
    context = server_context(config)
    refresher = CertificateRefresher(context, config, BrokerStats())
    client = client_context(authority, authority.client("app"))
    handshake(context, client)
    newcomer = CertificateAuthority(tmp_path, "newcomer")
    newcomer.certificate_path.replace(config.tls_trust_certs_file_path)
    assert refresher.refresh()
    with pytest.raises(ssl.SSLError):
        handshake(context, client)


def test_files_that_cannot_be_used_change_nothing_and_are_tried_again(
    config: BrokerConfig, authority: CertificateAuthority
) -> None:
    context = server_context(config)
    refresher = CertificateRefresher(context, config, BrokerStats())
    key = Path(config.tls_key_file_path)
    good = key.read_bytes()
    key.write_text("half-writ")
    assert not refresher.refresh()
    handshake(context, client_context(authority))
    key.write_bytes(good)
    assert refresher.refresh()
    handshake(context, client_context(authority))


def test_a_file_has_changed_when_any_of_its_marks_has_and_a_missing_one_has_not() -> None:
    seen = [FileMark("a", 1, 10, 5), FileMark("b", 1, 10, 6)]
    assert changed_files(seen, seen) == []
    assert changed_files(seen, seen[:1]) == []
    assert changed_files(seen, [FileMark("a", 2, 10, 5), seen[1]]) == ["a"]
    assert changed_files(seen, [seen[0], FileMark("b", 1, 10, 7)]) == ["b"]
    assert changed_files(seen[:1], seen) == ["b"]


def test_expiry_of_certificate_is_noted_at_start_and_renewal(
    config: BrokerConfig, authority: CertificateAuthority
) -> None:
    stats = BrokerStats()
    refresher = CertificateRefresher(server_context(config), config, stats)
    assert stats.certificate_expires_s == expiry_s(Path(config.tls_certificate_file_path))
    stats.certificate_expires_s = None
    renewed = authority.server("renewed")
    renewed.key.replace(config.tls_key_file_path)
    renewed.certificate.replace(config.tls_certificate_file_path)
    assert refresher.refresh()
    assert stats.certificate_expires_s == expiry_s(Path(config.tls_certificate_file_path))


def expiry_s(path: Path) -> float:
    return x509.load_pem_x509_certificate(path.read_bytes()).not_valid_after_utc.timestamp()


async def test_without_a_period_nothing_is_watched(config: BrokerConfig) -> None:
    quiet = config.replace(tls_cert_refresh_check_duration_sec=0)
    await CertificateRefresher(server_context(quiet), quiet, BrokerStats()).run()
