"""Queue that serves client addresses round robin, and the names of an address round robin. Pure.

The address may also be the holder of a share (`fair_shares.py`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)
A = TypeVar("A", bound=Hashable)


class FairQueue(Generic[A, T]):
    """Queues of waiters, one for each address and name.

    At most `max_waiting` wait, and at most `max_waiting_per_address` of one address. When a limit is exceeded, the
    newest waiter of the longest queue is removed, so a long queue never keeps other addresses out.
    """

    def __init__(self, max_waiting: int, max_waiting_per_address: int) -> None:
        self._max_waiting = max_waiting
        self._max_waiting_per_address = max_waiting_per_address
        # In the order of service. Not deques, because thousands of waiters may leave at once, from any position.
        self._queues: OrderedDict[A, OrderedDict[str, OrderedDict[T, None]]] = OrderedDict()
        self._counts: dict[A, int] = {}
        self._length = 0

    def __len__(self) -> int:
        return self._length

    @property
    def addresses(self) -> Collection[A]:
        return self._queues.keys()

    def waiting_of(self, address: A) -> int:
        return self._counts.get(address, 0)

    def add(self, address: A, name: str, waiter: T) -> T | None:
        """Add a waiter. Return the waiter that was removed to keep the limits, perhaps `waiter` itself, or None."""
        queue = self._queues.setdefault(address, OrderedDict()).setdefault(name, OrderedDict())
        assert waiter not in queue, "waits already"
        queue[waiter] = None
        self._length += 1
        self._counts[address] = self._counts.get(address, 0) + 1
        crowded = None
        if self._counts[address] > self._max_waiting_per_address:
            crowded = address
        elif len(self) > self._max_waiting:
            crowded = max(self._counts, key=self._counts.__getitem__)
        if crowded is None:
            return None
        longest = max(self._queues[crowded], key=lambda each: len(self._queues[crowded][each]))
        last = next(reversed(self._queues[crowded][longest]))
        self.remove(crowded, longest, last)
        return last

    def next(self, may_go: Callable[[A], bool]) -> T | None:
        for address in self._queues:
            if may_go(address):
                break
        else:
            return None
        names = self._queues[address]
        name, queue = next(iter(names.items()))
        waiter = next(iter(queue))
        # At the end, if more waiters of the name or address remain.
        names.move_to_end(name)
        self._queues.move_to_end(address)
        self.remove(address, name, waiter)
        return waiter

    def remove(self, address: A, name: str, waiter: T) -> bool:
        """Remove a waiter. Return False if it is not in the queue."""
        names = self._queues.get(address)
        queue = None if names is None else names.get(name)
        if names is None or queue is None or waiter not in queue:
            return False
        del queue[waiter]
        self._length -= 1
        if not queue:
            del names[name]
        if not names:
            del self._queues[address]
        self._counts[address] -= 1
        if not self._counts[address]:
            del self._counts[address]
        return True
