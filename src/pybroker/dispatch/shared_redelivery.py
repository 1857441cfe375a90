"""Entries of a Shared subscription that wait for delivery: *free* for any consumer, or *bound* to the consumer that has
the other chunks of their message.

Bound entries are not read while their consumer can receive none, which avoids repeated reads.

Invariants: an entry is free or bound to one consumer; each consumer with bound entries has a start time.
"""

from __future__ import annotations

from collections.abc import Iterable

from pyroaring import BitMap

from pybroker.dispatch.consumer_state import ConsumerState
from pybroker.dispatch.redelivery_queue import ReplaySet, Waiting
from pybroker.model.position import Position

ENTRY_BYTES = 4
CONSUMER_BYTES = 400
"""Cost of a consumer's set, per ledger."""


class BoundReplay(Waiting):
    """The waiting entries of one Shared dispatcher."""

    __slots__ = ("_since_ms", "bound", "free", "now_ms")

    def __init__(self) -> None:
        self.free = ReplaySet()
        """The free entries, changed by this class alone."""
        self.bound: dict[ConsumerState, ReplaySet] = {}
        """The bound entries of each consumer, changed by this class alone. No set is empty."""
        self._since_ms: dict[ConsumerState, int] = {}
        self.now_ms = 0
        """Set by the owner."""

    def __len__(self) -> int:
        return len(self.free) + sum(map(len, self.bound.values()))

    def __bool__(self) -> bool:
        return bool(self.free.by_ledger or self.bound)

    def __contains__(self, position: Position) -> bool:
        return position in self.free or any(position in bound for bound in self.bound.values())

    def count_among(self, ledger_id: int, entry_ids: BitMap) -> int:
        return sum(each.count_among(ledger_id, entry_ids) for each in (self.free, *self.bound.values()))

    def bound_to(self, position: Position) -> ConsumerState | None:
        return next((consumer for consumer, bound in self.bound.items() if position in bound), None)

    def bound_bytes(self) -> int:
        return sum(map(_size_bytes, self.bound.values()))

    def bound_bytes_of(self, consumer: ConsumerState) -> int:
        bound = self.bound.get(consumer)
        return 0 if bound is None else _size_bytes(bound)

    def bound_since_ms(self, consumer: ConsumerState) -> int | None:
        """Return the time since which chunks wait for this consumer without interruption, in milliseconds since 1970;
        None if none wait.
        """
        return self._since_ms.get(consumer)

    def bound_counts(self) -> dict[ConsumerState, int]:
        return {consumer: len(bound) for consumer, bound in self.bound.items()}

    def unbind_able(self) -> None:
        for consumer in [consumer for consumer in self.bound if consumer.can_take()]:
            self.unbind(consumer)

    def add(self, ledger_id: int, entry_ids: Iterable[int]) -> None:
        self.free.add(ledger_id, entry_ids)

    def bind(self, consumer: ConsumerState, position: Position) -> None:
        self._since_ms.setdefault(consumer, self.now_ms)
        self.bound.setdefault(consumer, ReplaySet()).add(position.ledger_id, (position.entry_id,))

    def is_behind_bound(self, consumer: ConsumerState, position: Position) -> bool:
        bound = self.bound.get(consumer)
        return bound is not None and bound.first() < position

    def take(self, max_entries: int) -> list[Position]:
        if self.bound:
            self.unbind_able()
        return self.free.take(max_entries)

    def unbind(self, consumer: ConsumerState) -> None:
        bound = self.bound.pop(consumer, None)
        if bound is not None:
            del self._since_ms[consumer]
            self.free.add_all(bound)

    def discard_bound_from(self, consumer: ConsumerState, position: Position) -> None:
        """Remove the chunks at or after `position` that wait for `consumer`. The caller parks them: they will be read
        again from the ledger.
        """
        for each in [each for each in self.bound.get(consumer, ()) if each >= position]:
            self.discard(each.ledger_id, (each.entry_id,))

    def discard(self, ledger_id: int, entry_ids: Iterable[int]) -> None:
        self.free.discard(ledger_id, entry_ids)
        for consumer, bound in list(self.bound.items()):
            bound.discard(ledger_id, entry_ids)
            if not bound:
                del self.bound[consumer], self._since_ms[consumer]

    def discard_up_to(self, position: Position) -> None:
        self.free.discard_up_to(position)
        for consumer, bound in list(self.bound.items()):
            bound.discard_up_to(position)
            if not bound:
                del self.bound[consumer], self._since_ms[consumer]

    def clear(self) -> None:
        self.free.clear()
        self.bound.clear()
        self._since_ms.clear()

    def check_invariants(self) -> None:
        for bound in self.bound.values():
            assert bound
            assert not any(position in self.free for position in bound)
        assert self._since_ms.keys() == self.bound.keys()
        assert sum(map(len, self.bound.values())) == len({each for bound in self.bound.values() for each in bound})


def _size_bytes(bound: ReplaySet) -> int:
    return ENTRY_BYTES * len(bound) + CONSUMER_BYTES * bound.part_count
