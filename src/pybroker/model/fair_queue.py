"""A queue in which addresses take turns, and within an address names do: who asks much waits behind itself."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class FairQueue(Generic[T]):
    """Rows of waiters, one for each address and name.

    Invariants: at most `max_waiting` wait, `max_waiting_per_address` of one address; when there is no room, the newest of the
    longest row makes it, so that a long row never keeps others out. No row is empty.
    """

    def __init__(self, max_waiting: int, max_waiting_per_address: int) -> None:
        self._max_waiting = max_waiting
        self._max_waiting_per_address = max_waiting_per_address
        self._rows: OrderedDict[str, OrderedDict[str, deque[T]]] = OrderedDict()  # in the order of turns
        self._counts: dict[str, int] = {}

    def __len__(self) -> int:
        return sum(self._counts.values())

    @property
    def addresses(self) -> list[str]:
        """Of whom somebody waits."""
        return list(self._rows)

    def add(self, address: str, name: str, waiter: T) -> T | None:
        """Queue `waiter`; whoever has no place because of it, which may be `waiter` itself."""
        row = self._rows.setdefault(address, OrderedDict()).setdefault(name, deque())
        row.append(waiter)
        self._counts[address] = self._counts.get(address, 0) + 1
        crowded = None
        if self._counts[address] > self._max_waiting_per_address:
            crowded = address
        elif len(self) > self._max_waiting:
            crowded = max(self._counts, key=self._counts.__getitem__)
        if crowded is None:
            return None
        longest = max(self._rows[crowded], key=lambda each: len(self._rows[crowded][each]))
        last = self._rows[crowded][longest][-1]
        self.remove(crowded, longest, last)
        return last

    def next(self, may_go: Callable[[str], bool]) -> T | None:
        """Whose turn it is among the addresses that may go now, None when there is nobody."""
        for address in self._rows:
            if may_go(address):
                break
        else:
            return None
        rows = self._rows[address]
        name, row = next(iter(rows.items()))
        waiter = row[0]
        # Behind the others, should there be more of them.
        rows.move_to_end(name)
        self._rows.move_to_end(address)
        self.remove(address, name, waiter)
        return waiter

    def remove(self, address: str, name: str, waiter: T) -> bool:
        """`waiter` waits no longer; False when it did not."""
        rows = self._rows.get(address, OrderedDict())
        row = rows.get(name)
        if row is None or waiter not in row:
            return False
        row.remove(waiter)
        if not row:
            del rows[name]
        if not rows:
            del self._rows[address]
        self._counts[address] -= 1
        if not self._counts[address]:
            del self._counts[address]
        return True
