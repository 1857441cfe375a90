"""A limited number of slots, such as connections, of which a new occupant can displace the oldest unsettled one.

Pure. The caller settles an occupant that is being served, such as an HTTP connection with a complete request head. So
clients that connect and send nothing keep no other client out.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")


class Admission(NamedTuple, Generic[T]):
    """Result of `Slots.admit`: whether the newcomer has a slot, and the occupant that lost its slot to it."""

    is_admitted: bool
    displaced: T | None = None


class Slots(Generic[T]):
    """Up to `limit` slots, and up to `limit_per_address` for each address; 0 means no limit."""

    def __init__(self, limit: int, limit_per_address: int) -> None:
        self._limit = limit
        self._limit_per_address = limit_per_address
        self._address_of: dict[T, str] = {}
        self._counts: Counter[str] = Counter()
        self._unsettled: OrderedDict[T, None] = OrderedDict()  # in order of arrival
        self._unsettled_of: dict[str, OrderedDict[T, None]] = {}

    def __len__(self) -> int:
        return len(self._address_of)

    def __contains__(self, occupant: T) -> bool:
        return occupant in self._address_of

    @property
    def longest(self) -> T | None:
        return next(iter(self._unsettled), None)

    def count_of(self, address: str) -> int:
        return self._counts[address]

    def admit(self, occupant: T, address: str) -> Admission[T]:
        """Give a slot to `occupant` if possible, and return the result. The occupant is unsettled until `settle`."""
        assert occupant not in self._address_of, "admitted twice"
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
        self._address_of[occupant] = address
        self._counts[address] += 1
        self._unsettle(occupant, address)
        return Admission(True, displaced)

    def settle(self, occupant: T) -> None:
        """Protect `occupant` from displacement. Does nothing if it has no slot."""
        address = self._address_of.get(occupant)
        if address is None or occupant not in self._unsettled:
            return
        del self._unsettled[occupant]
        of_address = self._unsettled_of[address]
        del of_address[occupant]
        if not of_address:
            del self._unsettled_of[address]

    def unsettle(self, occupant: T) -> None:
        """Allow displacement of `occupant` again. Does nothing if it has no slot."""
        address = self._address_of.get(occupant)
        if address is not None and occupant not in self._unsettled:
            self._unsettle(occupant, address)

    def leave(self, occupant: T) -> None:
        """Free the slot of `occupant`. Does nothing if it has no slot."""
        self.settle(occupant)
        address = self._address_of.pop(occupant, None)
        if address is not None:
            self._counts[address] -= 1
            if not self._counts[address]:
                del self._counts[address]

    def _unsettle(self, occupant: T, address: str) -> None:
        self._unsettled[occupant] = None
        self._unsettled_of.setdefault(address, OrderedDict())[occupant] = None
