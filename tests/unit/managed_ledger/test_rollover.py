"""Start of the next ledger: appends neither wait for it nor exceed the limits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.unit.managed_ledger.stack import PATH, SMALL, Stack, entry, settled

from pybroker.errors import LedgerFenced, StoreError
from pybroker.model.position import EARLIEST

MINUTE_MS = 60_000
BYTES = replace(SMALL, max_entries_per_ledger=1000, max_bytes_per_ledger=100)


def set_limits(stack: Stack, **changes: int) -> None:
    stack.factory.resources.limits = replace(SMALL, **changes)


def counts(stack: Stack) -> list[int]:
    return [row.entry_count for row in stack.topic.managed.ledgers.rows()]


async def test_a_full_ledger_is_followed_by_one_that_was_ready(stack: Stack) -> None:
    managed = await stack.open()
    first_id = managed.current_ledger_id
    await stack.topic.publish(*[entry(0)] * 9)
    assert counts(stack) == [9, 0], "the next one is in the list before it is needed"
    assert managed.current_ledger_id == first_id
    stack.topic.append(entry(0))
    assert managed.current_ledger_id != first_id, "the switch waits for nothing"
    for _ in range(5):
        stack.topic.append(entry(0))
    await stack.topic.settle()
    await settled(managed)
    assert counts(stack) == [10, 5]
    assert managed.ledgers.open_ledger_ids() == [managed.current_ledger_id]


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


@pytest.mark.parametrize("what", ["create_ledger", "put"])
async def test_a_next_ledger_that_could_not_be_made_is_tried_again(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    managed = await stack.open()
    fail_once(stack, monkeypatch, stack.metadata if what == "put" else stack.store, what)
    await stack.topic.publish(*[entry(0)] * 10)
    assert managed.ledgers.entry_count_of(managed.current_ledger_id) == 10
    await stack.topic.publish(entry(0))
    assert managed.ledgers.entry_count_of(managed.current_ledger_id) == 11, "not at once"
    stack.clock.now_ms += 1000
    await stack.topic.publish(entry(0), entry(0))
    assert counts(stack) == [12, 1]
    assert len(await stack.store.list_ledgers()) == 2


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
