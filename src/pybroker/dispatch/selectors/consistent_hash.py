"""Auto-split by consistent hashing: each consumer of a Key_Shared subscription has many points on a hash ring, and a
hash belongs to the next point.

Point i, counted from 0, of a consumer is `(murmur3_32(name NUL n NUL i) & 0x7fffffff) % 65535 + 1` with n = 0, 1, ...
among consumers of one name. The owner of a hash is the consumer of the next point at or above it; after the last point,
it is the consumer of the first point. A shared point belongs to the consumer that was added first, and to the next one
when it leaves.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

from pybroker.dispatch.consumer_state import ConsumerState
from pybroker.dispatch.selectors.hash_selector import RANGE_SIZE, HashRange, HashSelector
from pybroker.model.hashing import key_hash

_RING_SIZE = RANGE_SIZE - 1


class ConsistentHashSelector(HashSelector):
    """Invariants: `_points` ascends and holds the keys of `_at`; `_owners[i]` is the first consumer at `_points[i]`."""

    def __init__(self, points_each: int) -> None:
        assert points_each > 0
        self._points_each = points_each
        self._points: list[int] = []
        self._owners: list[ConsumerState] = []
        self._at: dict[int, list[ConsumerState]] = {}  # in order of addition; none is empty
        self._name_indexes: dict[ConsumerState, int] = {}

    def sticky_hashes(self, key_hashes: Iterable[int]) -> list[int]:
        return [key_hash % _RING_SIZE + 1 for key_hash in key_hashes]

    def owner(self, sticky_hash: int) -> ConsumerState | None:
        owners = self._owners
        if not owners:
            return None
        index = bisect_left(self._points, sticky_hash)
        return owners[index] if index < len(owners) else owners[0]

    def add(self, consumer: ConsumerState) -> list[ConsumerState]:
        used = {index for other, index in self._name_indexes.items() if other.name == consumer.name}
        index = next(index for index in range(len(used) + 1) if index not in used)
        losers: dict[ConsumerState, None] = {}
        for point in self._points_of(consumer.name, index):
            present = self._at.get(point)
            if present is None:
                loser = self.owner(point)
                if loser is not None:
                    losers[loser] = None
                self._at[point] = [consumer]
            elif consumer not in present:
                present.append(consumer)
        self._name_indexes[consumer] = index
        self._rebuild()
        return list(losers)

    def remove(self, consumer: ConsumerState) -> None:
        for point in set(self._points_of(consumer.name, self._name_indexes.pop(consumer))):
            present = self._at[point]
            present.remove(consumer)
            if not present:
                del self._at[point]
        self._rebuild()

    def ranges(self) -> dict[ConsumerState, list[HashRange]]:
        ranges: dict[ConsumerState, list[HashRange]] = {}
        start = 1
        previous: ConsumerState | None = None
        ends = [*self._points, _RING_SIZE] if self._points and self._points[-1] < _RING_SIZE else self._points
        for end, owner in zip(ends, [*self._owners, *self._owners[:1]], strict=False):  # the ring closes
            mine = ranges.setdefault(owner, [])
            if owner is previous:
                mine[-1] = (mine[-1][0], end)
            else:
                mine.append((start, end))
            start = end + 1
            previous = owner
        return ranges

    def _points_of(self, name: str, name_index: int) -> list[int]:
        return self.sticky_hashes(
            key_hash(f"{name}\0{name_index}\0{index}".encode()) for index in range(self._points_each)
        )

    def _rebuild(self) -> None:
        self._points = sorted(self._at)
        self._owners = [self._at[point][0] for point in self._points]
