"""How what is read is divided among tasks: a pure function of what is read and of the wanted size, never of the cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pybroker.reading.positions import EntryRange, TopicPlan
from pybroker.spark.reader.admission import backlog_bytes, stretches
from pybroker.spark.reader.offsets import CutRange

OPEN_COST_BYTES = 4 << 20
"""What beginning to read a range costs, as bytes: tiny topics share a task, but not too many of them."""
MAX_RANGES = 20_000
"""Of one batch: they are written into the checkpoint, and a task costs Spark some 50 ms of a core."""


@dataclass(frozen=True, slots=True)
class TopicRange:
    """Entries of one topic (partition) for one task. Messages of the outermost entries may lie outside of what was asked for."""

    topic: str
    cut: CutRange
    from_batch_index: int = 0
    """Messages of the first entry before this index are left out."""
    until_batch_index: int = -1
    """Messages of the last entry from this index on are left out; -1: none."""

    @property
    def entries(self) -> EntryRange:
        return EntryRange(self.topic, self.cut.ledger_id, self.cut.first_entry_id, self.cut.end_entry_id)


def split_size(plans: Sequence[TopicPlan], split_bytes: int, min_partitions: int) -> int:
    """Bytes of a range: `split_bytes`, less where that makes fewer than `min_partitions`, more where it makes too many."""
    total = sum(backlog_bytes(plan) for plan in plans)
    size_bytes = split_bytes
    if min_partitions:
        size_bytes = min(size_bytes, max(total // min_partitions, 1))
    return max(size_bytes, total // MAX_RANGES)


def cut(plan: TopicPlan, split_bytes: int) -> tuple[CutRange, ...]:
    """All entries of the plan as ranges of about `split_bytes`, cut at sparse points where there are some, else evenly.

    That is not what `reading.cutting` does, which leaves whole what has no points: here the size of a task is what counts, and
    each range tells its own, by which small ones share a task.
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
    """The ranges of each task, in order; small ones share a task."""
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
