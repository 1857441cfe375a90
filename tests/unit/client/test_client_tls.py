"""The TLS settings of an access apply to every port of the broker."""

import ssl
from pathlib import Path

import pytest
from tests.support.credentials import CertificateAuthority

from pybroker.client.access import Access
from pybroker.client.client_tls import tls_context
from pybroker.client.failures import ClientError

URL = "pulsar+ssl://localhost:6651"


@pytest.mark.parametrize(
    ("insecure", "verify_hostname", "checks_hostname", "mode"),
    [
        (False, True, True, ssl.CERT_REQUIRED),
        (False, False, False, ssl.CERT_REQUIRED),
        (True, True, False, ssl.CERT_NONE),
        (True, False, False, ssl.CERT_NONE),
    ],
)
def test_only_what_was_asked_for_is_not_verified(
    insecure: bool, verify_hostname: bool, checks_hostname: bool, mode: ssl.VerifyMode
) -> None:
    context = tls_context(Access(URL, tls_allow_insecure=insecure, tls_verify_hostname=verify_hostname))
    assert (context.check_hostname, context.verify_mode) == (checks_hostname, mode)


def test_only_the_authorities_that_were_named_are_trusted(tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path)
    files = authority.client("joe")
    context = tls_context(
        Access(
            URL,
            tls_trust_certs_file=str(authority.certificate_path),
            tls_certificate_file=str(files.certificate),
            tls_key_file=str(files.key),
        )
    )
    assert len(context.get_ca_certs()) == 1


@pytest.mark.parametrize("content", [None, b"", b"no certificate"])
def test_files_that_cannot_be_used_are_refused(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "ca.pem"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ClientError, match="TLS certificates cannot be loaded"):
        tls_context(Access(URL, tls_trust_certs_file=str(path)))
