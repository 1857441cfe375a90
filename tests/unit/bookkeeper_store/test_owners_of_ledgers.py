"""Ledgers of a topic whose broker crashes, or is not the owner any more."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from tests.support.pulsar_layout import Layout
from tests.unit.managed_ledger.stack import PATH, entry, settled

from pybroker.bookkeeper_store.documents.managed_ledger_documents import decode_pulsar_info
from pybroker.errors import LedgerFenced, StoreError
from pybroker.ledgers.cursor_store import CursorOwner, CursorStore
from pybroker.ledgers.ledger_store import LedgerPurpose, LedgerSummary
from pybroker.metadata.memory_metadata_store import MemoryMetadataStore
from pybroker.metadata.metadata_store import Change
from pybroker.model.position import EARLIEST, Position
from pybroker.runtime.tasks import completion


class WatchedMetadata(MemoryMetadataStore):
    """Checks the document before and after each change as a Java broker would use it, and can run a step before a change."""

    def __init__(self) -> None:
        super().__init__()
        self.confirmed: list[Position] = []
        self.checks = 0
        self.before_change: Callable[[], Awaitable[object]] | None = None

    async def change_together(self, changes: list[Change]) -> list[int | None]:  # type: ignore[override]
        step, self.before_change = self.before_change, None
        if step is not None:
            await step()
        await self._check()
        versions = await super().change_together(changes)
        await self._check()
        return versions

    async def _check(self) -> None:
        """A Java broker that opens the topic now recovers the last ledger, and deletes each other one without a count."""
        found = await self.get(PATH)
        if found is None:
            return
        self.checks += 1
        rows = decode_pulsar_info(PATH, found.value).ledger_info
        kept = {row.ledger_id: row.entries for row in rows[:-1] if row.entries > 0}
        last_id = rows[-1].ledger_id if rows else -1
        for position in self.confirmed:
            is_kept = position.ledger_id == last_id or position.entry_id < kept.get(position.ledger_id, 0)
            assert is_kept, f"a Java broker would lose {position}"


async def test_java_broker_loses_no_confirmed_message_whenever_it_takes_over() -> None:
    """The next ledger exists before it is named, and is named by the change that closes the current one."""
    metadata = WatchedMetadata()
    layout = Layout(metadata=metadata)
    for _ in range(3):
        broker = layout.broker()
        managed, topic = await broker.open()
        metadata.confirmed = [*metadata.confirmed, *topic.positions]
        known = list(metadata.confirmed)
        for number in range(45):
            topic.append(entry(number))
            await asyncio.sleep(0)
            metadata.confirmed = [*known, *topic.positions]
            if number % 5 == 4:  # The next ledger is created meanwhile.
                await settled(managed)
        await topic.settle()
        metadata.confirmed = [*known, *topic.positions]
        await settled(managed)
        assert len({position.ledger_id for position in topic.positions}) >= 4
        await broker.crash()
    assert len(metadata.confirmed) == 135
    assert metadata.checks > 20


async def test_check_of_the_test_above_finds_two_ledgers_that_are_named_open() -> None:
    metadata = WatchedMetadata()
    layout = Layout(metadata=metadata)
    broker = layout.broker()
    managed, topic = await broker.open()
    metadata.confirmed = await topic.publish(*[entry(number) for number in range(5)])
    managed.ledgers.add_ledger(await broker.store.create_ledger(LedgerPurpose.ENTRIES, PATH))
    with pytest.raises(AssertionError, match="a Java broker would lose"):
        await managed.document.save()
    await broker.crash()


async def test_topic_closes_when_another_broker_has_deleted_the_ledger_that_it_writes() -> None:
    layout = Layout()
    broker = layout.broker()
    managed, topic = await broker.open()
    cursor = await broker.factory.create_cursor(managed, "sub", EARLIEST, {})
    positions = await topic.publish(*[entry(number) for number in range(3)])
    before = await layout.metadata.get(PATH)
    del layout.cluster.metadata.ledgers[positions[0].ledger_id]
    for number in range(20):
        topic.append(entry(number))
    await asyncio.wait_for(topic.settle(), 10)
    await asyncio.wait_for(settled(managed), 10)
    assert [type(each) for each in topic.fenced_by] == [LedgerFenced]
    assert "has another owner, which deleted ledger" in str(topic.fenced_by[0])
    with pytest.raises(LedgerFenced):
        topic.append(b"1;")
    await managed.close()
    assert await layout.metadata.get(PATH) == before, "a broker that is not the owner changes nothing"
    assert not cursor.state.holes
    await broker.stop()


async def test_failed_take_over_leaves_no_ledger() -> None:
    metadata = WatchedMetadata()
    layout = Layout(metadata=metadata)
    first, second = layout.broker(), layout.broker()
    managed, topic = await first.open()
    await topic.publish(b"1;")

    async def change_by_the_first() -> None:
        await managed.document.change_properties({"a": "b"})

    metadata.before_change = change_by_the_first
    with pytest.raises(LedgerFenced):
        await second.open()
    named = {row.ledger_id for row in decode_pulsar_info(PATH, (await _document(layout))).ledger_info}
    assert set(layout.cluster.metadata.ledgers) == named
    await second.crash()
    await first.crash()
    third = layout.broker()
    again, _ = await third.open()
    assert again.last_confirmed == topic.positions[-1]
    await third.stop()


async def test_failed_recovery_of_last_ledger_leaves_no_new_ledger() -> None:
    layout = Layout()
    first, second = layout.broker(), layout.broker()
    _, topic = await first.open()
    await topic.publish(b"1;")
    await first.crash()
    before, recover = set(layout.cluster.metadata.ledgers), second.store.recover

    async def fail(ledger_id: int) -> LedgerSummary:
        raise StoreError("too few of its bookies respond")

    second.store.recover = fail  # type: ignore[method-assign]
    with pytest.raises(StoreError, match="too few of its bookies respond"):
        await second.open()
    assert set(layout.cluster.metadata.ledgers) == before
    second.store.recover = recover  # type: ignore[method-assign]
    again, _ = await second.open()
    assert again.last_confirmed == topic.positions[-1]
    await second.stop()


class _State(CursorOwner):
    """The owner of a record, with a fixed state."""

    def __init__(self, state: bytes) -> None:
        self._state = state

    def snapshot(self) -> bytes:
        return self._state


async def _stored(store: CursorStore, record_id: str, state: bytes) -> None:
    """Store the state in a new ledger of the record, as a broker does after it has loaded the topic. Raises StoreError."""
    store.attach(record_id, _State(state))
    written, done = completion()
    store.append_delta(record_id, b"a part", done)
    await written


async def test_former_owner_does_not_replace_record_of_next_owner() -> None:
    """A broker that lost its session closes its topics while the next owner uses them."""
    layout = Layout()
    first, second = layout.broker(), layout.broker()
    managed, _ = await first.open()
    cursor = await first.factory.create_cursor(managed, "sub", EARLIEST, {})
    record_id = await cursor.announce_delayed()
    await second.open()
    ledgers = set(layout.cluster.metadata.ledgers)
    with pytest.raises(LedgerFenced):
        await _stored(first.cursors, record_id, b"former, before the first state of the next owner")
    assert set(layout.cluster.metadata.ledgers) <= ledgers, "a ledger of a refused state is left"
    await _stored(second.cursors, record_id, b"next")
    with pytest.raises(LedgerFenced):
        await _stored(first.cursors, record_id, b"former")
    await second.crash()
    await first.crash()
    third = layout.broker()
    assert await third.cursors.load(record_id) == (None, [b"next"])
    await third.stop()


async def test_owner_stores_record_during_change_of_its_managed_ledger() -> None:
    layout = Layout()
    broker = layout.broker()
    managed, _ = await broker.open()
    cursor = await broker.factory.create_cursor(managed, "sub", EARLIEST, {})
    record_id = await cursor.announce_delayed()
    await asyncio.gather(
        *(managed.document.change_properties({"n": str(each)}) for each in range(3)),
        _stored(broker.cursors, record_id, b"state"),
    )
    await broker.crash()
    again = layout.broker()
    assert await again.cursors.load(record_id) == (None, [b"state"])
    await again.stop()


async def _document(layout: Layout) -> bytes:
    found = await layout.metadata.get(PATH)
    assert found is not None
    return found.value
