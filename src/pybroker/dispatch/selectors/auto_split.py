"""Auto-split hash ranges: each consumer has one region, and the regions together cover 0..65535.

A new consumer takes the lower half of the largest region, the leftmost of equal ones. The region of a leaving consumer
joins its right neighbour; the last region joins its left one.

    C1 comes   |------------------------------- C1 -------------------------------|
    C2 comes   |--------------- C2 ---------------|--------------- C1 ------------|
    C3 comes   |------ C3 ------|------ C2 -------|--------------- C1 ------------|
    C4 comes   |------ C3 ------|------ C2 -------|------ C4 -----|------ C1 -----|
    C4 leaves  |------ C3 ------|------ C2 -------|--------------- C1 ------------|
    C1 leaves  |------ C3 ------|----------------------- C2 ----------------------|
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from pybroker.dispatch.consumer_state import ConsumerState
from pybroker.dispatch.selectors.hash_selector import RANGE_SIZE, HashRange, HashSelector, fold_into_ranges
from pybroker.errors import ConsumerAssignError


class AutoSplitSelector(HashSelector):
    """Invariant: `_starts` ascends from 0; region i extends from its start to the next one and belongs to
    `_owners[i]`.
    """

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._owners: list[ConsumerState] = []

    def sticky_hashes(self, key_hashes: Iterable[int]) -> list[int]:
        return fold_into_ranges(key_hashes)

    def owner(self, sticky_hash: int) -> ConsumerState | None:
        owners = self._owners
        return owners[bisect_right(self._starts, sticky_hash) - 1] if owners else None

    def add(self, consumer: ConsumerState) -> list[ConsumerState]:
        if not self._owners:
            self._starts.append(0)
            self._owners.append(consumer)
            return []
        index = max(range(len(self._starts)), key=self._size)  # the first of equal regions
        size = self._size(index)
        if size < 2:
            raise ConsumerAssignError(
                f"No hash is left for another consumer: all {RANGE_SIZE} hashes already belong to different consumers"
            )
        loser = self._owners[index]
        self._starts.insert(index + 1, self._starts[index] + size // 2)
        self._owners.insert(index, consumer)
        return [loser]

    def remove(self, consumer: ConsumerState) -> None:
        index = self._owners.index(consumer)
        del self._owners[index]
        # Remove the start between the region and the neighbour that takes it.
        del self._starts[min(index + 1, len(self._starts) - 1)]

    def ranges(self) -> dict[ConsumerState, list[HashRange]]:
        return {
            owner: [(self._starts[index], self._starts[index] + self._size(index) - 1)]
            for index, owner in enumerate(self._owners)
        }

    def _size(self, index: int) -> int:
        end = self._starts[index + 1] if index + 1 < len(self._starts) else RANGE_SIZE
        return end - self._starts[index]
