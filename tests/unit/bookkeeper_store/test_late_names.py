"""Owners that name a ledger late, beside a leader that deletes orphaned ledgers: no entry with a receipt is in a deleted ledger."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

import pytest
from tests.support.pulsar_layout import Layout, LayoutBroker
from tests.unit.managed_ledger.stack import PATH, entry, read_all

from pybroker.bookkeeper.inspection.orphan_deletion import OrphanDeletion
from pybroker.bookkeeper.ledger_metadata import decode_metadata
from pybroker.bookkeeper_store.naming_limit import Moment, NamingLimit
from pybroker.bookkeeper_store.orphans.named_ledgers import NamedLedgers
from pybroker.bookkeeper_store.orphans.orphaned_ledgers import orphan_rule
from pybroker.errors import StoreError
from pybroker.ledgers.ledger_properties import ClusterMark
from pybroker.ledgers.ledger_store import LedgerPurpose
from pybroker.managed_ledger.rollover import LedgerLimits
from pybroker.metadata.memory_metadata_store import MemoryMetadataStore
from pybroker.metadata.metadata_store import Change
from pybroker.model.position import EARLIEST, Position
from pybroker.runtime.clock import Clock

AGE_MS = 1_000_000
MARK = ClusterMark.of_age("c1", AGE_MS)
LIMITS = LedgerLimits(max_entries_per_ledger=10, min_rollover_ms=0)


class ShiftedClock(Clock):
    """The clock of the leader. `shift_ms`: the time that has passed in the test."""

    shift_ms = 0

    def wall_ms(self) -> int:
        return super().wall_ms() + self.shift_ms


class FreezingMetadata(MemoryMetadataStore):
    """Calls `freeze` before and after each transaction."""

    def __init__(self) -> None:
        super().__init__()
        self.freeze: Callable[[], asyncio.Future[None]] | None = None

    async def change_together(self, changes: list[Change]) -> list[int | None]:  # type: ignore[override]
        if self.freeze is not None:
            await self.freeze()
        versions = await super().change_together(changes)
        if self.freeze is not None:
            await self.freeze()
        return versions


class Story:
    """An owner that is frozen now and then, and a leader that deletes orphaned ledgers meanwhile."""

    acknowledges = True

    def __init__(self, seed: int, *, bookies_forget: bool = True) -> None:
        self.bookies_forget = bookies_forget
        self.chance = Random(seed)
        self.metadata = FreezingMetadata()
        self.layout = Layout(seed, self.metadata)
        self.leader_clock = ShiftedClock()
        self.broker = self.layout.broker(LIMITS, 5, mark=MARK, client_clock=self.leader_clock)
        self.is_in_freeze = False
        self.deleted = 0

    async def pass_time(self, duration_ms: int) -> None:
        self.broker.clock.now_ms += duration_ms
        self.leader_clock.shift_ms += duration_ms

    async def delete_orphans(self) -> None:
        async def is_leader() -> bool:
            return True

        async def sleep(_: float) -> None:
            await asyncio.sleep(0)

        client = self.layout.cluster.client()
        rule = orphan_rule("c1", AGE_MS)
        deletion = OrphanDeletion(client, rule, NamedLedgers(self.metadata), is_leader, self.leader_clock, sleep)
        before = set(self.layout.cluster.metadata.ledgers)
        await deletion.run()
        for ledger_id in before - set(self.layout.cluster.metadata.ledgers):
            self.deleted += 1
            if (
                self.bookies_forget and self.chance.random() < 0.5
            ):  # The bookies free the space, and forget that the ledger was fenced.
                for bookie in self.layout.cluster.network.bookies.values():
                    bookie.ledgers.pop(ledger_id, None)
        await client.close()

    async def freeze(self) -> None:
        if self.is_in_freeze or self.chance.random() < 0.7:
            return
        self.is_in_freeze = True
        await self.pass_time(self.chance.choice((AGE_MS // 5, AGE_MS // 2, 2 * AGE_MS)))
        await self.delete_orphans()
        self.is_in_freeze = False

    async def run(self) -> None:
        """Raises AssertionError for a lost entry or acknowledgement."""
        managed, topic = await self.broker.open()
        cursor = await self.broker.factory.create_cursor(managed, "sub", EARLIEST, {})
        self.metadata.freeze = lambda: asyncio.ensure_future(self.freeze())
        positions: list[Position] = []
        acknowledged: list[Position] = []
        for number in range(40):
            positions += await topic.publish(entry(number))
            assert positions[-1].ledger_id in self.layout.cluster.metadata.ledgers, (
                "an entry with a receipt in a deleted ledger"
            )
            if self.acknowledges and self.chance.random() < 0.4:
                position = self.chance.choice(positions)
                cursor.state.acknowledge(position.ledger_id, [position.entry_id])
                try:
                    await cursor.persist()
                except StoreError:
                    continue
                acknowledged.append(position)
            if self.chance.random() < 0.1:
                await self.pass_time(AGE_MS // 3)
                await self.delete_orphans()
        self.metadata.freeze = None
        assert not topic.failed
        await cursor.persist()  # The last one may have been refused, as far as a client knows.
        await self.pass_time(5 * AGE_MS)
        await self.delete_orphans()
        await self.broker.crash()
        await self._read_back(positions, acknowledged)

    async def _read_back(self, positions: list[Position], acknowledged: list[Position]) -> None:
        broker = self.layout.broker(LIMITS, 5, mark=MARK)
        managed, _ = await broker.open()
        state = managed.cursors["sub"].state
        assert all(state.is_deleted(*each) for each in acknowledged)
        reader = await broker.factory.create_cursor(managed, "reader", EARLIEST, {})
        assert await read_all(reader) == positions
        await broker.stop()


async def tell_stories(seeds: int, *, bookies_forget: bool, skips_after_s: float | None = None) -> int:
    """Return the number of deleted ledgers. `skips_after_s`: a story that lasts longer is left out, because its owner is stuck."""
    deleted = 0
    for seed in range(seeds):
        story = Story(seed, bookies_forget=bookies_forget)
        try:
            await asyncio.wait_for(story.run(), skips_after_s)
        except TimeoutError:
            continue
        deleted += story.deleted
    return deleted


async def test_no_receipted_entry_is_in_a_deleted_ledger() -> None:
    assert await tell_stories(8, bookies_forget=True) > 5


async def test_fence_protects_owner_that_names_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the clocks of both brokers differed a lot."""
    monkeypatch.setattr(NamingLimit, "allows", lambda self, created: True)
    monkeypatch.setattr(
        Story, "acknowledges", False
    )  # The fence does not protect a cursor ledger, which is written before.
    await tell_stories(8, bookies_forget=False)


