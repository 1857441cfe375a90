"""Authentication method `tls`: the role is the common name in the verified client certificate."""

from __future__ import annotations

from pybroker.auth import provider_names
from pybroker.auth.authentication_provider import AuthenticationProvider, Identity, PeerCertificate
from pybroker.errors import AuthenticationError


class TlsProvider(AuthenticationProvider):
    """Provider of the method `tls`. Other credentials of the client are ignored."""

    def authenticate(self, data: bytes, peer_certificate: PeerCertificate | None, now_s: float) -> Identity:
        if peer_certificate is None:
            raise AuthenticationError("the client sent no certificate")
        if not peer_certificate.common_name:
            raise AuthenticationError(
                "the TLS certificate of the client has no common name, which the broker uses as the role"
            )
        return Identity(peer_certificate.common_name, provider_names.TLS, None)
