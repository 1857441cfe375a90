"""Plans of bulk reads: the ledgers and entries of a topic between two positions, for analytics and copies.

A plan contains the entries that are durable at one moment. `PlanBudget` limits the size of a response; a truncated plan
contains the position at which the next request continues.
"""

# ruff: noqa: N815  (the attributes are the JSON properties)

from __future__ import annotations

import asyncio
import base64
from typing import TYPE_CHECKING

import msgspec

from pybroker.ledgers.ledger_store import LedgerTotals
from pybroker.model.position import Position

if TYPE_CHECKING:
    from pybroker.broker.topic.topic import Topic
    from pybroker.ledgers.ledger_store import LedgerPoint, LedgerStore
    from pybroker.managed_ledger.ledger_list import LedgerRow
    from pybroker.managed_ledger.max_read_position import ReadLimit
    from pybroker.runtime.runtime import Runtime

POINT_SPACING_BYTES = 1 << 20
"""Payload between the split points of a plan. Smaller tasks cost more than they gain."""
ROW_BYTES = 50
"""Size of a bitmap of aborted messages that counts like one point."""
MAX_PLAN_ROWS = 10_000
"""Maximum ledgers and points of a response: a few milliseconds of the event loop, 0.5 MB."""

Pair = tuple[int, int]


class AskedTopic(msgspec.Struct):
    """One requested topic, by its local name in the namespace. Positions are [ledger id, entry id]."""

    topic: str
    start: Pair | None = None
    end: Pair | None = None
    publishTime: int | None = None


class AskedPlans(msgspec.Struct):
    """Request for plans of several topics. `points`: include positions at which large ledgers can be split."""

    topics: list[AskedTopic]
    points: bool = True


class LedgerShown(msgspec.Struct, omit_defaults=True):
    """Requested part of a ledger: entries from `firstEntry` up to but not including `endEntry`.

    `hidden`: entries that readers must skip (aborted messages and transaction markers), as a portable Roaring bitmap in
    Base64; absent if there are none.
    """

    ledgerId: int
    firstEntry: int
    endEntry: int
    sizeBytes: int
    messageCount: int
    isSealed: bool
    points: list[LedgerPoint]
    hidden: str = ""


class TopicShown(msgspec.Struct, omit_defaults=True):
    """Plan of a topic, or the reason why there is no plan. `isHeldBack`: the plan ends at the first message of an open
    transaction.

    `next`: the response was truncated; send this position as `start` to continue. `placeAtTime`: position of the first
    entry published at or after the requested time, or the end of the topic.
    """

    topic: str
    start: Pair = (-1, -1)
    end: Pair = (-1, -1)
    first: Pair = (-1, -1)
    ledgers: list[LedgerShown] = []
    lost: list[str] = []
    next: Pair | None = None
    placeAtTime: Pair | None = None
    isHeldBack: bool = False
    status: int = 200
    reason: str = ""


class PlanBudget:
    """Remaining number of ledgers and split points in a response, and the deadline for learning which transactions have
    ended.
    """

    def __init__(self, runtime: Runtime, rows: int = MAX_PLAN_ROWS) -> None:
        self._rows = rows
        self._runtime = runtime
        wait_ms = runtime.config.transaction_buffer_ends_wait_time_in_millis
        self._waits_until_ms = runtime.clock.monotonic_ms() + wait_ms

    @property
    def wait_s(self) -> float:
        return max(0.0, self._waits_until_ms - self._runtime.clock.monotonic_ms()) / 1000

    @property
    def is_spent(self) -> bool:
        return self._rows <= 0

    def spend(self, rows: int) -> None:
        self._rows -= rows


