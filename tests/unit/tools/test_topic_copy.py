"""Copies of topics between a store in memory and the model of bookies, in both directions, interrupted at every step."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from tests.support.pulsar_layout import Layout, LayoutBroker
from tests.unit.managed_ledger.stack import (
    PATH,
    SMALL,
    FakeClock,
    MemoryStack,
    Topic,
    entry,
    publish_time_of,
    settled,
)

from pybroker.bookkeeper_store.pulsar_schemas import PulsarSchemaStorage
from pybroker.compaction.stored_entry import format_in
from pybroker.config import BrokerConfig
from pybroker.errors import StoreError
from pybroker.ledgers.ledger_store import AppendListener, AppendRun, LedgerStore
from pybroker.local_store.data_directory import INCOMPLETE_COPY_NAME, DataDirectoryLock, IncompleteRestore
from pybroker.managed_ledger.cache.entry_cache import EntryCache
from pybroker.managed_ledger.cursor_record import CursorRecord
from pybroker.managed_ledger.factory import ManagedLedgerFactory
from pybroker.managed_ledger.info.json_records import JsonRecords
from pybroker.managed_ledger.info.managed_ledger_info import TRANSACTIONS_CURSOR, CompactedInfo
from pybroker.managed_ledger.managed_ledger import ManagedLedger
from pybroker.managed_ledger.retention import RetentionLimits
from pybroker.managed_ledger.shared_resources import LedgerResources
from pybroker.model.names import TopicName
from pybroker.model.position import EARLIEST, Position
from pybroker.model.txn_id import TxnId
from pybroker.schema.schema_data import SchemaData, SchemaType
from pybroker.schema.schema_storage import MetadataSchemaStorage, SchemaRecord
from pybroker.tools.copying_topics.copy_progress import ProgressFile, incomplete_copies, progress_path
from pybroker.tools.copying_topics.opening import Side, open_local
from pybroker.tools.copying_topics.position_map import PositionMap
from pybroker.tools.copying_topics.schema_copy import copy_schemas
from pybroker.tools.copying_topics.topic_copy import Copied, TopicCopy
from pybroker.tools.verify import main as verify_directory

ENTRIES = 47
STEP = 5
"""Of the calls of a copy at which it ends, for two directions: each takes half a second."""
FIRST_KEPT = 10
"""The first ledger is trimmed."""


class Done(AppendListener):
    def __init__(self) -> None:
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def append_completed(self, runs: list[AppendRun], error: StoreError | None) -> None:
        self.future.set_result(None)


async def fill(factory: ManagedLedgerFactory, store: LedgerStore) -> None:
    """Create a topic with trimmed and remaining ledgers, a compacted ledger, and cursors of every kind."""
    managed = await factory.open(PATH)
    topic = Topic(managed)
    reader = await factory.create_cursor(managed, "sub / 1", EARLIEST, {"key": "value"})
    positions = await topic.publish(*[entry(number, number) for number in range(ENTRIES)], message_count=3)
    last = positions[-1]
    reader.state.mark_delete_to(positions[FIRST_KEPT + 1])
    for each in positions[15:40:2]:
        reader.state.acknowledge(each.ledger_id, [each.entry_id])
    reader.state.acknowledge_batch(positions[20], [0b101], 3)
    await reader.persist()
    await factory.create_cursor(managed, "begin", managed.ledgers.first_position, {})
    await factory.create_cursor(managed, "end", last, {})
    await factory.create_cursor(managed, "pulsar.dedup", last, {"producer-1": "41"})
    await factory.create_cursor(managed, TRANSACTIONS_CURSOR, last, {})
    await managed.document.change_properties({"a": "b"})
    compacted_id = await managed.begin_compacted(managed.compacted_drops)
    payloads = [format_in(store).encode(positions[number], b"%d" % number) for number in (3, 12, 46)]
    done = Done()
    store.append(AppendRun(done, compacted_id, 0, payloads, [1] * 3, sum(map(len, payloads)), None))
    await done.future
    await store.seal(compacted_id)
    await factory.create_cursor(managed, "__compaction", last, {})
    view = CompactedInfo(compacted_id, 3, sum(map(len, payloads)), last)
    await managed.replace_compacted(None, view)
    managed.cursors["begin"].state.mark_delete_to(positions[FIRST_KEPT - 1])
    await managed.cursors["begin"].persist()
    transactions = managed.cursors[TRANSACTIONS_CURSOR]
    transactions.state.mark_delete_to(last)
    managed.retention = RetentionLimits()
    await managed.trim()
    await settled(managed)
    await factory.close()


async def described(factory: ManagedLedgerFactory, store: LedgerStore) -> dict[str, object]:
    """Return the contents with positions as numbers of entries, which do not depend on ledger ids."""
    managed = await factory.open(PATH)
    number_of: dict[Position, int] = {}
    payloads: list[bytes] = []
    for row in managed.ledgers.rows():
        if not row.entry_count:
            continue
        run = await store.read(row.ledger_id, 0, 1000, 1 << 20)
        for index in range(len(run.payloads)):
            number_of[Position(row.ledger_id, index)] = len(number_of)
        payloads += run.payloads
    cursors = {
        name: (backlog(managed, name, number_of), dict(cursor.properties))
        for name, cursor in managed.cursors.items()
        if name != TRANSACTIONS_CURSOR
    }
    compacted: list[object] = []
    if managed.compacted is not None:
        run = await store.read(managed.compacted.ledger, 0, 1000, 1 << 20)
        stored = [format_in(store).decode(each, 1) for each in run.payloads]
        compacted = [(number_of.get(each.position), each.payload) for each in stored]
        assert [each.position for each in stored] == sorted({each.position for each in stored})
        compacted.append(number_of[Position(*managed.compacted.horizon)])
    found = {
        "payloads": payloads,
        "cursors": cursors,
        "compacted": compacted,
        "properties": dict(managed.properties),
        "terminated": managed.is_terminated,
        "created": managed.created_ms,
    }
    await factory.close()
    return found


def backlog(managed: ManagedLedger, name: str, number_of: dict[Position, int]) -> object:
    state = CursorRecord(managed.cursors[name].snapshot())
    holes = sorted(
        number_of[Position(ledger_id, each)] for ledger_id, entries in state.holes.items() for each in entries
    )
    sets = {number_of[position]: bits for position, bits in state.ack_sets.items()}
    return managed.ledgers.entries_after(state.mark_delete_position), holes, sets


class Places:
    """A local side in memory, and bookies."""

    def __init__(self, directory: Path, *, is_to_bookkeeper: bool) -> None:
        self.directory = directory
        self.is_to_bookkeeper = is_to_bookkeeper
        self.stack = MemoryStack()
        self.layout = Layout()

    def bookkeeper_side(self, broker: LayoutBroker) -> Side:
        return Side(
            "bookkeeper",
            "bookies",
            broker.store,
            broker.cursors,
            broker.records,
            self.layout.metadata,
            PulsarSchemaStorage(broker.store.client, self.layout.metadata),
        )

    def local_side(self) -> Side:
        stack = self.stack
        records, schemas = JsonRecords(stack.metadata), MetadataSchemaStorage(stack.metadata)
        return Side("local", "memory", stack.store, stack.cursor_store, records, stack.metadata, schemas)

    @asynccontextmanager
    async def factory(self, *, of_target: bool) -> AsyncIterator[tuple[ManagedLedgerFactory, LedgerStore]]:
        if of_target is self.is_to_bookkeeper:
            broker = self.layout.broker()
            yield broker.factory, broker.store
            await broker.crash()
        else:
            self.stack._make_factory()
            yield self.stack.factory, self.stack.store

    async def copy(self, stops_at: int | None = None) -> Copied:
        """`stops_at`: the call of the target at which the process ends."""
        broker = self.layout.broker()
        sides = (self.local_side(), self.bookkeeper_side(broker))
        source, target = sides if self.is_to_bookkeeper else reversed(sides)
        copy = TopicCopy(source, target, PATH, self.directory, lambda entries, size_bytes: None)
        running = asyncio.create_task(copy.run())
        if stops_at is not None:
            end_at_call(target, stops_at, running)
        try:
            return await running
        finally:
            await broker.crash()


def end_at_call(target: Side, number: int, running: asyncio.Task[Copied]) -> None:
    """Let the process end at the call `number` of the target's stores, before or after its effect: no code runs behind it."""
    calls = [0]

    async def end_if_due() -> None:
        calls[0] += 1
        if calls[0] == number:
            running.cancel()
        if calls[0] >= number:
            await asyncio.Event().wait()

    def wrapped(owner: object, name: str) -> None:
        inner = getattr(owner, name)

        async def call(*arguments: object) -> object:
            await end_if_due()
            result = await inner(*arguments)
            await end_if_due()
            return result

        setattr(owner, name, call)

    for name in ("create_ledger", "seal", "delete_ledger", "read"):
        wrapped(target.ledgers, name)
    wrapped(target.metadata, "change_together")
    wrapped(target.metadata, "put")


