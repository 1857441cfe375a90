"""Administrative operations on a cursor, their durability, and its exact backlog."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest
from tests.unit.managed_ledger.stack import LocalStack, Stack, entry, read_all, settled

from pybroker.errors import DamagedEntries, StoreError
from pybroker.managed_ledger.cursor_backlog import Backlog
from pybroker.managed_ledger.managed_cursor import ManagedCursor
from pybroker.managed_ledger.managed_ledger import ManagedLedger
from pybroker.managed_ledger.retention import RetentionLimits
from pybroker.model.position import EARLIEST, LATEST, Position


async def filled(stack: Stack, count: int = 33, message_count: int = 1) -> tuple[ManagedCursor, list[Position]]:
    """A cursor in front of `count` entries, in ledgers of 10, published at 0, 10, 20, ..."""
    managed = await stack.open()
    cursor = await stack.factory.create_cursor(managed, "sub", managed.last_confirmed, {"a": "1"})
    times = [entry(10 * index, index) for index in range(count)]
    return cursor, await stack.topic.publish(*times, message_count=message_count)


def acknowledge(cursor: ManagedCursor, *positions: Position) -> None:
    for ledger_id, entry_id in positions:
        cursor.state.acknowledge(ledger_id, [entry_id])
    cursor.changed(None)


async def reopened(stack: Stack) -> ManagedCursor:
    return (await stack.reopen()).cursors["sub"]


# --- reset -------------------------------------------------------------------------------------------------------------


async def test_a_reset_goes_anywhere_and_is_durable_when_it_returns(stack: Stack) -> None:
    cursor, positions = await filled(stack)
    acknowledge(cursor, *positions[:20], positions[25])
    for target, index in ((positions[7], 7), (positions[31], 31), (EARLIEST, 0), (LATEST, 33), (positions[10], 10)):
        await cursor.reset(target)
        assert await read_all(cursor) == positions[index:]
        cursor = await reopened(stack)
        assert await read_all(cursor) == positions[index:]
        assert cursor.backlog_entries == 33 - index


async def test_acknowledgements_in_flight_do_not_undo_a_reset(stack: Stack) -> None:
    cursor, positions = await filled(stack)
    answered: list[StoreError | None] = []
    for position in positions[:5]:
        cursor.state.acknowledge(position.ledger_id, [position.entry_id])
        cursor.changed(answered.append)
    cursor.state.acknowledge(positions[30].ledger_id, [positions[30].entry_id])
    cursor.changed(answered.append)
    await cursor.reset(positions[2])
    assert answered == [None] * 6
    cursor = await reopened(stack)
    assert await read_all(cursor) == positions[2:]
    assert not cursor.state.is_deleted(*positions[30])


async def test_acknowledgements_after_a_reset_count(stack: Stack) -> None:
    cursor, positions = await filled(stack)
    await cursor.skip_all()
    await cursor.reset(positions[0])
    assert await cursor.skip(3) == 3
    cursor = await reopened(stack)
    assert await read_all(cursor) == positions[3:]


async def test_a_reset_behind_what_was_trimmed_goes_to_the_first_entry_that_exists(stack: Stack) -> None:
    cursor, positions = await filled(stack)
    await cursor.skip(15)
    cursor.ledger.retention = RetentionLimits()
    await cursor.ledger.trim()
    await cursor.reset(positions[3])
    assert await read_all(cursor) == positions[10:]


async def test_a_reader_can_be_reset(stack: Stack) -> None:
    cursor, positions = await filled(stack)
    reader = stack.factory.create_non_durable_cursor(cursor.ledger, "reader", LATEST)
    await reader.reset(positions[5])
    assert await read_all(reader) == positions[5:]


async def test_a_reset_that_cannot_be_stored_says_so(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    cursor, positions = await filled(stack)

    def failing(cursor_id: str, delta: bytes, done: Any) -> None:
        asyncio.get_running_loop().call_soon(done, StoreError("no"))

    with monkeypatch.context() as patch:
        patch.setattr(stack.cursor_store, "append_delta", failing)
        with pytest.raises(StoreError, match="no"):
            await cursor.reset(positions[4])
    await cursor.skip(1)
    assert (await reopened(stack)).mark_delete_position == positions[4]


async def test_a_read_under_way_when_the_cursor_is_moved_is_not_used(stack: Stack) -> None:
    cursor, positions = await filled(stack)
    async with asyncio.TaskGroup() as group:
        reading = group.create_task(cursor.read(10, 1 << 20))
        await asyncio.sleep(0)
        group.create_task(cursor.reset(positions[20]))
    if reading.result() is None:
        assert await read_all(cursor) == positions[20:]


# --- skip and expire ---------------------------------------------------------------------------------------------------


async def test_skip_counts_what_is_not_acknowledged_yet(stack: Stack) -> None:
    cursor, positions = await filled(stack)
    acknowledge(cursor, positions[1], positions[10], *positions[12:15])
    assert await cursor.skip(0) == 0
    assert await cursor.skip(9) == 9
    assert cursor.mark_delete_position == positions[10]
    assert await read_all(cursor) == positions[11:]
    assert await cursor.skip(1) == 1
    assert (await reopened(stack)).mark_delete_position == positions[14]
    cursor = stack.topic.managed.cursors["sub"]
    assert await cursor.skip(1000) == 18
    assert await cursor.skip(1) == await cursor.skip_all() == 0
    assert (await reopened(stack)).backlog_entries == 0


async def test_what_was_published_before_a_time_expires(stack: Stack) -> None:
    cursor, positions = await filled(stack)
    assert await cursor.oldest_publish_time() == 0
    assert await cursor.expire(0) == 0
    assert await cursor.expire(1) == 1
    assert await cursor.expire(10) == 0
    acknowledge(cursor, positions[7])
    assert await cursor.expire(155) == 14
    assert cursor.mark_delete_position == positions[15]
    assert await cursor.oldest_publish_time() == 160
    cursor = await reopened(stack)
    assert cursor.mark_delete_position == positions[15]
    assert await cursor.expire(1 << 62) == 17
    assert await cursor.oldest_publish_time() is None
    assert await cursor.expire(1 << 62) == 0


async def test_publish_times_that_do_not_rise_keep_nothing_for_ever(stack: Stack) -> None:
    managed = await stack.open()
    cursor = await stack.factory.create_cursor(managed, "sub", managed.last_confirmed, {})
    chance = Random(1)
    await stack.topic.publish(*[entry(chance.choice([0, 1000])) for _ in range(25)])
    for _ in range(25):
        first = await cursor.oldest_publish_time()
        assert (await cursor.expire(500) > 0) == (first == 0)
        await cursor.skip(int(first == 1000))
    assert cursor.backlog_entries == 0


async def test_a_reader_expires_too(stack: Stack) -> None:
    cursor, positions = await filled(stack)
    reader = stack.factory.create_non_durable_cursor(cursor.ledger, "reader", EARLIEST)
    assert await reader.expire(100) == 10
    assert reader.mark_delete_position == positions[9]


async def test_everything_up_to_a_position_expires(stack: Stack) -> None:
    cursor, positions = await filled(stack)
    assert await cursor.expire_to(positions[11]) == 12
    assert await cursor.expire_to(positions[3]) == 0
    assert (await reopened(stack)).mark_delete_position == positions[11]
    assert await stack.topic.managed.cursors["sub"].expire_to(LATEST) == 21


# --- by publish time ---------------------------------------------------------------------------------------------------


async def expected_by_time(managed: ManagedLedger, positions: list[Position], publish_time_ms: int) -> Position:
    late = [position for position in positions if await managed.publish_time_of(position) >= publish_time_ms]
    return late[0] if late else managed.ledgers.end_position


async def test_an_entry_is_found_by_its_publish_time(stack: Stack) -> None:
    cursor, positions = await filled(stack)
    managed = cursor.ledger
    for time_ms in (-1, 0, 1, 10, 95, 100, 101, 200, 309, 310, 320):
        found = await managed.find_by_publish_time(time_ms)
        assert found == await expected_by_time(managed, positions, time_ms), time_ms
    assert await managed.find_by_publish_time(321) == managed.ledgers.end_position
    assert await managed.publish_time_of(positions[12]) == 120
    with pytest.raises(StoreError):
        await managed.publish_time_of(managed.ledgers.end_position)
    managed = await stack.reopen()
    assert await managed.find_by_publish_time(155) == positions[16]


async def test_many_entries_of_one_time_are_found_by_the_first(stack: Stack) -> None:
    managed = await stack.open()
    positions = await stack.topic.publish(*[entry(index // 7) for index in range(40)])
    for time_ms in range(8):
        assert await managed.find_by_publish_time(time_ms) == await expected_by_time(managed, positions, time_ms)


async def test_an_empty_ledger_has_no_entry_of_any_time(stack: Stack) -> None:
    managed = await stack.open()
    assert await managed.find_by_publish_time(0) == managed.ledgers.end_position
    cursor = await stack.factory.create_cursor(managed, "sub", managed.last_confirmed, {})
    assert await cursor.oldest_publish_time() is None
    assert await cursor.expire(5) == await cursor.skip_all() == 0
    assert await cursor.backlog() == Backlog(0, 0, 0)


async def test_a_search_goes_on_when_what_it_looks_at_is_trimmed(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    cursor, positions = await filled(stack)
    managed = cursor.ledger
    await cursor.skip(15)
    span = stack.store.index.publish_time_span

    async def trimmed_first(ledger_id: int, publish_time_ms: int) -> tuple[int, int] | None:
        monkeypatch.undo()
        managed.retention = RetentionLimits()
        await managed.trim()
        return await span(ledger_id, publish_time_ms)

    monkeypatch.setattr(stack.store.index, "publish_time_span", trimmed_first)
    assert await managed.find_by_publish_time(50) == positions[10]


async def test_damaged_entries_stop_neither_a_search_nor_expiry(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    cursor, positions = await filled(stack)
    managed = cursor.ledger
    damaged = {positions[0], *positions[5:10], *positions[10:20]}

    async def publish_time_of(position: Position) -> int:
        if position in damaged:
            last = max(p for p in damaged if p.ledger_id == position.ledger_id)
            raise DamagedEntries(position.ledger_id, position.entry_id, last.entry_id, "bits have flipped")
        return 10 * positions.index(position)

    monkeypatch.setattr(managed, "publish_time_of", publish_time_of)
    assert await managed.find_by_publish_time(250) == positions[25]
    assert positions[4] < await managed.find_by_publish_time(150) <= positions[20]
    assert await cursor.expire(205) == 21
    assert await cursor.oldest_publish_time() == 210


# --- backlog -----------------------------------------------------------------------------------------------------------


def partly(cursor: ManagedCursor, position: Position, left: int, message_count: int) -> None:
    """Acknowledge all but the first `left` messages of a batch."""
    assert cursor.state.acknowledge_batch(position, [(1 << left) - 1], message_count) == left


async def test_the_backlog_counts_entries_messages_and_bytes_exactly(stack: Stack) -> None:
    managed = await stack.open()
    cursor = await stack.factory.create_cursor(managed, "sub", managed.last_confirmed, {})
    chance = Random(3)
    entries: dict[Position, tuple[int, int]] = {}
    for index in range(60):
        message_count = 1 if 20 <= index < 30 else chance.randint(1, 5)
        payload = entry(index, chance.randint(0, 200))
        [position] = await stack.topic.publish(payload, message_count=message_count)
        entries[position] = (message_count, len(payload))
        if index == 40 and isinstance(stack, LocalStack):
            await stack.checkpoint()
    left = {position: message_count for position, (message_count, _) in entries.items()}
    for step in range(60):
        position = chance.choice(sorted(entries))
        if chance.random() < 0.3 and left.get(position, 0) > 1:
            left[position] -= 1
            partly(cursor, position, left[position], entries[position][0])
        else:
            left.pop(position, None)
            acknowledge(cursor, position)
        behind = [size for at, (_, size) in entries.items() if at > cursor.mark_delete_position]
        assert await cursor.backlog() == Backlog(len(left), sum(left.values()), sum(behind)), step
    before = await cursor.backlog()
    cursor.changed(None)
    cursor.flush()
    await settled(managed)
    await stack.store.flush()
    assert await (await reopened(stack)).backlog() == before


async def test_nothing_is_asked_of_the_store_about_whole_ledgers(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    cursor, _ = await filled(stack, message_count=3)
    monkeypatch.setattr(stack.store, "totals_before", None)
    monkeypatch.setattr(stack.store, "message_count_of", None)
    assert await cursor.backlog() == Backlog(33, 99, cursor.ledger.size_bytes)
    await cursor.skip(10)
    assert (await cursor.backlog()).messages == 69
    await cursor.skip_all()
    assert await cursor.backlog() == Backlog(0, 0, 0)


async def test_holes_among_single_messages_are_counted_without_the_store(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    cursor, positions = await filled(stack)
    acknowledge(cursor, positions[4], positions[15])
    monkeypatch.setattr(stack.store, "message_count_of", None)
    assert (await cursor.backlog()).messages == 31


# --- properties and life -----------------------------------------------------------------------------------------------


async def test_properties_are_durable_when_they_are_set(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    cursor, _ = await filled(stack)
    await cursor.set_properties({"b": "2"})
    cursor = await reopened(stack)
    assert cursor.properties == {"b": "2"}

    async def failing(*args: object) -> None:
        raise StoreError("not now")

    with monkeypatch.context() as patch:
        patch.setattr(stack.metadata, "put", failing)
        with pytest.raises(StoreError):
            await cursor.set_properties({"c": "3"})
    assert cursor.properties == {"b": "2"}
    await cursor.ledger.document.save()
    cursor = await reopened(stack)
    assert cursor.properties == {"b": "2"}
    await stack.factory.delete_cursor(cursor.ledger, cursor)
    with pytest.raises(StoreError):
        await cursor.set_properties({})


async def test_who_waits_for_an_acknowledgement_is_answered_when_the_cursor_closes(stack: Stack) -> None:
    cursor, positions = await filled(stack)
    answered: list[StoreError | None] = []
    for position in positions[:3]:
        cursor.state.acknowledge(position.ledger_id, [position.entry_id])
        cursor.changed(answered.append)
    await cursor.ledger.close()
    assert answered == [None, None, None]
    cursor.changed(answered.append)
    assert isinstance(answered[-1], StoreError)
    await settled(cursor.ledger)
    assert (await stack.open()).cursors["sub"].mark_delete_position == positions[2]


async def test_a_cursor_that_could_not_be_stored_is_not_there(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    managed = await stack.open()

    async def failing(*args: object) -> None:
        raise StoreError("not now")

    with monkeypatch.context() as patch:
        patch.setattr(stack.metadata, "put", failing)
        with pytest.raises(StoreError):
            await stack.factory.create_cursor(managed, "sub", managed.last_confirmed, {})
    assert managed.cursors == {}
    cursor = await stack.factory.create_cursor(managed, "sub", managed.last_confirmed, {})
    with monkeypatch.context() as patch:
        patch.setattr(stack.metadata, "put", failing)
        with pytest.raises(StoreError):
            await stack.factory.delete_cursor(managed, cursor)
    assert managed.cursors == {"sub": cursor}
    assert list((await stack.reopen()).cursors) == ["sub"]


async def test_a_cursor_of_the_same_name_may_be_made_while_the_old_one_is_deleted(stack: Stack) -> None:
    cursor, positions = await filled(stack)
    managed = cursor.ledger
    async with asyncio.TaskGroup() as group:
        group.create_task(stack.factory.delete_cursor(managed, cursor))
        made = group.create_task(stack.factory.create_cursor(managed, "sub", positions[4], {}))
    assert managed.cursors["sub"] is made.result()
    assert (await reopened(stack)).mark_delete_position == positions[4]
