"""Rules that divide one memory budget among all parts that grow with client activity. Pure.

    limit = the floors of all parts + shared memory
    used by a part <= its bound;  used by parts above their floors, together, <= shared memory

A part can always use its floor. Memory within a floor is either released without waiting for another part, or it is
read-ahead that can be dropped. Therefore no waiter waits forever.

Each part has a queue: round robin by group (a connection), in order of arrival within a group. The part with the oldest
first waiter is served first. Read-ahead is dropped, oldest first, before any request waits. The call that gives memory
back returns the waiters that can continue.

Data that already exists is counted even beyond the bound (`count`, `hold`). The caller must then pause its source.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T", bound=Hashable)


class Settled(NamedTuple, Generic[T]):
    """Result of a change: waiters that were granted memory, and holders that must drop read-ahead."""

    granted: list[T]
    gave_way: list[T]


class _Waiting(NamedTuple):
    size_bytes: int
    since_ms: float


class MemoryBudget(Generic[T]):
    """Memory budget of one broker. `T`: type of waiters and read-ahead holders. A request that can be granted never
    waits.
    """

    def __init__(self, limit_bytes: int) -> None:
        assert limit_bytes > 0
        self.limit_bytes = limit_bytes
        self.parts: dict[str, Part[T]] = {}
        self.shared_bytes = limit_bytes
        """Memory beyond the floors of all parts, which all parts share."""
        self.shared_used_bytes = 0
        self.waiting = 0
        """Number of waiters in all parts."""

    def add_part(self, name: str, floor_bytes: int, bound_bytes: int) -> Part[T]:
        """Add a part with a guaranteed minimum (`floor_bytes`) and a maximum. The sum of the minimums of all parts must
        be less than the budget.
        """
        assert name not in self.parts
        floor_bytes = min(floor_bytes, bound_bytes)
        assert floor_bytes < self.shared_bytes, "the floors leave no shared memory"
        self.shared_bytes -= floor_bytes
        part = self.parts[name] = Part(self, name, floor_bytes, bound_bytes)
        return part

    @property
    def used_bytes(self) -> int:
        return sum(part.used_bytes for part in self.parts.values())

    def settle(self) -> Settled[T]:
        granted: list[T] = []
        gave_way: list[T] = []
        stuck: set[str] = set()
        is_shared_claimed = False
        while True:
            waiting = [part for part in self.parts.values() if part.waiting and part.name not in stuck]
            if not waiting:
                return Settled(granted, gave_way)
            part = min(waiting, key=Part.head_since_ms)
            size_bytes = part.head_size_bytes()
            if not is_shared_claimed:
                self._make_room(part, size_bytes, gave_way)
            if size_bytes <= part.room(with_shared=not is_shared_claimed):
                granted.append(part.admit_head())
                # The part's next waiter may be older than the waiters checked before.
                stuck.clear()
                is_shared_claimed = False
                continue
            stuck.add(part.name)
            # The part waits for shared memory, and later waiters must not overtake it.
            is_shared_claimed = is_shared_claimed or size_bytes <= part.bound_bytes - part.used_bytes

    def _make_room(self, part: Part[T], size_bytes: int, gave_way: list[T]) -> None:
        while size_bytes > part.room() and part.ahead_bytes:
            gave_way.append(part.evict_oldest())
        if size_bytes > part.bound_bytes - part.used_bytes:
            return  # memory of other parts does not help
        for other in self.parts.values():
            while size_bytes > part.room() and other.ahead_bytes and other.used_bytes > other.floor_bytes:
                gave_way.append(other.evict_oldest())

    def check_invariants(self) -> None:
        parts = self.parts.values()
        assert self.waiting == sum(part.waiting for part in parts)
        assert self.shared_bytes + sum(part.floor_bytes for part in parts) == self.limit_bytes
        assert self.shared_used_bytes == sum(max(0, part.used_bytes - part.floor_bytes) for part in parts)
        for part in parts:
            part.check_invariants()
        oldest = min((part for part in parts if part.waiting), key=Part.head_since_ms, default=None)
        if oldest is not None:
            assert oldest.head_size_bytes() > oldest.room(), "the first waiter could be served"


class Part(Generic[T]):
    """Part of the budget for one purpose, such as reads.

    `used_bytes` is the memory that was taken or counted and not given back, including `ahead_bytes`, which can be
    dropped.
    """

    def __init__(self, budget: MemoryBudget[T], name: str, floor_bytes: int, bound_bytes: int) -> None:
        self.name = name
        self.floor_bytes = floor_bytes
        self.highest_bytes = bound_bytes
        self.bound_bytes = bound_bytes
        """Upper bound of the part; lower than the maximum if its configuration key sets a limit."""
        self.used_bytes = 0
        self.ahead_bytes = 0
        self.takers = 0
        """Requests granted or waiting."""
        self.waits_total = 0
        self.gave_way_total = 0
        self._budget = budget
        self._ahead: OrderedDict[T, int] = OrderedDict()  # oldest read-ahead first
        self._rows: OrderedDict[Hashable, OrderedDict[T, _Waiting]] = OrderedDict()  # groups in round-robin order
        self._group_of: dict[T, Hashable] = {}

    # --- queries -----------------------------------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        return len(self._group_of)

    @property
    def most_bytes(self) -> int:
        """Return how many bytes the part could use if all other parts used at most their guaranteed minimums."""
        return min(self.bound_bytes, self.floor_bytes + self._budget.shared_bytes)

    def limit_to(self, own_bytes: int) -> None:
        """Set the limit of the part in bytes, from its configuration key (0: no limit)."""
        self.bound_bytes = min(self.highest_bytes, own_bytes) if own_bytes else self.highest_bytes

    def room(self, *, with_shared: bool = True) -> int:
        """Return how many bytes can be taken from the part now; 0 or less if none. `with_shared`: include the free
        memory that all parts share.
        """
        own_bytes = max(0, self.floor_bytes - self.used_bytes)
        budget = self._budget
        shared_bytes = max(0, budget.shared_bytes - budget.shared_used_bytes) if with_shared else 0
        return min(self.bound_bytes - self.used_bytes, own_bytes + shared_bytes)

    def fill(self, size_bytes: int) -> bool:
        """Add `size_bytes` to the part's used memory, even beyond its bound. Return whether the part is full."""
        self.count(size_bytes)
        # Below its guaranteed minimum, a part has room.
        return self.used_bytes >= min(self.floor_bytes, self.bound_bytes) and self.room() <= 0

    @property
    def users(self) -> int:
        return self.takers + len(self._ahead)

    def share(self, least_bytes: int, most_bytes: int) -> int:
        fair_bytes = self.most_bytes // (self.users + 1)
        return max(min(least_bytes, self.most_bytes), min(most_bytes, fair_bytes))

    def longest_wait_ms(self, now_ms: float) -> float:
        return now_ms - min(each.since_ms for row in self._rows.values() for each in row.values()) if self._rows else 0

    def waits_since_ms(self, group: Hashable) -> float | None:
        row = self._rows.get(group)
        return None if row is None else next(iter(row.values())).since_ms

    def head_size_bytes(self) -> int:
        return self._head()[1].size_bytes

    def head_since_ms(self) -> float:
        return self._head()[1].since_ms

    def _head(self) -> tuple[T, _Waiting]:
        return next(iter(next(iter(self._rows.values())).items()))

    # --- take and release --------------------------------------------------------------------------------------------

    def count(self, size_bytes: int) -> Settled[T] | None:
        """Add `size_bytes` to the part's used memory, even beyond its bound; a negative number releases memory.

        Return the waiters that are granted memory and the holders that must drop read-ahead; the caller must notify
        both. None if there are none.
        """
        # `_use`, without its call: this runs for each message.
        floor_bytes, budget = self.floor_bytes, self._budget
        above_before = max(0, self.used_bytes - floor_bytes)
        self.used_bytes += size_bytes
        assert self.used_bytes >= 0, f"{self.name}: more memory was given back than was taken"
        budget.shared_used_bytes += max(0, self.used_bytes - floor_bytes) - above_before
        return budget.settle() if size_bytes < 0 and budget.waiting else None

    def ask(self, waiter: T, group: Hashable, size_bytes: int, now_ms: float) -> Settled[T]:
        """Request `size_bytes` of the part, or its maximum if that is less. Waiting requests are served round robin by
        `group`.

        The result contains `waiter` if the request is granted; otherwise the request waits. `took` returns the granted
        amount.
        """
        assert waiter not in self._group_of, "waits already"
        self.takers += 1
        self._budget.waiting += 1
        self._group_of[waiter] = group
        row = self._rows.setdefault(group, OrderedDict())
        row[waiter] = _Waiting(self.took(size_bytes), now_ms)
        settled = self._budget.settle()
        self.waits_total += waiter in self._group_of
        return settled

    def took(self, size_bytes: int) -> int:
        """Return the bytes that are granted for a request of `size_bytes`. The caller must give them back."""
        return max(1, min(size_bytes, self.most_bytes))

    def safe_bytes(self, size_bytes: int) -> int:
        """Clamp `size_bytes` to the part's guaranteed minimum. A caller that holds memory of another part may wait only
        for that amount, which is always released eventually.
        """
        return min(size_bytes, max(1, self.floor_bytes))

    def leave(self, waiter: T) -> Settled[T] | None:
        """Cancel a waiting request, which may let other requests continue. Return None if the request was granted
        already.
        """
        group = self._group_of.pop(waiter, None)
        if group is None:
            return None
        self.takers -= 1
        self._budget.waiting -= 1
        self._remove(group, waiter)
        return self._budget.settle()

    def give_back(self, size_bytes: int) -> Settled[T]:
        self.takers -= 1
        self._use(-size_bytes)
        return self._budget.settle()

    def hold(self, holder: T, size_bytes: int) -> Settled[T] | None:
        """Set the read-ahead of `holder` to `size_bytes`.

        If requests wait for memory, some of them may get it now, and some holders must drop the data that they have read
        ahead, the oldest first: the result names both. None if no request waits.
        """
        self._forget(holder)
        self._ahead[holder] = size_bytes
        self.ahead_bytes += size_bytes
        self._use(size_bytes)
        return self._budget.settle() if self._budget.waiting else None

    def drop(self, holder: T) -> Settled[T] | None:
        return self._budget.settle() if self._forget(holder) and self._budget.waiting else None

    def _forget(self, holder: T) -> bool:
        size_bytes = self._ahead.pop(holder, None)
        if size_bytes is None:
            return False
        self.ahead_bytes -= size_bytes
        self._use(-size_bytes)
        return True

    # --- for the budget ----------------------------------------------------------------------------------------------

    def evict_oldest(self) -> T:
        holder = next(iter(self._ahead))
        self._forget(holder)
        self.gave_way_total += 1
        return holder

    def admit_head(self) -> T:
        waiter, waiting = self._head()
        group = self._group_of.pop(waiter)
        self._budget.waiting -= 1
        self._remove(group, waiter)
        if group in self._rows:
            self._rows.move_to_end(group)
        self._use(waiting.size_bytes)
        return waiter

    def _remove(self, group: Hashable, waiter: T) -> None:
        row = self._rows[group]
        del row[waiter]
        if not row:
            del self._rows[group]

    def _use(self, size_bytes: int) -> None:
        above_before = max(0, self.used_bytes - self.floor_bytes)
        self.used_bytes += size_bytes
        assert self.used_bytes >= 0, f"{self.name}: more memory was given back than was taken"
        self._budget.shared_used_bytes += max(0, self.used_bytes - self.floor_bytes) - above_before

    def check_invariants(self) -> None:
        assert self.ahead_bytes == sum(self._ahead.values()) <= self.used_bytes
        assert self.waiting == sum(map(len, self._rows.values())) <= self.takers
        assert all(self._rows.values())