@pytest.mark.parametrize("acknowledges", [False, True])
async def test_owner_without_limit_is_found(monkeypatch: pytest.MonkeyPatch, acknowledges: bool) -> None:
    """Bookies that have forgotten the fence take its appends, and its cursor ledger is deleted."""
    monkeypatch.setattr(NamingLimit, "allows", lambda self, created: True)
    monkeypatch.setattr(Story, "acknowledges", acknowledges)
    with pytest.raises((AssertionError, StoreError)):
        await tell_stories(60, bookies_forget=not acknowledges, skips_after_s=3)


async def new_broker() -> tuple[FreezingMetadata, LayoutBroker]:
    metadata = FreezingMetadata()
    return metadata, Layout(1, metadata).broker(LIMITS, mark=MARK)


async def test_old_prepared_ledger_is_not_named() -> None:
    _, broker = await new_broker()
    managed, topic = await broker.open()
    await topic.publish(*[entry(number) for number in range(9)])
    prepared = managed._next_ledger_id
    assert prepared is not None
    broker.clock.now_ms += AGE_MS // 4
    positions = await topic.publish(entry(9), entry(10))
    assert positions[-1].ledger_id > prepared
    assert prepared not in await broker.store.list_ledgers()
    assert not managed.ledgers.has_ledger(prepared)
    await broker.stop()


