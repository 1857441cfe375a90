"""Random faults of real bookies below a managed ledger with a cursor: every confirmed entry and every receipted acknowledgement is
there after the next owner has taken over, at the same position and in the same order.

`STORE_FAULTS` in the environment sets their number (`make bookie-faults` uses 100), `FAULT_SEED` the seed.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from weakref import WeakValueDictionary

from tests.bookkeeper.conftest import connected
from tests.support.bookie_faults import KINDS, LONGEST_S, MENDED_LATE, cause, left_out, mend
from tests.support.bookkeeper_cluster import BookKeeperCluster

from pybroker.bookkeeper import BookKeeperOptions, Quorums
from pybroker.bookkeeper_store.bookkeeper_cursor_store import BookKeeperCursorStore
from pybroker.bookkeeper_store.bookkeeper_ledger_store import BookKeeperLedgerStore
from pybroker.bookkeeper_store.client_options import NO_LIMIT, max_entry_bytes
from pybroker.bookkeeper_store.documents.cursor_node import CursorNode
from pybroker.bookkeeper_store.naming_limit import NamingLimit
from pybroker.bookkeeper_store.pulsar_records import PulsarRecords
from pybroker.errors import StoreError
from pybroker.ledgers.ledger_properties import ClusterMark
from pybroker.ledgers.ledger_store import AppendRun
from pybroker.managed_ledger.cache.entry_cache import EntryCache
from pybroker.managed_ledger.factory import ManagedLedgerFactory
from pybroker.managed_ledger.ledger_listener import ManagedLedgerListener
from pybroker.managed_ledger.managed_cursor import ManagedCursor
from pybroker.managed_ledger.managed_ledger import ManagedLedger
from pybroker.managed_ledger.rollover import LedgerLimits
from pybroker.managed_ledger.shared_resources import LedgerResources
from pybroker.memory.broker_memory import Memory
from pybroker.metadata.zookeeper_metadata_store import ZooKeeperMetadataStore
from pybroker.model.position import EARLIEST, Position
from pybroker.runtime.clock import Clock
from pybroker.zookeeper import ClientOptions, ServerAddresses

FAULTS = int(os.environ.get("STORE_FAULTS", "2"))
SEED = int(os.environ.get("FAULT_SEED", "1"))
LIMITS = LedgerLimits(max_entries_per_ledger=500, min_rollover_ms=0)
FAST_ENTRIES = 2000
OPEN_ATTEMPTS = 60
MAX_PENDING = 500


class Published(ManagedLedgerListener):
    """The confirmed entries, in the order in which they became visible."""

    def __init__(self, managed: ManagedLedger) -> None:
        self.managed = managed
        self.entries: list[tuple[Position, bytes]] = []
        self.refused = 0
        managed.listen(self)

    def entries_added(self, runs: list[AppendRun]) -> None:
        for run in runs:
            for index, payload in enumerate(run.payloads):
                self.entries.append((Position(run.ledger_id, run.first_entry_id + index), bytes(payload)))

    def append_failed(self, runs: list[AppendRun], error: StoreError) -> None:
        self.refused += sum(len(run.payloads) for run in runs)

    def split_context(self, context: object, entry_count: int) -> tuple[object, object]:
        return context, context

    def fenced(self, error: StoreError) -> None:
        raise AssertionError(f"there is one owner: {error}")


@asynccontextmanager
async def owner(cluster: BookKeeperCluster, options: BookKeeperOptions) -> AsyncIterator[ManagedLedgerFactory]:
    """The stores of a broker, which ends like a crashed one: nothing is closed in order."""
    clock = Clock()
    naming = NamingLimit(clock, ClusterMark.of_age("faults", 3_600_000))
    zookeeper = ServerAddresses.parse(cluster.zookeeper.address)
    metadata = await ZooKeeperMetadataStore.open(zookeeper, ClientOptions(session_timeout_ms=10_000), 30.0)
    nodes: WeakValueDictionary[str, CursorNode] = WeakValueDictionary()
    async with connected(cluster, options) as client:
        memory, largest = Memory.ample(clock), max_entry_bytes(options)
        store = BookKeeperLedgerStore(
            client, memory, lambda entries: [1] * len(entries), max_entry_bytes=largest, naming=naming
        )
        cursors = BookKeeperCursorStore(client, metadata, nodes, max_entry_bytes=largest, max_entries=50, naming=naming)
        resources = LedgerResources(store, EntryCache(1 << 20), LIMITS, clock, 10_000, lambda _: 0)
        factory = ManagedLedgerFactory(resources, cursors, metadata, PulsarRecords(client, metadata, nodes, clock))
        try:
            yield factory
        finally:
            await factory.tasks.close()
            await cursors.close()
    await metadata.close()


async def publish(published: Published, stop: asyncio.Event, chance: random.Random) -> None:
    count = 0
    while not stop.is_set():
        if published.managed.pending_entries > MAX_PENDING:
            await asyncio.sleep(0.005)
            continue
        payload = b"%d:" % count + chance.randbytes(chance.choice((0, 100, 5000)))
        try:
            published.managed.append([payload], [1], len(payload), None)
        except StoreError:
            await asyncio.sleep(0.01)
            continue
        count += 1
        if count > FAST_ENTRIES:
            await asyncio.sleep(0.01)
        elif count % 20 == 0:
            await asyncio.sleep(0.002)


async def acknowledge(
    cursor: ManagedCursor, published: Published, stop: asyncio.Event, chance: random.Random
) -> set[Position]:
    """Acknowledge random entries one after the other, and return those with a receipt."""
    receipted: set[Position] = set()
    while not stop.is_set():
        await asyncio.sleep(0.01)
        if not published.entries:
            continue
        chosen = {chance.choice(published.entries)[0] for _ in range(chance.choice((1, 1, 20)))}
        for position in chosen:
            cursor.state.acknowledge(position.ledger_id, [position.entry_id])
        try:
            await cursor.persist()
        except StoreError:
            continue
        receipted |= chosen
    return receipted


async def check(factory: ManagedLedgerFactory, path: str, published: Published, receipted: set[Position]) -> None:
    """Take over, and compare everything."""
    for attempt in range(OPEN_ATTEMPTS):
        try:
            managed = await factory.open(path)
            break
        except StoreError:
            if attempt == OPEN_ATTEMPTS - 1:
                raise
            await asyncio.sleep(1)
    state = managed.cursors["sub"].state
    missing = [each for each in receipted if not state.is_deleted(*each)]
    assert not missing, f"receipted acknowledgements are lost: {missing}"
    reader = await factory.create_cursor(managed, "reader", EARLIEST, {})
    confirmed = dict(published.entries)
    assert len(confirmed) == len(published.entries)
    found: list[tuple[Position, bytes]] = []
    while (position := reader.next_entry()) is not None:
        run = reader.read_cached(position, 100, 1 << 20) or await reader.read(100, 1 << 20)
        if run is not None:
            for index, payload in enumerate(run.payloads):
                found.append((Position(run.ledger_id, run.first_entry_id + index), bytes(payload)))
    # Behind the confirmed ones may be entries whose outcome was still unknown.
    assert found[: len(published.entries)] == published.entries
    await factory.delete_cursor(managed, reader)


async def fault(number: int, cluster: BookKeeperCluster, chance: random.Random) -> str:
    """One managed ledger, one fault in the middle of its appends, and two owners afterwards."""
    kind = KINDS[(number * 3 + SEED) % len(KINDS)]  # A few faults are of different kinds.
    if reason := left_out(kind):
        return f"{number} {kind}: {reason}"
    options = BookKeeperOptions(
        quorums=chance.choice((Quorums(3, 2, 2), Quorums(3, 3, 2), Quorums(2, 2, 2))),
        add_timeout_ms=1500,
        read_timeout_ms=1500,
        append_timeout_ms=15_000,
        use_batch_reads=chance.random() < 0.5,
        **NO_LIMIT,
    )
    path = f"/managed-ledgers/public/default/persistent/faults-{SEED}-{number}"
    stop = asyncio.Event()
    async with owner(cluster, options) as factory:
        managed = await factory.open(path)
        cursor = await factory.create_cursor(managed, "sub", EARLIEST, {})
        published = Published(managed)
        bookie = chance.choice(cluster.bookies)
        async with asyncio.TaskGroup() as group:
            group.create_task(publish(published, stop, chance))
            acknowledging = group.create_task(acknowledge(cursor, published, stop, chance))
            await asyncio.sleep(chance.random() * 0.5)
            await cause(kind, cluster, bookie, chance)
            await asyncio.sleep(0.3 + chance.random() * LONGEST_S.get(kind, 1))
            if kind not in MENDED_LATE:
                await mend(kind, bookie)
            stop.set()
    receipted = acknowledging.result()
    async with owner(cluster, options) as factory:
        await check(factory, path, published, receipted)
        await mend(kind, bookie)
    async with owner(cluster, options) as factory:
        await check(factory, path, published, receipted)
    counts = f"{len(published.entries)} confirmed, {published.refused} refused, {len(receipted)} acknowledged"
    ledgers = len({position.ledger_id for position, _ in published.entries})
    return f"{number} {kind} {options.quorums}: {counts}, {ledgers} ledgers"


async def test_entries_and_acknowledgements_survive_random_faults(four_bookies: BookKeeperCluster) -> None:
    chance = random.Random(SEED)
    for number in range(FAULTS):
        print(await fault(number, four_bookies, chance), flush=True)
