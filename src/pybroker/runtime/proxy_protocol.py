"""The PROXY protocol, versions 1 and 2: the header in which a load balancer sends the address of its client.

Source: the specification of HAProxy, "The PROXY protocol, versions 1 & 2". Pure: bytes in, header out.
"""

from __future__ import annotations

import ipaddress
from typing import Final, NamedTuple, TypeAlias

V1_SIGNATURE: Final = b"PROXY "
V2_SIGNATURE: Final = b"\r\n\r\n\x00\r\nQUIT\n"
MAX_V1_BYTES: Final = 107
"""With the line end. The specification's limit for a header of version 1."""
MAX_V2_BYTES: Final = 4096
"""A limit of this broker: addresses take at most 232 bytes, and the rest are optional fields of the load balancer."""
MIN_BYTES: Final = 15
"""The shortest header, `PROXY UNKNOWN` and a line end. The first bytes of every other protocol here are more."""

_V2_FIXED_BYTES: Final = 16
_V2_ADDRESS_BYTES: Final = {0x1: 12, 0x2: 36}  # by address family: IPv4, IPv6
_TCP: Final = 0x1

Address: TypeAlias = tuple[str, int]


class InvalidProxyHeader(ValueError):
    """The first bytes start a PROXY header that breaks the specification."""


class ProxyHeader(NamedTuple):
    """A header of `length_bytes`. `client` is the address of the load balancer's client, or None if the load balancer
    opened the connection itself (a health check) or does not know the address.
    """

    length_bytes: int
    client: Address | None


class Incomplete(NamedTuple):
    """The header continues: at least `needed_bytes` in total are necessary to go on."""

    needed_bytes: int


def parse_proxy_header(data: bytes) -> ProxyHeader | Incomplete | None:
    """Parse the header at the start of `data`, the first bytes of a connection: at least `MIN_BYTES`, unless the
    connection has ended.

    Return None if the data does not start with a PROXY header; Incomplete if the rest of the header must be received
    first. Raises InvalidProxyHeader if the header violates the specification.
    """
    if data.startswith(V1_SIGNATURE):
        return _parse_v1(data)
    if data.startswith(V2_SIGNATURE):
        return _parse_v2(data)
    return None


def _parse_v1(data: bytes) -> ProxyHeader | Incomplete:
    end = data.find(b"\r\n", 0, MAX_V1_BYTES)
    if end < 0:
        if len(data) >= MAX_V1_BYTES:
            raise InvalidProxyHeader(f"a PROXY header of version 1 has no line end in its first {MAX_V1_BYTES} bytes")
        return Incomplete(len(data) + 1)
    try:
        words = data[:end].decode("ascii").split(" ")
    except UnicodeDecodeError:
        raise InvalidProxyHeader("a PROXY header of version 1 must be ASCII text") from None
    length = end + 2
    if words[1] == "UNKNOWN":
        return ProxyHeader(length, None)
    if len(words) != 6 or words[1] not in {"TCP4", "TCP6"}:
        raise InvalidProxyHeader("a PROXY header of version 1 must be `PROXY TCP4|TCP6 source destination port port`")
    version = 4 if words[1] == "TCP4" else 6
    source, _ = (_ip_address(word, version) for word in words[2:4])
    port, _ = (_port(word) for word in words[4:6])
    return ProxyHeader(length, (source, port))


def _ip_address(word: str, version: int) -> str:
    try:
        address = ipaddress.ip_address(word)
    except ValueError:
        raise InvalidProxyHeader(f"a PROXY header of version 1 contains an invalid IPv{version} address") from None
    if address.version != version or "%" in word:
        raise InvalidProxyHeader(f"a PROXY header of version 1 contains an invalid IPv{version} address")
    return str(address)


def _port(word: str) -> int:
    # int() alone would accept signs, spaces, underscores and digits of other scripts.
    if not (word.isdigit() and len(word) <= 5 and int(word) <= 0xFFFF) or (len(word) > 1 and word[0] == "0"):
        raise InvalidProxyHeader("a PROXY header of version 1 contains an invalid port")
    return int(word)


def _parse_v2(data: bytes) -> ProxyHeader | Incomplete:
    if len(data) < _V2_FIXED_BYTES:
        return Incomplete(_V2_FIXED_BYTES)
    version, command = data[12] >> 4, data[12] & 0xF
    family, transport = data[13] >> 4, data[13] & 0xF
    body_bytes = int.from_bytes(data[14:16], "big")
    length = _V2_FIXED_BYTES + body_bytes
    if version != 2 or command > 1:
        raise InvalidProxyHeader(
            f"the version and command byte of a PROXY header is {data[12]:#04x}; expected 0x20 or 0x21"
        )
    if length > MAX_V2_BYTES:
        raise InvalidProxyHeader(f"a PROXY header of version 2 has {length} bytes; the limit is {MAX_V2_BYTES}")
    if len(data) < length:
        return Incomplete(length)
    if command == 0 or transport != _TCP or family not in _V2_ADDRESS_BYTES:
        return ProxyHeader(length, None)
    if body_bytes < _V2_ADDRESS_BYTES[family]:
        raise InvalidProxyHeader(f"a PROXY header of version 2 has {body_bytes} bytes for addresses, which is too few")
    size = 4 if family == 0x1 else 16
    source = ipaddress.ip_address(data[16 : 16 + size])
    port_at = 16 + 2 * size
    return ProxyHeader(length, (str(source), int.from_bytes(data[port_at : port_at + 2], "big")))
