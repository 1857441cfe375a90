"""Checks of a configuration beyond single values. All problems are reported together, before anything is opened."""

from __future__ import annotations

import re
from collections.abc import Callable
from urllib.parse import urlsplit

from pybroker.auth import provider_names
from pybroker.auth.authentication import AuthenticationService
from pybroker.auth.authorization import check_configuration as check_authorization
from pybroker.auth.locations import read_location
from pybroker.auth.server_tls import server_context
from pybroker.cluster.advertised_addresses import AdvertisedAddresses, BoundPorts
from pybroker.config import BrokerConfig, ConfigError, Problems
from pybroker.config.ledger_store_kind import LedgerStoreKind, ledger_store_kind
from pybroker.encryption.configured_keys import configured_key_reader
from pybroker.errors import InvalidTopicName
from pybroker.metadata.shared_metadata import client_options, shared_addresses
from pybroker.model.names import NamespaceName, is_valid_entity
from pybroker.runtime.proxied_port import parse_networks
from pybroker.server.bind_addresses import bind_addresses

_WORDS = re.compile(r"\w+")


def check(config: BrokerConfig, refused_keys: frozenset[str], problems: Problems) -> None:
    """Add contradictions and ineffective settings to `problems`. Skip `refused_keys`, whose values are invalid."""
    found = Problems()
    checks: list[Callable[[BrokerConfig], object]] = [
        AuthenticationService,
        check_authorization,
        _check_tls,
        _check_addresses,
        _check_names,
        _check_metadata_store,
        _check_broker_client,
        _check_collector,
        configured_key_reader,
        _check_console_login,
    ]
    for each in checks:
        with found.noted():
            each(config)
    problems.found += (problem for problem in found.found if not refused_keys.intersection(_WORDS.findall(problem)))


def _check_broker_client(config: BrokerConfig) -> None:
    if not config.authentication_enabled or ledger_store_kind(config) is not LedgerStoreKind.BOOKKEEPER:
        return
    if config.broker_client_authentication_plugin.rpartition(".")[2] in {"", "AuthenticationDisabled"}:
        raise ConfigError(
            "authenticationEnabled=true with ledgers on BookKeeper needs brokerClientAuthenticationPlugin and"
            " brokerClientAuthenticationParameters of a superuser: the broker is a client of its own cluster"
        )


def _check_tls(config: BrokerConfig) -> None:
    if config.web_service_port_tls is not None or any(address.is_tls for address in bind_addresses(config)):
        server_context(config)


def _check_addresses(config: BrokerConfig) -> None:
    ports = BoundPorts(
        config.broker_service_port,
        config.broker_service_port_tls,
        config.web_service_port,
        config.web_service_port_tls,
    )
    addresses = AdvertisedAddresses(config, ports, host_name="localhost")
    problems = Problems()
    for address in bind_addresses(config):
        if address.listener_name is not None and address.listener_name not in addresses.listeners:
            problems.found.append(
                f"bindAddresses names listener {address.listener_name!r}, which advertisedListeners does not have: add"
                f" {address.listener_name}:pulsar://host:port there, so that lookups at this port return addresses"
            )
    try:
        parse_networks(config.ha_proxy_protocol_trusted_addresses)
    except ValueError as error:
        problems.found.append(f"haProxyProtocolTrustedAddresses: {error}; expected addresses or networks as 10.0.0.0/8")
    problems.raise_any()


def _check_names(config: BrokerConfig) -> None:
    problems = Problems()
    if not is_valid_entity(config.cluster_name):
        problems.found.append(
            f"clusterName cannot be {config.cluster_name!r}: it must consist of letters, digits and -=:._"
        )
    for text in config.bootstrap_namespaces:
        with problems.noted():
            _parse_namespace(text)
    problems.raise_any()


def _check_metadata_store(config: BrokerConfig) -> None:
    ledger_store_kind(config)
    if shared_addresses(config) is not None:
        client_options(config)


def _check_collector(config: BrokerConfig) -> None:
    endpoint = urlsplit(config.otel_exporter_otlp_endpoint)
    if config.otel_exporter_otlp_endpoint and (endpoint.scheme not in {"http", "https"} or not endpoint.hostname):
        raise ConfigError(
            f"otelExporterOtlpEndpoint cannot be {config.otel_exporter_otlp_endpoint!r}: it must be a URL such as"
            " http://127.0.0.1:4318"
        )


def _check_console_login(config: BrokerConfig) -> None:
    issuer, client_id = config.console_open_id_issuer, config.console_open_id_client_id
    if not issuer:
        return
    problems = Problems()
    names = {provider_names.BUILT_IN.get(each) for each in config.authentication_providers}
    if not config.authentication_enabled or provider_names.OIDC not in names:
        problems.found.append(
            "consoleOpenIDIssuer needs authenticationEnabled=true and oidc in authenticationProviders: the broker verifies"
            " the tokens of users"
        )
    if issuer not in config.open_id_allowed_token_issuers:
        problems.found.append(f"consoleOpenIDIssuer: {issuer!r} is not in openIDAllowedTokenIssuers: add it")
    if not client_id:
        problems.found.append("consoleOpenIDIssuer needs consoleOpenIDClientId: set it")
    elif client_id not in config.open_id_allowed_audiences:
        problems.found.append(f"consoleOpenIDClientId: {client_id!r} is not in openIDAllowedAudiences: add it")
    if "openid" not in config.console_open_id_scope.split():
        problems.found.append(
            "consoleOpenIDScope must contain openid, for which the identity provider sends an ID token"
        )
    if not config.console_open_id_redirect_uris:
        problems.found.append("consoleOpenIDIssuer needs consoleOpenIDRedirectUris: set it")
    for uri in config.console_open_id_redirect_uris:
        parts = urlsplit(uri)
        if (
            parts.scheme not in {"http", "https"}
            or not parts.netloc
            or parts.path != "/console/callback"
            or parts.query
        ):
            problems.found.append(
                f"consoleOpenIDRedirectUris cannot contain {uri!r}: it must have the form https://host:port/console/callback"
            )
    if config.console_open_id_client_secret:
        with problems.noted():
            read_location("consoleOpenIDClientSecret", config.console_open_id_client_secret)
    problems.raise_any()


def _parse_namespace(text: str) -> NamespaceName:
    try:
        return NamespaceName.parse(text)
    except InvalidTopicName as error:
        raise ConfigError(f"bootstrapNamespaces cannot contain {text!r}: {error}") from error
