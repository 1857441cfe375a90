"""Start of the next ledger: appends neither wait for it nor exceed the limits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.unit.managed_ledger.stack import PATH, SMALL, MemoryStack, Stack, entry, publish_time_of, settled

from pybroker.errors import AppendUnknown, LedgerFenced, LedgerTerminated, StoreError
from pybroker.ledgers.ledger_store import AppendRun
from pybroker.ledgers.live_ledger import LedgerState
from pybroker.ledgers.memory_store import MemoryLedgerStore
from pybroker.managed_ledger.info.managed_ledger_info import decode_info
from pybroker.managed_ledger.ledger_list import LedgerList
from pybroker.model.position import EARLIEST

MINUTE_MS = 60_000
BYTES = replace(SMALL, max_entries_per_ledger=1000, max_bytes_per_ledger=100)


def set_limits(stack: Stack, **changes: int) -> None:
    stack.factory.resources.limits = replace(SMALL, **changes)


def counts(stack: Stack) -> list[int]:
    return [row.entry_count for row in stack.topic.managed.ledgers.rows()]


async def test_appends_wait_for_next_ledger_and_keep_their_order(stack: Stack) -> None:
    managed = await stack.open()
    first_id = managed.current_ledger_id
    await stack.topic.publish(*[entry(0)] * 9)
    for _ in range(6):
        stack.topic.append(entry(0))
    assert managed.current_ledger_id == first_id, "the ledger is sealed first"
    await stack.topic.settle()
    await settled(managed)
    assert counts(stack) == [10, 5]
    assert managed.ledgers.open_ledger_ids() == [managed.current_ledger_id]
    assert stack.topic.positions == [(first_id, n) for n in range(10)] + [
        (managed.current_ledger_id, n) for n in range(5)
    ]


async def test_stored_list_never_has_two_open_ledgers(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    managed = await stack.open()
    stored: list[list[int]] = []
    put = stack.metadata.put

    async def recorded(path: str, value: bytes, version: int) -> int:
        stored.append(LedgerList.decode(bytes(decode_info(path, value).ledgers), 0).open_ledger_ids())
        return await put(path, value, version)

    monkeypatch.setattr(stack.metadata, "put", recorded)
    await stack.topic.publish(*[entry(0)] * 35)
    await managed.close()
    assert [len(open_ids) for open_ids in stored] == [1, 1, 1, 0]


async def test_only_the_run_that_reaches_the_limit_passes_it(stack: Stack) -> None:
    await stack.open()
    await stack.topic.publish(*[entry(0)] * 9)
    stack.topic.append(*[entry(0)] * 4)
    stack.topic.append(*[entry(0)] * 3)
    await stack.topic.settle()
    assert counts(stack) == [13, 3]


async def test_a_young_ledger_is_not_closed_for_its_entries_but_for_its_size(stack: Stack) -> None:
    stack.factory.resources.limits = replace(BYTES, max_entries_per_ledger=2, min_rollover_ms=MINUTE_MS)
    managed = await stack.open()
    await stack.topic.publish(*[entry(0)] * 5)
    assert managed.ledgers.entry_count_of(managed.current_ledger_id) == 5
    await stack.topic.publish(entry(0, 100))
    assert counts(stack) == [6, 0]
    stack.clock.now_ms += MINUTE_MS
    await stack.topic.publish(entry(0), entry(0))
    assert [count for count in counts(stack) if count] == [6, 2]
    assert managed.ledgers.entry_count_of(managed.current_ledger_id) == 0


async def test_an_old_ledger_is_closed_although_nobody_appends(stack: Stack) -> None:
    set_limits(stack, max_rollover_ms=10 * MINUTE_MS)
    managed = await stack.open()
    await stack.topic.publish(entry(0))
    stack.clock.now_ms += 10 * MINUTE_MS - 1
    await managed.trim()
    await settled(managed)
    assert counts(stack) == [1]
    stack.clock.now_ms += 1
    managed.roll_if_old()
    await settled(managed)
    assert counts(stack) == [1, 0]
    assert managed.ledgers.rows()[0].is_sealed
    assert managed.ledgers.rows()[0].closed_ms == stack.clock.now_ms
    stack.clock.now_ms += 100 * MINUTE_MS
    managed.roll_if_old()
    await settled(managed)
    assert counts(stack) == [1, 0], "an empty ledger gets as old as it likes"


async def test_an_append_to_an_old_ledger_closes_it(stack: Stack) -> None:
    set_limits(stack, max_rollover_ms=10 * MINUTE_MS)
    await stack.open()
    await stack.topic.publish(entry(0))
    stack.clock.now_ms += 10 * MINUTE_MS
    await stack.topic.publish(entry(0), entry(0))
    assert counts(stack) == [2, 1]


async def test_a_ledger_without_appends_is_closed_when_that_is_asked_for(stack: Stack) -> None:
    set_limits(stack, inactive_rollover_ms=5000)
    managed = await stack.open()
    await stack.topic.publish(entry(0))
    stack.clock.now_ms += 4000
    await stack.topic.publish(entry(0))
    stack.clock.now_ms += 4000
    managed.roll_if_old()
    await settled(managed)
    assert counts(stack) == [2]
    stack.clock.now_ms += 1000
    managed.roll_if_old()
    await settled(managed)
    assert counts(stack) == [2, 0]


async def test_every_open_begins_a_ledger_and_forgets_the_empty_ones_before(stack: Stack) -> None:
    for _ in range(3):
        await stack.open()
        await stack.crash()
    managed = await stack.open()
    await settled(managed)
    assert counts(stack) == [0]
    assert await stack.store.list_ledgers() == [managed.current_ledger_id]
    await stack.topic.publish(entry(0))
    managed = await stack.reopen()
    assert counts(stack) == [1, 0]
    assert len(await stack.store.list_ledgers()) == 2


class Refused(StoreError):
    pass


def fail_once(stack: Stack, monkeypatch: pytest.MonkeyPatch, owner: object, name: str) -> list[str]:
    """Let the next call of a method fail. The list has one item for each call."""
    calls: list[str] = []
    original: Callable[..., Any] = getattr(owner, name)

    async def failing(*args: object) -> object:
        calls.append(name)
        if len(calls) == 1:
            raise Refused(f"{name} does not work now")
        return await original(*args)

    monkeypatch.setattr(owner, name, failing)
    return calls


async def test_failed_creation_of_next_ledger_is_repeated(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    managed = await stack.open()
    fail_once(stack, monkeypatch, stack.store, "create_ledger")
    await stack.topic.publish(*[entry(0)] * 10)
    assert managed.ledgers.entry_count_of(managed.current_ledger_id) == 10
    await stack.topic.publish(entry(0))
    assert managed.ledgers.entry_count_of(managed.current_ledger_id) == 11, "not at once"
    stack.clock.now_ms += 1000
    await stack.topic.publish(entry(0), entry(0))
    assert counts(stack) == [12, 1]
    assert len(await stack.store.list_ledgers()) == 2


async def test_appends_wait_while_next_ledger_cannot_be_named(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    await stack.open()
    await stack.topic.publish(*[entry(0)] * 9)
    calls = fail_once(stack, monkeypatch, stack.metadata, "put")
    stack.topic.append(entry(0))
    stack.topic.append(entry(0))
    await stack.topic.settle()
    assert len(calls) == 2
    assert stack.topic.failed == []
    assert counts(stack) == [10, 1]
    assert len(await stack.store.list_ledgers()) == 2


async def test_waiting_appends_time_out(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    set_limits(stack, add_entry_timeout_ms=1)
    managed = await stack.open()
    await stack.topic.publish(*[entry(0)] * 9)
    with monkeypatch.context() as patch:

        async def failing(*args: object) -> int:
            stack.clock.now_ms += 1
            raise Refused("no connection")

        patch.setattr(stack.metadata, "put", failing)
        stack.topic.append(entry(0))
        stack.topic.append(entry(1))
        await stack.topic.settle()
        assert [str(error) for error in stack.topic.failed] == ["no connection"]
    await settled(managed)
    [position] = await stack.topic.publish(entry(2))
    assert position == (managed.current_ledger_id, 0)


@pytest.mark.parametrize("end", ["close", "terminate"])
async def test_end_during_change_of_ledger_answers_waiting_appends(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    managed = await stack.open()
    await stack.topic.publish(*[entry(0)] * 9)
    fail_once(stack, monkeypatch, stack.metadata, "put")
    stack.topic.append(entry(0))
    stack.topic.append(entry(0))
    for _ in range(1000):
        if managed.pending_entries == 1 and managed.ledgers.entry_count_of(managed.current_ledger_id) == 10:
            break
        await asyncio.sleep(0)
    await getattr(managed, end)()
    await stack.topic.settle()
    await settled(managed)
    assert [type(error) for error in stack.topic.failed] == [LedgerFenced if end == "close" else LedgerTerminated]
    assert len(stack.topic.positions) == 10
    assert managed.ledgers.open_ledger_ids() == []
    assert set(await stack.store.list_ledgers()) == set(managed.ledgers.ledger_ids())


async def test_close_deletes_next_ledger_that_was_created_early(stack: Stack) -> None:
    managed = await stack.open()
    await stack.topic.publish(*[entry(0)] * 9)
    assert len(await stack.store.list_ledgers()) == 2
    await managed.close()
    assert await stack.store.list_ledgers() == managed.ledgers.ledger_ids()


class UncertainStore(MemoryLedgerStore):
    """Loses the answers of appends: of the next run, `stored_entries` entries are stored, and none of later runs."""

    stored_entries: int | None = None

    def append(self, run: AppendRun) -> None:
        ledger = self._ledgers[run.ledger_id]
        if self.stored_entries is not None:
            ledger.buffer.payloads += run.payloads[: self.stored_entries]
            ledger.buffer.message_counts += run.message_counts[: self.stored_entries]
            ledger.next_entry_id += self.stored_entries
            self.stored_entries = None
            ledger.set_state(LedgerState.FENCED)
            error: StoreError = AppendUnknown("the connection was lost")
        elif ledger.state is LedgerState.FENCED:
            error = LedgerFenced("an earlier append has an unknown outcome")
        else:
            super().append(run)
            return
        asyncio.get_running_loop().call_soon(run.listener.append_completed, [run], error)


@pytest.mark.parametrize("stored_entries", [0, 1, 2, 3])
async def test_seal_decides_append_with_unknown_outcome(stored_entries: int) -> None:
    stack = MemoryStack()
    await stack.start()
    store = stack.store = UncertainStore(publish_time_of)
    stack._make_factory()
    managed = await stack.open()
    await stack.topic.publish(entry(0))
    store.stored_entries = stored_entries
    first_id = managed.current_ledger_id
    stack.topic.append(entry(1), entry(2), entry(3), context="run")
    stack.topic.append(entry(4))
    await asyncio.sleep(0)
    stack.topic.append(entry(5))
    await stack.topic.settle()
    await settled(managed)
    assert stack.topic.failed == []
    second_id = managed.current_ledger_id
    expected = [(first_id, n) for n in range(1 + stored_entries)] + [(second_id, n) for n in range(5 - stored_entries)]
    assert stack.topic.positions == expected
    cursor = stack.factory.create_non_durable_cursor(managed, "reader", EARLIEST)
    found: list[int] = []
    while (position := cursor.next_entry()) is not None:
        run = cursor.read_cached(position, 10, 1 << 20)
        assert run is not None
        found += map(publish_time_of, run.payloads)
    assert found == [0, 1, 2, 3, 4, 5]
    await stack.stop()


async def test_after_a_refused_append_the_next_ledger_takes_over_once_all_are_answered(stack: Stack) -> None:
    managed = await stack.open()
    await stack.topic.publish(entry(1))
    first_id = managed.current_ledger_id
    stack.topic.append(entry(2))
    stack.topic.append(entry(3))
    await stack.topic.settle()
    # The store fences the ledger without the managed ledger's knowledge.
    await stack.store.seal(first_id)
    stack.topic.append(entry(4))
    stack.topic.append(entry(5))
    await stack.topic.settle()
    assert len(stack.topic.failed) == 2
    if managed.is_write_failed:
        with pytest.raises(LedgerFenced):
            stack.topic.append(entry(6))
    await settled(managed)
    [position] = await stack.topic.publish(entry(7))
    assert position == (managed.current_ledger_id, 0)
    assert position.ledger_id > first_id
    assert counts(stack) == [3, 1]
    cursor = stack.factory.create_non_durable_cursor(managed, "reader", EARLIEST)
    assert cursor.backlog_entries == 4


async def test_a_failed_append_goes_on_although_the_first_attempt_at_a_next_ledger_fails(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    managed = await stack.open()
    await stack.store.seal(managed.current_ledger_id)
    fail_once(stack, monkeypatch, stack.store, "create_ledger")
    stack.topic.append(entry(0))
    await stack.topic.settle()
    await settled(managed)
    with pytest.raises(LedgerFenced):
        stack.topic.append(entry(0))
    stack.clock.now_ms += 1000
    with pytest.raises(LedgerFenced):
        stack.topic.append(entry(0))
    await settled(managed)
    assert await stack.topic.publish(entry(0)) == [(managed.current_ledger_id, 0)]


async def test_a_save_that_was_cancelled_keeps_no_later_one_from_working(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    managed = await stack.open()
    put = stack.metadata.put

    async def stored_but_not_heard_of(path: str, value: bytes, version: int) -> int:
        await put(path, value, version)
        raise StoreError("nobody waited for the answer")

    with monkeypatch.context() as patch:
        patch.setattr(stack.metadata, "put", stored_but_not_heard_of)
        with pytest.raises(StoreError):
            await managed.document.save()
    await managed.document.save()
    await stack.metadata.put(PATH, b"somebody else's")
    for _ in range(2):
        with pytest.raises(StoreError):
            await managed.document.save()
    assert len(stack.topic.fenced_by) == 1
