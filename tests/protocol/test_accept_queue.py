"""Connections that wait to be accepted: how many the system is told to hold."""

import socket
import struct
import sys
from pathlib import Path

import pytest
from tests.support.memory_broker import memory_broker
from tests.unit.admin.fake_broker import served

from pybroker.runtime.network import Port
from pybroker.server.bind_addresses import BindAddress
from pybroker.server.command_table import command_table
from pybroker.server.listener import Listener
from pybroker.server.server_context import ServerContext

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")


def accept_queue_size(listening: socket.socket) -> int:
    """Of a listening socket; Linux gives it as `tcpi_sacked`."""
    information = listening.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 32)
    size: int = struct.unpack_from("=I", information, 8 + 5 * 4)[0]
    return size


async def test_the_binary_protocol_holds_as_many_as_its_key_says() -> None:
    async with memory_broker(broker_service_accept_queue_size=77) as broker:
        listener = Listener(ServerContext(broker.service, command_table()))
        listener.bind([BindAddress("127.0.0.1", 0, False, "brokerServicePort")], None)
        port = listener._ports[0][0]
        assert isinstance(port, Port)
        try:
            assert accept_queue_size(port.socket) == 77
            await listener.start()
            assert accept_queue_size(port.socket) == 77
        finally:
            await listener.close()


async def test_http_holds_as_many_as_its_key_says() -> None:
    async with served(http_server_accept_queue_size=78) as http:
        assert isinstance(http.server._plain_port, Port)
        assert accept_queue_size(http.server._plain_port.socket) == 78


def systems_limit() -> int:
    return int(Path("/proc/sys/net/core/somaxconn").read_text())


async def test_by_default_it_is_the_systems_limit_that_counts() -> None:
    async with served() as http:
        assert isinstance(http.server._plain_port, Port)
        assert accept_queue_size(http.server._plain_port.socket) == min(systems_limit(), 8192)
