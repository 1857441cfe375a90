"""The stored form of the index of delayed entries, with a real cursor and no dispatcher."""

from __future__ import annotations

import pytest
from tests.unit.broker.one_topic import OneTopic, one_topic

from pybroker.broker.delivery import delayed_index_storage
from pybroker.broker.delivery.delayed_index_storage import DelayedIndexStorage
from pybroker.dispatch.delayed.changed_delays import ChangedDelays
from pybroker.dispatch.delayed.delayed_entries import DelayedIndex
from pybroker.errors import StoreError
from pybroker.ledgers.memory_store import MemoryCursorStore
from pybroker.managed_ledger.managed_cursor import ManagedCursor
from pybroker.model.position import Position

DUE_MS = 1_800_000_000_000
MANY = 40


class Life:
    """The index of one subscription between two starts of its topic."""

    def __init__(self, one: OneTopic, cursor: ManagedCursor, records: list[bytes]) -> None:
        self.changed = ChangedDelays()
        self.index = DelayedIndex(self.changed)
        cursor.stored_delayed = records
        self.storage = DelayedIndexStorage(one.topic.shared, "s", cursor, self.index, self.changed)

    def delay(self, positions: list[Position]) -> None:
        for position in positions:
            self.index.add(position.ledger_id, (position.entry_id,), (DUE_MS,))

    async def change(self, position: Position, due_ms: int) -> None:
        self.changed.set(position, due_ms)
        self.index.move(position)
        await self.storage.store_change(position, due_ms)


class World:
    def __init__(self, one: OneTopic, cursor: ManagedCursor, positions: list[Position]) -> None:
        self.one = one
        self.cursor = cursor
        self.positions = positions
        self.life = Life(one, cursor, [])

    def stored(self) -> list[bytes]:
        """Return the stored records, as the next load of the cursor passes them on."""
        store = self.one.broker_context.ledgers.cursor_store
        assert isinstance(store, MemoryCursorStore)
        found = [(snapshot, deltas) for owner, (snapshot, deltas) in store._cursors.items() if owner in self._ids()]
        return [
            each for snapshot, deltas in found for each in ([] if snapshot is None else [snapshot], deltas)[0] + deltas
        ]

    def _ids(self) -> set[str]:
        return {self.life.storage._record_id}

    def reloaded(self) -> Life:
        return Life(self.one, self.cursor, self.stored())


async def new_world(one: OneTopic) -> World:
    subscription = await one.subscription()
    return World(one, subscription.cursor, await one.publish(MANY))


async def test_closed_index_is_restored_in_slices_of_the_deadline() -> None:
    async with one_topic() as one:
        world = await new_world(one)
        world.life.delay(world.positions)
        await world.life.change(world.positions[3], DUE_MS + 7)
        await world.life.storage.close()
        after = world.reloaded()
        assert not after.storage.is_restored
        rounds = 1
        while not after.storage.restore(deadline_ms=0):
            rounds += 1
        assert after.storage.is_restored
        assert rounds > 1, "a past deadline ends each slice after one run"
        assert len(after.index) == MANY
        assert after.changed.get(world.positions[3]) == DUE_MS + 7


async def test_acknowledged_entries_are_not_restored() -> None:
    async with one_topic() as one:
        world = await new_world(one)
        world.life.delay(world.positions)
        await world.life.change(world.positions[5], DUE_MS + 1)
        await world.life.storage.close()
        acked = world.positions[5]
        world.cursor.state.acknowledge(acked.ledger_id, [acked.entry_id])
        after = world.reloaded()
        assert after.storage.restore(one.runtime.clock.monotonic_ms() + 1)
        assert len(after.index) == MANY - 1
        assert after.changed.get(acked) is None


async def test_damaged_record_leaves_an_empty_index_and_ends_the_restore() -> None:
    async with one_topic() as one:
        world = await new_world(one)
        after = Life(one, world.cursor, [b"\xff\xff\xff"])
        assert after.storage.restore(one.runtime.clock.monotonic_ms() + 1)
        assert after.storage.is_restored
        assert len(after.index) == 0, "the cursor reads these entries again"


async def test_nothing_is_stored_after_close() -> None:
    async with one_topic() as one:
        world = await new_world(one)
        await world.life.storage.close()
        world.life.delay(world.positions)
        world.life.storage.store_runs()
        with pytest.raises(StoreError, match="is being closed"):
            await world.life.storage.store_change(world.positions[0], DUE_MS)
        assert world.stored() == []


async def test_stale_index_is_rewritten_and_an_empty_one_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delayed_index_storage, "STALE_ENTRIES", 0)
    async with one_topic() as one:
        world = await new_world(one)
        life = world.life
        life.delay(world.positions)
        await life.change(world.positions[0], DUE_MS)
        life.index.seal_newest()
        life.storage.store_runs()
        records = len(world.stored())
        life.storage.store_anew_if_stale()
        assert len(world.stored()) == records, "all stored entries wait"
        last = world.positions[-1]
        life.changed.discard_up_to(last)
        life.index.discard_up_to(last)
        life.storage.store_anew_if_stale()
        assert len(world.stored()) == records + 1
        after = world.reloaded()
        assert after.storage.restore(one.runtime.clock.monotonic_ms() + 1)
        assert len(after.index) == 0