@pytest.mark.parametrize("is_to_bookkeeper", [True, False])
async def test_copy_has_all_entries_cursors_and_properties(tmp_path: Path, *, is_to_bookkeeper: bool) -> None:
    places = Places(tmp_path, is_to_bookkeeper=is_to_bookkeeper)
    await places.stack.start()
    async with places.factory(of_target=False) as (factory, store):
        await fill(factory, store)
    result = await places.copy()
    assert not result.was_complete
    assert (result.contents.entries, result.contents.cursors, result.contents.has_compacted) == (37, 6, True)
    assert (await places.copy()).was_complete
    async with places.factory(of_target=False) as (factory, store):
        expected = await described(factory, store)
    async with places.factory(of_target=True) as (factory, store):
        assert await described(factory, store) == expected
        managed = await factory.open(PATH)
        transactions = managed.cursors[TRANSACTIONS_CURSOR]
        assert managed.ledgers.entries_after(transactions.mark_delete_position) == 37
        (position,) = await Topic(managed).publish(entry(1))
        assert position > managed.ledgers.first_position
        await factory.close()
    with pytest.raises(StoreError, match="with other content"):
        await places.copy()


@pytest.mark.parametrize("is_to_bookkeeper", [True, False])
async def test_copy_that_ended_anywhere_continues(tmp_path: Path, *, is_to_bookkeeper: bool) -> None:
    for number in range(1 if is_to_bookkeeper else 2, 200, STEP):
        directory = tmp_path / str(number)
        directory.mkdir()
        places = Places(directory, is_to_bookkeeper=is_to_bookkeeper)
        await places.stack.start()
        async with places.factory(of_target=False) as (factory, store):
            await fill(factory, store)
        has_ended = False
        metadata, store = places.layout.metadata, places.stack.store
        try:
            await places.copy(stops_at=number)
        except asyncio.CancelledError:
            has_ended = True
        for each in (metadata, store, places.stack.metadata):  # a new process has its own calls
            for name in [name for name in vars(each) if name in {"create_ledger", "seal", "delete_ledger", "read"}]:
                delattr(each, name)
            for name in [name for name in vars(each) if name in {"change_together", "put"}]:
                delattr(each, name)
        await places.copy()
        async with places.factory(of_target=False) as (factory, store):
            expected = await described(factory, store)
        async with places.factory(of_target=True) as (factory, store):
            assert await described(factory, store) == expected
        if not has_ended:
            assert number > 15
            return
    raise AssertionError("the copy has more steps")


