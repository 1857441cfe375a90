"""Check of the Host header in HTTP requests without credentials, to prevent DNS rebinding.

With DNS rebinding, a web page of another site makes its own host name resolve to this machine, and then reads the
broker's responses. The Host header contains that name.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from typing import Self
from urllib.parse import urlsplit

from pybroker.cluster.advertised_addresses import parse_listeners
from pybroker.config.broker_config import BrokerConfig
from pybroker.errors import AdminError

LOCALHOST = "localhost"
ANY_HOST = "*"
MISDIRECTED_REQUEST = 421
_SHOWN_CHARS = 100
_HOST = re.compile(r"(\[[^\]]*\]|[^\[\]:]*)(?::[0-9]*)?")


class AcceptedHosts:
    """Accepts IP addresses, `localhost` and its subdomains, and configured names.

    IP addresses cannot be rebound. The unspecified address (0.0.0.0) is accepted only if it is configured, because
    browsers connect to this machine with it, but do not protect it like a local address.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(_name_of(each) for each in names) - {""}

    @classmethod
    def of(cls, config: BrokerConfig) -> Self | None:
        """Return the check that the configuration requires; None if it accepts any host."""
        allowed = [each.strip() for each in config.http_allowed_hosts if each.strip()]
        if ANY_HOST in allowed or not (allowed or is_loopback(config.bind_address)):
            return None
        listeners = parse_listeners(config.advertised_listeners).values()
        advertised = [urlsplit(f"//{address}").hostname or "" for each in listeners for address in each.values()]
        return cls([*allowed, *advertised, config.advertised_address, config.bind_address])

    def accepts(self, host_header: str) -> bool:
        match = _HOST.fullmatch(host_header.strip())
        if match is None:
            return False
        name = _name_of(match[1])
        address = _address(name)
        if address is not None:
            return not address.is_unspecified or name in self._names
        return name in self._names or name == LOCALHOST or name.endswith(f".{LOCALHOST}")

    def check(self, host_header: str | None) -> None:
        """Check the Host header. Raises AdminError 421 if the host is not accepted. A request without a Host header is
        accepted, because it cannot come from a browser, and only browsers are targets of DNS rebinding.
        """
        if host_header is None or self.accepts(host_header):
            return
        raise AdminError(
            MISDIRECTED_REQUEST,
            "This broker does not accept requests without credentials whose Host header is "
            f"{host_header[:_SHOWN_CHARS]!r}: use localhost or an IP address, or add the host name to "
            "httpAllowedHosts",
        )


def is_loopback(bind_address: str) -> bool:
    name = _name_of(bind_address.strip())
    address = _address(name)
    return name == LOCALHOST if address is None else address.is_loopback


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


def _name_of(host: str) -> str:
    return host.strip().removeprefix("[").removesuffix("]").lower().removesuffix(".")
