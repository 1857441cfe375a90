"""A broker with TLS, three authentication methods and permissions, and credentials for any role."""

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pulsar
from tests.support import credentials
from tests.support.broker_process import BrokerProcess
from tests.support.credentials import CertificateAuthority, CertificateFiles
from tests.support.rest import Answer, call, client_tls

PACKAGE = "org.apache.pulsar.broker.authentication."
PROVIDERS = ",".join(f"{PACKAGE}AuthenticationProvider{name}" for name in ("Tls", "Token", "Basic"))
PLAIN, TLS, HTTP, HTTPS = PORTS = ("broker_url", "broker_url_tls", "http_url", "http_url_tls")


@dataclass
class Secured:
    """A broker with all security features, and its credentials."""

    process: BrokerProcess
    authority: CertificateAuthority
    secret: bytes
    certificates: dict[str, CertificateFiles] = field(default_factory=dict)

    def url(self, port: str) -> str:
        return str(self.process.ready[port])

    def certificate(self, role: str | None) -> CertificateFiles:
        name = str(role)
        if name not in self.certificates:
            self.certificates[name] = self.authority.client(role)
        return self.certificates[name]

    def token(self, role: str, **claims: Any) -> str:
        return credentials.token(self.secret, sub=role, **claims)

    def authentication(self, method: str, role: str) -> pulsar.Authentication:
        """Return credentials of `role` for the official client."""
        if method == "tls":
            files = self.certificate(role)
            return pulsar.AuthenticationTLS(str(files.certificate), str(files.key))
        if method == "basic":
            return pulsar.AuthenticationBasic(role, f"password of {role}")
        return pulsar.AuthenticationToken(self.token(role))

    @contextmanager
    def client(
        self, authentication: pulsar.Authentication | None = None, port: str = PLAIN, timeout_s: int = 20
    ) -> Iterator[pulsar.Client]:
        """Yield the official client. `timeout_s`: how long it retries."""
        client = pulsar.Client(
            self.url(port),
            authentication,
            operation_timeout_seconds=timeout_s,
            tls_trust_certs_file_path=str(self.authority.certificate_path),
            logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
        )
        try:
            yield client
        finally:
            client.close()

    def rest(self, method: str, path: str, role: str | None = None, *, body: object = None, port: str = HTTP) -> Answer:
        """Send a REST request with the token of `role`, or without credentials."""
        headers = {} if role is None else {"Authorization": f"Bearer {self.token(role)}"}
        return call(self.url(port) + path, method, body=body, headers=headers, tls=self.tls())

    def tls(self, role: str | None = None) -> ssl.SSLContext:
        certificate = None if role is None else self.certificate(role)
        return client_tls(self.authority.certificate_path, certificate)


def tls_settings(authority: CertificateAuthority) -> dict[str, str]:
    server = authority.server()
    return {
        "brokerServicePortTls": "0",
        "webServicePortTls": "0",
        "tlsCertificateFilePath": str(server.certificate),
        "tlsKeyFilePath": str(server.key),
        "tlsTrustCertsFilePath": str(authority.certificate_path),
    }
