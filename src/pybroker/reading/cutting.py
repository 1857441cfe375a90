"""Division of a read plan into ranges of about equal size, at points whose offset in bytes is known (sparse points).

The same plan and size give the same ranges.
"""

from __future__ import annotations

from collections.abc import Iterator

from pybroker.reading.positions import EntryRange, PlannedLedger, TopicPlan


def cut(plan: TopicPlan, split_bytes: int) -> list[EntryRange]:
    """Divide a plan into ranges of about `split_bytes`, in order. A range is part of one ledger; together the ranges
    cover the plan exactly once.
    """
    assert split_bytes > 0, "a size to split by"
    ranges = []
    for ledger in plan.ledgers:
        first = ledger.first_entry_id
        for end in (*_cuts(ledger, split_bytes), ledger.end_entry_id):
            ranges.append(EntryRange(plan.topic, ledger.ledger_id, first, end))
            first = end
    return ranges


def _cuts(ledger: PlannedLedger, split_bytes: int) -> Iterator[int]:
    parts = -(-ledger.size_bytes // split_bytes)
    bytes_before = _bytes_before(ledger)
    part = 1
    for point in ledger.points:
        if part >= parts:
            return
        if (point.bytes_before - bytes_before) * parts >= part * ledger.size_bytes:
            yield point.entry_id
            # A point may be after several wanted boundaries, if single entries are larger than a part.
            part = (point.bytes_before - bytes_before) * parts // ledger.size_bytes + 1


def _bytes_before(ledger: PlannedLedger) -> int:
    if not ledger.first_entry_id or not ledger.points:
        return 0
    point = ledger.points[0]
    entry_count = ledger.end_entry_id - ledger.first_entry_id
    return point.bytes_before - ledger.size_bytes * (point.entry_id - ledger.first_entry_id) // entry_count
