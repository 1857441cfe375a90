"""One amount of memory for everything that grows with what clients do, divided so that no part can take what another needs.

Pure: who asks is told at once, or waits; whoever gives something back is told who may go on because of it.

    limit = the floors of all parts + what is shared
    used by a part <= its bound;  what parts use above their floors, together, <= what is shared

A part always has its floor, so parts never wait for each other's floors, and what fills a floor must end by itself (a read ends, an
entry becomes durable) or be something that gives way. That is why nobody waits for ever.

Who waits does so in its part by group (a connection) in turns, and within a group in order of arrival. Between parts the one whose
first waiter has waited longest goes first, and while it waits for what is shared, younger ones get none of it. What was read ahead
is held until it is used, and gives way, oldest first, before anybody waits.

What exists already is counted, even beyond the bound (`count`, `hold`): a client has sent it, a disk has given it. Whoever counts
has to stop its source then.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T", bound=Hashable)


class Settled(NamedTuple, Generic[T]):
    """What follows from a change: who of those that waited has its memory now, and who has to drop what it read ahead."""

    granted: list[T]
    gave_way: list[T]


class _Waiting(NamedTuple):
    size_bytes: int
    since_ms: float


class MemoryBudget(Generic[T]):
    """Owned by whoever builds the broker. `T`: those that wait, or hold what they read ahead.

    Invariant: nobody waits who could be served.
    """

    def __init__(self, limit_bytes: int) -> None:
        assert limit_bytes > 0
        self.limit_bytes = limit_bytes
        self.parts: dict[str, Part[T]] = {}
        self.shared_bytes = limit_bytes
        """What is nobody's floor."""
        self.shared_used_bytes = 0
        self.waiting = 0
        """How many wait, in all parts."""

    def add_part(self, name: str, floor_bytes: int, bound_bytes: int) -> Part[T]:
        """Give a part a floor, which it always has, and a bound. Floors together must leave something to share."""
        assert name not in self.parts
        floor_bytes = min(floor_bytes, bound_bytes)
        assert floor_bytes < self.shared_bytes, "floors take all there is"
        self.shared_bytes -= floor_bytes
        part = self.parts[name] = Part(self, name, floor_bytes, bound_bytes)
        return part

    @property
    def used_bytes(self) -> int:
        """By all parts."""
        return sum(part.used_bytes for part in self.parts.values())

    def settle(self) -> Settled[T]:
        """Serve those that wait, as far as it goes."""
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
                # Its next one may have waited longer than those that were looked at before.
                stuck.clear()
                is_shared_claimed = False
                continue
            stuck.add(part.name)
            # What it waits for is shared with others, who shall not overtake it.
            is_shared_claimed = is_shared_claimed or size_bytes <= part.bound_bytes - part.used_bytes

    def _make_room(self, part: Part[T], size_bytes: int, gave_way: list[T]) -> None:
        """What was read ahead gives way to who needs `size_bytes`."""
        while size_bytes > part.room() and part.ahead_bytes:
            gave_way.append(part.evict_oldest())
        if size_bytes > part.bound_bytes - part.used_bytes:
            return  # What others hold does not matter.
        for other in self.parts.values():
            while size_bytes > part.room() and other.ahead_bytes and other.used_bytes > other.floor_bytes:
                gave_way.append(other.evict_oldest())

    def check_invariants(self) -> None:
        """For tests: the sums are right, and nobody waits in vain."""
        parts = self.parts.values()
        assert self.waiting == sum(part.waiting for part in parts)
        assert self.shared_bytes + sum(part.floor_bytes for part in parts) == self.limit_bytes
        assert self.shared_used_bytes == sum(max(0, part.used_bytes - part.floor_bytes) for part in parts)
        for part in parts:
            part.check_invariants()
        oldest = min((part for part in parts if part.waiting), key=Part.head_since_ms, default=None)
        if oldest is not None:
            assert oldest.head_size_bytes() > oldest.room(), "the first could be served"


