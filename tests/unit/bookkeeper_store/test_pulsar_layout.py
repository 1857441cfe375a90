"""Managed ledgers in Pulsar's layout: the documents after each operation, take-over, and owners that do not know that they lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from pyroaring import BitMap
from tests.support.pulsar_layout import Layout
from tests.unit.managed_ledger.stack import PATH, entry, read_all

from pybroker.bookkeeper.ledger_metadata import LedgerState, decode_metadata
from pybroker.bookkeeper_store.documents.cursor_documents import decode_cursor_info
from pybroker.bookkeeper_store.documents.managed_ledger_documents import decode_pulsar_info
from pybroker.bookkeeper_store.documents.ml_data_formats_pb2 import ManagedCursorInfo, ManagedLedgerInfo
from pybroker.errors import LedgerFenced, NoSuchLedger, StoreError
from pybroker.ledgers.cursor_store import NO_CURSOR_LEDGER
from pybroker.managed_ledger.info.managed_ledger_info import TRANSACTIONS_CURSOR
from pybroker.managed_ledger.managed_cursor import ManagedCursor
from pybroker.managed_ledger.retention import RetentionLimits
from pybroker.metadata.memory_metadata_store import MemoryMetadataStore
from pybroker.metadata.metadata_store import ANY_VERSION, Change, Put
from pybroker.model.position import EARLIEST, Position
from pybroker.runtime.tasks import completion

Work = Callable[[Layout], Awaitable[None]]
EXTRAS = f"/pybroker{PATH}"


class RecordedMetadata(MemoryMetadataStore):
    """Keeps every value that was put at the path of the managed ledger."""

    def __init__(self) -> None:
        super().__init__()
        self.documents: list[bytes] = []

    async def change_together(self, changes: list[Change]) -> list[int | None]:  # type: ignore[override]
        versions = await super().change_together(changes)
        self.documents += [each.value for each in changes if isinstance(each, Put) and each.path == PATH]
        return versions


class RefusingMetadata(MemoryMetadataStore):
    """Refuses transactions while `refuses` is set."""

    refuses = False

    async def change_together(self, changes: list[Change]) -> list[int | None]:  # type: ignore[override]
        if self.refuses:
            raise StoreError("refused by the test")
        return await super().change_together(changes)


async def document(layout: Layout) -> ManagedLedgerInfo:
    found = await layout.metadata.get(PATH)
    assert found is not None
    return decode_pulsar_info(PATH, found.value)


async def cursor_document(layout: Layout, name: str) -> ManagedCursorInfo:
    found = await layout.metadata.get(f"{PATH}/{name}")
    assert found is not None
    return decode_cursor_info(PATH, found.value)


def ledgers(info: ManagedLedgerInfo) -> list[tuple[int, int]]:
    return [(row.ledger_id, row.entries) for row in info.ledger_info]


def state_of(layout: Layout, ledger_id: int) -> LedgerState:
    return decode_metadata(layout.cluster.metadata.ledgers[ledger_id].value).state


async def acknowledge(cursor: ManagedCursor, *positions: Position) -> None:
    """Durable on return. Raises StoreError."""
    for position in positions:
        cursor.state.acknowledge(position.ledger_id, [position.entry_id])
    await cursor.persist()


async def test_rollover_and_trim_name_one_open_ledger_at_most() -> None:
    metadata = RecordedMetadata()
    layout = Layout(metadata=metadata)
    broker = layout.broker()
    _, topic = await broker.open()
    cursor = await broker.factory.create_cursor(topic.managed, "sub", EARLIEST, {"key": "value"})
    positions = await topic.publish(*[entry(number) for number in range(45)])
    assert len({position.ledger_id for position in positions}) == 5
    await acknowledge(cursor, *positions[:25])
    topic.managed.retention = RetentionLimits()
    await topic.managed.trim()
    await broker.stop()
    assert len(metadata.documents) >= 6
    for value in metadata.documents:
        rows = ledgers(decode_pulsar_info(PATH, value))
        assert all(entries == 10 for _, entries in rows[:-1]), "only the last ledger has no count"
        assert rows[-1][1] == 0
    assert set(layout.cluster.metadata.ledgers) == {row for row, _ in ledgers(await document(layout))}


async def test_unload_closes_the_ledger_and_leaves_the_document() -> None:
    layout = Layout()
    broker = layout.broker()
    _, topic = await broker.open()
    positions = await topic.publish(*[entry(number) for number in range(3)])
    before = await layout.metadata.get(PATH)
    await broker.stop()
    assert await layout.metadata.get(PATH) == before
    assert state_of(layout, positions[0].ledger_id) is LedgerState.CLOSED
    after = layout.broker()
    managed, _ = await after.open()
    assert managed.last_confirmed == positions[-1]
    assert ledgers(await document(layout))[0] == (positions[0].ledger_id, 3)
    await after.stop()


async def test_take_over_after_a_crash_fences_the_earlier_owner() -> None:
    layout = Layout()
    first, second = layout.broker(), layout.broker()
    _, topic = await first.open()
    cursor = await first.factory.create_cursor(topic.managed, "sub", EARLIEST, {})
    positions = await topic.publish(*[entry(number) for number in range(15)])
    await acknowledge(cursor, positions[1], positions[14])
    managed, other = await second.open()
    assert managed.cursors["sub"].backlog_entries == 13
    topic.append(b"16;")
    await topic.settle()
    with pytest.raises(StoreError):
        await acknowledge(cursor, positions[2])
    assert [type(each) for each in topic.fenced_by] == [LedgerFenced]
    assert isinstance(topic.failed[0], LedgerFenced)
    assert managed.cursors["sub"].backlog_entries == 13
    assert await read_all(managed.cursors["sub"]) == positions
    await other.publish(b"17;")
    await first.stop()
    assert managed.last_confirmed == other.positions[-1]
    await second.stop()
    third = layout.broker()
    managed, _ = await third.open()
    assert managed.cursors["sub"].backlog_entries == 14
    assert managed.cursors["sub"].state.deleted_in(positions[14].ledger_id) == BitMap([4])
    await third.stop()


async def test_two_ledgers_that_are_named_open_are_both_recovered() -> None:
    """A Java broker deletes both: this broker never names two, and loses none."""
    layout = Layout()
    broker = layout.broker()
    _, topic = await broker.open()
    positions = await topic.publish(*[entry(number) for number in range(3)])
    ahead = await broker.store.create_ledger()
    info = await document(layout)
    info.ledger_info.add(ledger_id=ahead)
    await layout.metadata.put(PATH, info.SerializeToString(), ANY_VERSION)
    await broker.crash()
    other = layout.broker()
    managed, _ = await other.open()
    assert managed.last_confirmed == positions[-1]
    await other.stop()


async def test_unknown_fields_of_every_document_survive() -> None:
    layout = Layout()
    broker = layout.broker()
    _, topic = await broker.open()
    await broker.factory.create_cursor(topic.managed, "sub", EARLIEST, {})
    positions = await topic.publish(*[entry(number) for number in range(12)])
    await broker.stop()
    unknown = b"\xfa\x3f\x03abc"  # field 1023
    for path in (PATH, f"{PATH}/sub"):
        found = await layout.metadata.get(path)
        assert found is not None
        await layout.metadata.put(path, found.value + unknown, found.version)
    info = await document(layout)
    info.ledger_info[0].MergeFromString(unknown)
    await layout.metadata.put(PATH, info.SerializeToString(), ANY_VERSION)
    second = layout.broker()
    managed, topic = await second.open()
    await acknowledge(managed.cursors["sub"], positions[5])
    await topic.publish(*[entry(number) for number in range(12)])
    await second.stop()
    info = await document(layout)
    assert unknown in info.SerializeToString()
    assert unknown in info.ledger_info[0].SerializeToString()
    assert unknown in (await cursor_document(layout, "sub")).SerializeToString()


async def test_cursor_ledger_is_named_before_a_receipt_and_deleted_at_the_unload() -> None:
    layout = Layout()
    broker = layout.broker(max_cursor_entries=3)
    _, topic = await broker.open()
    cursor = await broker.factory.create_cursor(topic.managed, "my sub/1", EARLIEST, {"a": "b"})
    positions = await topic.publish(*[entry(number) for number in range(9)])
    named = set()
    for position in positions[1:]:
        await acknowledge(cursor, position)
        info = await cursor_document(layout, "my+sub%2F1")
        assert info.cursors_ledger_id >= 0
        named.add(info.cursors_ledger_id)
        assert info.cursors_ledger_id in layout.cluster.metadata.ledgers
    assert len(named) == 3, "a new ledger after three entries"
    custom = decode_metadata(layout.cluster.metadata.ledgers[max(named)].value).custom
    assert custom["pulsar/cursor"] == b"my+sub%2F1"
    await broker.stop()
    info = await cursor_document(layout, "my+sub%2F1")
    assert info.cursors_ledger_id == -1
    assert [
        (each.lower_endpoint.entry_id, each.upper_endpoint.entry_id) for each in info.individual_deleted_messages
    ] == [(0, 8)]
    assert [(each.name, each.value) for each in info.cursor_properties] == [("a", "b")]
    assert not named & layout.cluster.metadata.ledgers.keys()
    again = layout.broker()
    managed, _ = await again.open()
    assert managed.cursors["my sub/1"].properties == {"a": "b"}
    assert managed.cursors["my sub/1"].backlog_entries == 1
    await again.stop()


async def test_acknowledgements_during_a_close_are_stored() -> None:
    layout = Layout()
    broker = layout.broker()
    managed, topic = await broker.open()
    cursor = await broker.factory.create_cursor(managed, "sub", EARLIEST, {})
    positions = await topic.publish(*[entry(number) for number in range(8)])
    results = []
    for position in positions[::2]:
        cursor.state.acknowledge(position.ledger_id, [position.entry_id])
        stored, done = completion()
        cursor.changed(done)
        results.append(stored)
    closing = asyncio.create_task(managed.close())
    await asyncio.gather(*results)
    await closing
    await broker.stop()
    again = layout.broker()
    managed, _ = await again.open()
    assert managed.cursors["sub"].backlog_entries == 4
    await again.stop()


async def test_deletion_leaves_nothing() -> None:
    layout = Layout()
    broker = layout.broker()
    managed, topic = await broker.open()
    cursor = await broker.factory.create_cursor(managed, "sub", EARLIEST, {})
    await broker.factory.create_cursor(managed, "unused", EARLIEST, {})
    positions = await topic.publish(*[entry(number) for number in range(25)])
    await acknowledge(cursor, positions[3])
    await broker.factory.delete(managed)
    assert not layout.cluster.metadata.ledgers
    assert not await broker.records.exists(PATH)
    assert [await layout.metadata.get(path) for path in (PATH, EXTRAS, f"{PATH}/sub", f"{PATH}/unused")] == [None] * 4
    managed, topic = await broker.open()
    assert not managed.cursors
    assert managed.last_confirmed.entry_id == -1
    await broker.stop()


async def test_deletion_of_a_changed_cursor_leaves_no_ledger() -> None:
    layout = Layout()
    broker = layout.broker()
    managed, topic = await broker.open()
    positions = await topic.publish(*[entry(number) for number in range(5)])
    cursor = await broker.factory.create_cursor(managed, "sub", EARLIEST, {})
    await acknowledge(cursor, positions[0])
    cursor.state.acknowledge(positions[2].ledger_id, [positions[2].entry_id])
    receipt, done = completion()
    cursor.changed(done)
    await broker.factory.delete_cursor(managed, cursor)
    await receipt
    assert list(layout.cluster.metadata.ledgers) == [positions[0].ledger_id]
    await broker.stop()


async def test_failed_deletion_of_a_cursor_keeps_its_state() -> None:
    metadata = RefusingMetadata()
    layout = Layout(metadata=metadata)
    broker = layout.broker()
    managed, topic = await broker.open()
    positions = await topic.publish(*[entry(number) for number in range(5)])
    cursor = await broker.factory.create_cursor(managed, "sub", EARLIEST, {})
    await acknowledge(cursor, positions[0], positions[2])
    metadata.refuses = True
    with pytest.raises(StoreError):
        await broker.factory.delete_cursor(managed, cursor)
    metadata.refuses = False
    await managed.document.save()
    await broker.crash()
    after = layout.broker()
    found = (await after.open())[0].cursors["sub"].state
    assert found.mark_delete_position == positions[0]
    assert found.is_deleted(*positions[2])
    await after.stop()


async def test_extras_of_a_topic_that_a_java_broker_deleted_and_created_again_do_not_count() -> None:
    layout = Layout()
    broker = layout.broker()
    managed, topic = await broker.open()
    await topic.publish(b"1;")
    managed.document.is_deleted = True
    await managed.document.save()
    await broker.crash()
    other = await layout.broker().store.create_ledger()
    fresh = ManagedLedgerInfo()
    fresh.ledger_info.add(ledger_id=other + 1)
    await layout.metadata.put(PATH, fresh.SerializeToString(), ANY_VERSION)
    again = layout.broker()
    assert await again.records.exists(PATH)
    await again.factory.finish_deletion(PATH)
    assert await layout.metadata.get(PATH) is not None
    await again.crash()


async def test_cursor_of_a_lost_ledger_continues_at_the_position_in_its_document() -> None:
    layout = Layout()
    broker = layout.broker()
    managed, topic = await broker.open()
    cursor = await broker.factory.create_cursor(managed, "sub", EARLIEST, {})
    positions = await topic.publish(*[entry(number) for number in range(5)])
    await acknowledge(cursor, positions[0])
    await acknowledge(cursor, positions[1])
    lost = (await cursor_document(layout, "sub")).cursors_ledger_id
    await broker.crash()
    del layout.cluster.metadata.ledgers[lost]
    again = layout.broker()
    managed, _ = await again.open()
    assert managed.cursors["sub"].mark_delete_position == positions[0]
    await again.stop()


async def test_terminated_topic_has_its_last_position_in_the_document() -> None:
    layout = Layout()
    broker = layout.broker()
    managed, topic = await broker.open()
    positions = await topic.publish(*[entry(number) for number in range(13)])
    assert await managed.terminate() == positions[-1]
    await broker.stop()
    info = await document(layout)
    assert (info.terminated_position.ledger_id, info.terminated_position.entry_id) == positions[-1]
    assert [entries for _, entries in ledgers(info)] == [10, 3]
    again = layout.broker()
    managed, _ = await again.open()
    assert managed.is_terminated
    assert managed.last_confirmed == positions[-1]
    await again.stop()


async def test_missing_last_ledger_is_dropped_and_missing_full_ledger_stays_listed() -> None:
    """As Java brokers do. Readers of a full ledger that is missing decide by `autoSkipNonRecoverableData`."""
    layout = Layout()
    broker = layout.broker()
    _, topic = await broker.open()
    positions = await topic.publish(*[entry(number) for number in range(15)])
    await broker.crash()
    first, last = positions[0].ledger_id, positions[-1].ledger_id
    await layout.cluster.metadata.delete(first)
    await layout.cluster.metadata.delete(last)
    after = layout.broker()
    managed, _ = await after.open()
    assert ledgers(await document(layout)) == [(first, 10), (managed.current_ledger_id, 0)]
    with pytest.raises(NoSuchLedger):
        await managed.read(positions[0], 10, 1 << 20)
    await after.stop()


async def test_cursor_of_transactions_is_in_the_extras_where_java_brokers_do_not_see_it() -> None:
    layout = Layout()
    broker = layout.broker()
    managed, topic = await broker.open()
    positions = await topic.publish(*[entry(number) for number in range(5)])
    cursor = await broker.factory.create_cursor(managed, TRANSACTIONS_CURSOR, positions[1], {})
    record_id = await cursor.announce_delayed()
    await cursor.expire_to(positions[2])
    await broker.stop()
    assert await layout.metadata.children(PATH) == []
    after = layout.broker()
    managed, _ = await after.open()
    found = managed.cursors[TRANSACTIONS_CURSOR]
    assert found.mark_delete_position == positions[2]
    assert await found.announce_delayed() == record_id
    await after.factory.delete_cursor(managed, found)
    await after.stop()
    last = layout.broker()
    managed, _ = await last.open()
    assert TRANSACTIONS_CURSOR not in managed.cursors
    await last.stop()


async def test_cursor_ledger_and_stored_documents_are_shown_to_operators() -> None:
    layout = Layout()
    broker = layout.broker()
    managed, topic = await broker.open()
    cursor = await broker.factory.create_cursor(managed, "a b", EARLIEST, {})
    positions = await topic.publish(*[entry(number) for number in range(5)])
    assert cursor.cursor_ledger == NO_CURSOR_LEDGER
    await acknowledge(cursor, positions[0], positions[2])
    shown = cursor.cursor_ledger
    assert shown is not None
    assert (shown.ledger_id, shown.last_entry_id) == ((await cursor_document(layout, "a+b")).cursors_ledger_id, 0)
    await managed.close()
    found = await broker.records.described(PATH)
    assert found is not None
    stored = found.cursors["a+b"]
    assert (stored.ledger_id, stored.mark) == (-1, positions[0])
    assert stored.deleted == [(positions[1], positions[2])]
    assert [(each.ledger_id, each.entries) for each in found.ledgers] == [(managed.current_ledger_id, None)]
    ledger = (await broker.store.described([managed.current_ledger_id]))[managed.current_ledger_id]
    assert (ledger.entry_count, ledger.size_bytes) == (5, sum(len(entry(number)) for number in range(5)))
    assert (
        f"state=CLOSED, length={ledger.size_bytes}, lastEntryId=4, digestType=CRC32C, password=OMITTED" in ledger.text
    )
    assert "customMetadata={application=base64:cHVsc2Fy, component=" in ledger.text
    await broker.crash()
