"""TLS of the listeners: TLS context, client certificates, and certificate renewal.

The minimum version is TLS 1.2. TLS sessions are never resumed, because a resumed session would skip the check of the
client certificate.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from pybroker.auth.authentication_provider import PeerCertificate
from pybroker.config.broker_config import BrokerConfig
from pybroker.config.setting_types import ConfigError, Problems
from pybroker.model.counters import BrokerStats
from pybroker.runtime import logs

_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}


def server_context(config: BrokerConfig) -> ssl.SSLContext:
    """Return the context of the TLS listeners. Raises ConfigError with the invalid configuration key."""
    if config.tls_enabled_with_key_store:
        raise ConfigError(
            "tlsEnabledWithKeyStore is not supported: set tlsCertificateFilePath and tlsKeyFilePath to PEM files"
        )
    problems = Problems()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with problems.noted():
        context.minimum_version, context.maximum_version = version_range(config.tls_protocols)
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
    context.num_tickets = 0
    if ciphers := openssl_ciphers(config.tls_ciphers):
        try:
            context.set_ciphers(":".join(ciphers))
        except ssl.SSLError:
            problems.found.append(
                f"tlsCiphers contains no cipher that OpenSSL supports: {', '.join(config.tls_ciphers)}"
            )
    with problems.noted():
        _load_certificate(context, config)
    with problems.noted():
        _load_trusted(context, config)
    problems.raise_any()
    return context


def _load_certificate(context: ssl.SSLContext, config: BrokerConfig) -> None:
    problems = Problems()
    for key, path in (
        ("tlsCertificateFilePath", config.tls_certificate_file_path),
        ("tlsKeyFilePath", config.tls_key_file_path),
    ):
        with problems.noted():
            if not path:
                raise ConfigError(f"a TLS port is configured, so {key} must be set")
            _require_readable(key, path)
    problems.raise_any()
    try:
        # Without a password callback, OpenSSL would prompt at the terminal and block the broker.
        context.load_cert_chain(config.tls_certificate_file_path, config.tls_key_file_path, password=_no_password)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"tlsCertificateFilePath and tlsKeyFilePath must be a PEM certificate and its unencrypted key: {error}"
        ) from error


def _load_trusted(context: ssl.SSLContext, config: BrokerConfig) -> None:
    context.verify_mode = ssl.CERT_NONE
    if config.tls_trust_certs_file_path:
        _require_readable("tlsTrustCertsFilePath", config.tls_trust_certs_file_path)
        try:
            context.load_verify_locations(config.tls_trust_certs_file_path)
        except OSError as error:
            raise ConfigError(f"tlsTrustCertsFilePath contains no PEM certificates: {error}") from error
        context.verify_mode = ssl.CERT_OPTIONAL
    if config.tls_require_trusted_client_cert_on_connect:
        if not config.tls_trust_certs_file_path:
            raise ConfigError("tlsRequireTrustedClientCertOnConnect needs tlsTrustCertsFilePath")
        context.verify_mode = ssl.CERT_REQUIRED
    elif config.tls_allow_insecure_connection:
        # Python's ssl module either verifies client certificates or requests none. Clients then have no TLS role.
        context.verify_mode = ssl.CERT_NONE


def _require_readable(key: str, path: str) -> None:
    try:
        Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"{key}: {path} cannot be read: {error.strerror}") from error


def _no_password() -> bytes:
    raise ValueError(
        "the private key is encrypted with a password, which is not supported: store the key without a password, in a "
        "file that only the broker's user can read"
    )


def version_range(protocols: Sequence[str]) -> tuple[ssl.TLSVersion, ssl.TLSVersion]:
    unknown = [name for name in protocols if name not in _VERSIONS]
    if unknown:
        raise ConfigError(
            f"tlsProtocols contains {', '.join(unknown)}, but the broker supports only {', '.join(_VERSIONS)}"
        )
    versions = [_VERSIONS[name] for name in protocols] or [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]
    return min(versions), max(versions)


def openssl_ciphers(names: Sequence[str]) -> list[str]:
    """Convert `tlsCiphers`, which may contain Java names, to OpenSSL names. TLS 1.3 ciphers are omitted, because Python
    cannot select them.
    """
    return [_openssl_cipher(name) for name in names if not name.startswith("TLS_") or "_WITH_" in name]


def _openssl_cipher(name: str) -> str:
    if not name.startswith("TLS_"):
        return name
    exchange, _, cipher = name.removeprefix("TLS_").partition("_WITH_")
    # TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 is ECDHE-RSA-AES128-GCM-SHA256; RSA key exchange and CBC are implied.
    cipher = cipher.replace("AES_", "AES").replace("_CBC_", "_").removesuffix("_SHA256" if "CHACHA20" in cipher else "")
    return "-".join(part for part in (exchange if exchange != "RSA" else "", cipher) if part).replace("_", "-")


def peer_certificate(ssl_object: ssl.SSLObject | ssl.SSLSocket | None) -> PeerCertificate | None:
    certificate = ssl_object.getpeercert() if ssl_object is not None else None
    if not certificate:
        return None
    common_name: str | None = None
    for relative_name in certificate.get("subject", ()):
        for attribute in relative_name:
            if attribute[0] == "commonName":
                common_name = str(attribute[1])  # the last one is the most specific
    return PeerCertificate(common_name)


class FileMark(NamedTuple):
    """Attributes of a file that change when the file is replaced."""

    path: str
    modified_ns: int
    size_bytes: int
    inode: int


def changed_files(seen: Sequence[FileMark], present: Sequence[FileMark]) -> list[str]:
    """Return the paths of changed files. A missing file counts as unchanged, because it is being replaced."""
    before = {mark.path: mark for mark in seen}
    return [mark.path for mark in present if before.get(mark.path) != mark]


class CertificateRefresher:
    """Reloads certificate files. New handshakes use the new files; existing connections continue. Invalid files do not
    replace the current certificates.
    """

    def __init__(self, context: ssl.SSLContext, config: BrokerConfig, stats: BrokerStats) -> None:
        self._config = config
        self._stats = stats
        self._current = context
        self._seen = self._marks()
        # Select the context per handshake, because loading into an existing context can add authorities but not remove
        # them.
        context.sni_callback = self._use_current
        self._note_expiry()

    async def run(self) -> None:
        """Reload changed files every tlsCertRefreshCheckDurationSec seconds until cancelled; return at once if that
        interval is 0.
        """
        period_s = self._config.tls_cert_refresh_check_duration_sec
        while period_s > 0:
            await asyncio.sleep(period_s)
            self.refresh()

    def refresh(self) -> bool:
        """Load the files if they have changed. Return True if the new files are in use now; invalid files are logged,
        and loaded again at the next call.
        """
        present = self._marks()
        changed = changed_files(self._seen, present)
        if not changed:
            return False
        try:
            self._current = server_context(self._config)
        except ConfigError as error:
            logs.warning("tls_certificate.not_refreshed", files=", ".join(changed), reason=str(error))
            return False
        self._seen = present
        self._note_expiry()
        logs.info("tls_certificate.refreshed", files=", ".join(changed))
        return True

    def _use_current(self, ssl_object: ssl.SSLObject, server_name: str | None, context: ssl.SSLContext) -> None:
        ssl_object.context = self._current

    def _note_expiry(self) -> None:
        from cryptography import x509  # noqa: PLC0415  (slow: only brokers with TLS wait for it)

        try:
            content = Path(self._config.tls_certificate_file_path).read_bytes()
            first = x509.load_pem_x509_certificates(content)[0]  # the broker's own certificate precedes its authorities
        except (OSError, ValueError):
            return  # the file is being replaced
        self._stats.certificate_expires_s = first.not_valid_after_utc.timestamp()

    def _marks(self) -> list[FileMark]:
        config = self._config
        marks = []
        for path in (config.tls_certificate_file_path, config.tls_key_file_path, config.tls_trust_certs_file_path):
            try:
                status = Path(path).stat() if path else None
            except OSError:
                continue
            if status is not None:
                marks.append(FileMark(path, status.st_mtime_ns, status.st_size, status.st_ino))
        return marks
