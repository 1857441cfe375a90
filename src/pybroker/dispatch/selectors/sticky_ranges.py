"""Sticky hash ranges: every consumer specifies its ranges of 0..65535.

A range is refused if it is empty, ends before it starts, or overlaps another range of the same or a connected consumer.
Hashes between the ranges have no owner until a consumer requests them. Ranges beyond 65535 are accepted and never used.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from pybroker.dispatch.consumer_state import ConsumerState
from pybroker.dispatch.selectors.hash_selector import HashRange, HashSelector, fold_into_ranges
from pybroker.errors import ConsumerAssignError


class StickyRangesSelector(HashSelector):
    """Selector of mode STICKY. Invariant: `_ranges` ascends without overlaps; range i belongs to `_owners[i]`."""

    def __init__(self) -> None:
        self._ranges: list[HashRange] = []
        self._starts: list[int] = []
        self._owners: list[ConsumerState] = []

    def sticky_hashes(self, key_hashes: Iterable[int]) -> list[int]:
        return fold_into_ranges(key_hashes)

    def owner(self, sticky_hash: int) -> ConsumerState | None:
        index = bisect_right(self._starts, sticky_hash) - 1
        return self._owners[index] if index >= 0 and sticky_hash <= self._ranges[index][1] else None

    def add(self, consumer: ConsumerState) -> list[ConsumerState]:
        wanted = consumer.key_shared.ranges
        if not wanted:
            raise ConsumerAssignError("a Key_Shared consumer of mode STICKY needs at least one hash range")
        for start, end in wanted:
            if start > end or start < 0:
                raise ConsumerAssignError(
                    f"the hash range [{start}, {end}] of the consumer is invalid: the start must not be negative, "
                    "and not after the end"
                )
        self._require_free(sorted(wanted))
        # Sorting merges two ascending sequences. All starts differ, so owners are not compared.
        owned = sorted([*zip(self._ranges, self._owners, strict=True), *((each, consumer) for each in wanted)])
        self._set(owned)
        return []

    def _require_free(self, wanted: list[HashRange]) -> None:
        """Raise ConsumerAssignError if these ranges overlap each other or an owned range."""
        end_before = -1
        for index, mine in enumerate(wanted):
            start, end = mine
            at = bisect_right(self._starts, end) - 1  # the last owned range that begins before the end of this one
            if at >= 0 and self._ranges[at][1] >= start:
                raise _conflict(mine, self._ranges[at], f"consumer {self._owners[at].name}")
            if start <= end_before:
                raise _conflict(mine, wanted[index - 1], "itself")
            end_before = end

    def remove(self, consumer: ConsumerState) -> None:
        self._set([each for each in zip(self._ranges, self._owners, strict=True) if each[1] is not consumer])

    def ranges(self) -> dict[ConsumerState, list[HashRange]]:
        ranges: dict[ConsumerState, list[HashRange]] = {}
        for (start, end), owner in zip(self._ranges, self._owners, strict=True):
            mine = ranges.setdefault(owner, [])
            if mine and mine[-1][1] + 1 == start:
                mine[-1] = (mine[-1][0], end)
            else:
                mine.append((start, end))
        return ranges

    def _set(self, owned: list[tuple[HashRange, ConsumerState]]) -> None:
        self._ranges = [each for each, _ in owned]
        self._starts = [start for start, _ in self._ranges]
        self._owners = [owner for _, owner in owned]


def _conflict(mine: HashRange, taken: HashRange, with_whom: str) -> ConsumerAssignError:
    return ConsumerAssignError(
        f"Range conflict with {with_whom}: [{mine[0]}, {mine[1]}] overlaps [{taken[0]}, {taken[1]}]"
    )
