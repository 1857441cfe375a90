"""Selection of the entries of the next commit within a limit of bytes, and their division among workers. Pure logic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pybroker.reading.positions import EntryRange, Place, PlannedLedger, TopicPlan


class Piece(NamedTuple):
    """A range of entries and its approximate size."""

    entries: EntryRange
    size_bytes: int


@dataclass(frozen=True)
class Batch:
    """The entries of one commit. `positions` are the read positions after them; `remaining_bytes` is the backlog that
    remains.
    """

    pieces: tuple[Piece, ...]
    positions: Mapping[str, Place]
    size_bytes: int
    remaining_bytes: int

    @property
    def is_empty(self) -> bool:
        return not self.pieces


def choose(plans: Sequence[TopicPlan], limit_bytes: int) -> Batch:
    """Select the entries of the next commit: about `limit_bytes` in total, in proportion to the backlog of each topic,
    and at least one entry of each topic with a backlog.

    The batch also contains the end positions of topics without a backlog, which may have advanced past empty ledgers.
    """
    backlogs = [sum(ledger.size_bytes for ledger in plan.ledgers) for plan in plans]
    total = sum(backlogs)
    pieces: list[Piece] = []
    positions: dict[str, Place] = {}
    for plan, backlog in zip(plans, backlogs, strict=True):
        share = limit_bytes if total <= limit_bytes else limit_bytes * backlog // max(1, total)
        taken = _take(plan, share)
        pieces += taken
        place = _place_after(plan, taken)
        if place != plan.start or not taken:
            positions[plan.topic] = max(place, plan.start)
    taken_bytes = sum(piece.size_bytes for piece in pieces)
    return Batch(tuple(pieces), positions, taken_bytes, max(0, total - taken_bytes))


def _take(plan: TopicPlan, share: int) -> list[Piece]:
    taken: list[Piece] = []
    left = share
    for ledger in plan.ledgers:
        if ledger.end_entry_id <= ledger.first_entry_id:
            continue
        if left <= 0 and taken:
            break
        end = _end_within(ledger, left)
        size = _size_between(ledger, ledger.first_entry_id, end)
        taken.append(Piece(EntryRange(plan.topic, ledger.ledger_id, ledger.first_entry_id, end), size))
        left -= size
        if end < ledger.end_entry_id:
            break
    return taken


def _place_after(plan: TopicPlan, taken: list[Piece]) -> Place:
    whole = [ledger for ledger in plan.ledgers if ledger.end_entry_id > ledger.first_entry_id]
    if len(taken) == len(whole) and (not whole or taken[-1].entries.end_entry_id == whole[-1].end_entry_id):
        return plan.end
    last = taken[-1].entries
    return Place(last.ledger_id, last.end_entry_id)


def _end_within(ledger: PlannedLedger, size_bytes: int) -> int:
    if ledger.size_bytes <= size_bytes:
        return ledger.end_entry_id
    best = ledger.first_entry_id
    base = _bytes_before(ledger, ledger.first_entry_id)
    for point in ledger.points:
        if ledger.first_entry_id < point.entry_id < ledger.end_entry_id and point.bytes_before - base <= size_bytes:
            best = point.entry_id
    if best > ledger.first_entry_id:
        return best
    # An estimate, because entries differ in size. Each entry is a valid boundary.
    count = ledger.end_entry_id - ledger.first_entry_id
    return ledger.first_entry_id + min(count, max(1, count * size_bytes // max(1, ledger.size_bytes)))


def _size_between(ledger: PlannedLedger, first: int, end: int) -> int:
    if (first, end) == (ledger.first_entry_id, ledger.end_entry_id):
        return ledger.size_bytes
    points = {point.entry_id: point.bytes_before for point in ledger.points}
    if end in points:
        return max(1, points[end] - _bytes_before(ledger, first))
    return max(1, ledger.size_bytes * (end - first) // max(1, ledger.end_entry_id - ledger.first_entry_id))


def _bytes_before(ledger: PlannedLedger, entry_id: int) -> int:
    before = [point.bytes_before for point in ledger.points if point.entry_id <= entry_id]
    return before[-1] if before else 0


def shares(batch: Batch, count: int, least_bytes: int) -> list[list[EntryRange]]:
    """Divide the batch into at most `count` shares of about equal size. No share is much smaller than `least_bytes`,
    because each share becomes a file. Entries stay in order within and across shares.
    """
    wanted = max(1, min(count, batch.size_bytes // max(1, least_bytes)))
    target = max(1, -(-batch.size_bytes // wanted))
    result: list[list[EntryRange]] = [[]]
    filled = 0
    for entries, size in batch.pieces:
        rest, rest_bytes = entries, size
        while filled + rest_bytes > target and len(result) < wanted:
            entry_count = rest.end_entry_id - rest.first_entry_id
            fitting = min(entry_count, entry_count * max(0, target - filled) // max(1, rest_bytes))
            if fitting:
                border = rest.first_entry_id + fitting
                result[-1].append(EntryRange(rest.topic, rest.ledger_id, rest.first_entry_id, border))
                rest_bytes -= rest_bytes * fitting // entry_count
                rest = EntryRange(rest.topic, rest.ledger_id, border, rest.end_entry_id)
            result.append([])
            filled = 0
        if rest.end_entry_id > rest.first_entry_id:
            result[-1].append(rest)
            filled += rest_bytes
    return [share for share in result if share]
