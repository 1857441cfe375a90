"""Ledger ids from 2^31 on, in turn with the Java client, with the counters of a real ZooKeeper near their ends."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from tests.bookkeeper.conftest import connected
from tests.support.bookkeeper_cluster import ROOT, BookKeeperCluster, bookkeeper_cluster

from pybroker.bookkeeper import BookKeeperOptions, Quorums
from pybroker.bookkeeper.errors import NoSuchLedger

OPTIONS = BookKeeperOptions(quorums=Quorums(1, 1, 1))
END = (1 << 31) - 1
LONG = 1 << 32


@pytest.fixture
def own_cluster() -> Iterator[BookKeeperCluster]:
    with bookkeeper_cluster(1) as started:
        yield started


async def ids_in_turn(cluster: BookKeeperCluster, first: str) -> list[int]:
    """Six ids of each client, two at a time."""
    found: list[int] = []
    async with connected(cluster, OPTIONS) as client:
        for turn in range(6):
            if (turn % 2 == 0) == (first == "java"):
                found += map(int, await asyncio.to_thread(cluster.exchange, "ids", "2"))
            else:
                found += [await client._store.new_ledger_id() for _ in range(2)]
    return found


async def test_ids_continue_behind_the_ends_of_counters(own_cluster: BookKeeperCluster) -> None:
    """The short ids end while pybroker needs one, and the first long counter while Java needs one."""
    assert await ids_in_turn(own_cluster, "java") == list(range(12))
    await asyncio.to_thread(own_cluster.zookeeper.set_counters, {f"{ROOT}/idgen": END - 3})
    expected = [END - 3, END - 2, END - 1, *(LONG + low for low in range(9))]
    assert await ids_in_turn(own_cluster, "java") == expected
    await asyncio.to_thread(own_cluster.zookeeper.set_counters, {f"{ROOT}/idgen-long/HOB-0000000001": END - 3})
    expected = [LONG + END - 3, LONG + END - 2, LONG + END - 1, *(2 * LONG + low for low in range(9))]
    assert await ids_in_turn(own_cluster, "pybroker") == expected
    await _exchange_ledgers(own_cluster)


async def _exchange_ledgers(cluster: BookKeeperCluster) -> None:
    async with connected(cluster, OPTIONS) as client:
        writer = await client.create_ledger()
        assert writer.ledger_id > 2 * LONG
        await writer.add(b"one")
        await client.close_ledger(writer)
        read = await asyncio.to_thread(cluster.exchange, "read", str(writer.ledger_id), "CRC32C", "")
        assert read == ["3", "one"]
        (name,) = await asyncio.to_thread(cluster.exchange, "write", "2", "1", "1", "1", "CRC32C", "", "open")
        assert int(name) > writer.ledger_id
        reader = await client.recover_ledger(int(name))
        assert [each.payload async for each in reader.entries(0, 1000)] == [b"java 0", b"java 1"]
        assert await client.list_ledgers() == [writer.ledger_id, int(name)]
        await client.delete_ledger(int(name))
        with pytest.raises(NoSuchLedger):
            await client.open_ledger(int(name))
