"""Locks of subscriptions, by name, with waiters in order of arrival.

Pure. A waiter is any object that the caller wants back when it gets the lock. The caller limits the duration of a wait.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

from pybroker.waiting.fair_shares import FairShares, Holder

Waiter = TypeVar("Waiter", bound=Hashable)


class SubscriptionTurns(Generic[Waiter]):
    """The locks of one owner of subscriptions.

    Invariants: a name is listed exactly while its lock is held; no waiter waits for a free lock.
    """

    def __init__(self) -> None:
        self._doing: dict[str, str] = {}
        # The waiters, each with its operation. Not a deque: thousands may leave at once, from any position of the queue.
        self._rows: dict[str, OrderedDict[Waiter, str]] = {}

    def __len__(self) -> int:
        """The number of held locks."""
        return len(self._doing)

    def take(self, name: str, doing: str) -> bool:
        """Take the lock if it is free. `doing` describes the operation for later waiters."""
        if name in self._doing:
            return False
        self._doing[name] = doing
        return True

    def wait(self, name: str, doing: str, waiter: Waiter) -> None:
        """Queue `waiter` behind all present waiters of that name."""
        assert name in self._doing, "nobody waits for what is free"
        self._rows.setdefault(name, OrderedDict())[waiter] = doing

    def leave(self, name: str, waiter: Waiter) -> None:
        """Remove `waiter`, which has not received the lock. It may have been skipped already because it was cancelled."""
        row = self._rows.get(name)
        if row is not None and row.pop(waiter, None) is not None and not row:
            del self._rows[name]

    def pass_on(self, name: str) -> Waiter | None:
        """Release the lock. Return the next holder, None without a waiter."""
        row = self._rows.get(name)
        if row is None:
            del self._doing[name]
            return None
        waiter, self._doing[name] = row.popitem(last=False)
        if not row:
            del self._rows[name]
        return waiter

    def doing(self, name: str) -> str:
        """Return the operation of the holder; empty if the lock is free."""
        return self._doing.get(name, "")

    def waiting(self, name: str) -> int:
        """How many wait for that name."""
        return len(self._rows.get(name, ()))


class WaitingRoom:
    """Limits the number of waiters over all owners of locks. Owned by the broker service."""

    def __init__(self) -> None:
        self.shares = FairShares()
        """The number of waiting requests of each holder."""
        self.refused_total = 0
        self.late_total = 0
        """How many have waited until their deadline."""

    @property
    def occupied(self) -> int:
        """Number of waiting requests."""
        return self.shares.used

    def enter(self, holder: Holder, limit: int) -> bool:
        """Count one more request of `holder` if it may wait. Return whether it may."""
        if not self.shares.may_take(holder, limit):
            self.refused_total += 1
            return False
        self.shares.add(holder.name, 1)
        return True

    def leave(self, holder: Holder) -> None:
        self.shares.add(holder.name, -1)
