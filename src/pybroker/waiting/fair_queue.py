"""A queue that serves addresses round robin, and the names of an address round robin, so many requests of one name
delay no other.

The caller chooses the address of a waiter: the address of a client, or the holder of a share (`fair_shares.py`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)
A = TypeVar("A", bound=Hashable)


class FairQueue(Generic[A, T]):
    """Rows of waiters, one for each address and name.

    Invariants: at most `max_waiting` wait, `max_waiting_per_address` of one address; when there is no room, the newest of the
    longest row makes it, so that a long row never keeps others out. No row is empty.
    """

    def __init__(self, max_waiting: int, max_waiting_per_address: int) -> None:
        self._max_waiting = max_waiting
        self._max_waiting_per_address = max_waiting_per_address
        # In the order of service. Not deques: thousands of waiters may leave at once, from any position of their queue.
        self._rows: OrderedDict[A, OrderedDict[str, OrderedDict[T, None]]] = OrderedDict()
        self._counts: dict[A, int] = {}
        self._length = 0

    def __len__(self) -> int:
        return self._length

    @property
    def addresses(self) -> list[A]:
        """Of whom somebody waits."""
        return list(self._rows)

    def waiting_of(self, address: A) -> int:
        """Return the number of waiters of `address`."""
        return self._counts.get(address, 0)

    def add(self, address: A, name: str, waiter: T) -> T | None:
        """Queue `waiter`; whoever has no place because of it, which may be `waiter` itself."""
        row = self._rows.setdefault(address, OrderedDict()).setdefault(name, OrderedDict())
        assert waiter not in row, "waits already"
        row[waiter] = None
        self._length += 1
        self._counts[address] = self._counts.get(address, 0) + 1
        crowded = None
        if self._counts[address] > self._max_waiting_per_address:
            crowded = address
        elif len(self) > self._max_waiting:
            crowded = max(self._counts, key=self._counts.__getitem__)
        if crowded is None:
            return None
        longest = max(self._rows[crowded], key=lambda each: len(self._rows[crowded][each]))
        last = next(reversed(self._rows[crowded][longest]))
        self.remove(crowded, longest, last)
        return last

    def next(self, may_go: Callable[[A], bool]) -> T | None:
        """Whose turn it is among the addresses that may go now, None when there is nobody."""
        for address in self._rows:
            if may_go(address):
                break
        else:
            return None
        rows = self._rows[address]
        name, row = next(iter(rows.items()))
        waiter = next(iter(row))
        # Behind the others, should there be more of them.
        rows.move_to_end(name)
        self._rows.move_to_end(address)
        self.remove(address, name, waiter)
        return waiter

    def remove(self, address: A, name: str, waiter: T) -> bool:
        """`waiter` waits no longer; False when it did not."""
        rows = self._rows.get(address)
        row = None if rows is None else rows.get(name)
        if rows is None or row is None or waiter not in row:
            return False
        del row[waiter]
        self._length -= 1
        if not row:
            del rows[name]
        if not rows:
            del self._rows[address]
        self._counts[address] -= 1
        if not self._counts[address]:
            del self._counts[address]
        return True
