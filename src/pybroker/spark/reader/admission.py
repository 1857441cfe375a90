"""How much of each topic one micro-batch takes: limits of bytes and messages, shared out by backlog.

What lies between two sparse points of a ledger is taken to be spread evenly over its entries, so both limits are met about
and not exactly. However small they are, every topic with a backlog gets on by an entry: a query never stands still.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

from pybroker.reading.positions import Place, PlannedLedger, TopicPlan

UNLIMITED = 1 << 62
ASSUMED_ENTRY_BYTES = 1024
"""Of an entry where nobody says how long the entries of a ledger are."""


class Taken(NamedTuple):
    """Up to where, and about how much that is."""

    end: Place
    size_bytes: int
    message_count: int


class Stretch(NamedTuple):
    """Consecutive entries of one ledger over which bytes and messages are spread evenly."""

    ledger_id: int
    first_entry_id: int
    entry_count: int
    size_bytes: int
    message_count: int


@dataclass(frozen=True)
class Limits:
    """Of one micro-batch, over all topics."""

    size_bytes: int = UNLIMITED
    message_count: int = UNLIMITED


def admit(plans: Sequence[TopicPlan], limits: Limits) -> list[Place]:
    """Up to where each of `plans` is read now: its end if everything fits, else an entry and its share of what is left.

    Shares are in proportion to the backlog. What a topic cannot use of its own, because the next entry does not fit, goes to
    the others, the longest backlog first.
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
    """What limits leave of themselves; never below zero."""

    def __init__(self, limits: Limits, taken: Sequence[Taken]) -> None:
        self.size_bytes = max(limits.size_bytes - sum(one.size_bytes for one in taken), 0)
        self.message_count = max(limits.message_count - sum(one.message_count for one in taken), 0)


def until(plan: TopicPlan, end: Place) -> TopicPlan:
    """What `plan` covers up to `end`; sizes of a ledger that is cut are estimates."""
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
    """About how many bytes the plan covers."""
    return sum(part.size_bytes for part in stretches(plan))


def entry_count(plan: TopicPlan) -> int:
    return sum(ledger.end_entry_id - ledger.first_entry_id for ledger in plan.ledgers)


@dataclass(frozen=True)
class _Topic:
    """A plan as stretches, and what they add up to."""

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
        """As many entries from the beginning as fit both limits, at least one if there is any."""
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
            # Rounded up: an estimate that errs must not make the others' spare larger than it is.
            used_bytes += -(-part.size_bytes * fitting // part.entry_count)
            used_messages += -(-part.message_count * fitting // part.entry_count)
            end = Place(part.ledger_id, part.first_entry_id + fitting)
            return Taken(end, used_bytes, used_messages)
        return Taken(self.end, used_bytes, used_messages)


def _fitting(part: Stretch, room: int, total: int) -> int:
    """How many entries of `part` fit where each takes an equal share of `total`."""
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
    unknown_start = len(lengths) - len(points)  # 1 where no point stands at the first entry
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
    """What is not known has the rest of `total`, in proportion to its length, and at least one for each entry."""
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
