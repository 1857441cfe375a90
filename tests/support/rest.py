"""HTTP calls with any method, headers and client certificate; every status is returned."""

import json
import ssl
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.credentials import CertificateFiles

TIMEOUT_S = 30.0


class Answer(NamedTuple):
    status: int
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)


def call(
    url: str,
    method: str = "GET",
    *,
    body: object = None,
    headers: dict[str, str] | None = None,
    tls: ssl.SSLContext | None = None,
) -> Answer:
    """Send one request. `body` is sent as JSON, bytes unchanged."""
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    sent = {"Content-Type": "application/json", **(headers or {})}
    request = urllib.request.Request(url, data, sent, method=method)
    handlers = [] if tls is None else [urllib.request.HTTPSHandler(context=tls)]
    try:
        with urllib.request.build_opener(*handlers).open(request, timeout=TIMEOUT_S) as response:
            return Answer(response.status, response.read().decode())
    except urllib.error.HTTPError as refused:
        with refused:
            return Answer(refused.code, refused.read().decode())


def client_tls(authority: Path, certificate: CertificateFiles | None = None) -> ssl.SSLContext:
    """Return a context that trusts `authority` and presents `certificate`, if any."""
    context = ssl.create_default_context(cafile=str(authority))
    if certificate is not None:
        context.load_cert_chain(certificate.certificate, certificate.key)
    return context
