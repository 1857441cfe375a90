"""One ZooKeeper server and three bookies for all tests of a process."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
from tests.support.bookie_faults import faulty_cluster
from tests.support.bookkeeper_cluster import ROOT, BookKeeperCluster, bookkeeper_cluster

from pybroker.bookkeeper import BookKeeperClient, BookKeeperOptions
from pybroker.bookkeeper.bookie_connection import OpenTransport
from pybroker.bookkeeper.bookie_pool import open_tcp
from pybroker.bookkeeper.zookeeper_metadata import ZooKeeperBookies, ZooKeeperLedgerMetadata
from pybroker.runtime.clock import Clock
from pybroker.zookeeper import ClientOptions, ServerAddresses, ZooKeeperClient


@pytest.fixture(scope="session")
def cluster() -> Iterator[BookKeeperCluster]:
    with bookkeeper_cluster(3) as started:
        yield started


@pytest.fixture(scope="session")
def four_bookies() -> Iterator[BookKeeperCluster]:
    """For tests with faults."""
    with faulty_cluster() as started:
        yield started


def init_metadata(cluster_name: str, zookeeper: str) -> None:
    """Prepare the metadata store for a cluster of brokers."""
    url = f"metadataStoreUrl=zk:{zookeeper}"
    command = [sys.executable, "-m", "pybroker", "metadata", "init", "--cluster", cluster_name, "--set", url]
    subprocess.run(command, check=True, capture_output=True)


@asynccontextmanager
async def connected(
    cluster: BookKeeperCluster,
    options: BookKeeperOptions,
    open_transport: OpenTransport = open_tcp,
    clock: Clock | None = None,
) -> AsyncIterator[BookKeeperClient]:
    """A client with its own session of ZooKeeper."""
    zookeeper = ZooKeeperClient(
        ServerAddresses.parse(cluster.zookeeper.address), ClientOptions(session_timeout_ms=10_000)
    )
    await zookeeper.start(30)
    bookies = ZooKeeperBookies(zookeeper, ROOT)
    await bookies.start()
    expected = sum(each.is_running and not each.is_frozen for each in cluster.bookies)
    async with asyncio.timeout(60):
        while len(bookies.writable()) < expected:  # noqa: ASYNC110  (a bookie listens before it is registered)
            await asyncio.sleep(0.05)
    client = BookKeeperClient(
        ZooKeeperLedgerMetadata(zookeeper, ROOT),
        bookies,
        options,
        chance=random.SystemRandom(),
        clock=clock or Clock(),
        open_transport=open_transport,
    )
    try:
        yield client
    finally:
        await client.close()
        await bookies.close()
        await zookeeper.close()