async def test_existing_topic_of_the_target_is_refused(tmp_path: Path) -> None:
    places = Places(tmp_path, is_to_bookkeeper=True)
    await places.stack.start()
    for of_target in (False, True):
        async with places.factory(of_target=of_target) as (factory, _):
            await Topic(await factory.open(PATH)).publish(entry(1))
            await factory.close()
    with pytest.raises(StoreError, match="exists in bookies with other content"):
        await places.copy()


@pytest.mark.parametrize("is_to_bookkeeper", [True, False])
async def test_pending_transaction_acks_are_refused_until_transaction_ends(
    tmp_path: Path, *, is_to_bookkeeper: bool
) -> None:
    """The records of ended transactions do not prevent the copy, and are not copied."""
    places = Places(tmp_path, is_to_bookkeeper=is_to_bookkeeper)
    await places.stack.start()
    low, ended, pending = TxnId(0, 3), TxnId(0, 7), TxnId(0, 8)
    async with places.factory(of_target=False) as (factory, _):
        managed = await factory.open(PATH)
        cursor = await factory.create_cursor(managed, "sub", EARLIEST, {})
        (position,) = await Topic(managed).publish(entry(1))
        cursor.state.held.raise_low_water_mark(low.most, low.least)
        cursor.state.held.end(ended)
        cursor.state.held.hold(pending, None, [(position.ledger_id, [position.entry_id])], [])
        cursor.state.held_changed()
        await cursor.persist()
        await factory.close()
    with pytest.raises(StoreError, match=r"subscription sub of .* has pending acknowledgements of a transaction"):
        await places.copy()
    async with places.factory(of_target=False) as (factory, _):
        cursor = (await factory.open(PATH)).cursors["sub"]
        assert cursor.state.held.open.keys() == {pending}
        cursor.state.held.end(pending)
        cursor.state.held_changed()
        await cursor.persist()
        await factory.close()
    await places.copy()
    assert (await places.copy()).was_complete
    async with places.factory(of_target=True) as (factory, _):
        assert not (await factory.open(PATH)).cursors["sub"].state.held.was_used
        await factory.close()


