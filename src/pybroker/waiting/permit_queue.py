"""A limited number of permits, and a bounded queue of waiters that serves holders round robin.

A holder has a share of the permits (`fair_shares.py`), because a holder such as a slow client can keep a permit for a
long time.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

from pybroker.waiting.fair_queue import FairQueue
from pybroker.waiting.fair_shares import FairShares, Holder

T = TypeVar("T", bound=Hashable)


class PermitQueue(Generic[T]):
    """A waiter is any hashable value and can be in the queue only once.

    Invariants: at most `permits` are taken; no waiter waits for a permit that it could have; at most `max_waiting`
    wait. When one more waiter is added, the newest waiter of the longest queue is removed.
    """

    def __init__(self, permits: int, max_waiting: int) -> None:
        assert permits > 0
        self.permits = permits
        self.max_waiting = max_waiting
        self.shares = FairShares()
        self._waiting: FairQueue[Holder, T] = FairQueue(max_waiting, max_waiting)
        self._holder_of: dict[T, Holder] = {}

    def __len__(self) -> int:
        """Return the number of waiters."""
        return len(self._holder_of)

    def __contains__(self, waiter: T) -> bool:
        return waiter in self._holder_of

    @property
    def taken(self) -> int:
        return self.shares.used

    def take(self, holder: Holder) -> bool:
        """Take a permit if `holder` may have one immediately. Return whether it was taken."""
        if self._waiting.waiting_of(holder) or not self._may_take(holder):
            return False
        self.shares.add(holder.name, 1)
        return True

    def wait(self, waiter: T, holder: Holder) -> T | None:
        """Queue `waiter` for `holder`. Return the waiter that was removed to free capacity, which may be `waiter`
        itself."""
        assert waiter not in self._holder_of, "waits already"
        self._holder_of[waiter] = holder
        crowded_out = self._waiting.add(holder, "", waiter)
        if crowded_out is not None:
            del self._holder_of[crowded_out]
        return crowded_out

    def leave(self, waiter: T) -> None:
        """Remove `waiter` from the queue."""
        self._waiting.remove(self._holder_of.pop(waiter), "", waiter)

    def give_back(self, holder: Holder) -> list[T]:
        """Release a permit. Return the waiters that have a permit now."""
        self.shares.add(holder.name, -1)
        admitted: list[T] = []
        while (waiter := self._waiting.next(self._may_take)) is not None:
            self.shares.add(self._holder_of.pop(waiter).name, 1)
            admitted.append(waiter)
        return admitted

    def _may_take(self, holder: Holder) -> bool:
        return self.shares.may_take(holder, self.permits)
