"""Delivery times that an administrator changed after publishing, for one subscription.

A changed time overrides the delivery time of the entry itself until the entry is acknowledged. Usually no times are
changed.

Invariants: at most `MAX_CHANGED_DELAYS` entries; no inner table is empty.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from pybroker.model.position import Position

MAX_CHANGED_DELAYS = 10_000
"""Limit per subscription; a further change is refused."""
CHANGED_BYTES = 460
"""Memory of each change: its allocation in Python, and up to two slots among the newest entries of the index."""


class ChangedDelays:
    """Changed delivery times in milliseconds since 1970, by entry; 0 means immediately."""

    __slots__ = ("_by_ledger", "_count")

    def __init__(self) -> None:
        self._by_ledger: dict[int, dict[int, int]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __bool__(self) -> bool:
        return bool(self._by_ledger)

    def __iter__(self) -> Iterator[tuple[Position, int]]:
        for ledger_id, times in self._by_ledger.items():
            for entry_id, due_ms in times.items():
                yield Position(ledger_id, entry_id), due_ms

    def get(self, position: Position) -> int | None:
        times = self._by_ledger.get(position.ledger_id)
        return None if times is None else times.get(position.entry_id)

    def has_room(self, position: Position) -> bool:
        return self._count < MAX_CHANGED_DELAYS or self.get(position) is not None

    def set(self, position: Position, due_ms: int) -> None:
        times = self._by_ledger.setdefault(position.ledger_id, {})
        self._count += position.entry_id not in times
        times[position.entry_id] = due_ms

    def applied(self, ledger_id: int, entry_ids: Sequence[int], due_times_ms: Sequence[int]) -> Sequence[int]:
        """Return the delivery times of these entries in milliseconds since 1970: the time that an administrator set,
        else the producer's time in `due_times_ms`.
        """
        times = self._by_ledger.get(ledger_id)
        if times is None:
            return due_times_ms
        return [times.get(entry_id, own_ms) for entry_id, own_ms in zip(entry_ids, due_times_ms, strict=True)]

    def discard(self, ledger_id: int, entry_ids: Iterable[int]) -> None:
        times = self._by_ledger.get(ledger_id)
        if times is None:
            return
        for entry_id in entry_ids:
            if times.pop(entry_id, None) is not None:
                self._count -= 1
        if not times:
            del self._by_ledger[ledger_id]

    def discard_up_to(self, position: Position) -> None:
        for ledger_id in [ledger_id for ledger_id in self._by_ledger if ledger_id <= position.ledger_id]:
            times = self._by_ledger[ledger_id]
            last = position.entry_id if ledger_id == position.ledger_id else None
            self.discard(ledger_id, [each for each in times if last is None or each <= last])

    def clear(self) -> None:
        self._by_ledger.clear()
        self._count = 0

    def check_invariants(self) -> None:
        assert all(self._by_ledger.values()), "an empty table is kept"
        assert self._count == sum(map(len, self._by_ledger.values())) <= MAX_CHANGED_DELAYS