async def test_terminated_and_empty_topics_are_copied(tmp_path: Path) -> None:
    for is_terminated in (True, False):
        directory = tmp_path / str(is_terminated)
        directory.mkdir()
        places = Places(directory, is_to_bookkeeper=True)
        await places.stack.start()
        async with places.factory(of_target=False) as (factory, _):
            managed = await factory.open(PATH)
            if is_terminated:
                await Topic(managed).publish(entry(1))
                await managed.terminate()
            await factory.close()
        await places.copy()
        async with places.factory(of_target=True) as (factory, _):
            managed = await factory.open(PATH)
            assert managed.is_terminated is is_terminated
            assert len(managed.ledgers.rows()) >= 1
            await factory.close()


def test_position_in_trimmed_ledger_maps_to_the_next_one() -> None:
    positions = PositionMap([(5, 70, 10), (9, 71, 3)], {3: 60})
    assert positions.mark(Position(5, 4)) == (70, 4)
    assert positions.mark(Position(5, -1)) == (70, -1)
    assert positions.mark(Position(4, 8)) == (70, -1)
    assert positions.mark(Position(7, 2)) == (71, -1)
    assert positions.mark(Position(12, 2)) == (71, 2)
    assert positions.entry(Position(3, 1)) == (60, 1)
    with pytest.raises(StoreError, match="its ledger is missing"):
        positions.entry(Position(8, 0))


def test_progress_of_another_target_is_refused(tmp_path: Path) -> None:
    path = progress_path(tmp_path, PATH, "bookkeeper")
    file = ProgressFile(path, "zk-1")
    file.save()
    assert (incomplete_copies(tmp_path, "bookkeeper"), incomplete_copies(tmp_path, "local")) == ([path], [])
    with pytest.raises(StoreError, match="copy to zk-1"):
        ProgressFile(path, "zk-2")
    file.progress.is_complete = True
    file.save()
    assert incomplete_copies(tmp_path, "bookkeeper") == []
    path.write_bytes(b"{")
    with pytest.raises(StoreError, match="is damaged"):
        ProgressFile(path, "zk-1")


