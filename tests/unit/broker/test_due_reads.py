"""Reads of due entries, from a managed ledger alone."""

from __future__ import annotations

from collections.abc import Sequence

from tests.unit.broker.one_topic import one_topic

from pybroker.broker.delivery.reads.due_reads import READ_GAP_ENTRIES, read_due, read_due_cached
from pybroker.dispatch.delayed.delayed_entries import Delayed
from pybroker.ledgers.ledger_store import EntryRun
from pybroker.model.position import Position

PLENTY_BYTES = 1 << 20


def due_at(positions: Sequence[Position], *indexes: int) -> list[Delayed]:
    return [Delayed(1, *positions[index]) for index in indexes]


def entry_ids(runs: Sequence[EntryRun]) -> list[int]:
    return [run.first_entry_id + index for run in runs for index in range(len(run.payloads))]


async def test_due_entries_are_read_in_their_order() -> None:
    async with one_topic() as one:
        positions = await one.publish(30)
        due = due_at(positions, 20, 3, 4, 5)
        runs, unread = await read_due(one.topic.ledger, due, PLENTY_BYTES)
        assert entry_ids(runs) == [20, 3, 4, 5]
        assert unread == []
        assert [len(run.payloads) for run in runs] == [1, 3]


async def test_entries_beyond_the_byte_limit_are_returned_as_unread() -> None:
    async with one_topic() as one:
        positions = await one.publish(30)
        far = READ_GAP_ENTRIES + 2
        due = due_at(positions, 0, far)
        runs, unread = await read_due(one.topic.ledger, due, 1)
        assert entry_ids(runs) == [0], "the first entry is read whatever its size"
        assert unread == due[1:]


async def test_trimmed_entries_are_returned_as_unread() -> None:
    async with one_topic() as one:
        positions = await one.publish(2)
        gone = Delayed(1, positions[0].ledger_id + 1000, 0)
        runs, unread = await read_due(one.topic.ledger, [gone, *due_at(positions, 1)], PLENTY_BYTES)
        assert entry_ids(runs) == [1]
        assert unread == [gone]


async def test_cached_reads_return_all_due_entries_or_none() -> None:
    async with one_topic() as one:
        positions = await one.publish(10)
        runs = read_due_cached(one.topic.ledger, due_at(positions, 2, 3, 7), PLENTY_BYTES)
        assert runs is not None
        assert entry_ids(runs) == [2, 3, 7]
        assert read_due_cached(one.topic.ledger, due_at(positions, 2, 3), 1) is None, (
            "memory has only a part for that limit"
        )
