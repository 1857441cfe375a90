"""Ports of this machine."""

import asyncio
import errno
import socket

import pytest

from pybroker.runtime.network import Network, Port


class Greeter(asyncio.Protocol):
    """Sends one word to each client."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(b"hello")
        transport.close()


async def greeting(address: str, port: Port) -> bytes:
    reader, writer = await asyncio.open_connection(address, port.number)
    try:
        return await reader.read()
    finally:
        writer.close()


async def test_who_connects_before_it_serves_is_served_then() -> None:
    port = Network().bind("127.0.0.1", 0, 8)
    try:
        early = asyncio.ensure_future(greeting("127.0.0.1", port))
        await asyncio.sleep(0)
        await port.serve(Greeter)
        assert await early == b"hello"
    finally:
        port.close()
    with pytest.raises(ConnectionRefusedError):
        await greeting("127.0.0.1", port)
    port.close()


async def test_a_port_that_is_taken_is_refused_in_the_systems_words() -> None:
    port = Network().bind("127.0.0.1", 0, 8)
    try:
        with pytest.raises(OSError, match="in use") as refused:
            Network().bind("127.0.0.1", port.number, 8)
        assert refused.value.errno == errno.EADDRINUSE
        assert "127.0.0.1" not in str(refused.value)
    finally:
        port.close()


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return socket.has_dualstack_ipv6()


@pytest.mark.skipif(not has_ipv6(), reason="there is no IPv6 here")
@pytest.mark.parametrize("address", ["::", "[::]"])
async def test_the_any_address_of_ipv6_takes_both_kinds_of_addresses(address: str) -> None:
    port = Network().bind(address, 0, 8)
    try:
        await port.serve(Greeter)
        assert await greeting("127.0.0.1", port) == b"hello"
        assert await greeting("::1", port) == b"hello"
    finally:
        port.close()
