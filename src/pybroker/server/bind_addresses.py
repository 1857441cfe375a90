"""The addresses on which the broker accepts the binary protocol: `bindAddress` with its ports, and `bindAddresses`."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import urlsplit

from pybroker.config import BrokerConfig, ConfigError, Problems
from pybroker.model.names import is_valid_entity

_IS_TLS = {"pulsar": False, "pulsar+ssl": True}


class BindAddress(NamedTuple):
    """One address. Clients that connect to it and request no listener get the advertised addresses of `listener_name`.

    `setting` is the configuration key, for errors.
    """

    host: str
    port: int
    is_tls: bool
    setting: str
    listener_name: str | None = None


def bind_addresses(config: BrokerConfig) -> list[BindAddress]:
    """Return all addresses for the binary protocol. Raises ConfigError for an invalid entry of `bindAddresses`."""
    found: list[BindAddress] = []
    if config.broker_service_port is not None:
        found.append(BindAddress(config.bind_address, config.broker_service_port, False, "brokerServicePort"))
    if config.broker_service_port_tls is not None:
        found.append(BindAddress(config.bind_address, config.broker_service_port_tls, True, "brokerServicePortTls"))
    problems = Problems()
    for entry in config.bind_addresses:
        with problems.noted():
            found.append(_parse(entry))
    problems.raise_any()
    return found


def _parse(entry: str) -> BindAddress:
    name, _, url = entry.strip().partition(":")
    expected = f"bindAddresses has {entry!r}; expected listener:pulsar://host:port or listener:pulsar+ssl://host:port"
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigError(f"{expected} ({error})") from None
    is_address = host and port is not None and not (parts.path or parts.query or parts.fragment or "@" in parts.netloc)
    if not is_valid_entity(name) or parts.scheme not in _IS_TLS or not is_address:
        raise ConfigError(expected)
    assert host is not None
    assert port is not None
    return BindAddress(host, port, _IS_TLS[parts.scheme], "bindAddresses", name)