async def test_ledger_with_late_name_is_not_used() -> None:
    metadata, broker = await new_broker()
    managed, topic = await broker.open()
    await topic.publish(*[entry(number) for number in range(9)])
    prepared = managed._next_ledger_id

    async def freeze_once() -> None:
        metadata.freeze = None
        broker.clock.now_ms += AGE_MS

    metadata.freeze = lambda: asyncio.ensure_future(freeze_once())
    positions = await topic.publish(entry(9), entry(10))
    assert prepared is not None
    assert positions[-1].ledger_id > prepared
    await managed.trim()
    assert prepared not in await broker.store.list_ledgers()
    await broker.stop()


async def test_topic_is_not_opened_on_a_ledger_with_late_name() -> None:
    metadata, broker = await new_broker()

    async def freeze_once() -> None:
        metadata.freeze = None
        broker.clock.now_ms += AGE_MS

    metadata.freeze = lambda: asyncio.ensure_future(freeze_once())
    with pytest.raises(StoreError, match="took too long"):
        await broker.open()
    _, topic = await broker.open()
    assert len(await topic.publish(entry(1))) == 1
    await broker.stop()


async def test_cursor_state_in_a_ledger_with_late_name_gets_no_receipt() -> None:
    metadata, broker = await new_broker()
    managed, topic = await broker.open()
    cursor = await broker.factory.create_cursor(managed, "sub", EARLIEST, {})
    positions = await topic.publish(entry(1), entry(2))

    async def freeze_once() -> None:
        metadata.freeze = None
        broker.clock.now_ms += AGE_MS

    metadata.freeze = lambda: asyncio.ensure_future(freeze_once())
    cursor.state.acknowledge(positions[0].ledger_id, [positions[0].entry_id])
    with pytest.raises(StoreError, match="took too long"):
        await cursor.persist()
    cursor.state.acknowledge(positions[1].ledger_id, [positions[1].entry_id])
    await cursor.persist()
    await broker.stop()


async def test_ledgers_of_entries_and_cursors_have_marks() -> None:
    layout = Layout()
    broker = layout.broker(mark=MARK)
    managed, topic = await broker.open()
    cursor = await broker.factory.create_cursor(managed, "sub", EARLIEST, {})
    (position,) = await topic.publish(entry(1))
    cursor.state.acknowledge(position.ledger_id, [position.entry_id])
    await cursor.persist()
    compacted = await broker.store.create_ledger(LedgerPurpose.COMPACTED, PATH)
    name = PATH.removeprefix("/managed-ledgers/").encode()
    pulsar = {"application": b"pulsar", "component": b"managed-ledger", "pulsar/managed-ledger": name}
    marks = {"pybroker/cluster": b"c1", "pybroker/named-within-ms": b"%d" % (AGE_MS // 4)}
    for ledger_id, stored in layout.cluster.metadata.ledgers.items():
        custom = decode_metadata(stored.value).custom
        if ledger_id == compacted:
            assert "pybroker/cluster" not in custom
        elif "pulsar/cursor" in custom:
            assert custom == {**pulsar, **marks, "pulsar/cursor": b"sub"}
        else:
            assert custom == {**pulsar, **marks}
    assert len(layout.cluster.metadata.ledgers) == 3
    await broker.crash()


def test_limit_counts_by_the_clock_that_has_moved_further() -> None:
    class TwoClocks(Clock):
        wall, monotonic = 0, 0.0

        def wall_ms(self) -> int:
            return self.wall

        def monotonic_ms(self) -> float:
            return self.monotonic

    clock = TwoClocks()
    limit = NamingLimit(clock, ClusterMark("c1", 100))
    created = limit.now()
    assert created == Moment(0, 0.0)
    clock.wall, clock.monotonic = -500, 99.0
    assert limit.allows(created)
    clock.monotonic = 100.0
    assert not limit.allows(created)
    clock.wall, clock.monotonic = 100, 1.0
    assert not limit.allows(created)
    assert NamingLimit(clock, None).allows(created)
