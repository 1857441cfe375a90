"""Addresses of brokers, parsed from service URLs."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from pybroker.client.failures import ClientError

_PORTS = {"pulsar": 6650, "pulsar+ssl": 6651}


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a broker. `str()` returns its service URL."""

    host: str
    port: int
    is_tls: bool

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'pulsar+ssl' if self.is_tls else 'pulsar'}://{host}:{self.port}"

    @property
    def host_and_port(self) -> str:
        """The address as `host:port`, for the field of CONNECT that names the target broker of a proxy."""
        return str(self).partition("://")[2]


def addresses(service_url: str) -> list[Address]:
    """Parse a service URL with one or several brokers, `scheme://host:port,host:port/`. Raises ClientError."""
    scheme, separator, rest = service_url.strip().partition("://")
    if not separator or scheme not in _PORTS:
        raise ClientError(
            f"the service URL {service_url!r} is invalid: use the form pulsar://host:port or pulsar+ssl://host:port"
        )
    found: list[Address] = []
    for part in rest.rstrip("/").split(","):
        try:
            url = urlsplit(f"//{part.strip()}")
            host, port = url.hostname, url.port
        except ValueError as error:
            raise ClientError(
                f"the address {part!r} in the service URL {service_url!r} is not a host and port: {error}"
            ) from error
        if not host or url.path or url.username is not None:
            raise ClientError(f"the address {part!r} in the service URL is invalid: use the form host:port")
        found.append(Address(host, port or _PORTS[scheme], scheme == "pulsar+ssl"))
    return found
