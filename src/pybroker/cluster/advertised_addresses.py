"""Addresses in lookup responses: the advertised address, or the listener that the client requests.

This module owns the format of `advertisedListeners`. Invariant: a lookup never returns an address that is reachable
only from this machine, unless the broker listens nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple
from urllib.parse import urlsplit

from pybroker.config import BrokerConfig, ConfigError, Problems
from pybroker.errors import ServiceNotReady
from pybroker.model.names import is_valid_entity

PULSAR = "pulsar"
PULSAR_TLS = "pulsar+ssl"
HTTP = "http"
HTTP_TLS = "https"
SCHEMES = (PULSAR, PULSAR_TLS, HTTP, HTTP_TLS)

# A broker bound to one of these is reachable by any of its addresses; the value itself is not an address.
WILDCARD_ADDRESSES = frozenset({"", "0.0.0.0", "::", "[::]", "*"})


class BoundPorts(NamedTuple):
    """The ports on which the broker listens; None for a port that is not bound."""

    broker: int | None
    broker_tls: int | None
    web: int | None
    web_tls: int | None


class LookupResult(NamedTuple):
    """The URLs of the broker that serves a topic; a URL is empty if the broker does not have that kind of port."""

    broker_url: str
    broker_url_tls: str
    http_url: str
    http_url_tls: str


class AdvertisedAddresses:
    """The addresses of this broker by listener name, as lookups return them. An invalid configuration raises
    ConfigError.
    """

    def __init__(self, config: BrokerConfig, ports: BoundPorts, host_name: str) -> None:
        host = config.advertised_address or _concrete_host(config.bind_address, host_name)
        listeners = parse_listeners(config.advertised_listeners)
        self._by_name = {
            name: _listener_result(addresses, ports, config.advertised_address) for name, addresses in listeners.items()
        }
        self._default = _default_result(host, ports)
        if listeners:
            default_name = config.internal_listener_name or next(iter(listeners))
            if default_name not in listeners:
                raise ConfigError(
                    f"internalListenerName={default_name!r} is not one of the listeners in "
                    f"advertisedListeners: use one of {', '.join(listeners)}"
                )
            self._default = _internal_result(listeners, default_name, ports, config.advertised_address)
        elif config.internal_listener_name:
            raise ConfigError("internalListenerName is set, but advertisedListeners is empty")

    @property
    def listeners(self) -> Mapping[str, LookupResult]:
        return self._by_name

    def resolve(self, listener_name: str | None) -> LookupResult:
        """Return the addresses of a listener. Raises ServiceNotReady for an unknown name.

        Without a name, return for each scheme the address of the internal listener, or else of the first listener with
        that scheme. If no listeners are configured, return the advertised host with the bound ports.
        """
        if not listener_name:
            return self._default
        result = self._by_name.get(listener_name)
        if result is None:
            known = ", ".join(self._by_name) or "none"
            # C++ clients search for these words, to give up immediately (current versions only for the name `test`).
            raise ServiceNotReady(
                f"the broker do not have {listener_name} listener; advertisedListeners names: {known}"
            )
        return result


def parse_listeners(entries: Iterable[str]) -> dict[str, dict[str, str]]:
    """Parse `advertisedListeners`: return, for each listener name, the address `host:port` by scheme. Raises
    ConfigError.
    """
    listeners: dict[str, dict[str, str]] = {}
    problems = Problems()
    for entry in entries:
        with problems.noted():
            name, scheme, address = _parse_entry(entry)
            addresses = listeners.setdefault(name, {})
            if scheme in addresses:
                raise ConfigError(f"advertisedListeners has two {scheme} addresses for listener {name!r}")
            addresses[scheme] = address
    problems.raise_any()
    for name, addresses in listeners.items():
        if PULSAR not in addresses and PULSAR_TLS not in addresses:
            raise ConfigError(
                f"advertisedListeners has neither a pulsar nor a pulsar+ssl address for listener {name!r}"
            )
    return listeners


def _parse_entry(entry: str) -> tuple[str, str, str]:
    name, _, url = entry.strip().partition(":")
    expected = f"advertisedListeners has {entry!r}; expected name:pulsar://host:port"
    if not is_valid_entity(name):
        raise ConfigError(expected)
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigError(f"{expected} ({error})") from None
    if parts.scheme not in SCHEMES:
        raise ConfigError(f"{expected}, or one of the schemes {', '.join(SCHEMES)}")
    if not host or not port or parts.path or parts.query or parts.fragment or "@" in parts.netloc:
        raise ConfigError(expected)
    return name, parts.scheme, f"{url_host(host)}:{port}"


def url_host(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def _concrete_host(bind_address: str, host_name: str) -> str:
    return host_name if bind_address in WILDCARD_ADDRESSES else bind_address


def _default_result(host: str, ports: BoundPorts) -> LookupResult:
    return LookupResult(
        _url(PULSAR, host, ports.broker),
        _url(PULSAR_TLS, host, ports.broker_tls),
        _url(HTTP, host, ports.web),
        _url(HTTP_TLS, host, ports.web_tls),
    )


def _listener_result(addresses: dict[str, str], ports: BoundPorts, advertised_address: str) -> LookupResult:
    # A listener without HTTP addresses counts as reachable on the broker's own HTTP ports.
    host = advertised_address or _host_of(addresses)
    http_url, http_url_tls = _url(HTTP, host, ports.web), _url(HTTP_TLS, host, ports.web_tls)
    return LookupResult(
        f"{PULSAR}://{addresses[PULSAR]}" if PULSAR in addresses else "",
        f"{PULSAR_TLS}://{addresses[PULSAR_TLS]}" if PULSAR_TLS in addresses else "",
        f"{HTTP}://{addresses[HTTP]}" if HTTP in addresses else http_url,
        f"{HTTP_TLS}://{addresses[HTTP_TLS]}" if HTTP_TLS in addresses else http_url_tls,
    )


def _internal_result(
    listeners: dict[str, dict[str, str]], name: str, ports: BoundPorts, advertised_address: str
) -> LookupResult:
    """Return the addresses of listener `name`. For schemes that it lacks, return the addresses of the first listener
    that has them: otherwise a client that supports only such a scheme would get no address.
    """
    internal = listeners[name]
    addresses = dict(internal)
    for other in listeners.values():
        for scheme, address in other.items():
            addresses.setdefault(scheme, address)
    return _listener_result(addresses, ports, advertised_address or _host_of(internal))


def _host_of(addresses: dict[str, str]) -> str:
    return (addresses.get(PULSAR) or addresses[PULSAR_TLS]).rpartition(":")[0]


def _url(scheme: str, host: str, port: int | None) -> str:
    return "" if port is None else f"{scheme}://{url_host(host)}:{port}"
