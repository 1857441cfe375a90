"""Random faults of real bookies while a client appends: every confirmed entry is read back after recovery.

`FAULTS` in the environment sets their number (`make bookie-faults` uses 100), `FAULT_SEED` the seed.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Iterator

import pytest
from tests.bookkeeper.conftest import connected
from tests.support.bookkeeper_cluster import Bookie, BookKeeperCluster, bookkeeper_cluster
from tests.support.small_disk import small_disks_work

from pybroker.bookkeeper import AppendOutcome, BookKeeperClient, BookKeeperError, BookKeeperOptions, Quorums
from pybroker.bookkeeper.errors import TooManyPending
from pybroker.bookkeeper.ledger_writer import LedgerWriter

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
FAULTS = int(os.environ.get("FAULTS", str(len(KINDS))))
SEED = int(os.environ.get("FAULT_SEED", "1"))
NEEDS_SMALL_DISK = {"read_only", "full"}
MENDED_LATE = {"freeze", "kill_while_others_append"}
"""Faults that last until the ledger is recovered. The others end while the writer appends."""
LONGEST_S = {"wake_late": 4, "read_only": 3}
DISK_MIB = 256
RECOVERY_ATTEMPTS = 60
FAST_ENTRIES = 2000
"""After that many entries, a writer appends slowly, so that the disks of long faults are not filled."""


@pytest.fixture(scope="module")
def own_cluster() -> Iterator[BookKeeperCluster]:
    """Four bookies: one more than an ensemble, so that one can be replaced."""
    settings = {
        "dataIntegrityChecking": "true",  # a bookie without its disk starts, and knows that it lost it
        "dataIntegrityStampMissingCookies": "true",
        "zkTimeout": 2000,  # a bookie that was killed starts only when its former session has ended
    }
    with bookkeeper_cluster(4, settings, DISK_MIB if small_disks_work() else 0) as started:
        yield started


class Ledger:
    """One ledger, what was appended to it, and how each append ended."""

    def __init__(self) -> None:
        self.ledger_id = -1
        self.payloads: list[bytes] = []
        self.outcomes: list[AppendOutcome] = []

    def append_completed(
        self, first_entry_id: int, contexts: list[object], outcome: AppendOutcome, error: BookKeeperError | None
    ) -> None:
        assert first_entry_id == len(self.outcomes)
        self.outcomes += [outcome] * len(contexts)

    async def append_until(self, writer: LedgerWriter, stop: asyncio.Event, chance: random.Random) -> None:
        while not stop.is_set() and writer.error is None:
            payload = b"%d:%d:" % (self.ledger_id, len(self.payloads)) + chance.randbytes(chance.choice((0, 100, 5000)))
            try:
                writer.append(payload)
            except TooManyPending:
                await asyncio.sleep(0.01)
                continue
            except BookKeeperError:
                return
            self.payloads.append(payload)
            if len(self.payloads) > FAST_ENTRIES:
                await asyncio.sleep(0.01)
            elif len(self.payloads) % 20 == 0:
                await asyncio.sleep(0.002)

    async def check(self, client: BookKeeperClient) -> None:
        """Recover the ledger and compare it with what was appended."""
        for attempt in range(RECOVERY_ATTEMPTS):
            try:
                reader = await client.recover_ledger(self.ledger_id)
                break
            except BookKeeperError:
                if attempt == RECOVERY_ATTEMPTS - 1:
                    raise
                await asyncio.sleep(1)
        last = reader.metadata.last_entry_id
        stored = self.outcomes.count(AppendOutcome.STORED)
        assert stored - 1 <= last < len(self.payloads), f"{stored} entries were confirmed, {last + 1} exist"
        read = [entry.payload async for entry in reader.entries(0, 1_000_000)]
        assert read == self.payloads[: last + 1]
        assert reader.metadata.length_bytes == sum(map(len, read))


async def _cause(kind: str, cluster: BookKeeperCluster, bookie: Bookie, chance: random.Random) -> None:
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


async def _mend(kind: str, bookie: Bookie) -> None:
    if bookie.is_frozen:
        bookie.wake()
    if bookie.disk is not None:
        bookie.disk.free()
    if kind == "full":
        await asyncio.to_thread(bookie.kill)  # unless its journal ended it already
    if not bookie.is_running:
        await asyncio.to_thread(bookie.start)


async def _fault(number: int, cluster: BookKeeperCluster, chance: random.Random) -> str:
    """One ledger, one fault in the middle of its appends, and its recovery by another client."""
    kind = KINDS[number % len(KINDS)]
    if kind in NEEDS_SMALL_DISK and not small_disks_work():
        return f"{number} {kind}: left out, because this machine does not let a test mount a tmpfs"
    options = BookKeeperOptions(
        quorums=chance.choice((Quorums(3, 2, 2), Quorums(3, 3, 2), Quorums(2, 2, 2))),
        add_timeout_ms=1500,
        read_timeout_ms=1500,
        append_timeout_ms=15_000,
        max_pending_entries=500,
        use_batch_reads=chance.random() < 0.5,
    )
    ledger, stop = Ledger(), asyncio.Event()
    async with connected(cluster, options) as other:
        async with connected(cluster, options) as client:
            writer = await client.create_ledger({}, ledger)
            ledger.ledger_id = writer.ledger_id
            bookie = chance.choice([each for each in cluster.bookies if each.bookie_id in writer.ensemble])
            async with asyncio.TaskGroup() as group:
                group.create_task(ledger.append_until(writer, stop, chance))
                await asyncio.sleep(chance.random() * 0.5)
                await _cause(kind, cluster, bookie, chance)
                await asyncio.sleep(chance.random() * LONGEST_S.get(kind, 1))
                if kind not in MENDED_LATE:
                    await _mend(kind, bookie)
                if chance.random() < 0.5 and kind != "crash_of_the_writer":  # recovered while it is written
                    await ledger.check(other)
                    stop.set()
                elif kind == "crash_of_the_writer":
                    await client.close()
                stop.set()
        changes = writer.ensemble_change_count
        await ledger.check(other)
        await _mend(kind, bookie)
        await ledger.check(other)
        await other.delete_ledger(ledger.ledger_id)
    counts = {outcome.value: ledger.outcomes.count(outcome) for outcome in AppendOutcome}
    return f"{number} {kind} {options.quorums}: {counts}, {changes} changes of the ensemble"


async def test_confirmed_entries_survive_random_faults(own_cluster: BookKeeperCluster) -> None:
    chance = random.Random(SEED)
    for number in range(FAULTS):
        print(await _fault(number, own_cluster, chance), flush=True)
