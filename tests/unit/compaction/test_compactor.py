"""Compactions of a managed ledger in memory: interrupted at every durable step, dropped midway, and during trimming."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from tests.support.waiting import until
from tests.unit.compaction.entries import Said, batch, read, single

from pybroker.compaction.compactor import Compactor
from pybroker.compaction.survivors import KEY_BYTES
from pybroker.compaction.view import first_at, read_view
from pybroker.errors import NotAllowedError, StoreError
from pybroker.ledgers.ledger_store import AppendRun, LedgerSummary
from pybroker.ledgers.memory_store import MemoryCursorStore, MemoryLedgerStore
from pybroker.managed_ledger.cache.entry_cache import EntryCache
from pybroker.managed_ledger.factory import ManagedLedgerFactory
from pybroker.managed_ledger.info.managed_ledger_info import CompactedInfo
from pybroker.managed_ledger.ledger_listener import ManagedLedgerListener
from pybroker.managed_ledger.managed_ledger import ManagedLedger
from pybroker.managed_ledger.retention import RetentionLimits
from pybroker.managed_ledger.rollover import LedgerLimits
from pybroker.managed_ledger.shared_resources import LedgerResources
from pybroker.memory.broker_memory import Memory
from pybroker.metadata.memory_metadata_store import MemoryMetadataStore
from pybroker.model.position import EARLIEST, Position
from pybroker.runtime.clock import Clock

PATH = "/managed-ledgers/t"
CURSOR = "__compaction"
LIMITS = LedgerLimits(max_entries_per_ledger=4, min_rollover_ms=0)


class Crashed(StoreError):
    """The process has ended: no later step happens."""


class Countdown:
    """The number of durable steps before a crash; None: all."""

    def __init__(self) -> None:
        self.left: int | None = None

    def step(self) -> None:
        if self.left is not None:
            if not self.left:
                raise Crashed("crashed")
            self.left -= 1


class Store(MemoryLedgerStore):
    def __init__(self, countdown: Countdown) -> None:
        super().__init__()
        self._countdown = countdown

    async def create_ledger(self, *args: object) -> int:
        self._countdown.step()
        return await super().create_ledger()

    def append(self, run: AppendRun) -> None:
        self._countdown.step()
        super().append(run)

    async def seal(self, ledger_id: int) -> LedgerSummary:
        self._countdown.step()
        return await super().seal(ledger_id)

    async def delete_ledger(self, ledger_id: int) -> None:
        self._countdown.step()
        await super().delete_ledger(ledger_id)


class Metadata(MemoryMetadataStore):
    def __init__(self, countdown: Countdown) -> None:
        super().__init__()
        self._countdown = countdown

    async def put(self, path: str, value: bytes, expected_version: int | None = None) -> int:
        self._countdown.step()
        return await super().put(path, value, expected_version)  # type: ignore[arg-type]


class Listener(ManagedLedgerListener):
    def __init__(self) -> None:
        self.positions: list[Position] = []

    def entries_added(self, runs: list[AppendRun]) -> None:
        for run in runs:
            self.positions += [Position(run.ledger_id, run.first_entry_id + i) for i in range(len(run.payloads))]

    def split_context(self, context: object, entry_count: int) -> tuple[object, object]:
        raise AssertionError("these stores know the outcome of every append")

    def fenced(self, error: StoreError) -> None:
        raise AssertionError("nobody else writes here") from error

    def append_failed(self, runs: list[AppendRun], error: StoreError) -> None:
        raise error


class CompactionStack:
    """What survives a crash, and the managed ledger that is open on it."""

    def __init__(self) -> None:
        self.countdown = Countdown()
        self.store = Store(self.countdown)
        self.cursor_store = MemoryCursorStore()
        self.metadata = Metadata(self.countdown)
        self.listener = Listener()
        self.factory: ManagedLedgerFactory
        self.ledger: ManagedLedger

    async def open(self) -> None:
        self.countdown.left = None
        runtime = LedgerResources(self.store, EntryCache(1 << 20), LIMITS, Clock(), 1, lambda _: 0)
        self.factory = ManagedLedgerFactory(runtime, self.cursor_store, self.metadata)
        self.ledger = await self.factory.open(PATH)
        self.ledger.listen(self.listener)
        self.ledger.retention = RetentionLimits()
        if CURSOR not in self.ledger.cursors:
            start = self.ledger.position_before(EARLIEST)
            await self.factory.create_cursor(self.ledger, CURSOR, start, {})

    async def publish(self, *entries: bytes) -> None:
        for entry in entries:
            before = len(self.listener.positions)
            self.ledger.append([entry], [1], len(entry), None)
            await until(lambda before=before: len(self.listener.positions) > before)  # type: ignore[misc]
            await settle()

    def compactor(self) -> Compactor:
        return Compactor(
            self.ledger, self.store, Clock(), Memory.ample(Clock()), keeps_messages_without_key=False, read_timeout_s=10
        )

    async def compact(self) -> None:
        await self.compactor().run(self.ledger.last_confirmed)
        await self.ledger.cursors[CURSOR].expire_to(Position(*self.view.horizon))

    @property
    def view(self) -> CompactedInfo:
        assert self.ledger.compacted is not None
        return self.ledger.compacted

    async def seen(self) -> list[tuple[Position, Said]]:
        """Return the result of a compacted read: the view, then the entries behind it."""
        found = []
        position = self.ledger.ledgers.first_position
        if (view := self.ledger.compacted) is not None:
            entries = await read_view(self.store, view, 0, 1000, 1 << 30) if view.entries else []
            found = [(entry.position, said) for entry in entries for said in read(entry.payload).values()]
            position = Position(view.horizon[0], view.horizon[1] + 1)
        while self.ledger.ledgers.has_entry(position := self.ledger.ledgers.normalize(position)):
            run = await self.ledger.read(position, 1, 0)
            found += [(position, said) for said in read(run.payloads[0]).values()]
            position = Position(position.ledger_id, position.entry_id + 1)
        return found

    async def values(self) -> dict[str, bytes]:
        """Return the content of a table view."""
        table: dict[str, bytes] = {}
        for _, said in await self.seen():
            assert said.key is not None
            table.pop(said.key, None)
            if said.value:
                table[said.key] = said.value
        return table

    async def garbage(self) -> list[int]:
        """Return ledgers with entries and without a name."""
        await self.ledger.trim()
        named = {*self.ledger.ledgers.ledger_ids(), *([self.view.ledger] if self.ledger.compacted else [])}
        left = [ledger_id for ledger_id in await self.store.list_ledgers() if ledger_id not in named]
        return [each for each in left if (await self.store.recover(each)).entry_count]


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


FIRST = [single(Said("a", b"1")), batch([Said("b", b"1"), Said("a", b"2"), Said("c", b"1")]), single(Said("c", b""))]
SECOND = [single(Said("a", b"3")), *[single(Said(f"k{index % 3}", b"%d" % index)) for index in range(7)]]
TABLE = {"b": b"1", "a": b"3", "k1": b"4", "k2": b"5", "k0": b"6"}


async def compacted_once() -> CompactionStack:
    stack = CompactionStack()
    await stack.open()
    await stack.publish(*FIRST)
    await stack.compact()
    await stack.publish(*SECOND)
    return stack


async def test_compacted_read_keeps_positions_and_continues_in_topic() -> None:
    stack = await compacted_once()
    places = stack.listener.positions
    assert await stack.seen() == [
        (places[1], Said("b", b"1")),
        (places[1], Said("a", b"2")),
        *[(place, next(iter(read(entry).values()))) for place, entry in zip(places[3:], SECOND, strict=True)],
    ]
    await stack.compact()
    assert [place for place, _ in await stack.seen()] == [places[1], places[3], *places[-3:]]
    assert await stack.values() == TABLE


async def test_compaction_without_memory_for_keys_fails_and_keeps_old_view() -> None:
    stack = CompactionStack()
    await stack.open()
    await stack.publish(*(single(Said(f"k{number}", b"v")) for number in range(30)))
    memory = Memory.ample(Clock())
    memory.compaction.limit_to(20 * KEY_BYTES)
    compactor = Compactor(
        stack.ledger, stack.store, Clock(), memory, keeps_messages_without_key=False, read_timeout_s=10
    )
    with pytest.raises(NotAllowedError, match=r"keys, but may use only .* increase brokerMemoryLimitMB"):
        await compactor.run(stack.ledger.last_confirmed)
    assert stack.ledger.compacted is None
    assert memory.compaction.used_bytes == memory.compaction.takers == 0
    memory.compaction.limit_to(0)
    await stack.compact()
    assert stack.view.entries > 0


async def test_compaction_waits_for_memory_before_it_begins() -> None:
    stack = CompactionStack()
    await stack.open()
    await stack.publish(single(Said("k", b"v")))
    memory = Memory.ample(Clock())
    memory.compaction.limit_to(1000)
    others_bytes = await memory.take(memory.compaction, "others", 1000)
    compactor = Compactor(
        stack.ledger, stack.store, Clock(), memory, keeps_messages_without_key=False, read_timeout_s=10
    )
    running = asyncio.ensure_future(compactor.run(stack.ledger.last_confirmed))
    await until(lambda: memory.compaction.waiting == 1)
    assert compactor.progress.read_entries == 0
    memory.give_back(memory.compaction, others_bytes)
    await running
    assert stack.view.entries == 1
    assert memory.budget.used_bytes == 0


async def test_entry_of_view_is_found_by_position() -> None:
    stack = await compacted_once()
    await stack.compact()
    places = [place for place, _ in await stack.seen()]
    for index, place in enumerate(places):
        assert await first_at(stack.store, stack.view, place) == index
        assert await first_at(stack.store, stack.view, Position(place.ledger_id, place.entry_id + 1)) == index + 1
    assert await first_at(stack.store, stack.view, EARLIEST) == 0


async def test_crash_at_any_step_leaves_old_or_new_view_and_no_garbage() -> None:
    views = set()
    for steps in range(100):
        stack = await compacted_once()
        old = stack.view
        stack.countdown.left = steps
        try:
            await stack.compact()
            await stack.ledger.trim()
        except Crashed:
            is_over = False
        else:
            is_over = True
        await settle()
        await stack.open()
        await settle()
        views.add(stack.view == old)
        assert await stack.values() == TABLE, steps
        assert not await stack.garbage(), steps
        await stack.compact()
        assert await stack.values() == TABLE, steps
        if is_over:
            assert steps > 6
            break
    assert views == {True, False}


async def test_compacted_ledgers_are_trimmed_only_after_compaction() -> None:
    stack = await compacted_once()
    before = stack.ledger.ledgers.ledger_ids()
    await stack.ledger.trim()
    assert stack.ledger.ledgers.ledger_ids()[-3:] == before[-3:]
    await stack.compact()
    await stack.ledger.trim()
    assert len(stack.ledger.ledgers.ledger_ids()) < 3
    assert await stack.values() == TABLE
    # Where the ledgers were, cursors begin in front of the view.
    assert stack.ledger.position_before(EARLIEST) == EARLIEST


async def test_view_dropped_during_compaction_is_not_replaced() -> None:
    stack = await compacted_once()

    async def interrupted(act: Callable[[], Awaitable[None]]) -> None:
        compactor = stack.compactor()
        begin = stack.ledger.begin_compacted

        async def begin_and_act(drops: int, up_to: Position | None = None) -> int:
            ledger_id = await begin(drops, up_to)
            await act()
            return ledger_id

        stack.ledger.begin_compacted = begin_and_act  # type: ignore[method-assign]
        with pytest.raises(StoreError):
            await compactor.run(stack.ledger.last_confirmed)

    await interrupted(stack.ledger.drop_compacted)
    assert stack.ledger.compacted is None
    await settle()
    assert not await stack.garbage()


async def test_cancelled_compaction_leaves_no_ledger() -> None:
    stack = await compacted_once()
    old = stack.view
    for turns in range(0, 60, 3):
        task = asyncio.ensure_future(stack.compactor().run(stack.ledger.last_confirmed))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            break
        assert stack.view == old
        await settle()
        assert not await stack.garbage()
    assert await stack.values() == TABLE


async def test_deletion_of_managed_ledger_deletes_view() -> None:
    stack = await compacted_once()
    await stack.factory.delete(stack.ledger)
    assert await stack.store.list_ledgers() == []


async def test_large_batch_is_compacted() -> None:
    stack = CompactionStack()
    await stack.open()
    large = b"x" * (2 << 20)
    await stack.publish(batch([Said("a", large), Said("b", large)]), single(Said("a", b"new")))
    await stack.compact()
    assert await stack.values() == {"b": large, "a": b"new"}
