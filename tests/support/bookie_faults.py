"""Faults of real bookies."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.bookkeeper_cluster import Bookie, BookKeeperCluster, bookkeeper_cluster
from tests.support.small_disk import small_disks_work

KINDS = (
    "kill",
    "freeze",
    "wake_late",
    "slow",
    "read_only",
    "full",
    "lose_disk",
    "replace_disk",
    "kill_while_others_append",
    "crash_of_the_writer",
)
NEEDS_SMALL_DISK = {"read_only", "full"}
MENDED_LATE = {"freeze", "kill_while_others_append"}
"""Faults that last until the ledgers are recovered. The others end while entries are appended."""
LONGEST_S = {"wake_late": 4, "read_only": 3}
DISK_MIB = 256


@contextmanager
def faulty_cluster() -> Iterator[BookKeeperCluster]:
    """Four bookies: one more than an ensemble, so that one can be replaced."""
    settings = {
        "dataIntegrityChecking": "true",  # a bookie without its disk starts, and knows that it lost it
        "dataIntegrityStampMissingCookies": "true",
        "zkTimeout": 2000,  # a bookie that was killed starts only when its former session has ended
    }
    with bookkeeper_cluster(4, settings, DISK_MIB if small_disks_work() else 0) as started:
        yield started


def left_out(kind: str) -> str:
    """Return why this machine cannot cause the fault; empty if it can."""
    if kind in NEEDS_SMALL_DISK and not small_disks_work():
        return "left out, because this machine does not let a test mount a tmpfs"
    return ""


async def cause(kind: str, cluster: BookKeeperCluster, bookie: Bookie, chance: random.Random) -> None:
    match kind:
        case "freeze" | "wake_late":
            bookie.freeze()
        case "slow":
            for _ in range(10):
                bookie.freeze()
                await asyncio.sleep(chance.choice((0.02, 0.1, 0.4)))
                bookie.wake()
                await asyncio.sleep(chance.choice((0.01, 0.1)))
        case "read_only" | "full":
            assert bookie.disk is not None
            left_bytes = DISK_MIB * 1024 * 1024 // 8 if kind == "read_only" else 0
            await asyncio.to_thread(bookie.disk.fill, left_bytes)
        case "crash_of_the_writer":
            pass
        case _:
            await asyncio.to_thread(bookie.kill)
    if kind in {"lose_disk", "replace_disk"}:
        bookie.wipe()
    if kind == "replace_disk":
        await asyncio.to_thread(cluster.forget, bookie)


async def mend(kind: str, bookie: Bookie) -> None:
    if bookie.is_frozen:
        bookie.wake()
    if bookie.disk is not None:
        bookie.disk.free()
    if kind == "full":
        await asyncio.to_thread(bookie.kill)  # unless its journal ended it already
    if not bookie.is_running:
        await asyncio.to_thread(bookie.start)
