"""Division of entries among Spark tasks. It depends only on the entries and the requested size, not on the cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pybroker.reading.positions import EntryRange, TopicPlan
from pybroker.spark.reader.admission import backlog_bytes, stretches
from pybroker.spark.reader.offsets import CutRange

OPEN_COST_BYTES = 4 << 20
"""Cost of starting to read a range, in bytes. It limits how many small topics share a task."""
MAX_RANGES = 20_000
"""Maximum number of ranges in one batch. They are stored in the checkpoint, and each task costs Spark about 50 ms of one core."""


@dataclass(frozen=True, slots=True)
class TopicRange:
    """Entries of one topic or partition for one task. The first and last entry may contain messages that the query does
    not read.
    """

    topic: str
    cut: CutRange
    from_batch_index: int = 0
    """Messages of the first entry before this index are skipped."""
    until_batch_index: int = -1
    """Messages of the last entry from this index on are skipped; -1: none."""

    @property
    def entries(self) -> EntryRange:
        return EntryRange(self.topic, self.cut.ledger_id, self.cut.first_entry_id, self.cut.end_entry_id)


def split_size(plans: Sequence[TopicPlan], split_bytes: int, min_partitions: int) -> int:
    """Return the size of a task in bytes: `split_bytes`, or less to get `min_partitions`, or more to stay below
    `MAX_RANGES`.
    """
    total = sum(backlog_bytes(plan) for plan in plans)
    size_bytes = split_bytes
    if min_partitions:
        size_bytes = min(size_bytes, max(total // min_partitions, 1))
    return max(size_bytes, total // MAX_RANGES)


def cut(plan: TopicPlan, split_bytes: int) -> tuple[CutRange, ...]:
    """Divide the entries of a topic into ranges of about `split_bytes`. A ledger is divided at the points whose offset
    in bytes is known (sparse points), else evenly.
    """
    ranges: list[CutRange] = []
    for stretch in stretches(plan):
        pieces = max(-(-stretch.size_bytes // split_bytes), 1)
        pieces = min(pieces, stretch.entry_count)
        for index in range(pieces):
            first = stretch.first_entry_id + stretch.entry_count * index // pieces
            end = stretch.first_entry_id + stretch.entry_count * (index + 1) // pieces
            piece = CutRange(stretch.ledger_id, first, end, stretch.size_bytes * (end - first) // stretch.entry_count)
            last = ranges[-1] if ranges else None
            if last is not None and _fits(last, piece, split_bytes):
                piece = CutRange(last.ledger_id, last.first_entry_id, end, last.size_bytes + piece.size_bytes)
                ranges[-1] = piece
            else:
                ranges.append(piece)
    return tuple(ranges)


def grouped(ranges: Sequence[TopicRange], split_bytes: int) -> list[tuple[TopicRange, ...]]:
    """Combine the ranges into tasks of about `split_bytes`, in order."""
    groups: list[tuple[TopicRange, ...]] = []
    group: list[TopicRange] = []
    cost_bytes = 0
    open_cost_bytes = min(OPEN_COST_BYTES, split_bytes // 4)
    for one in ranges:
        own = one.cut.size_bytes + open_cost_bytes
        if group and cost_bytes + own > split_bytes + open_cost_bytes:
            groups.append(tuple(group))
            group, cost_bytes = [], 0
        group.append(one)
        cost_bytes += own
    if group:
        groups.append(tuple(group))
    return groups


def _fits(last: CutRange, piece: CutRange, split_bytes: int) -> bool:
    return (
        last.ledger_id == piece.ledger_id
        and last.end_entry_id == piece.first_entry_id
        and last.size_bytes + piece.size_bytes <= split_bytes
    )
