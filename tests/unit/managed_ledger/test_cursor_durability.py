"""An acknowledgement with a receipt is durable, regardless of checkpoints, a slow journal and a close."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.local_store.faults import BlockedReason, turns
from tests.unit.managed_ledger.stack import LocalStack, entry, read_all

from pybroker.errors import StoreError
from pybroker.managed_ledger.managed_cursor import ManagedCursor
from pybroker.model.position import Position

Answers = list[StoreError | None]


def acknowledge(cursor: ManagedCursor, position: Position, answers: Answers | None) -> None:
    cursor.state.acknowledge(position.ledger_id, [position.entry_id])
    cursor.changed(None if answers is None else answers.append)


@pytest.mark.parametrize("is_receipted", [False, True])
async def test_what_waits_behind_a_delta_that_a_checkpoint_has_covered_is_stored_by_the_close(
    is_receipted: bool,
) -> None:
    """The delta in flight is in the checkpoint's snapshot, so the store knows of no change since, but the cursor does."""
    stack = LocalStack()
    await stack.start()
    managed = await stack.open()
    cursor = await stack.factory.create_cursor(managed, "sub", managed.last_confirmed, {})
    positions = await stack.topic.publish(*(entry(index) for index in range(6)))
    answers: Answers = []
    acknowledge(cursor, positions[0], answers)
    await stack.store.flush()
    blocked_reason = BlockedReason("write_durably", suffix=".journal")
    checkpoint = asyncio.ensure_future(stack.checkpoint())
    await asyncio.sleep(0)  # its mark is in the journal
    stack.disk.plan = blocked_reason
    acknowledge(cursor, positions[1], answers)  # in flight behind the mark
    await checkpoint
    acknowledge(cursor, positions[2], answers if is_receipted else None)  # waits for the one in flight
    closing = asyncio.ensure_future(cursor.close())
    await turns()
    assert answers == [None]
    blocked_reason.open()
    await closing
    assert answers == [None] * (3 if is_receipted else 2)
    cursor = (await stack.reopen()).cursors["sub"]
    assert await read_all(cursor) == positions[3:]
    await stack.stop()