async def plan_of(
    topic: Topic, store: LedgerStore, asked: AskedTopic, budget: PlanBudget, *, with_points: bool
) -> TopicShown:
    """Return the plan of a loaded topic. If the plan exceeds `budget`, it is truncated, and its `next` is set.
    `with_points`: include the positions at which large ledgers can be split.

    Raises StoreError, and ServiceNotReady if the broker does not learn in time whether a transaction in the range has
    ended.
    """
    place_at_time = None
    if asked.publishTime is not None:
        place_at_time = tuple(await topic.ledger.find_by_publish_time(asked.publishTime))
    ledgers, read_limit = topic.ledger.ledgers, topic.ledger.read_limit
    limit = read_limit.limit
    if limit is not None and (asked.end is None or Position(*asked.end) > limit):
        await topic.transactions.ends_known(budget.wait_s)
    # Read both in one iteration. Later entries, and entries after an open transaction, belong to a later plan.
    first, readable_end = ledgers.first_position, read_limit.limit or ledgers.end_position
    start = first if asked.start is None else Position(*asked.start)
    # A start after the readable end, such as from a time, must not move back.
    readable_end = max(readable_end, min(start, ledgers.end_position))
    end = readable_end if asked.end is None else min(Position(*asked.end), readable_end)
    covered = [_Covered(row, start, end) for row in ledgers.rows()]
    shown = TopicShown(asked.topic, start, end, first, placeAtTime=place_at_time)  # type: ignore[arg-type]
    shown.isHeldBack = read_limit.limit is not None and end >= read_limit.limit
    for each in covered:
        if each.first_entry_id >= each.end_entry_id:
            continue
        if budget.is_spent:
            shown.next = (each.ledger_id, each.first_entry_id)
            shown.end = shown.next
            break
        shown.ledgers.append(await each.shown(store, read_limit, with_points=with_points))
        budget.spend(1 + len(shown.ledgers[-1].points) + len(shown.ledgers[-1].hidden) // ROW_BYTES)
        await asyncio.sleep(0)
    if asked.start is not None:
        shown.lost += lost_sentences(topic, start, Position(*shown.end))
    return shown


def lost_sentences(topic: Topic, start: Position, end: Position) -> list[str]:
    """Return one sentence for each range of requested entries (`start` to `end`) that retention has deleted."""
    first = topic.ledger.ledgers.first_position
    sentences = []
    for lost, behind in topic.ledger.document.gone.lost_between(start, end):
        gone = (
            f"entries from {_text(lost)} on are deleted"
            if behind is None
            else (f"entries {_text(lost)} up to {_text(behind)} are deleted")
        )
        asked = f"requested {_text(start)} up to {_text(end)}"
        sentences.append(f"{topic.name}: {gone}; {asked}, the oldest remaining entry is {_text(first)}")
    return sentences


def _text(position: Position) -> str:
    return f"{position.ledger_id}:{position.entry_id}"


class _Covered:
    """Requested part of one ledger."""

    def __init__(self, row: LedgerRow, start: Position, end: Position) -> None:
        self.ledger_id = row.ledger_id
        self.first_entry_id = _cut(start, row)
        self.end_entry_id = _cut(end, row)
        self._entry_count = row.entry_count
        self._message_count = row.message_count
        self._size_bytes = row.size_bytes
        self._is_sealed = row.is_sealed

    async def shown(self, store: LedgerStore, read_limit: ReadLimit, *, with_points: bool) -> LedgerShown:
        """Return the JSON form of this part. Raises NoSuchLedger if the ledger was trimmed meanwhile."""
        whole = LedgerTotals(self._message_count, self._size_bytes)
        end = whole if self.end_entry_id == self._entry_count else await self._totals_before(store, self.end_entry_id)
        start = await self._totals_before(store, self.first_entry_id) if self.first_entry_id else LedgerTotals(0, 0)
        size_bytes = end.size_bytes - start.size_bytes
        messages = self.end_entry_id - self.first_entry_id  # if the number of messages is unknown
        if end.message_count is not None and start.message_count is not None:
            messages = end.message_count - start.message_count
        points: list[LedgerPoint] = []
        if with_points and size_bytes > POINT_SPACING_BYTES:
            points = [
                point
                for point in await store.index.points(self.ledger_id, POINT_SPACING_BYTES)
                if self.first_entry_id < point.entry_id < self.end_entry_id
            ]
        return LedgerShown(
            self.ledger_id,
            self.first_entry_id,
            self.end_entry_id,
            size_bytes,
            messages,
            self._is_sealed,
            points,
            self._hidden(read_limit),
        )

    async def _totals_before(self, store: LedgerStore, entry_id: int) -> LedgerTotals:
        """Return the totals of the entries before `entry_id`. Bytes are estimated if the store does not know them."""
        totals = await store.index.totals_before(self.ledger_id, entry_id)
        return totals or LedgerTotals(None, self._size_bytes * entry_id // max(1, self._entry_count))

    def _hidden(self, read_limit: ReadLimit) -> str:
        """Return the encoded bitmap of entries that readers must skip. It never changes."""
        found = read_limit.hidden_in(self.ledger_id, self.first_entry_id, self.end_entry_id)
        if not found:
            return ""
        found.run_optimize()
        return base64.b64encode(found.serialize()).decode()


def _cut(position: Position, row: LedgerRow) -> int:
    if position.ledger_id != row.ledger_id:
        return 0 if position.ledger_id < row.ledger_id else row.entry_count
    return min(max(0, position.entry_id), row.entry_count)
