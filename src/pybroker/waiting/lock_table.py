"""Rules of locks by name, with one owner at a time and waiters in order of arrival. Pure.

`keyed_lock.py` is the asyncio shell, which wakes the waiter that gets a lock.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

Name = TypeVar("Name", bound=Hashable)
Owner = TypeVar("Owner", bound=Hashable)


class LockTable(Generic[Name, Owner]):
    """Held locks and their queues. No waiter waits for a free lock."""

    __slots__ = ("_owners", "_queues")

    def __init__(self) -> None:
        self._owners: dict[Name, Owner] = {}
        # Not deques, because thousands of waiters may leave at once, from any position.
        self._queues: dict[Name, OrderedDict[Owner, None]] = {}

    def __len__(self) -> int:
        return len(self._owners)

    def owner(self, name: Name) -> Owner | None:
        return self._owners.get(name)

    def waiting(self, name: Name) -> int:
        return len(self._queues.get(name, ()))

    def take(self, name: Name, owner: Owner) -> bool:
        """Take the lock for `owner` if it is free. Return whether it was taken. A refused owner can call `wait`."""
        if name in self._owners:
            return False
        self._owners[name] = owner
        return True

    def wait(self, name: Name, waiter: Owner) -> None:
        assert name in self._owners, "the lock is free"
        queue = self._queues.setdefault(name, OrderedDict())
        assert waiter not in queue, "waits already"
        assert waiter != self._owners[name], "has the lock"
        queue[waiter] = None

    def leave(self, name: Name, waiter: Owner) -> bool:
        """Remove a waiter from the queue. Return False if it is not in the queue."""
        queue = self._queues.get(name)
        if queue is None or waiter not in queue:
            return False
        del queue[waiter]
        if not queue:
            del self._queues[name]
        return True

    def release(self, name: Name, owner: Owner) -> Owner | None:
        """Release the lock. Return its next owner; None if the lock is free now."""
        assert self._owners.get(name) == owner, "a lock is released by a task that does not own it"
        queue = self._queues.get(name)
        if queue is None:
            del self._owners[name]
            return None
        successor, _ = queue.popitem(last=False)
        if not queue:
            del self._queues[name]
        self._owners[name] = successor
        return successor

    def check_invariants(self) -> None:
        assert self._queues.keys() <= self._owners.keys(), "a waiter waits for a free lock"
        for name, queue in self._queues.items():
            assert queue, "an empty queue is listed"
            assert self._owners[name] not in queue, "the owner waits for its own lock"
