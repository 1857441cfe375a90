"""Headers of the PROXY protocol: the examples of the specification, and every other beginning of a connection."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pybroker.runtime.proxy_protocol import (
    MAX_V1_BYTES,
    MAX_V2_BYTES,
    MIN_BYTES,
    V2_SIGNATURE,
    Incomplete,
    InvalidProxyHeader,
    ProxyHeader,
    parse_proxy_header,
)

PORTS = st.integers(0, 0xFFFF)


def v2(command: int, family: int, body: bytes) -> bytes:
    return V2_SIGNATURE + bytes((command, family)) + len(body).to_bytes(2, "big") + body


@given(st.ip_addresses(), PORTS, st.binary(max_size=40))
def test_both_versions_carry_address_and_port(address: ipaddress.IPv4Address, port: int, rest: bytes) -> None:
    first = f"PROXY TCP{address.version} {address} {address} {port} 6650\r\n".encode()
    assert parse_proxy_header(first + rest) == ProxyHeader(len(first), (str(address), port))
    body = address.packed * 2 + port.to_bytes(2, "big") + (6650).to_bytes(2, "big") + b"\x04\x00\x01\x00"
    second = v2(0x21, 0x11 if address.version == 4 else 0x21, body)
    assert parse_proxy_header(second + rest) == ProxyHeader(len(second), (str(address), port))


@given(st.ip_addresses(), PORTS, st.data())
def test_incomplete_header_asks_for_more_bytes_and_never_for_bytes_after_it(
    address: ipaddress.IPv4Address, port: int, data: st.DataObject
) -> None:
    headers = [
        f"PROXY TCP{address.version} {address} {address} {port} 1\r\n".encode(),
        v2(0x21, 0x11 if address.version == 4 else 0x21, address.packed * 2 + b"\x00\x01\x00\x02"),
    ]
    for header in headers:
        size = data.draw(st.integers(MIN_BYTES, len(header) - 1))
        found = parse_proxy_header(header[:size])
        assert isinstance(found, Incomplete)
        assert size < found.needed_bytes <= len(header)


@pytest.mark.parametrize(
    "header",
    [b"PROXY UNKNOWN\r\n", b"PROXY UNKNOWN ffff::1 ffff::2 1 2\r\n", v2(0x20, 0, b""), v2(0x21, 0x31, bytes(216))],
)
def test_header_without_a_client_address_leaves_the_connection_direct(header: bytes) -> None:
    assert parse_proxy_header(header) == ProxyHeader(len(header), None)


@pytest.mark.parametrize(
    "header",
    [
        b"PROXY " + b"x" * MAX_V1_BYTES,
        b"PROXY \xff\xff\xff\xff\xff\xff\xff\xff\r\n",
        b"PROXY UDP4 1.1.1.1 1.1.1.1 1 1\r\n",
        b"PROXY TCP4 ::1 ::1 1 1\r\n",
        b"PROXY TCP6 fe80::1%eth0 ::1 1 1\r\n",
        b"PROXY TCP4 1.1.1.1 1.1.1.1 65536 1\r\n",
        b"PROXY TCP4 1.1.1.1 1.1.1.1 +1 1\r\n",
        b"PROXY TCP4 1.1.1.1 1.1.1.1 01 1\r\n",
        b"PROXY TCP4 1.1.1.1 1.1.1.1 1_0 1\r\n",
        b"PROXY TCP4 1.1.1.1  1.1.1.1 1 1\r\n",
        b"PROXY TCP4 1.1.1.256 1.1.1.1 1 1\r\n",
        v2(0x11, 0x11, bytes(12)),
        v2(0x22, 0x11, bytes(12)),
        v2(0x21, 0x11, bytes(11)),
        v2(0x21, 0x21, bytes(35)),
        v2(0x21, 0x11, bytes(MAX_V2_BYTES)),
    ],
)
def test_header_against_the_specification_is_invalid(header: bytes) -> None:
    with pytest.raises(InvalidProxyHeader):
        parse_proxy_header(header)


@given(
    st.binary(max_size=200)
    | st.binary(max_size=100).map(lambda rest: b"PROXY " + rest)
    | st.binary(max_size=100).map(lambda rest: V2_SIGNATURE + rest)
)
def test_every_beginning_has_an_answer(data: bytes) -> None:
    try:
        found = parse_proxy_header(data)
    except InvalidProxyHeader:
        return
    if isinstance(found, ProxyHeader):
        assert MIN_BYTES <= found.length_bytes <= len(data)
        assert parse_proxy_header(data[: found.length_bytes]) == found
    elif isinstance(found, Incomplete):
        assert len(data) < found.needed_bytes <= MAX_V2_BYTES
    else:
        assert not data.startswith((b"PROXY ", V2_SIGNATURE))
