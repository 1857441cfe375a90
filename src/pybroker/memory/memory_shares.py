"""How much of one part of the memory each of its holders may have, where nobody can be asked to give something back.

Pure. What holders have exists already and is counted: a holder beyond its share gets no more of what would make it larger, and
says what stops then. While half of the part is free each may have half of it; above that an equal share. A little each may always
have, so that one that is full stops no other.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

from pybroker.memory.memory_budget import Part, Settled

K = TypeVar("K", bound=Hashable)


class MemoryShares(Generic[K]):
    """Owned by the broker's memory. Invariant: the part counts what the holders have, and nothing else."""

    def __init__(self, part: Part[object], least_bytes: int) -> None:
        """`least_bytes`: what each may have, whatever others do."""
        self._part = part
        self._least_bytes = least_bytes
        self._used: dict[K, int] = {}
        self._waiting: dict[K, None] = {}

    def __len__(self) -> int:
        """How many have something."""
        return len(self._used)

    @property
    def waiting(self) -> int:
        """How many have stopped because they have their share."""
        return len(self._waiting)

    def report(self, holder: K, size_bytes: int) -> Settled[object] | None:
        """`holder` has so much now, 0 when it is gone; what follows from it for others that wait for memory."""
        before_bytes = self._used.pop(holder, 0)
        if size_bytes:
            self._used[holder] = size_bytes
        else:
            self._waiting.pop(holder, None)
        return self._part.count(size_bytes - before_bytes)

    def allowed_bytes(self) -> int:
        """What each may have now."""
        most_bytes = self._part.most_bytes
        shares = 2 if self._part.used_bytes * 2 <= most_bytes else max(1, len(self._used))
        return max(self._least_bytes, most_bytes // shares)

    def stops(self, holder: K) -> bool:
        """Whether `holder` has its share; if so it is among the `freed` once it may go on."""
        if self._used.get(holder, 0) < self.allowed_bytes():
            return False
        self._waiting[holder] = None
        return True

    def freed(self) -> list[K]:
        """Those that had stopped and may go on."""
        if not self._waiting:
            return []
        allowed_bytes = self.allowed_bytes()
        freed = [holder for holder in self._waiting if self._used.get(holder, 0) < allowed_bytes]
        for holder in freed:
            del self._waiting[holder]
        return freed

    def check_invariants(self) -> None:
        """For tests."""
        assert self._part.used_bytes == sum(self._used.values())
        assert self._waiting.keys() <= self._used.keys()
        assert all(size_bytes > 0 for size_bytes in self._used.values())
