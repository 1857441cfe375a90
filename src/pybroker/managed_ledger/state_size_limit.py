"""The size limit of a cursor's stored acknowledgements: a subscription whose state is too large to be stored is paused.

Operation: a store refuses a state that is too large. From then on, no entry after the last acknowledged one is
delivered, because its acknowledgement would enlarge the state. Earlier entries are delivered, because their
acknowledgement fills gaps. When a stored state has become small enough, delivery continues.

Limitations: the state can still grow by acknowledgements of messages that were delivered before.
"""

from __future__ import annotations

from typing import NamedTuple

from pybroker.model.position import Position

RESUME_PERCENT = 90
"""Delivery continues when the state is smaller than this share of the limit, so that it does not stop again after each
acknowledgement.
"""


class StateExcess(NamedTuple):
    """A cursor state that is too large for the store. `end`: its last acknowledged entry. `since_ms`: the start of the
    pause by the monotonic clock.
    """

    size_bytes: int
    limit_bytes: int
    range_count: int
    end: Position
    since_ms: float


class StateSizeLimit:
    """Whether the delivery of one subscription is paused because the state of its cursor is too large."""

    __slots__ = ("excess", "is_stored")

    def __init__(self) -> None:
        self.excess: StateExcess | None = None
        """Why delivery is paused; None while it is not."""
        self.is_stored = True
        """Whether the last state could be stored."""

    def refused(self, size_bytes: int, limit_bytes: int, range_count: int, end: Position, now_ms: float) -> bool:
        """Record that the store refused the cursor's state of `size_bytes`, because it exceeds `limit_bytes`. Return True
        if this begins a pause of delivery, False if delivery was paused already.

        `range_count`: the number of ranges of individually deleted entries. `end`: the last acknowledged entry.
        """
        before = self.excess
        since_ms = now_ms if before is None else before.since_ms
        self.excess = StateExcess(size_bytes, limit_bytes, range_count, end, since_ms)
        self.is_stored = False
        return before is None

    def stored(self, size_bytes: int) -> bool:
        """Record that the cursor's state was stored, with `size_bytes`. Return whether this ends a pause of delivery."""
        self.is_stored = True
        excess = self.excess
        if excess is None or size_bytes * 100 > excess.limit_bytes * RESUME_PERCENT:
            return False
        self.excess = None
        return True

    def readable(self, position: Position, max_entries: int) -> int:
        """Return how many of the `max_entries` entries from `position` on may be delivered."""
        excess = self.excess
        if excess is None or position.ledger_id < excess.end.ledger_id:
            return max_entries
        return max(0, min(max_entries, excess.end.entry_id - position.entry_id)) if position < excess.end else 0
