"""Places that are few, and who makes way for a newcomer: the one that has waited longest without having done what it came for.

So a flood of clients that connect and then say nothing, or everything one byte at a time, keeps nobody out who is ready to speak,
and those who are served stay.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")


class Admission(NamedTuple, Generic[T]):
    """Whether the newcomer has a place, and who has lost it to him."""

    is_admitted: bool
    displaced: T | None = None


class Slots(Generic[T]):
    """`limit` places, `limit_per_address` of them for each address; 0 is no limit.

    Invariants: who is admitted counts for its address until it leaves or is displaced; only who is not settled is displaced.
    """

    def __init__(self, limit: int, limit_per_address: int) -> None:
        self._limit = limit
        self._limit_per_address = limit_per_address
        self._address_of: dict[T, str] = {}
        self._counts: Counter[str] = Counter()
        self._unsettled: OrderedDict[T, None] = OrderedDict()  # longest first
        self._unsettled_of: dict[str, OrderedDict[T, None]] = {}

    def __len__(self) -> int:
        return len(self._address_of)

    def __contains__(self, who: T) -> bool:
        return who in self._address_of

    @property
    def longest(self) -> T | None:
        """Who has waited longest without being settled."""
        return next(iter(self._unsettled), None)

    def count_of(self, address: str) -> int:
        return self._counts[address]

    def admit(self, who: T, address: str) -> Admission[T]:
        """A newcomer, not settled yet."""
        assert who not in self._address_of, "admitted twice"
        displaced: T | None = None
        if 0 < self._limit_per_address <= self._counts[address]:
            displaced = next(iter(self._unsettled_of.get(address, ())), None)
            if displaced is None:
                return Admission(False)
        elif 0 < self._limit <= len(self):
            displaced = next(iter(self._unsettled), None)
            if displaced is None:
                return Admission(False)
        if displaced is not None:
            self.leave(displaced)
        self._address_of[who] = address
        self._counts[address] += 1
        self._unsettle(who, address)
        return Admission(True, displaced)

    def settle(self, who: T) -> None:
        """It has done what it came for: it stays. Nothing happens for one that has no place any more."""
        address = self._address_of.get(who)
        if address is None or who not in self._unsettled:
            return
        del self._unsettled[who]
        of_address = self._unsettled_of[address]
        del of_address[who]
        if not of_address:
            del self._unsettled_of[address]

    def unsettle(self, who: T) -> None:
        """It waits again, as one that has just come."""
        address = self._address_of.get(who)
        if address is not None and who not in self._unsettled:
            self._unsettle(who, address)

    def leave(self, who: T) -> None:
        """Its place is free. Nothing happens for one that has none."""
        self.settle(who)
        address = self._address_of.pop(who, None)
        if address is not None:
            self._counts[address] -= 1
            if not self._counts[address]:
                del self._counts[address]

    def _unsettle(self, who: T, address: str) -> None:
        self._unsettled[who] = None
        self._unsettled_of.setdefault(address, OrderedDict())[who] = None