class Part(Generic[T]):
    """One kind of thing that takes memory. Made by its budget.

    Invariant: `used_bytes` is what was taken or counted and not given back, with `ahead_bytes` that can give way.
    """

    def __init__(self, budget: MemoryBudget[T], name: str, floor_bytes: int, bound_bytes: int) -> None:
        self.name = name
        self.floor_bytes = floor_bytes
        self.highest_bytes = bound_bytes
        self.bound_bytes = bound_bytes
        """At most the highest, lower where a key of the part says so."""
        self.used_bytes = 0
        self.ahead_bytes = 0
        self.takers = 0
        """How many have taken something, or wait to."""
        self.waits_total = 0
        self.gave_way_total = 0
        self._budget = budget
        self._ahead: OrderedDict[T, int] = OrderedDict()  # what was read ahead longest ago comes first
        self._rows: OrderedDict[Hashable, OrderedDict[T, _Waiting]] = OrderedDict()  # groups, in the order of turns
        self._group_of: dict[T, Hashable] = {}

    # --- looking -----------------------------------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._group_of)

    @property
    def most_bytes(self) -> int:
        """What it could use if nobody else used anything above his floor."""
        return min(self.bound_bytes, self.floor_bytes + self._budget.shared_bytes)

    def limit_to(self, own_bytes: int) -> None:
        """A key of the part says how much it may use; 0: as much as there is for it. What is used above that is not taken back."""
        self.bound_bytes = min(self.highest_bytes, own_bytes) if own_bytes else self.highest_bytes

    def room(self, *, with_shared: bool = True) -> int:
        """How much could be taken now; 0 or less when nothing could."""
        own_bytes = max(0, self.floor_bytes - self.used_bytes)
        budget = self._budget
        shared_bytes = max(0, budget.shared_bytes - budget.shared_used_bytes) if with_shared else 0
        return min(self.bound_bytes - self.used_bytes, own_bytes + shared_bytes)

    @property
    def users(self) -> int:
        """How many have taken something, wait to, or hold what they read ahead."""
        return self.takers + len(self._ahead)

    def share(self, least_bytes: int, most_bytes: int) -> int:
        """How much one more should ask for, so that all who take something now have the same."""
        fair_bytes = self.most_bytes // (self.users + 1)
        return max(min(least_bytes, self.most_bytes), min(most_bytes, fair_bytes))

    def longest_wait_ms(self, now_ms: float) -> float:
        """Of those that wait; 0 when nobody does."""
        return now_ms - min(each.since_ms for row in self._rows.values() for each in row.values()) if self._rows else 0

    def waits_since_ms(self, group: Hashable) -> float | None:
        """Since when the first of those of `group` that wait does; None when none of them waits."""
        row = self._rows.get(group)
        return None if row is None else next(iter(row.values())).since_ms

    def head_size_bytes(self) -> int:
        """What the next one asks for."""
        return self._head()[1].size_bytes

    def head_since_ms(self) -> float:
        """Since when the next one has waited."""
        return self._head()[1].since_ms

    def _head(self) -> tuple[T, _Waiting]:
        return next(iter(next(iter(self._rows.values())).items()))

    # --- taking and giving back --------------------------------------------------------------------------------------

    def count(self, size_bytes: int) -> Settled[T] | None:
        """So much more exists, or less when negative; what follows from it for those that wait, if anybody does."""
        self._use(size_bytes)
        return self._budget.settle() if size_bytes < 0 and self._budget.waiting else None

    def ask(self, waiter: T, group: Hashable, size_bytes: int, now_ms: float) -> Settled[T]:
        """Take `size_bytes`, all that there can be if that is less, now or when it is the turn of `waiter`.

        It has them when it is among the granted; until then it waits. `took` says how much that is.
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
        """What is taken by who asks for `size_bytes`, and has to be given back."""
        return max(1, min(size_bytes, self.most_bytes))

    def safe_bytes(self, size_bytes: int) -> int:
        """What of `size_bytes` somebody may wait for who keeps something of another part meanwhile: no more than the floor, which
        is there sooner or later, whatever others keep. The rest has to be counted."""
        return min(size_bytes, max(1, self.floor_bytes))

    def leave(self, waiter: T) -> Settled[T] | None:
        """Wait no longer; None when it did not: it has what it asked for."""
        group = self._group_of.pop(waiter, None)
        if group is None:
            return None
        self.takers -= 1
        self._budget.waiting -= 1
        self._remove(group, waiter)
        return self._budget.settle()

    def give_back(self, size_bytes: int) -> Settled[T]:
        """What was taken is needed no more."""
        self.takers -= 1
        self._use(-size_bytes)
        return self._budget.settle()

    def hold(self, holder: T, size_bytes: int) -> Settled[T] | None:
        """`holder` has read so much ahead, and holds it until it drops it or has to give way; what it held before is gone.

        Whoever else held longest gives way first, should somebody wait; None when nothing follows from it.
        """
        self._forget(holder)
        self._ahead[holder] = size_bytes
        self.ahead_bytes += size_bytes
        self._use(size_bytes)
        return self._budget.settle() if self._budget.waiting else None

    def drop(self, holder: T) -> Settled[T] | None:
        """`holder` has used up what it held; nothing happens when that has given way already."""
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
        """Who has held longest what it read ahead holds it no more."""
        holder = next(iter(self._ahead))
        self._forget(holder)
        self.gave_way_total += 1
        return holder

    def admit_head(self) -> T:
        """The next one has its memory; its group comes last from now on."""
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
        assert self.used_bytes >= 0, f"{self.name}: more was given back than taken"
        self._budget.shared_used_bytes += max(0, self.used_bytes - self.floor_bytes) - above_before

    def check_invariants(self) -> None:
        """For tests: the sums agree with what is held."""
        assert self.ahead_bytes == sum(self._ahead.values()) <= self.used_bytes
        assert self.waiting == sum(map(len, self._rows.values())) <= self.takers
        assert all(self._rows.values())
