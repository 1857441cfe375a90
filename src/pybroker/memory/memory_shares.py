"""Fair shares of one memory part among holders that cannot give memory back on request. Pure.

The memory already exists; a holder at its share gets no more input. While half of the part is free, each holder may use
half of it; above that, an equal share. Each may always use a small minimum.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

from pybroker.memory.memory_budget import Part, Settled

K = TypeVar("K", bound=Hashable)


class MemoryShares(Generic[K]):
    """Shares of one memory part, which counts exactly the memory of all holders."""

    def __init__(self, part: Part[object], least_bytes: int) -> None:
        """`least_bytes`: the minimum that each holder may always use."""
        self._part = part
        self._least_bytes = least_bytes
        self._used: dict[K, int] = {}
        self._waiting: dict[K, None] = {}

    def __len__(self) -> int:
        return len(self._used)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def report(self, holder: K, size_bytes: int) -> Settled[object] | None:
        """Set the memory of `holder` in bytes; 0 when the holder ends. Return the waiters and read-ahead holders that
        the caller must notify, or None.
        """
        before_bytes = self._used.pop(holder, 0)
        if size_bytes:
            self._used[holder] = size_bytes
        else:
            self._waiting.pop(holder, None)
        return self._part.count(size_bytes - before_bytes)

    def allowed_bytes(self) -> int:
        most_bytes = self._part.most_bytes
        shares = 2 if self._part.used_bytes * 2 <= most_bytes else max(1, len(self._used))
        return max(self._least_bytes, most_bytes // shares)

    def stops(self, holder: K) -> bool:
        """Return whether `holder` has reached its share, so that its input must pause. When the holder may continue,
        `freed` returns it.
        """
        if self._used.get(holder, 0) < self.allowed_bytes():
            return False
        self._waiting[holder] = None
        return True

    def freed(self) -> list[K]:
        if not self._waiting:
            return []
        allowed_bytes = self.allowed_bytes()
        freed = [holder for holder in self._waiting if self._used.get(holder, 0) < allowed_bytes]
        for holder in freed:
            del self._waiting[holder]
        return freed

    def check_invariants(self) -> None:
        assert self._part.used_bytes == sum(self._used.values())
        assert self._waiting.keys() <= self._used.keys()
        assert all(size_bytes > 0 for size_bytes in self._used.values())