@pytest.mark.parametrize("is_to_bookkeeper", [True, False])
async def test_schema_versions_keep_their_numbers(tmp_path: Path, *, is_to_bookkeeper: bool) -> None:
    places = Places(tmp_path, is_to_bookkeeper=is_to_bookkeeper)
    await places.stack.start()
    broker, topic = places.layout.broker(), TopicName.parse("public/default/topic-partition-1")
    local, remote = places.local_side().schemas, places.bookkeeper_side(broker).schemas
    source, target = (local, remote) if is_to_bookkeeper else (remote, local)
    records = [
        SchemaRecord(SchemaData(SchemaType.STRING), 1),
        SchemaRecord(None, 2),
        *(SchemaRecord(SchemaData(SchemaType.JSON, b"%d" % number, {"a": "b"}), number) for number in range(3, 6)),
    ]
    for version, record in enumerate(records):
        assert await source.append(source.topic_path(topic), version, record)
    for _ in range(2):
        assert await copy_schemas([source], target, topic) == 3
        assert await target.read(target.topic_path(topic)) == await source.read(source.topic_path(topic))
    await source.append(source.topic_path(topic), 5, SchemaRecord(SchemaData(SchemaType.INT32), 7))
    await target.append(target.topic_path(topic), 5, SchemaRecord(SchemaData(SchemaType.STRING), 7))
    with pytest.raises(StoreError, match="version 5"):
        await copy_schemas([source], target, topic)
    await broker.crash()


@asynccontextmanager
async def local_files(directory: Path, *, must_exist: bool) -> AsyncIterator[Side]:
    async with AsyncExitStack() as opened:
        config = BrokerConfig().replace(data_directory=str(directory))
        yield await open_local(config, must_exist=must_exist, opened=opened)


def factory_of(side: Side) -> ManagedLedgerFactory:
    resources = LedgerResources(side.ledgers, EntryCache(1 << 20), SMALL, FakeClock(), 10_000, publish_time_of)
    return ManagedLedgerFactory(resources, side.cursors, side.metadata, side.records)


async def test_local_files_are_copied_to_bookies_and_to_other_files(tmp_path: Path) -> None:
    layout, first, second = Layout(), tmp_path / "first", tmp_path / "second"
    async with local_files(first, must_exist=False) as side:
        await fill(factory_of(side), side.ledgers)
    broker = layout.broker()
    schemas = PulsarSchemaStorage(broker.store.client, layout.metadata)
    remote = Side("bookkeeper", "bookies", broker.store, broker.cursors, broker.records, layout.metadata, schemas)
    async with local_files(first, must_exist=True) as side:
        copied = await TopicCopy(side, remote, PATH, first, lambda entries, size_bytes: None).run()
        expected = await described(factory_of(side), side.ledgers)
    async with local_files(second, must_exist=False) as side:
        back = await TopicCopy(remote, side, PATH, second, lambda entries, size_bytes: None).run()
        assert (back.contents.entries, back.contents.size_bytes) == (
            copied.contents.entries,
            copied.contents.size_bytes,
        )
    await broker.crash()
    assert await asyncio.to_thread(verify_directory, second) == 0
    async with local_files(second, must_exist=True) as side:
        assert await described(factory_of(side), side.ledgers) == expected
    with pytest.raises(StoreError, match=r"no metadata\.db"):
        async with local_files(tmp_path / "third", must_exist=True):
            pass
    (second / INCOMPLETE_COPY_NAME).touch()
    with pytest.raises(IncompleteRestore, match="interrupted copy"):
        DataDirectoryLock(second)
