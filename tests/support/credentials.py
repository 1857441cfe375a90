"""Keys, certificates, tokens and password files, created on demand, so that the repository contains no secrets."""

from __future__ import annotations

import base64
import datetime as dt
import ipaddress
import secrets
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jwt
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

PrivateKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey


@dataclass(frozen=True)
class CertificateFiles:
    """A certificate and its key, PEM."""

    certificate: Path
    key: Path


class CertificateAuthority:
    """Signs server and client certificates into `directory`."""

    def __init__(self, directory: Path, name: str = "test-ca") -> None:
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = _builder(self._name, self._name, self._key).add_extension(
            x509.BasicConstraints(ca=True, path_length=0), critical=True
        )
        self._certificate = builder.sign(self._key, hashes.SHA256())
        self.certificate_path = directory / f"{name}.pem"
        self.certificate_path.write_bytes(self._certificate.public_bytes(serialization.Encoding.PEM))

    def server(self, name: str = "localhost", *, addresses: tuple[str, ...] = ("127.0.0.1",)) -> CertificateFiles:
        """A server certificate for `localhost` and `addresses`."""
        of_addresses = [x509.IPAddress(ipaddress.ip_address(address)) for address in addresses]
        names = x509.SubjectAlternativeName([x509.DNSName("localhost"), *of_addresses])
        return self._issue(
            name, ExtendedKeyUsageOID.SERVER_AUTH, [x509.NameAttribute(NameOID.COMMON_NAME, name)], names
        )

    def client(self, role: str | None) -> CertificateFiles:
        """Create a client certificate with the common name `role`, or without one."""
        subject = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, "tests")]
        if role is not None:
            subject.append(x509.NameAttribute(NameOID.COMMON_NAME, role))
        return self._issue(f"client-{role}", ExtendedKeyUsageOID.CLIENT_AUTH, subject, None)

    def _issue(
        self,
        file_name: str,
        usage: x509.ObjectIdentifier,
        subject: list[x509.NameAttribute[str]],
        names: x509.SubjectAlternativeName | None,
    ) -> CertificateFiles:
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(x509.Name(subject), self._name, key).add_extension(
            x509.ExtendedKeyUsage([usage]), critical=False
        )
        if names is not None:
            builder = builder.add_extension(names, critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        files = CertificateFiles(self._directory / f"{file_name}.pem", self._directory / f"{file_name}.key")
        files.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        files.key.write_bytes(private_pem(key))
        return files


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(days=2))
    )


@cache
def rsa_key(number: int = 0) -> rsa.RSAPrivateKey:
    """Return one of several keys. Each is created once per run, because that is slow."""
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def private_pem(key: PrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def public_der(key: PrivateKey) -> bytes:
    """Return the public key in the format of `pulsar tokens create-key-pair`."""
    return key.public_key().public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)


def public_pem(key: PrivateKey) -> bytes:
    return key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def secret_key() -> bytes:
    return secrets.token_bytes(32)


def data_url(content: bytes) -> str:
    return "data:;base64," + base64.b64encode(content).decode()


def token(key: bytes | PrivateKey, algorithm: str = "HS256", **claims: Any) -> str:
    """Return a signed token with `claims` such as `sub` (the role) and `exp`."""
    return jwt.encode(claims, key, algorithm)


def htpasswd(directory: Path, **passwords: str) -> Path:
    """Write a `.htpasswd` file with an apr1 hash for each user."""
    from passlib.hash import apr_md5_crypt  # type: ignore[import-untyped]

    path = directory / ".htpasswd"
    path.write_text("".join(f"{user}:{apr_md5_crypt.hash(password)}\n" for user, password in passwords.items()))
    return path
