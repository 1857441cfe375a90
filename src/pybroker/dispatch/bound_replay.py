"""Entries of a Shared subscription that wait to be sent: to anybody, or, chunks of a message, to the one that has the others.

What is bound to a consumer is not taken out while that cannot take anything: nobody reads it again and again meanwhile.
A position in a bitmap takes at most ENTRY_BYTES.

Invariants: an entry that is bound is bound to one consumer, and is not among the free ones; of each consumer for which something
waits it is known since when.
"""

from __future__ import annotations

from collections.abc import Iterable

from pyroaring import BitMap

from pybroker.dispatch.consumer_state import ConsumerState
from pybroker.dispatch.replay_queue import ReplaySet, Waiting
from pybroker.model.position import Position

ENTRY_BYTES = 4
CONSUMER_BYTES = 400
"""What the set of a consumer costs, for each ledger."""


class BoundReplay(Waiting):
    """Owned by a Shared dispatcher."""

    __slots__ = ("_bound", "_free", "_since_ms", "now_ms")

    def __init__(self) -> None:
        self._free = ReplaySet()
        self._bound: dict[ConsumerState, ReplaySet] = {}  # none is empty
        self._since_ms: dict[ConsumerState, int] = {}
        self.now_ms = 0
        """The time when things are bound, as the owner tells it."""

    def __len__(self) -> int:
        return len(self._free) + sum(map(len, self._bound.values()))

    def __bool__(self) -> bool:
        return bool(self._free) or bool(self._bound)

    def __contains__(self, position: Position) -> bool:
        return position in self._free or any(position in bound for bound in self._bound.values())

    def count_among(self, ledger_id: int, entry_ids: BitMap) -> int:
        return sum(each.count_among(ledger_id, entry_ids) for each in (self._free, *self._bound.values()))

    @property
    def has_free(self) -> bool:
        """Whether something waits for anybody."""
        return bool(self._free)

    @property
    def has_bound(self) -> bool:
        """Whether something waits for one consumer."""
        return bool(self._bound)

    def bound_to(self, position: Position) -> ConsumerState | None:
        """Who alone may get that entry; None for one that waits for anybody, or does not wait."""
        return next((consumer for consumer, bound in self._bound.items() if position in bound), None)

    def bound_bytes(self) -> int:
        """About how much memory that takes which waits for one consumer each."""
        return sum(map(_size_bytes, self._bound.values()))

    def bound_bytes_of(self, consumer: ConsumerState) -> int:
        """What of it waits for that consumer."""
        bound = self._bound.get(consumer)
        return 0 if bound is None else _size_bytes(bound)

    def bound_since_ms(self, consumer: ConsumerState) -> int | None:
        """Since when something waits for that consumer without a break; None when nothing does."""
        return self._since_ms.get(consumer)

    def bound_counts(self) -> dict[ConsumerState, int]:
        """How many wait for each consumer, to look at."""
        return {consumer: len(bound) for consumer, bound in self._bound.items()}

    def unbind_able(self) -> None:
        """What waits for those who can take it waits for anybody."""
        for consumer in [consumer for consumer in self._bound if consumer.can_take()]:
            self.unbind(consumer)

    def add(self, ledger_id: int, entry_ids: Iterable[int]) -> None:
        """These wait for anybody."""
        self._free.add(ledger_id, entry_ids)

    def bind(self, consumer: ConsumerState, position: Position) -> None:
        """This one waits for `consumer`."""
        self._since_ms.setdefault(consumer, self.now_ms)
        self._bound.setdefault(consumer, ReplaySet()).add(position.ledger_id, (position.entry_id,))

    def is_behind_bound(self, consumer: ConsumerState, position: Position) -> bool:
        """Whether something waits for `consumer` that stands before `position`."""
        bound = self._bound.get(consumer)
        return bound is not None and bound.first() < position

    def take(self, max_entries: int) -> list[Position]:
        """Remove and return the lowest positions that somebody may take, rising."""
        if self._bound:
            self.unbind_able()
        return self._free.take(max_entries)

    def unbind(self, consumer: ConsumerState) -> None:
        """What waits for `consumer` waits for anybody."""
        bound = self._bound.pop(consumer, None)
        if bound is not None:
            del self._since_ms[consumer]
            self._free.add_all(bound)

    def discard_bound_from(self, consumer: ConsumerState, position: Position) -> None:
        """What stands there and behind it does not wait for `consumer` any more: it is set aside."""
        for each in [each for each in self._bound.get(consumer, ()) if each >= position]:
            self.discard(each.ledger_id, (each.entry_id,))

    def discard(self, ledger_id: int, entry_ids: Iterable[int]) -> None:
        self._free.discard(ledger_id, entry_ids)
        for consumer, bound in list(self._bound.items()):
            bound.discard(ledger_id, entry_ids)
            if not bound:
                del self._bound[consumer], self._since_ms[consumer]

    def discard_up_to(self, position: Position) -> None:
        self._free.discard_up_to(position)
        for consumer, bound in list(self._bound.items()):
            bound.discard_up_to(position)
            if not bound:
                del self._bound[consumer], self._since_ms[consumer]

    def clear(self) -> None:
        self._free.clear()
        self._bound.clear()
        self._since_ms.clear()

    def check_invariants(self) -> None:
        """Assert that no entry waits in two places; slow, for tests."""
        for bound in self._bound.values():
            assert bound
            assert not any(position in self._free for position in bound)
        assert self._since_ms.keys() == self._bound.keys()
        assert sum(map(len, self._bound.values())) == len({each for bound in self._bound.values() for each in bound})


def _size_bytes(bound: ReplaySet) -> int:
    return ENTRY_BYTES * len(bound) + CONSUMER_BYTES * bound.part_count
