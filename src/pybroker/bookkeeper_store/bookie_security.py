"""TLS and authentication of connections to bookies, as Pulsar's configuration keys request."""

from __future__ import annotations

import ssl
from pathlib import Path

from pybroker.bookkeeper.bookie_connection import OpenTransport
from pybroker.bookkeeper.bookie_pool import open_tcp
from pybroker.bookkeeper.secure_connections import SecureConnector
from pybroker.config import BrokerConfig, ConfigError
from pybroker.runtime.runtime import Runtime
from pybroker.zookeeper.digest_md5 import SaslCredentials
from pybroker.zookeeper.jaas import sasl_credentials

SASL_PLUGIN = "org.apache.bookkeeper.sasl.SASLClientProviderFactory"
SASL_PARAMETER = "saslJaasClientSectionName"
DEFAULT_SECTION = "BookKeeper"
"""Name of the JAAS section if the configuration gives none, as in the Java client."""
_PEM = "PEM"


def bookie_transport(runtime: Runtime) -> OpenTransport:
    """Return the function that opens connections to bookies, with TLS and authentication as configured. Raises
    ConfigError.
    """
    config = runtime.config
    tls, user = _tls(config), _credentials(config)
    if tls is None and user is None:
        return open_tcp
    return SecureConnector(
        tls,
        user,
        lambda: f"{runtime.random.getrandbits(128):032x}",
        answer_timeout_ms=config.bookkeeper_client_timeout_in_seconds * 1000,
    )


def _tls(config: BrokerConfig) -> ssl.SSLContext | None:
    if not config.bookkeeper_tls_client_authentication:
        return None
    for key, value in (
        ("bookkeeperTLSKeyFileType", config.bookkeeper_tls_key_file_type),
        ("bookkeeperTLSTrustCertTypes", config.bookkeeper_tls_trust_cert_types),
    ):
        if value != _PEM:
            raise ConfigError(f"{key}={value}: the broker can read only {_PEM} files. Convert the key store to {_PEM}")
    try:
        context = ssl.create_default_context(cafile=config.bookkeeper_tls_trust_certs_file_path or None)
        context.check_hostname = config.bookkeeper_tls_hostname_verification_enabled
        if config.bookkeeper_tls_certificate_file_path:
            context.load_cert_chain(
                config.bookkeeper_tls_certificate_file_path,
                config.bookkeeper_tls_key_file_path or None,
                _key_password(config),
            )
    except OSError as error:
        raise ConfigError(f"the bookkeeperTLS* files cannot be used: {error}") from error
    return context


def _key_password(config: BrokerConfig) -> str:
    """Return the password of the TLS key; "" if none is configured, because OpenSSL would otherwise ask on the
    terminal.
    """
    path = config.bookkeeper_tls_key_store_password_path
    return Path(path).read_text(encoding="utf-8").strip() if path else ""


def _credentials(config: BrokerConfig) -> SaslCredentials | None:
    plugin = config.bookkeeper_client_authentication_plugin
    if not plugin:
        return None
    if plugin != SASL_PLUGIN:
        raise ConfigError(
            f"bookkeeperClientAuthenticationPlugin={plugin} is not supported: the broker has only {SASL_PLUGIN}"
        )
    name = config.bookkeeper_client_authentication_parameters_name
    if name not in ("", SASL_PARAMETER):
        raise ConfigError(
            f"bookkeeperClientAuthenticationParametersName={name} is not a parameter of {SASL_PLUGIN}: use {SASL_PARAMETER}"
        )
    path = config.bookkeeper_client_sasl_jaas_file_path or config.metadata_store_sasl_jaas_file_path
    if not path:
        raise ConfigError(
            "bookkeeperClientAuthenticationPlugin needs a JAAS file with user and password: set bookkeeperClientSaslJaasFilePath"
        )
    section = config.bookkeeper_client_authentication_parameters or DEFAULT_SECTION
    try:
        return sasl_credentials(Path(path).read_text(encoding="utf-8"), section)
    except UnicodeDecodeError as error:
        raise ConfigError(f"bookkeeperClientSaslJaasFilePath: the file {path} is not UTF-8") from error
    except (OSError, ValueError) as error:
        raise ConfigError(f"bookkeeperClientSaslJaasFilePath: the file {path} cannot be used: {error}") from error
