"""So many may do something at once; the others wait in the order in which they came, and only so many of them."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

T = TypeVar("T")


class PermitQueue(Generic[T]):
    """Who waits is any value that can be a key, once at a time.

    Invariants: what was taken and what is free come to `permits`; the first who waits does so because there is not enough free
    for it, and nobody overtakes it.
    """

    def __init__(self, permits: int, max_waiting: int) -> None:
        assert permits > 0
        self.permits = permits
        self.max_waiting = max_waiting
        self.free = permits
        self._waiting: OrderedDict[T, int] = OrderedDict()

    def __len__(self) -> int:
        """How many wait."""
        return len(self._waiting)

    def __contains__(self, waiter: T) -> bool:
        return waiter in self._waiting

    def take(self, count: int) -> bool:
        """Take `count` permits if they can be had at once."""
        assert 0 <= count <= self.permits, "nobody may ask for more than there are"
        if self._waiting or count > self.free:
            return False
        self.free -= count
        return True

    def wait(self, waiter: T, count: int) -> bool:
        """Stand at the end of the queue; False when it is full."""
        assert waiter not in self._waiting, "waits already"
        if len(self._waiting) >= self.max_waiting:
            return False
        self._waiting[waiter] = count
        return True

    def leave(self, waiter: T) -> list[T]:
        """Wait no longer; who may go now because of it."""
        del self._waiting[waiter]
        return self._admit()

    def give_back(self, count: int) -> list[T]:
        """`count` permits are free again; who has theirs now."""
        self.free += count
        assert self.free <= self.permits, "more was given back than taken"
        return self._admit()

    def _admit(self) -> list[T]:
        admitted: list[T] = []
        while self._waiting:
            waiter, count = next(iter(self._waiting.items()))
            if count > self.free:
                break
            self.free -= count
            del self._waiting[waiter]
            admitted.append(waiter)
        return admitted
