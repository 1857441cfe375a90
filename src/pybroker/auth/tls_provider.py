"""Authentication method `tls`: the role is the common name in the verified client certificate."""

from __future__ import annotations

from typing import Self

from pybroker.auth import provider_names
from pybroker.auth.authentication_provider import AuthenticationProvider, Identity, ProviderEnvironment, RemoteClient
from pybroker.config.setting_types import ConfigError
from pybroker.errors import AuthenticationError


class TlsProvider(AuthenticationProvider):
    """Provider of the method `tls`. Other credentials of the client are ignored."""

    method = provider_names.TLS
    name = "AuthenticationProviderTls"

    @classmethod
    def create(cls, environment: ProviderEnvironment) -> Self:
        if environment.config.tls_allow_insecure_connection:
            raise ConfigError(
                "The authentication provider tls cannot be used with tlsAllowInsecureConnection=true: remove one "
                "of these settings"
            )
        return cls()

    async def authenticate(self, data: bytes, client: RemoteClient) -> Identity:
        if client.certificate is None:
            raise AuthenticationError("the client sent no certificate", "INVALID_CERTS")
        if not client.certificate.common_name:
            raise AuthenticationError(
                "the TLS certificate of the client has no common name, which the broker uses as the role", "INVALID_CN"
            )
        return Identity(client.certificate.common_name, provider_names.TLS, None)
