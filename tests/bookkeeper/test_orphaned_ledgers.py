"""A broker deletes the orphaned ledgers of its cluster on real bookies, and nothing else."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pulsar
import pytest
from tests.bookkeeper.conftest import connected, init_metadata
from tests.support.bookkeeper_cluster import BookKeeperCluster
from tests.support.broker_process import BrokerProcess
from tests.support.metrics import until_metric

from pybroker.bookkeeper import BookKeeperError, BookKeeperOptions, Quorums
from pybroker.ledgers.ledger_properties import ClusterMark, managed_ledger_properties
from pybroker.runtime.clock import Clock

CLUSTER = "orphaned"
TOPIC = "persistent://public/default/kept"
NAME = "public/default/persistent/kept"
OPTIONS = BookKeeperOptions(quorums=Quorums(2, 2, 2))
DELETED = "pybroker_store_bookkeeper_orphans_deleted"


class EarlierClock(Clock):
    """Two days ago."""

    def wall_ms(self) -> int:
        return super().wall_ms() - 2 * 24 * 3_600_000


async def test_broker_deletes_orphaned_ledgers(cluster: BookKeeperCluster, tmp_path: Path) -> None:
    zookeeper = cluster.zookeeper.address
    init_metadata(CLUSTER, zookeeper)
    settings = {
        "clusterName": CLUSTER,
        "metadataStoreUrl": f"zk:{zookeeper}",
        "ledgerStore": "bookkeeper",
        "orphanedLedgerDeletionEnabled": "true",
        "orphanedLedgerDeletionIntervalInSeconds": "1",
        "orphanedLedgerMinAgeInSeconds": "60",
    }
    mark = ClusterMark.of_age(CLUSTER, 60_000)
    async with connected(cluster, OPTIONS) as now, connected(cluster, OPTIONS, clock=EarlierClock()) as earlier:
        orphan = await earlier.create_ledger(managed_ledger_properties(mark, NAME))
        await orphan.add(b"of a broker that crashed before it named the ledger")
        foreign = await earlier.create_ledger(managed_ledger_properties(ClusterMark("another", 1), NAME))
        java = await earlier.create_ledger({"application": b"pulsar", "component": b"managed-ledger"})
        young = await now.create_ledger(managed_ledger_properties(mark, NAME))
        broker = BrokerProcess(tmp_path, settings)
        await asyncio.to_thread(broker.start)
        try:
            client = pulsar.Client(broker.url)
            consumer = client.subscribe(TOPIC, "sub")
            client.create_producer(TOPIC).send(b"kept")
            deleted = asyncio.to_thread(until_metric, broker, lambda count: count > 0, DELETED)
            assert await deleted == 1
            left = set(await now.list_ledgers())
            assert orphan.ledger_id not in left
            assert {foreign.ledger_id, java.ledger_id, young.ledger_id} <= left
            assert consumer.receive(20_000).data() == b"kept"
            with pytest.raises(BookKeeperError, match="refused"):
                await orphan.add(b"late")
            await foreign.add(b"still open")
            client.close()
        finally:
            await asyncio.to_thread(broker.stop)
        for writer in (foreign, java, young):
            await now.delete_ledger(writer.ledger_id)
