"""Managed ledgers on a store that knows no message counts, sizes of parts and publish times, such as BookKeeper."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.unit.managed_ledger.stack import MemoryStack, entry, publish_time_of

from pybroker.ledgers.ledger_store import LedgerIndex, LedgerSummary, NoIndex
from pybroker.ledgers.memory_store import MemoryCursorStore, MemoryLedgerStore
from pybroker.managed_ledger.ledger_list import LedgerList
from pybroker.model.position import EARLIEST, Position


class EntriesOnlyStore(MemoryLedgerStore):
    """Knows entries and the bytes of whole ledgers."""

    @property
    def index(self) -> LedgerIndex:
        return NoIndex()

    async def seal(self, ledger_id: int) -> LedgerSummary:
        found = await super().seal(ledger_id)
        return LedgerSummary(ledger_id, found.entry_count, None, found.size_bytes)


class EntriesOnlyStack(MemoryStack):
    async def start(self) -> None:
        self.store = EntriesOnlyStore(publish_time_of)
        self.cursor_store = MemoryCursorStore()
        self._make_factory()


@pytest.fixture
async def stack() -> AsyncIterator[EntriesOnlyStack]:
    made = EntriesOnlyStack()
    await made.start()
    yield made
    await made.stop()


async def test_owner_knows_messages_that_it_appended_itself(stack: EntriesOnlyStack) -> None:
    managed = await stack.open()
    await stack.topic.publish(*[entry(0)] * 12, message_count=5)
    assert managed.ledgers.message_count == 60
    cursor = await stack.factory.create_cursor(managed, "sub", managed.ledgers.previous_position(EARLIEST), {})
    assert (await cursor.backlog()).messages == 60


async def test_backlog_counts_entries_when_messages_are_unknown(stack: EntriesOnlyStack) -> None:
    await stack.open()
    await stack.topic.publish(*[entry(0)] * 4, message_count=5)
    managed = await stack.reopen()
    assert managed.ledgers.message_count is None
    assert managed.ledgers.entry_count == 4
    cursor = await stack.factory.create_cursor(managed, "sub", managed.ledgers.previous_position(EARLIEST), {})
    backlog = await cursor.backlog()
    assert (backlog.entries, backlog.messages, backlog.size_bytes) == (4, 4, managed.ledgers.size_bytes)
    cursor.state.acknowledge(managed.ledgers.ledger_ids()[0], [1])
    backlog = await cursor.backlog()
    assert (backlog.entries, backlog.messages) == (3, 3)


async def test_size_of_a_part_of_a_ledger_is_its_share_of_the_entries(stack: EntriesOnlyStack) -> None:
    managed = await stack.open()
    positions = await stack.topic.publish(*[entry(0)] * 4)
    cursor = await stack.factory.create_cursor(managed, "sub", positions[0], {})
    assert (await cursor.backlog()).size_bytes == managed.ledgers.size_bytes * 3 // 4


async def test_unknown_count_survives_restart_and_trim(stack: EntriesOnlyStack) -> None:
    await stack.open()
    await stack.topic.publish(*[entry(0)] * 4, message_count=5)
    await stack.reopen()
    await stack.topic.publish(entry(0), message_count=7)
    managed = await stack.reopen()
    assert [row.message_count for row in managed.ledgers.rows()] == [None, None, 0]
    found = LedgerList.decode(managed.ledgers.encode(), 0)
    assert [row.message_count for row in found.rows()] == [None, None, 0]


async def test_search_by_publish_time_reads_entries(stack: EntriesOnlyStack) -> None:
    managed = await stack.open()
    await stack.topic.publish(*[entry(10 * number) for number in range(25)])
    for number in range(25):
        position = await managed.find_by_publish_time(10 * number - 5)
        assert position == stack.topic.positions[number]
    assert await managed.find_by_publish_time(1000) == managed.ledgers.end_position


def test_sealed_ledger_with_fewer_entries_than_visible_is_an_error() -> None:
    ledgers = LedgerList()
    ledgers.add_ledger(3)
    ledgers.added(3, 2, 2, 20)
    with pytest.raises(Exception, match="ledger 3 has lost entries: it has 1 entries, but 2 entries were confirmed"):
        ledgers.close_ledger(LedgerSummary(3, 1, 1, 10), 0)
    assert ledgers.last_position == Position(3, 1)
