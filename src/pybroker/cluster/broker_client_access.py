"""The address and credentials with which a broker is a client of its own cluster (`brokerClient...`)."""

from __future__ import annotations

from pybroker.client.access import (
    Access,
    AccessRefused,
    OAuth2,
    Secret,
    basic_secret,
    oauth2_of,
    tls_files,
    token_secret,
)
from pybroker.cluster.advertised_addresses import LookupResult
from pybroker.config import BrokerConfig


def broker_client_access(config: BrokerConfig, addresses: LookupResult) -> Access:
    """Return addresses and credentials for the broker's own client. The addresses are this broker's; lookups redirect
    the client to the other brokers.

    Raises AccessRefused, with the key to change, for an unknown authentication class, for bad credentials, or if the
    broker has no port of the kind that `brokerClientTlsEnabled` selects.
    """
    url = addresses.broker_url_tls if config.broker_client_tls_enabled else addresses.broker_url
    if not url:
        kind = "pulsar+ssl" if config.broker_client_tls_enabled else "pulsar"
        raise AccessRefused(
            f"the broker's own client, which calls the brokers of the cluster, needs a {kind} port, but this broker has none: "
            "change brokerClientTlsEnabled, or configure the port"
        )
    parameters = config.broker_client_authentication_parameters
    token: Secret | None = None
    oauth2: OAuth2 | None = None
    user: str | None = None
    password: Secret | None = None
    certificate: str | None = None
    key: str | None = None
    try:
        match config.broker_client_authentication_plugin.rpartition(".")[2]:
            case "" | "AuthenticationDisabled":
                pass
            case "AuthenticationToken" | "token":
                token = token_secret(parameters)
            case "AuthenticationOAuth2" | "oauth2":
                oauth2 = oauth2_of(parameters)
            case "AuthenticationBasic" | "basic":
                user, password = basic_secret(parameters)
            case "AuthenticationTls" | "tls":
                certificate, key = tls_files(parameters)
            case _:
                raise AccessRefused(
                    "brokerClientAuthenticationPlugin must be AuthenticationToken, AuthenticationOAuth2, AuthenticationBasic or "
                    f"AuthenticationTls, not {config.broker_client_authentication_plugin!r}"
                )
    except AccessRefused as error:
        raise AccessRefused(
            f"the credentials of the broker's own client (brokerClientAuthenticationParameters) cannot be used: {error}"
        ) from None
    return Access(
        url,
        token=token,
        oauth2=oauth2,
        basic_user=user,
        basic_password=password,
        tls_certificate_file=certificate,
        tls_key_file=key,
        tls_trust_certs_file=config.broker_client_trust_certs_file_path or None,
        listener_name=config.internal_listener_name or None,
    )
