"""Random faults of real bookies while a client appends: every confirmed entry is read back after recovery.

`FAULTS` in the environment sets their number (`make bookie-faults` uses 100), `FAULT_SEED` the seed.
"""

from __future__ import annotations

import asyncio
import os
import random

from tests.bookkeeper.conftest import connected
from tests.support.bookie_faults import KINDS, LONGEST_S, MENDED_LATE, cause, left_out, mend
from tests.support.bookkeeper_cluster import BookKeeperCluster

from pybroker.bookkeeper import AppendOutcome, BookKeeperClient, BookKeeperError, BookKeeperOptions, Quorums
from pybroker.bookkeeper.errors import TooManyPending
from pybroker.bookkeeper.ledger_writer import LedgerWriter

FAULTS = int(os.environ.get("FAULTS", str(len(KINDS))))
SEED = int(os.environ.get("FAULT_SEED", "1"))
RECOVERY_ATTEMPTS = 60
FAST_ENTRIES = 2000
"""After that many entries, a writer appends slowly, so that the disks of long faults are not filled."""


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


async def _fault(number: int, cluster: BookKeeperCluster, chance: random.Random) -> str:
    """One ledger, one fault in the middle of its appends, and its recovery by another client."""
    kind = KINDS[number % len(KINDS)]
    if reason := left_out(kind):
        return f"{number} {kind}: {reason}"
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
                await cause(kind, cluster, bookie, chance)
                await asyncio.sleep(chance.random() * LONGEST_S.get(kind, 1))
                if kind not in MENDED_LATE:
                    await mend(kind, bookie)
                if chance.random() < 0.5 and kind != "crash_of_the_writer":  # recovered while it is written
                    await ledger.check(other)
                    stop.set()
                elif kind == "crash_of_the_writer":
                    await client.close()
                stop.set()
        changes = writer.ensemble_change_count
        await ledger.check(other)
        await mend(kind, bookie)
        await ledger.check(other)
        await other.delete_ledger(ledger.ledger_id)
    counts = {outcome.value: ledger.outcomes.count(outcome) for outcome in AppendOutcome}
    return f"{number} {kind} {options.quorums}: {counts}, {changes} changes of the ensemble"


async def test_confirmed_entries_survive_random_faults(four_bookies: BookKeeperCluster) -> None:
    chance = random.Random(SEED)
    for number in range(FAULTS):
        print(await _fault(number, four_bookies, chance), flush=True)
