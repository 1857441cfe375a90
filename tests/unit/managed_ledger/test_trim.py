"""Trimming, truncating, deleting; and cursors that continue behind deleted ledgers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.unit.managed_ledger.stack import PATH, Stack, entry, read_all, settled

from pybroker.errors import LedgerTerminated, NoSuchLedger, StoreError
from pybroker.managed_ledger.managed_cursor import ManagedCursor
from pybroker.managed_ledger.managed_ledger import ManagedLedger
from pybroker.managed_ledger.retention import RetentionLimits
from pybroker.model.position import EARLIEST, Position

NOTHING = RetentionLimits()


async def fill(stack: Stack, ledgers: int, entries: int = 3) -> list[Position]:
    """Add closed ledgers of 10 entries, and some entries in the current one."""
    return await stack.topic.publish(*[entry(index) for index in range(10 * ledgers + entries)])


async def subscribe(stack: Stack, name: str, managed: ManagedLedger) -> ManagedCursor:
    ledgers = managed.ledgers
    return await stack.factory.create_cursor(managed, name, ledgers.previous_position(ledgers.first_position), {})


def closed(managed: ManagedLedger) -> list[int]:
    return [row.ledger_id for row in managed.ledgers.rows() if row.is_sealed]


async def test_nothing_goes_before_retention_is_known(stack: Stack) -> None:
    managed = await stack.open()
    await fill(stack, 3)
    assert await managed.trim() == []
    managed.retention = NOTHING
    assert len(await managed.trim()) == 3
    assert managed.ledgers.entry_count == 3


async def test_without_cursors_closed_ledgers_go_by_themselves(stack: Stack) -> None:
    managed = await stack.open()
    managed.retention = NOTHING
    await fill(stack, 3)
    assert managed.ledgers.entry_count == 3
    assert await stack.store.list_ledgers() == managed.ledgers.ledger_ids()


async def test_what_the_slowest_durable_cursor_needs_stays(stack: Stack) -> None:
    managed = await stack.open()
    managed.retention = NOTHING
    fast, slow = await subscribe(stack, "fast", managed), await subscribe(stack, "slow", managed)
    stack.factory.create_non_durable_cursor(managed, "reader", EARLIEST)
    positions = await fill(stack, 3)
    await fast.skip_all()
    assert await managed.trim() == []
    slow.state.acknowledge(positions[0].ledger_id, range(10))
    [gone] = await managed.trim()
    assert gone == positions[0].ledger_id
    with pytest.raises(NoSuchLedger):
        await stack.store.read(gone, 0, 1, 1)


async def test_a_mark_that_enters_another_ledger_trims_without_being_asked(stack: Stack) -> None:
    managed = await stack.open()
    managed.retention = NOTHING
    cursor = await subscribe(stack, "sub", managed)
    positions = await fill(stack, 3)
    for position in positions[:11]:
        cursor.state.acknowledge(*_one(position))
        cursor.changed(None)
    await settled(managed)
    assert managed.ledgers.first_position == positions[10]


async def test_a_deleted_cursor_holds_nothing_back(stack: Stack) -> None:
    managed = await stack.open()
    managed.retention = NOTHING
    cursor = await subscribe(stack, "sub", managed)
    await fill(stack, 3)
    assert managed.ledgers.entry_count == 33
    await stack.factory.delete_cursor(managed, cursor)
    await settled(managed)
    assert managed.ledgers.entry_count == 3


async def test_retention_keeps_by_time_and_by_size(stack: Stack) -> None:
    managed = await stack.open()
    managed.retention = RetentionLimits(1000, -1)
    positions = await fill(stack, 2)
    stack.clock.now_ms += 999
    await fill(stack, 1, 0)
    assert await managed.trim() == []
    stack.clock.now_ms += 1
    assert await managed.trim() == [positions[0].ledger_id, positions[10].ledger_id]
    managed.retention = RetentionLimits(-1, managed.size_bytes)
    assert await managed.trim() == []
    managed.retention = RetentionLimits(-1, 1)
    assert len(await managed.trim()) == 1


async def test_the_time_at_which_a_ledger_was_closed_survives_a_restart(stack: Stack) -> None:
    managed = await stack.open()
    await fill(stack, 1)
    stack.clock.now_ms += 5000
    managed = await stack.reopen()
    first, second, _ = managed.ledgers.rows()
    assert (first.closed_ms, second.closed_ms) == (stack.clock.now_ms - 5000, stack.clock.now_ms)
    managed.retention = RetentionLimits(5000, -1)
    assert await managed.trim() == [first.ledger_id]


async def test_the_metadata_forgets_a_ledger_before_cursors_the_cache_and_the_store_do(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    managed = await stack.open()
    stack.factory.create_non_durable_cursor(managed, "reader", EARLIEST)
    await fill(stack, 1)
    order: list[str] = []

    def note(owner: Any, name: str) -> None:
        original = getattr(owner, name)

        def noted(*args: Any) -> Any:
            order.append(name)
            return original(*args)

        monkeypatch.setattr(owner, name, noted)

    note(stack.metadata, "put")
    note(managed.cursors["reader"].state, "forget_ledgers")
    note(stack.factory.cache, "drop_ledger")
    note(stack.store, "delete_ledger")
    managed.retention = NOTHING
    assert len(await managed.trim()) == 1
    assert order == ["put", "forget_ledgers", "drop_ledger", "delete_ledger"]
    stack.factory.cache.check_invariants()
    assert stack.factory.cache.entry_count == 3


@pytest.mark.parametrize("what", ["put", "delete_ledger"])
async def test_a_trim_that_fails_is_finished_by_the_next(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    managed = await stack.open()
    await fill(stack, 2)

    async def failing(*args: object) -> None:
        raise StoreError("not now")

    managed.retention = NOTHING
    with monkeypatch.context() as patch:
        patch.setattr(stack.metadata if what == "put" else stack.store, what, failing)
        with pytest.raises(StoreError):
            await managed.trim()
        assert len(await stack.store.list_ledgers()) == 3
    assert len(await managed.trim()) == (2 if what == "put" else 0)
    assert await stack.store.list_ledgers() == managed.ledgers.ledger_ids() == [managed.current_ledger_id]


async def test_ledgers_that_a_crash_left_in_the_store_go_at_the_next_open(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    managed = await stack.open()
    await fill(stack, 2)

    async def failing(ledger_id: int) -> None:
        raise StoreError("the process is killed here")

    managed.retention = NOTHING
    monkeypatch.setattr(stack.store, "delete_ledger", failing)
    with pytest.raises(StoreError):
        await managed.trim()
    monkeypatch.undo()
    managed = await stack.reopen()
    assert managed.ledgers.entry_count == 3
    assert await stack.store.list_ledgers() == managed.ledgers.ledger_ids()


async def test_a_reader_whose_position_was_trimmed_goes_on_at_the_first_entry_that_exists(stack: Stack) -> None:
    managed = await stack.open()
    reader = stack.factory.create_non_durable_cursor(managed, "reader", EARLIEST)
    positions = await fill(stack, 2)
    assert reader.read_cached(positions[0], 2, 1 << 20) is not None
    reader.state.acknowledge(positions[0].ledger_id, [0, 5])
    reader.state.acknowledge(positions[20].ledger_id, [1])
    managed.retention = NOTHING
    assert len(await managed.trim()) == 2
    assert await read_all(reader) == positions[20:]
    assert reader.backlog_entries == 2
    assert (await reader.backlog()).entries == 2
    reader.state.check_invariants()


@pytest.mark.parametrize("is_gone_first", [True, False])
async def test_a_read_of_what_is_trimmed_meanwhile_is_made_again_and_is_no_failure(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, is_gone_first: bool
) -> None:
    managed = await stack.open()
    reader = stack.factory.create_non_durable_cursor(managed, "reader", EARLIEST)
    positions = await fill(stack, 1)
    read = stack.store.read

    async def trimmed_first(*args: int) -> Any:
        monkeypatch.undo()
        await managed.trim()
        return await read(*args)

    async def trimmed_then(*args: int) -> Any:
        monkeypatch.undo()
        found = await read(*args)
        await managed.trim()
        return found

    managed.retention = NOTHING
    monkeypatch.setattr(stack.store, "read", trimmed_first if is_gone_first else trimmed_then)
    assert await reader.read(10, 1 << 20) is None
    run = await reader.read(10, 1 << 20)
    assert run is not None
    assert Position(run.ledger_id, run.first_entry_id) == positions[10]


async def test_a_read_that_fails_although_the_entry_is_there_is_a_failure(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    managed = await stack.open()
    reader = stack.factory.create_non_durable_cursor(managed, "reader", EARLIEST)
    await fill(stack, 0)

    async def failing(*args: int) -> None:
        raise StoreError("cannot be read")

    monkeypatch.setattr(stack.store, "read", failing)
    with pytest.raises(StoreError, match="cannot be read"):
        await reader.read(10, 1 << 20)


async def test_a_cursor_that_is_being_made_holds_back_what_it_shall_read(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    managed = await stack.open()
    positions = await fill(stack, 2)
    put = stack.metadata.put

    async def trimmed_meanwhile(*args: Any) -> int:
        monkeypatch.undo()
        managed.retention = NOTHING
        version = await put(*args)
        managed.trim_soon()
        return version

    monkeypatch.setattr(stack.metadata, "put", trimmed_meanwhile)
    cursor = await subscribe(stack, "sub", managed)
    await settled(managed)
    assert await read_all(cursor) == positions


# --- between ledgers that are needed -----------------------------------------------------------------------------------


async def gap(stack: Stack, managed: ManagedLedger) -> tuple[ManagedCursor, list[Position]]:
    """Five closed ledgers of 10 entries and 3 entries; the first entry and the fourth ledger wait for `sub`, and a
    reader is in front of all. The second, third and fifth ledger may be deleted.
    """
    managed.retention = NOTHING
    cursor = await subscribe(stack, "sub", managed)
    stack.factory.create_non_durable_cursor(managed, "reader", EARLIEST)
    positions = await fill(stack, 5)
    for position in (*positions[1:30], *positions[40:]):
        cursor.state.acknowledge(*_one(position))
    await persisted(cursor)
    return cursor, positions


async def persisted(cursor: ManagedCursor) -> None:
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    cursor.changed(lambda error: done.set_result(None))
    await done


async def test_ledgers_that_all_have_acknowledged_go_although_an_older_one_is_needed(stack: Stack) -> None:
    managed = await stack.open()
    cursor, positions = await gap(stack, managed)
    other = await subscribe(stack, "other", managed)
    assert await managed.trim() == []
    other.state.mark_delete_to(positions[-1])
    await persisted(other)
    await settled(managed)
    left = [positions[0], *positions[30:40]]
    for _ in range(2):
        cursor = managed.cursors["sub"]
        cursor.state.check_invariants()
        cursor.rewind()
        there = positions[:10] + positions[30:40] + positions[50:]
        assert cursor.backlog_entries == (await cursor.backlog()).entries == (await cursor.backlog()).messages == 11
        assert managed.ledgers.entry_count == len(there) == 23
        assert managed.last_confirmed == positions[-1]
        assert [each for each in await read_all(cursor) if not cursor.state.is_deleted(*each)] == left
        assert await stack.store.list_ledgers() == managed.ledgers.ledger_ids()
        managed = await stack.reopen()
    managed.retention = NOTHING
    cursor = managed.cursors["sub"]
    cursor.state.acknowledge(*_one(positions[0]))
    assert cursor.mark_delete_position == positions[9]
    assert len(await managed.trim()) == 1
    assert managed.ledgers.first_position == positions[30]


async def test_positions_in_a_gap_stand_for_what_is_behind_or_before_it(stack: Stack) -> None:
    managed = await stack.open()
    cursor, positions = await gap(stack, managed)
    reader = managed.cursors["reader"]
    assert len(await managed.trim()) == 3
    there = positions[:10] + positions[30:40] + positions[50:]
    assert await read_all(reader) == there
    reader.state.check_invariants()
    inside = positions[15]
    await reader.reset(inside)
    assert await read_all(reader) == there[10:]
    assert await managed.read_if_there(inside, 1, 1) is None
    assert managed.message_count_at_hand(inside) == 0
    assert reader.state.mark_delete_to(inside) == 0
    assert await managed.find_by_publish_time(15) == positions[30], "the entries tell their numbers as times"
    assert await managed.find_by_publish_time(45) == positions[50]
    await reader.reset(EARLIEST)
    assert await reader.skip(11) == 11
    assert reader.mark_delete_position == positions[30]
    assert reader.state.mark_delete_to(positions[45]) == 9, "up to a gap is up to what is before it"
    assert await reader.expire_to(positions[45]) == 0
    late = stack.factory.create_non_durable_cursor(managed, "late", managed.ledgers.previous_position(inside))
    assert await read_all(late) == there[10:]
    assert await cursor.oldest_publish_time() == 0
    assert await cursor.skip(2) == 2
    assert cursor.mark_delete_position == positions[30]


async def test_a_crash_before_it_is_stored_that_ledgers_are_gone_undoes_no_acknowledgement(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    managed = await stack.open()
    cursor, positions = await gap(stack, managed)

    async def failing(*args: object) -> None:
        raise StoreError("the process is killed here")

    monkeypatch.setattr(stack.metadata, "put", failing)
    with pytest.raises(StoreError):
        await managed.trim()
    cursor.state.mark_delete_to(positions[0])
    cursor.state.forget_deltas()
    await persisted(cursor)  # the whole state
    monkeypatch.undo()
    managed = await stack.reopen()
    assert managed.ledgers.entry_count == 53
    assert managed.cursors["sub"].backlog_entries == 10
    assert managed.cursors["sub"].mark_delete_position == positions[29]


async def test_a_crash_after_it_is_stored_brings_nothing_back(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    managed = await stack.open()
    _, positions = await gap(stack, managed)
    put = stack.metadata.put

    async def killed_then(*args: Any) -> int:
        monkeypatch.undo()
        await put(*args)
        raise StoreError("the process is killed here")

    monkeypatch.setattr(stack.metadata, "put", killed_then)
    with pytest.raises(StoreError):
        await managed.trim()
    managed = await stack.reopen()
    assert managed.ledgers.entry_count == 23
    assert managed.cursors["sub"].backlog_entries == 11
    managed.cursors["sub"].state.check_invariants()
    assert await stack.store.list_ledgers() == managed.ledgers.ledger_ids()
    assert managed.ledgers.first_position == positions[0]


async def test_a_cursor_that_goes_back_to_a_ledger_that_is_leaving_goes_on_behind_it(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    managed = await stack.open()
    cursor, positions = await gap(stack, managed)
    put = stack.metadata.put

    async def reset_first(*args: Any) -> int:
        monkeypatch.undo()
        await cursor.reset(positions[12])
        cursor.state.acknowledge(*_one(positions[30]))
        return await put(*args)

    monkeypatch.setattr(stack.metadata, "put", reset_first)
    assert len(await managed.trim()) == 4, "and the first ledger, which the cursor has skipped now"
    cursor.state.check_invariants()
    assert cursor.mark_delete_position == positions[30]
    assert await read_all(cursor) == positions[30:40] + positions[50:]
    assert cursor.backlog_entries == 12


async def test_what_leaves_is_not_needed_by_a_termination(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    managed = await stack.open()
    await fill(stack, 2, 0)

    async def failing(*args: object) -> None:
        raise StoreError("not now")

    managed.retention = NOTHING
    with monkeypatch.context() as patch:
        patch.setattr(stack.metadata, "put", failing)
        with pytest.raises(StoreError):
            await managed.trim()
    last = await managed.terminate()
    assert last == (managed.current_ledger_id, -1)
    await settled(managed)
    for _ in range(2):
        assert managed.ledgers.ledger_ids() == [last.ledger_id] == await stack.store.list_ledgers()
        assert managed.last_confirmed == last
        managed = await stack.reopen()


async def test_truncate_acknowledges_everything_and_drops_every_closed_ledger(stack: Stack) -> None:
    managed = await stack.open()
    cursor = await subscribe(stack, "sub", managed)
    reader = stack.factory.create_non_durable_cursor(managed, "reader", EARLIEST)
    positions = await fill(stack, 2)
    await managed.truncate()
    assert cursor.backlog_entries == reader.backlog_entries == 0
    assert managed.ledgers.ledger_ids() == [managed.current_ledger_id]
    managed = await stack.reopen()
    assert managed.cursors["sub"].mark_delete_position == positions[-1]
    assert managed.cursors["sub"].backlog_entries == 0
    more = await fill(stack, 0)
    assert await read_all(managed.cursors["sub"]) == more


async def test_a_terminated_ledger_takes_no_more_appends_after_a_restart_either(stack: Stack) -> None:
    managed = await stack.open()
    cursor = await subscribe(stack, "sub", managed)
    positions = await fill(stack, 1, 9)  # the next ledger is ready
    stack.topic.append(entry(99))
    assert await managed.terminate() == stack.topic.positions[-1] == Position(positions[-1].ledger_id, 9)
    assert await managed.terminate() == stack.topic.positions[-1]
    positions = list(stack.topic.positions)
    for _ in range(2):
        assert managed.is_terminated
        assert managed.last_confirmed == positions[-1]
        with pytest.raises(LedgerTerminated):
            stack.topic.append(entry(100))
        managed.roll_if_old()
        await settled(managed)
        assert await stack.store.list_ledgers() == managed.ledgers.ledger_ids()
        cursor = managed.cursors["sub"]
        assert await read_all(cursor) == positions
        managed = await stack.reopen()
    managed.retention = NOTHING
    await managed.cursors["sub"].skip_all()
    await managed.trim()
    assert managed.last_confirmed == positions[-1]
    managed = await stack.reopen()
    assert managed.last_confirmed == positions[-1]


async def test_an_empty_ledger_can_be_terminated(stack: Stack) -> None:
    managed = await stack.open()
    assert await managed.terminate() == (managed.current_ledger_id, -1)
    managed = await stack.reopen()
    assert managed.is_terminated
    assert len(managed.ledgers) == 1


async def test_a_terminate_that_cannot_be_stored_lets_appends_go_on(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    managed = await stack.open()
    await fill(stack, 0, 9)

    async def failing(*args: object) -> None:
        raise StoreError("not now")

    with monkeypatch.context() as patch:
        patch.setattr(stack.metadata, "put", failing)
        with pytest.raises(StoreError):
            await managed.terminate()
    await settled(managed)
    positions = await fill(stack, 0)
    assert len(positions) == 3
    managed = await stack.reopen()
    assert not managed.is_terminated
    assert managed.ledgers.entry_count == 12


async def test_a_deleted_ledger_leaves_nothing_behind(stack: Stack) -> None:
    managed = await stack.open()
    cursor = await subscribe(stack, "sub", managed)
    await fill(stack, 2, 9)
    await cursor.skip(4)
    await stack.factory.delete(managed)
    assert not await stack.factory.exists(PATH)
    assert await stack.store.list_ledgers() == []
    assert await stack.cursor_store.load(cursor.cursor_id) == (None, [])


async def test_a_deletion_that_was_cut_off_is_finished_by_the_next_open(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    managed = await stack.open()
    cursor = await subscribe(stack, "sub", managed)
    await fill(stack, 2)
    before = await stack.store.list_ledgers()
    deleted: list[int] = []
    delete_ledger = stack.store.delete_ledger

    async def until_killed(ledger_id: int) -> None:
        if deleted:
            raise StoreError("the process is killed here")
        deleted.append(ledger_id)
        await delete_ledger(ledger_id)

    monkeypatch.setattr(stack.store, "delete_ledger", until_killed)
    with pytest.raises(StoreError):
        await stack.factory.delete(managed)
    monkeypatch.undo()
    assert not await stack.factory.exists(PATH)
    managed = await stack.reopen()
    assert managed.cursors == {}
    assert managed.ledgers.entry_count == 0
    assert await stack.store.list_ledgers() == managed.ledgers.ledger_ids()
    assert not set(before) & set(managed.ledgers.ledger_ids())
    assert await stack.cursor_store.load(cursor.cursor_id) == (None, [])


def _one(position: Position) -> tuple[int, list[int]]:
    return position.ledger_id, [position.entry_id]


async def test_a_full_disk_gets_back_what_the_open_ledger_holds_for_nobody(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    managed = await stack.open()
    managed.retention = NOTHING
    cursor = await subscribe(stack, "s", managed)
    _, last = await stack.topic.publish(entry(0), entry(0))
    await managed.trim()
    await settled(managed)
    assert managed.ledgers.entry_count == 2, "there is room: it is not old enough"
    monkeypatch.setattr(stack.store, "refusal", lambda: "the disk is full")
    await cursor.skip(1)
    await managed.trim()
    await settled(managed)
    assert managed.ledgers.entry_count == 2, "one entry is needed"
    await cursor.skip_all()
    await managed.trim()
    await settled(managed)
    await managed.trim()
    assert managed.ledgers.entry_count == 0
    assert managed.last_confirmed >= last
    monkeypatch.undo()
    (after,) = await stack.topic.publish(entry(0))
    assert after > last
