"""Random faults of bookies, ZooKeeper and a broker with ledgers on BookKeeper, while clients publish and consume.

`FAULTS` in the environment sets their number (`make cluster-faults` uses 200), `FAULT_SEED` the seed. Every few faults, one topic
is checked as a whole after a last `kill -9`, and the next topic begins.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from tests.bookkeeper.cluster_load import ClusterLoad, Service
from tests.support.bookkeeper_cluster import Bookie, BookKeeperCluster, bookkeeper_cluster
from tests.support.broker_process import BrokerProcess
from tests.support.small_disk import small_disks_work

pytestmark = pytest.mark.long
SESSION_MS = 2000
BOOKIE_KINDS = ("kill", "freeze", "wake_late", "slow", "read_only", "full", "lose_disk", "two_down")
ZOOKEEPER_KINDS = ("zookeeper_kill", "zookeeper_freeze", "zookeeper_away")
BROKER_KINDS = ("broker_kill", "broker_kill_twice", "broker_stop", "broker_stop_long")
PAIRS = ("broker_kill_without_a_bookie", "broker_kill_beside_frozen_bookie", "broker_kill_without_zookeeper")
KINDS = (*BOOKIE_KINDS, *ZOOKEEPER_KINDS, *BROKER_KINDS, *PAIRS)
SHORT = ("broker_kill", "freeze", "zookeeper_freeze")
"""The faults without `FAULTS`. They need no bookie to replace another one."""
FAULTS = int(os.environ.get("FAULTS", "0"))
SEED = int(os.environ.get("FAULT_SEED", "1"))
STORY_FAULTS = 9
"""Faults of one topic. At most one of them loses a disk: entries have two copies."""
NEEDS_SMALL_DISK = {"read_only", "full"}
DISK_MIB = 256
PROGRESS = 10
DEADLINE_S = 120.0
SETTINGS = {
    "clusterName": "c1",
    "ledgerStore": "bookkeeper",
    "acknowledgmentAtBatchIndexLevelEnabled": "true",
    "managedLedgerDefaultEnsembleSize": "3",
    "managedLedgerDefaultWriteQuorum": "2",
    "managedLedgerDefaultAckQuorum": "2",
    "managedLedgerMaxEntriesPerLedger": "500",
    "managedLedgerMinLedgerRolloverTimeMinutes": "0",
    "managedLedgerCursorMaxEntriesPerLedger": "50",
    "bookkeeperClientTimeoutInSeconds": "1",
    "metadataStoreSessionTimeoutMillis": str(SESSION_MS),
    "metadataStoreOperationTimeoutSeconds": "2",
}


@pytest.fixture(scope="module")
def own_cluster() -> Iterator[BookKeeperCluster]:
    """Four bookies: one more than an ensemble, so that one can be replaced. Three for the short form."""
    settings = {
        "dataIntegrityChecking": "true",  # a bookie without its disk starts, and knows that it lost it
        "dataIntegrityStampMissingCookies": "true",
        "zkTimeout": SESSION_MS,
    }
    disk_mib = DISK_MIB if FAULTS and small_disks_work() else 0
    with bookkeeper_cluster(4 if FAULTS else 3, settings, disk_mib) as started:
        yield started


@pytest.fixture
def broker(own_cluster: BookKeeperCluster, tmp_path: Path) -> Iterator[BrokerProcess]:
    url = f"metadataStoreUrl=zk:{own_cluster.zookeeper.address}"
    command = [sys.executable, "-m", "pybroker", "metadata", "init", "--cluster", "c1", "--set", url]
    subprocess.run(command, check=True, capture_output=True)
    with BrokerProcess(
        tmp_path, {**SETTINGS, "metadataStoreUrl": f"zk:{own_cluster.zookeeper.address}"}
    ).running() as process:
        yield process


class Faults:
    """Causes faults and mends them."""

    def __init__(self, cluster: BookKeeperCluster, broker: BrokerProcess, chance: Random) -> None:
        self._cluster = cluster
        self._broker = broker
        self._chance = chance

    async def happen(self, kind: str) -> None:
        """Cause one fault, wait, and mend it."""
        one, other = self._chance.sample(self._cluster.bookies, 2)
        if kind in BOOKIE_KINDS:
            await self._of_bookies(kind, one, other)
        elif kind in ZOOKEEPER_KINDS:
            await self._of_zookeeper(kind)
        else:
            await self._of_broker(kind, one)

    async def _of_bookies(self, kind: str, one: Bookie, other: Bookie) -> None:
        match kind:
            case "freeze" | "wake_late":
                one.freeze()
                await self._wait(3.5 if kind == "wake_late" else 1.0)
                one.wake()
            case "slow":
                for _ in range(10):
                    one.freeze()
                    await asyncio.sleep(self._chance.choice((0.02, 0.1, 0.4)))
                    one.wake()
                    await asyncio.sleep(self._chance.choice((0.01, 0.1)))
            case "read_only" | "full":
                assert one.disk is not None
                await asyncio.to_thread(one.disk.fill, DISK_MIB * 1024 * 1024 // 8 if kind == "read_only" else 0)
                await self._wait(2.0)
                one.disk.free()
                if kind == "full":
                    await asyncio.to_thread(one.kill)  # unless its journal ended it already
                    await asyncio.to_thread(one.start)
            case "two_down":
                await asyncio.to_thread(one.kill)
                await asyncio.to_thread(other.kill)
                await self._wait(3.0)
                await asyncio.to_thread(one.start)
                await asyncio.to_thread(other.start)
            case _:
                await asyncio.to_thread(one.kill)
                if kind == "lose_disk":
                    one.wipe()
                await self._wait(2.0)
                await asyncio.to_thread(one.start)

    async def _of_zookeeper(self, kind: str) -> None:
        zookeeper = self._cluster.zookeeper
        if kind == "zookeeper_freeze":
            zookeeper.freeze()
            await self._wait(1.5 * SESSION_MS / 1000)
            zookeeper.wake()
            return
        await asyncio.to_thread(zookeeper.kill)
        await asyncio.sleep(2 * SESSION_MS / 1000 if kind == "zookeeper_away" else 0)
        await asyncio.to_thread(zookeeper.start)

    async def _of_broker(self, kind: str, bookie: Bookie) -> None:
        broker, zookeeper = self._broker, self._cluster.zookeeper
        assert broker.process is not None
        match kind:
            case "broker_stop" | "broker_stop_long":
                broker.process.send_signal(signal.SIGSTOP)
                await self._wait(1.0)
                await asyncio.sleep(2 * SESSION_MS / 1000 if kind == "broker_stop_long" else 0)
                broker.process.send_signal(signal.SIGCONT)
            case "broker_kill_without_a_bookie":
                await asyncio.to_thread(bookie.kill)
                await self._wait(0.5)
                await asyncio.to_thread(broker.restart_after_kill)
                await self._wait(2.0)
                await asyncio.to_thread(bookie.start)
            case "broker_kill_beside_frozen_bookie":
                bookie.freeze()
                await self._wait(0.5)
                await asyncio.to_thread(broker.restart_after_kill)
                await self._wait(2.0)
                bookie.wake()
            case "broker_kill_without_zookeeper":
                await asyncio.to_thread(zookeeper.kill)
                await self._wait(0.5)
                await asyncio.to_thread(broker.kill)
                await asyncio.to_thread(zookeeper.start)
                await asyncio.to_thread(broker.start)
            case _:
                await asyncio.to_thread(broker.restart_after_kill)
                if kind == "broker_kill_twice":
                    await self._wait(1.0)
                    await asyncio.to_thread(broker.restart_after_kill)

    async def _wait(self, longest_s: float) -> None:
        await asyncio.sleep(self._chance.random() * longest_s)


def stories(count: int, chance: Random) -> list[list[str]]:
    """Return the kinds of the faults of each topic."""
    if not count:
        return [list(SHORT)]
    kinds: list[str] = []
    while len(kinds) < count:
        kinds += chance.sample(KINDS, len(KINDS))
    if not small_disks_work():
        kinds = [each for each in kinds if each not in NEEDS_SMALL_DISK]
    found: list[list[str]] = [[]]
    for kind in kinds[:count]:
        if len(found[-1]) == STORY_FAULTS or (kind == "lose_disk" and kind in found[-1]):
            found.append([])
        found[-1].append(kind)
    return found


async def test_receipts_hold_through_random_faults(own_cluster: BookKeeperCluster, broker: BrokerProcess) -> None:
    chance = Random(SEED)
    faults = Faults(own_cluster, broker, chance)
    number = 0
    for story, kinds in enumerate(stories(FAULTS, chance)):
        topic = f"persistent://public/default/story-{story}"
        load = await asyncio.to_thread(ClusterLoad, Service([broker.url]), topic, chance)
        load.begin()
        try:
            await load.advances(PROGRESS, DEADLINE_S)
            for kind in kinds:
                began_s = time.monotonic()
                await faults.happen(kind)
                mended_s = time.monotonic()
                resumed_s = await load.advances(PROGRESS, DEADLINE_S)
                print(f"{number} {kind}: {mended_s - began_s:.1f} s, works {resumed_s:.1f} s later", flush=True)
                number += 1
            await load.stop_publishing(DEADLINE_S)
        finally:
            await load.stop()
        await asyncio.to_thread(broker.restart_after_kill)
        await load.check()
        promises = load.promises
        receipts = {each.kind: each.receipts for each in load.receipted}
        print(
            f"topic {story}: {len(promises.receipted)} messages with receipts, acknowledgements {receipts}", flush=True
        )
    assert "Traceback" not in broker.log.read_text()
