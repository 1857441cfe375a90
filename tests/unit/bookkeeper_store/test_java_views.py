"""Compacted views and deduplication in Pulsar's layout: as this broker stores them, and as Java brokers leave them."""

from __future__ import annotations

import pytest
from tests.support.pulsar_layout import Layout, LayoutBroker
from tests.unit.bookkeeper_store.test_pulsar_layout import cursor_document, state_of
from tests.unit.compaction.entries import Said, batch, read, single
from tests.unit.managed_ledger.stack import PATH

from pybroker.bookkeeper.ledger_metadata import LedgerMetadata, LedgerState, decode_metadata
from pybroker.bookkeeper.protocol.entry_format import DigestType
from pybroker.bookkeeper_store.documents.cursor_node import COMPACTED_LEDGER, COMPACTION_CURSOR, DEDUPLICATION_CURSOR
from pybroker.bookkeeper_store.documents.ml_data_formats_pb2 import ManagedCursorInfo, PositionInfo
from pybroker.bookkeeper_store.state_ledger import StateLedger
from pybroker.compaction.compactor import Compactor
from pybroker.compaction.stored_entry import OwnFormat, PulsarFormat
from pybroker.compaction.view import read_view
from pybroker.errors import StoreError
from pybroker.managed_ledger.managed_ledger import ManagedLedger
from pybroker.memory.broker_memory import Memory
from pybroker.metadata.metadata_store import ANY_VERSION
from pybroker.model.position import EARLIEST, Position
from pybroker.runtime.clock import Clock


def metadata_of(layout: Layout, ledger_id: int) -> LedgerMetadata:
    return decode_metadata(layout.cluster.metadata.ledgers[ledger_id].value)


async def compact(broker: LayoutBroker, managed: ManagedLedger) -> None:
    compactor = Compactor(
        managed, broker.store, Clock(), Memory.ample(Clock()), keeps_messages_without_key=False, read_timeout_s=10
    )
    await compactor.run(managed.last_confirmed)


async def values(broker: LayoutBroker, managed: ManagedLedger) -> list[Said]:
    assert managed.compacted is not None
    entries = await read_view(broker.store, managed.compacted, 0, 1000, 1 << 20)
    return [said for entry in entries for said in read(entry.payload).values()]


async def test_view_is_named_by_the_compaction_cursor_and_survives_a_crash() -> None:
    layout = Layout()
    broker = layout.broker()
    managed, topic = await broker.open()
    await broker.factory.create_cursor(managed, COMPACTION_CURSOR, EARLIEST, {})
    await topic.publish(single(Said("a", b"1")), single(Said("b", b"2")), single(Said("a", b"3")))
    await compact(broker, managed)
    view = managed.compacted
    assert view is not None
    cursor = await cursor_document(layout, COMPACTION_CURSOR)
    assert [(each.name, each.value) for each in cursor.properties] == [(COMPACTED_LEDGER, view.ledger)]
    assert (cursor.mark_delete_ledger_id, cursor.mark_delete_entry_id) == view.horizon == managed.last_confirmed
    assert cursor.cursors_ledger_id == -1
    ledger = metadata_of(layout, view.ledger)
    assert (ledger.digest_type, ledger.password, ledger.state) == (DigestType.CRC32, b"", LedgerState.CLOSED)
    before = await values(broker, managed)
    await broker.crash()
    after = layout.broker()
    managed, _ = await after.open()
    assert managed.compacted == view
    assert await values(after, managed) == before
    await after.stop()


async def test_next_view_replaces_the_ledger_of_the_previous_one() -> None:
    layout = Layout()
    broker = layout.broker()
    managed, topic = await broker.open()
    await broker.factory.create_cursor(managed, COMPACTION_CURSOR, EARLIEST, {})
    await topic.publish(single(Said("a", b"1")))
    await compact(broker, managed)
    first = managed.compacted
    await topic.publish(single(Said("b", b"2")))
    await compact(broker, managed)
    assert first is not None
    await managed.trim()
    assert first.ledger not in layout.cluster.metadata.ledgers
    await broker.factory.delete_cursor(managed, managed.cursors[COMPACTION_CURSOR])
    await broker.crash()  # before the view is deleted
    after = layout.broker()
    second = managed.compacted
    managed, _ = await after.open()
    await managed.trim()
    assert managed.compacted is None
    assert second is not None
    assert second.ledger not in layout.cluster.metadata.ledgers
    await after.stop()


