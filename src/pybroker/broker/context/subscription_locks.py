"""Turns: who may act on a subscription now, and who waits for that, in order of arrival.

Pure. Who waits is whatever the caller wants to be given back when the turn comes; how long it waits is the caller's business.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

from pybroker.waiting.fair_shares import FairShares, Holder

Waiter = TypeVar("Waiter", bound=Hashable)


class SubscriptionTurns(Generic[Waiter]):
    """Owned by who owns what the names stand for.

    Invariants: a name is listed exactly while somebody has its turn; nobody waits for a name that is free.
    """

    def __init__(self) -> None:
        self._doing: dict[str, str] = {}
        # Who waits, and for what. Not a deque: thousands may leave at once, from anywhere in the row.
        self._rows: dict[str, OrderedDict[Waiter, str]] = {}

    def __len__(self) -> int:
        """How many names somebody has the turn of."""
        return len(self._doing)

    def take(self, name: str, doing: str) -> bool:
        """Take the turn if nobody has it; `doing` says for what, to those who come meanwhile."""
        if name in self._doing:
            return False
        self._doing[name] = doing
        return True

    def wait(self, name: str, doing: str, waiter: Waiter) -> None:
        """`waiter` comes behind everybody who waits for that name already."""
        assert name in self._doing, "nobody waits for what is free"
        self._rows.setdefault(name, OrderedDict())[waiter] = doing

    def leave(self, name: str, waiter: Waiter) -> None:
        """`waiter` waits no more, and has not taken the turn. It may have been passed over already, as one that was cancelled."""
        row = self._rows.get(name)
        if row is not None and row.pop(waiter, None) is not None and not row:
            del self._rows[name]

    def pass_on(self, name: str) -> Waiter | None:
        """Who has the turn gives it up: who has it from now on, None when nobody waits."""
        row = self._rows.get(name)
        if row is None:
            del self._doing[name]
            return None
        waiter, self._doing[name] = row.popitem(last=False)
        if not row:
            del self._rows[name]
        return waiter

    def doing(self, name: str) -> str:
        """What the one is doing who has the turn; empty when nobody has it."""
        return self._doing.get(name, "")

    def waiting(self, name: str) -> int:
        """How many wait for that name."""
        return len(self._rows.get(name, ()))


class WaitingRoom:
    """Bounds how many wait, for whatever name, over all owners of turns together. Owned by the broker service."""

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
