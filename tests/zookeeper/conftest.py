"""One ZooKeeper server for all tests of a process; each test works below a node of its own."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest
from tests.support.zookeeper_server import ZooKeeperServer, zookeeper_server

from pybroker.zookeeper import ClientOptions, ServerAddresses, ZooKeeperClient

_numbers = count()


@pytest.fixture(scope="session")
def server() -> Iterator[ZooKeeperServer]:
    """The shared server. A test that stops a server starts one of its own."""
    with zookeeper_server() as started:
        yield started


@pytest.fixture
async def chroot(server: ZooKeeperServer) -> ServerAddresses:
    """The address of a new empty node."""
    addresses = ServerAddresses.parse(f"{server.address}/test-{next(_numbers)}")
    await make_chroot(addresses)
    return addresses


async def make_chroot(addresses: ServerAddresses) -> None:
    client = ZooKeeperClient(ServerAddresses(addresses.servers), ClientOptions(session_timeout_ms=10_000))
    await client.start(30)
    await client.create(addresses.chroot, b"", makes_parents=True)
    await client.close()