async def leave_in_cursor_ledger(
    layout: Layout, broker: LayoutBroker, name: str, position: Position, **properties: int
) -> int:
    """Store the state of a cursor as a Java broker that was killed has left it. Return the cursor ledger."""
    state = PositionInfo(ledger_id=position.ledger_id, entry_id=position.entry_id)
    for key, value in properties.items():
        state.properties.add(name=key, value=value)
    ledger = await StateLedger.create(broker.store.client, {})
    await ledger.add(state.SerializeToString())
    document = ManagedCursorInfo(cursors_ledger_id=ledger.ledger_id, mark_delete_ledger_id=-1, mark_delete_entry_id=-1)
    await layout.metadata.put(f"{PATH}/{name}", document.SerializeToString(), ANY_VERSION)
    return ledger.ledger_id


async def test_states_in_cursor_ledgers_of_a_killed_java_broker_move_into_documents() -> None:
    layout = Layout()
    broker = layout.broker()
    _, topic = await broker.open()
    positions = await topic.publish(*[single(Said("a", b"%d" % number)) for number in range(5)])
    left = layout.broker()
    ledgers = [
        await leave_in_cursor_ledger(layout, left, COMPACTION_CURSOR, positions[3], **{COMPACTED_LEDGER: 10_000}),
        await leave_in_cursor_ledger(layout, left, DEDUPLICATION_CURSOR, positions[4], p=17, q=-1),
    ]
    await broker.crash()
    after = layout.broker()
    managed, _ = await after.open()
    assert managed.cursors[DEDUPLICATION_CURSOR].properties == {"p": "17", "q": "-1"}
    assert managed.cursors[DEDUPLICATION_CURSOR].mark_delete_position == positions[4]
    assert managed.cursors[COMPACTION_CURSOR].mark_delete_position == positions[3]
    assert managed.compacted is None, "the ledger of the view does not exist"
    assert not {*ledgers} & layout.cluster.metadata.ledgers.keys()
    document = await cursor_document(layout, DEDUPLICATION_CURSOR)
    assert {each.name: each.value for each in document.properties} == {"p": 17, "q": -1}
    await after.stop()


async def test_unfinished_view_is_deleted_after_a_crash() -> None:
    layout = Layout()
    broker = layout.broker()
    managed, _ = await broker.open()
    await broker.factory.create_cursor(managed, COMPACTION_CURSOR, EARLIEST, {})
    ledger_id = await managed.begin_compacted(managed.compacted_drops)
    assert state_of(layout, ledger_id) is LedgerState.OPEN
    await broker.crash()
    after = layout.broker()
    managed, _ = await after.open()
    await managed.trim()
    assert ledger_id not in layout.cluster.metadata.ledgers
    await after.stop()


@pytest.mark.parametrize("stored", [OwnFormat(), PulsarFormat()])
def test_entries_of_both_formats_are_decoded(stored: OwnFormat | PulsarFormat) -> None:
    entry = batch([Said("a", b"1"), Said("b", b"2")])
    position = Position(7, 9)
    found = stored.decode(stored.encode(position, entry), 2)
    assert (found.position, found.payload, found.message_count) == (position, entry, 2)
    for length in range(12):
        with pytest.raises(StoreError):
            stored.decode(stored.encode(position, entry)[:length], 1)


def test_pulsar_format_is_as_java_brokers_write_it() -> None:
    assert (
        PulsarFormat().encode(Position(7, 9), b"xyz").hex()
        == "0000000f0807100918ffffffffffffffffff0100000003" + b"xyz".hex()
    )
