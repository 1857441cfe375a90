"""Selection of the entries of a micro-batch within limits of bytes and messages.

The limits are distributed over the topics, in proportion to their backlog. The sizes between two known points of a
ledger are estimated, so the limits are approximate. Each topic with a backlog gets at least one entry, so a query
always makes progress.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

from pybroker.reading.positions import Place, PlannedLedger, TopicPlan

UNLIMITED = 1 << 62
ASSUMED_ENTRY_BYTES = 1024
"""Assumed entry size of a ledger of unknown size."""


class Taken(NamedTuple):
    """The end of the selected entries of a topic, and their approximate size."""

    end: Place
    size_bytes: int
    message_count: int


class Stretch(NamedTuple):
    """Consecutive entries of one ledger, over which bytes and messages are assumed to be evenly distributed."""

    ledger_id: int
    first_entry_id: int
    entry_count: int
    size_bytes: int
    message_count: int


@dataclass(frozen=True)
class Limits:
    """The limits of one micro-batch in bytes and messages, over all topics."""

    size_bytes: int = UNLIMITED
    message_count: int = UNLIMITED


def admit(plans: Sequence[TopicPlan], limits: Limits) -> list[Place]:
    """Return the position in each topic at which the next micro-batch ends: the end of its plan if all planned entries are
    within the limits.

    Otherwise the micro-batch has at least one entry of each topic, and the rest of the limits is divided in proportion
    to the backlogs. If a topic does not use its share, other topics get the rest, the longest backlog first.
    """
    topics = [_Topic.of(plan) for plan in plans]
    first = [topic.take(0, 0) for topic in topics]
    spare = _Spare(limits, first)
    backlogs = [topic.size_bytes - one.size_bytes for topic, one in zip(topics, first, strict=True)]
    counts = [topic.message_count - one.message_count for topic, one in zip(topics, first, strict=True)]
    if sum(backlogs) <= spare.size_bytes and sum(counts) <= spare.message_count:
        return [plan.end for plan in plans]
    taken = [
        topic.take(
            one.size_bytes + spare.size_bytes * size // max(sum(backlogs), 1),
            one.message_count + spare.message_count * count // max(sum(counts), 1),
        )
        for topic, one, size, count in zip(topics, first, backlogs, counts, strict=True)
    ]
    spare = _Spare(limits, taken)
    for index in sorted(
        range(len(topics)), key=lambda index: topics[index].size_bytes - taken[index].size_bytes, reverse=True
    ):
        before = taken[index]
        taken[index] = topics[index].take(
            before.size_bytes + spare.size_bytes, before.message_count + spare.message_count
        )
        spare.size_bytes -= taken[index].size_bytes - before.size_bytes
        spare.message_count -= taken[index].message_count - before.message_count
    return [one.end for one in taken]


class _Spare:
    def __init__(self, limits: Limits, taken: Sequence[Taken]) -> None:
        self.size_bytes = max(limits.size_bytes - sum(one.size_bytes for one in taken), 0)
        self.message_count = max(limits.message_count - sum(one.message_count for one in taken), 0)


def until(plan: TopicPlan, end: Place) -> TopicPlan:
    ledgers = []
    for ledger in plan.ledgers:
        if ledger.ledger_id > end.ledger_id:
            break
        if ledger.ledger_id < end.ledger_id or ledger.end_entry_id <= end.entry_id:
            ledgers.append(ledger)
        elif ledger.first_entry_id < end.entry_id:
            ledgers.append(_cut_ledger(ledger, end.entry_id))
    return replace(plan, end=min(end, plan.end), ledgers=tuple(ledgers))


def backlog_bytes(plan: TopicPlan) -> int:
    return sum(part.size_bytes for part in stretches(plan))


def entry_count(plan: TopicPlan) -> int:
    return sum(ledger.end_entry_id - ledger.first_entry_id for ledger in plan.ledgers)


@dataclass(frozen=True)
class _Topic:
    end: Place
    stretches: tuple[Stretch, ...]
    size_bytes: int
    message_count: int

    @staticmethod
    def of(plan: TopicPlan) -> _Topic:
        parts = tuple(stretches(plan))
        return _Topic(
            plan.end, parts, sum(part.size_bytes for part in parts), sum(part.message_count for part in parts)
        )

    def take(self, size_bytes: int, message_count: int) -> Taken:
        """Take as many entries from the beginning as fit both limits, but at least one if there is any."""
        used_bytes = used_messages = used_entries = 0
        for part in self.stretches:
            if used_bytes + part.size_bytes <= size_bytes and used_messages + part.message_count <= message_count:
                used_bytes += part.size_bytes
                used_messages += part.message_count
                used_entries += part.entry_count
                continue
            fitting = min(
                _fitting(part, size_bytes - used_bytes, part.size_bytes),
                _fitting(part, message_count - used_messages, part.message_count),
            )
            if used_entries == 0:
                fitting = max(fitting, 1)
            # Rounded up, so that an estimate never increases the share of other topics.
            used_bytes += -(-part.size_bytes * fitting // part.entry_count)
            used_messages += -(-part.message_count * fitting // part.entry_count)
            end = Place(part.ledger_id, part.first_entry_id + fitting)
            return Taken(end, used_bytes, used_messages)
        return Taken(self.end, used_bytes, used_messages)


def _fitting(part: Stretch, room: int, total: int) -> int:
    if total <= room:
        return part.entry_count
    return max(room, 0) * part.entry_count // total


def stretches(plan: TopicPlan) -> list[Stretch]:
    return [part for ledger in plan.ledgers for part in _stretches_of(ledger)]


def _stretches_of(ledger: PlannedLedger) -> list[Stretch]:
    first, end = ledger.first_entry_id, ledger.end_entry_id
    entries = end - first
    if entries <= 0:
        return []
    points = [point for point in ledger.points if first <= point.entry_id < end]
    borders = [*([] if points and points[0].entry_id == first else [first]), *(point.entry_id for point in points), end]
    lengths = [after - before for before, after in pairwise(borders)]
    sizes: list[int | None] = [None] * len(lengths)
    messages: list[int | None] = [None] * len(lengths)
    unknown_start = len(lengths) - len(points)  # 1 if the first entry has no sparse point
    for index, (point, after) in enumerate(pairwise(points), unknown_start):
        sizes[index] = max(after.bytes_before - point.bytes_before, 0)
        if point.messages_before >= 0 <= after.messages_before:
            messages[index] = max(after.messages_before - point.messages_before, 0)
    size_bytes = ledger.size_bytes if ledger.size_bytes > 0 else entries * ASSUMED_ENTRY_BYTES
    message_count = ledger.message_count if ledger.message_count >= 0 else entries
    columns = zip(
        borders, lengths, _filled(sizes, lengths, size_bytes), _filled(messages, lengths, message_count), strict=False
    )
    return [Stretch(ledger.ledger_id, *stretch) for stretch in columns]


def _filled(known: Sequence[int | None], lengths: Sequence[int], total: int) -> list[int]:
    rest = total - sum(value for value in known if value is not None)
    open_length = sum(length for value, length in zip(known, lengths, strict=True) if value is None)
    return [
        max(rest * length // open_length, length) if value is None else value
        for value, length in zip(known, lengths, strict=True)
    ]


def _cut_ledger(ledger: PlannedLedger, end_entry_id: int) -> PlannedLedger:
    size_bytes = message_count = 0
    for part in _stretches_of(ledger):
        kept = min(max(end_entry_id - part.first_entry_id, 0), part.entry_count)
        size_bytes += part.size_bytes * kept // part.entry_count
        message_count += part.message_count * kept // part.entry_count
    return replace(
        ledger,
        end_entry_id=end_entry_id,
        size_bytes=size_bytes,
        message_count=message_count if ledger.message_count >= 0 else -1,
        points=tuple(point for point in ledger.points if point.entry_id < end_entry_id),
    )
