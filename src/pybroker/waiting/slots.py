"""A limited number of slots, such as connections. A new occupant can displace the oldest unsettled occupant, that is,
one that is not being served.

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


class _Arrivals(Generic[T]):
    """Occupants in the order of their arrival, together and by address."""

    def __init__(self) -> None:
        self._all: OrderedDict[T, None] = OrderedDict()
        self._of: dict[str, OrderedDict[T, None]] = {}

    def __contains__(self, occupant: T) -> bool:
        return occupant in self._all

    def add(self, occupant: T, address: str) -> None:
        self._all[occupant] = None
        self._of.setdefault(address, OrderedDict())[occupant] = None

    def remove(self, occupant: T, address: str) -> None:
        del self._all[occupant]
        of_address = self._of[address]
        del of_address[occupant]
        if not of_address:
            del self._of[address]

    def first(self, address: str | None) -> T | None:
        """Return the first occupant from `address`; None: from any."""
        return next(iter(self._all if address is None else self._of.get(address, ())), None)


class Slots(Generic[T]):
    """Up to `limit` slots, and up to `limit_per_address` for each address; 0 means no limit.

    With `displaces_settled`, a new occupant displaces the oldest settled one if all are settled.
    """

    def __init__(self, limit: int, limit_per_address: int, *, displaces_settled: bool = False) -> None:
        self._limit = limit
        self._limit_per_address = limit_per_address
        self._displaces_settled = displaces_settled
        self._address_of: dict[T, str] = {}
        self._counts: Counter[str] = Counter()
        self._unsettled: _Arrivals[T] = _Arrivals()
        self._settled: _Arrivals[T] = _Arrivals()

    def __len__(self) -> int:
        return len(self._address_of)

    def __contains__(self, occupant: T) -> bool:
        return occupant in self._address_of

    @property
    def longest(self) -> T | None:
        """The unsettled occupant that came first; None if there is none."""
        return self._unsettled.first(None)

    def count_of(self, address: str) -> int:
        return self._counts[address]

    def admit(self, occupant: T, address: str) -> Admission[T]:
        """Give a slot to `occupant` if possible. Return whether it has a slot, and the occupant that was displaced for it.
        `occupant` is unsettled until `settle`.
        """
        assert occupant not in self._address_of, "admitted twice"
        displaced: T | None = None
        is_full_for_address = 0 < self._limit_per_address <= self._counts[address]
        if is_full_for_address or 0 < self._limit <= len(self):
            displaced = self._displaceable(address if is_full_for_address else None)
            if displaced is None:
                return Admission(False)
            self.leave(displaced)
        self._address_of[occupant] = address
        self._counts[address] += 1
        self._unsettled.add(occupant, address)
        return Admission(True, displaced)

    def _displaceable(self, address: str | None) -> T | None:
        unsettled = self._unsettled.first(address)
        if unsettled is None and self._displaces_settled:
            return self._settled.first(address)
        return unsettled

    def settle(self, occupant: T) -> None:
        """Mark `occupant` as being served. After that it is displaced only if the option `displaces_settled` is set and no
        unsettled occupant can be displaced instead. Does nothing if it has no slot.
        """
        address = self._address_of.get(occupant)
        if address is not None and occupant in self._unsettled:
            self._unsettled.remove(occupant, address)
            self._settled.add(occupant, address)

    def unsettle(self, occupant: T) -> None:
        """Mark `occupant` as not being served any more, so that it can be displaced. Does nothing if it has no slot."""
        address = self._address_of.get(occupant)
        if address is not None and occupant in self._settled:
            self._settled.remove(occupant, address)
            self._unsettled.add(occupant, address)

    def leave(self, occupant: T) -> None:
        """Free the slot of `occupant`. Does nothing if it has no slot."""
        address = self._address_of.pop(occupant, None)
        if address is None:
            return
        (self._unsettled if occupant in self._unsettled else self._settled).remove(occupant, address)
        self._counts[address] -= 1
        if not self._counts[address]:
            del self._counts[address]
