"""Cuts what a plan covers into ranges of about one size, at sparse points only: there a reader begins without reading twice.

A pure function of the plan and the size, so that whoever cuts the same plan again gets the same ranges.
"""

from __future__ import annotations

from collections.abc import Iterator

from pybroker.reading.positions import EntryRange, PlannedLedger, TopicPlan


def cut(plan: TopicPlan, split_bytes: int) -> list[EntryRange]:
    """The ranges in order: none spans two ledgers, together they are what the plan covers, each is there once."""
    assert split_bytes > 0, "a size to split by"
    ranges = []
    for ledger in plan.ledgers:
        first = ledger.first_entry_id
        for end in (*_cuts(ledger, split_bytes), ledger.end_entry_id):
            ranges.append(EntryRange(plan.topic, ledger.ledger_id, first, end))
            first = end
    return ranges


def _cuts(ledger: PlannedLedger, split_bytes: int) -> Iterator[int]:
    """Entries in front of which the ledger is cut: as many parts as the size asks for, of like size."""
    parts = -(-ledger.size_bytes // split_bytes)
    bytes_before = _bytes_before(ledger)
    part = 1
    for point in ledger.points:
        if part >= parts:
            return
        if (point.bytes_before - bytes_before) * parts >= part * ledger.size_bytes:
            yield point.entry_id
            # A point may lie behind several of the wished cuts, where single entries are larger than a part.
            part = (point.bytes_before - bytes_before) * parts // ledger.size_bytes + 1


def _bytes_before(ledger: PlannedLedger) -> int:
    """Of the ledger's entries in front of those that are covered; an estimate where these begin within the ledger."""
    if not ledger.first_entry_id or not ledger.points:
        return 0
    point = ledger.points[0]
    entry_count = ledger.end_entry_id - ledger.first_entry_id
    return point.bytes_before - ledger.size_bytes * (point.entry_id - ledger.first_entry_id) // entry_count
