"""The Java client's OAuth 2.0 plugin against an identity provider, with tokens that expire on open connections."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.credentials import CertificateAuthority
from tests.support.identity_provider import TOKEN, IdentityProvider
from tests.support.java import java_command

pytestmark = [pytest.mark.cluster, pytest.mark.java]

PROGRAM = Path(__file__).with_name("JavaOAuth2.java")
TIMEOUT_S = 120
WORKS_MS = 8_000


def trusting(certificate: Path) -> list[str]:
    """Return the options of Java that replace the trusted authorities. Not every version has trustCertsFilePath."""
    store = certificate.with_name("trust.p12")
    command = ["keytool", "-importcert", "-noprompt", "-alias", "ca", "-file", str(certificate)]
    subprocess.run([*command, "-keystore", str(store), "-storepass", "changeit"], check=True, capture_output=True)
    return [f"-Djavax.net.ssl.trustStore={store}", "-Djavax.net.ssl.trustStorePassword=changeit"]


def test_java_client_renews_tokens_of_client_credentials(tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path)
    with IdentityProvider("RS256").serving(authority.server()) as provider:
        settings = provider.settings(authority.certificate_path)
        settings |= {"authenticationRefreshCheckSeconds": "1", "authorizationEnabled": "true", "superUserRoles": "app"}
        provider.lifetime_s = 3.0
        with BrokerProcess(tmp_path, settings).running() as broker:
            topic = "persistent://public/default/java-oauth2"
            urls = str(broker.ready["broker_url"]), str(broker.ready["http_url"])
            command = java_command(PROGRAM, *urls, topic, provider.client_parameters(tmp_path), str(WORKS_MS))
            command[1:1] = trusting(authority.certificate_path)
            ran = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
            assert ran.returncode == 0, ran.stderr + broker.log.read_text()
        assert "tenants public,pulsar" in ran.stdout
        assert provider.requests[TOKEN] >= 4
        log = broker.log.read_text()
        assert log.count("producer.created") == 1, "the producer was opened again"
        assert "client.refused" not in log
