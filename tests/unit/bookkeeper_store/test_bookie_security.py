"""The keys for TLS and authentication at bookies."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pybroker.bookkeeper.bookie_pool import open_tcp
from pybroker.bookkeeper.secure_connections import SecureConnector
from pybroker.bookkeeper_store.bookie_security import SASL_PLUGIN, bookie_transport
from pybroker.config import ConfigError, load
from pybroker.runtime.runtime import Runtime

JAAS = 'BookKeeper { org.apache.zookeeper.server.auth.DigestLoginModule required username="u" password="p"; };'


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bookkeeperTLSKeyFileType": "JKS"}, "the broker can read only PEM files"),
        ({"bookkeeperTLSTrustCertsFilePath": "/missing.pem"}, "bookkeeperTLS* files cannot be used"),
        (
            {"bookkeeperClientAuthenticationPlugin": "org.example.Other"},
            "the broker has only org.apache.bookkeeper.sasl",
        ),
        ({"bookkeeperClientAuthenticationParametersName": "other"}, "use saslJaasClientSectionName"),
        ({"bookkeeperClientAuthenticationParameters": "Missing"}, "no section Missing"),
        ({"bookkeeperClientSaslJaasFilePath": ""}, "set bookkeeperClientSaslJaasFilePath"),
    ],
)
def test_unusable_security_is_refused(tmp_path: Path, changes: dict[str, str], message: str) -> None:
    jaas = tmp_path / "jaas.conf"
    jaas.write_text(JAAS)
    values = {
        "bookkeeperTLSClientAuthentication": "true",
        "bookkeeperClientAuthenticationPlugin": SASL_PLUGIN,
        "bookkeeperClientSaslJaasFilePath": str(jaas),
    }
    config = load(None, {}, values | changes).config
    with pytest.raises(ConfigError, match=re.escape(message)):
        bookie_transport(Runtime(config))
    config = load(None, {}, values).config
    assert isinstance(bookie_transport(Runtime(config)), SecureConnector)


def test_plain_connections_are_the_default() -> None:
    assert bookie_transport(Runtime(load(None, {}, {}).config)) is open_tcp


def test_jaas_file_of_the_metadata_store_is_used_too(tmp_path: Path) -> None:
    jaas = tmp_path / "jaas.conf"
    jaas.write_text(JAAS)
    values = {"bookkeeperClientAuthenticationPlugin": SASL_PLUGIN, "metadataStoreSaslJaasFilePath": str(jaas)}
    assert isinstance(bookie_transport(Runtime(load(None, {}, values).config)), SecureConnector)
