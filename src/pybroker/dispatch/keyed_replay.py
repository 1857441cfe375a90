"""Entries of a Key_Shared subscription that wait to be sent, each with its sticky hash.

They wait because they are to be sent again, or because they were read when their hash could not go: its owner had no
permits, it drains at its former owner, or nobody owns it. All waiting entries of one hash are in one place, so that they
leave in order: *ready* for the hash's owner, or *parked* while there is nobody who may have them. What is parked costs
nothing until its hash is freed or owners change; so a blocked key, however many entries wait for it, slows no other.

Invariant: a position is listed once; `waiting` counts the positions of each hash.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from pybroker.dispatch.consumer_state import ConsumerState
from pybroker.dispatch.replay import ReplaySet, Waiting
from pybroker.model.position import Position


class WaitingHash:
    """The entries of one hash: ready for `consumer`, or parked when that is None."""

    __slots__ = ("consumer", "count", "parked")

    def __init__(self, consumer: ConsumerState | None) -> None:
        self.consumer = consumer
        self.count = 0
        self.parked: set[Position] | None = set() if consumer is None else None


class KeyedReplay(Waiting):
    """Owned by a Key_Shared dispatcher, whose `place` says who may have entries of a hash now, None for nobody.

    The dispatcher says when that changes: `unpark` for one hash, `replace_all` when owners changed.
    """

    __slots__ = ("_by_ledger", "_place", "_ready", "waiting")

    def __init__(self, place: Callable[[int], ConsumerState | None]) -> None:
        self._place = place
        self._by_ledger: dict[int, dict[int, int]] = {}  # the hash of each entry; none is empty
        self._ready: dict[ConsumerState, ReplaySet] = {}  # none is empty
        self.waiting: dict[int, WaitingHash] = {}

    def __len__(self) -> int:
        return sum(len(hashes) for hashes in self._by_ledger.values())

    def __bool__(self) -> bool:
        return bool(self._by_ledger)

    def __contains__(self, position: Position) -> bool:
        hashes = self._by_ledger.get(position.ledger_id)
        return hashes is not None and position.entry_id in hashes

    def __iter__(self) -> Iterator[tuple[Position, int]]:
        """Every waiting entry and its hash, to look at."""
        for ledger_id, hashes in self._by_ledger.items():
            for entry_id, sticky_hash in hashes.items():
                yield Position(ledger_id, entry_id), sticky_hash

    def add(self, ledger_id: int, entry_ids: Iterable[int], sticky_hashes: Iterable[int]) -> None:
        """These entries wait from now on; those that do already are passed over."""
        hashes = self._by_ledger.get(ledger_id, {})
        ready: dict[ConsumerState, list[int]] = {}
        for entry_id, sticky_hash in zip(entry_ids, sticky_hashes, strict=True):
            if entry_id in hashes:
                continue
            hashes[entry_id] = sticky_hash
            waiting = self.waiting.get(sticky_hash)
            if waiting is None:
                waiting = self.waiting[sticky_hash] = WaitingHash(self._place(sticky_hash))
            waiting.count += 1
            if waiting.consumer is not None:
                ready.setdefault(waiting.consumer, []).append(entry_id)
            else:
                assert waiting.parked is not None
                waiting.parked.add(Position(ledger_id, entry_id))
        if hashes:
            self._by_ledger[ledger_id] = hashes
        for consumer, ids in ready.items():
            self._ready_of(consumer).add(ledger_id, ids)

    def take(self, consumer: ConsumerState, max_entries: int, before: Position | None) -> list[tuple[Position, int]]:
        """Remove and return the lowest entries that are ready for `consumer`, rising, with their hashes.

        With `before`, only those in front of it.
        """
        ready = self._ready.get(consumer)
        if ready is None:
            return []
        positions = ready.take(max_entries, before)
        if not ready:
            del self._ready[consumer]
        return [(position, self._forget(position)) for position in positions]

    def discard(self, ledger_id: int, entry_ids: Iterable[int]) -> None:
        hashes = self._by_ledger.get(ledger_id)
        if hashes is None:
            return
        for entry_id in entry_ids:
            if entry_id not in hashes:
                continue
            waiting = self.waiting[hashes[entry_id]]
            if waiting.parked is not None:
                waiting.parked.discard(Position(ledger_id, entry_id))
            elif waiting.consumer is not None:
                ready = self._ready[waiting.consumer]
                ready.discard(ledger_id, (entry_id,))
                if not ready:
                    del self._ready[waiting.consumer]
            self._forget(Position(ledger_id, entry_id))

    def discard_up_to(self, position: Position) -> None:
        for ledger_id in [ledger_id for ledger_id in self._by_ledger if ledger_id <= position.ledger_id]:
            entry_ids = list(self._by_ledger[ledger_id])
            if ledger_id == position.ledger_id:
                entry_ids = [entry_id for entry_id in entry_ids if entry_id <= position.entry_id]
            self.discard(ledger_id, entry_ids)

    def unpark(self, sticky_hash: int) -> bool:
        """Whether entries of this hash were parked and are ready for somebody now."""
        waiting = self.waiting.get(sticky_hash)
        if waiting is None or waiting.parked is None:
            return False
        consumer = self._place(sticky_hash)
        if consumer is None:
            return False
        ready = self._ready_of(consumer)
        for ledger_id, entry_id in waiting.parked:
            ready.add(ledger_id, (entry_id,))
        waiting.consumer = consumer
        waiting.parked = None
        return True

    def replace_all(self) -> None:
        """Owners of hashes changed: everything goes where it belongs now."""
        by_ledger = self._by_ledger
        self.clear()
        for ledger_id, hashes in by_ledger.items():
            self.add(ledger_id, hashes.keys(), hashes.values())

    def clear(self) -> None:
        self._by_ledger = {}
        self._ready = {}
        self.waiting = {}

    def check_invariants(self) -> None:
        """Assert that every entry is in the one place where its hash belongs; slow, for tests."""
        counts: dict[int, int] = {}
        for position, sticky_hash in self:
            counts[sticky_hash] = counts.get(sticky_hash, 0) + 1
            waiting = self.waiting[sticky_hash]
            assert waiting.consumer is self._place(sticky_hash), "waiting entries are not where their hash belongs"
            for consumer, ready in self._ready.items():
                assert (position in ready) == (consumer is waiting.consumer), "an entry is ready for the wrong consumer"
            assert (waiting.parked is None) == (waiting.consumer is not None)
            assert waiting.parked is None or position in waiting.parked
        assert counts == {sticky_hash: waiting.count for sticky_hash, waiting in self.waiting.items()}
        assert all(self._by_ledger.values())
        assert all(self._ready.values())
        parked = sum(len(waiting.parked or ()) for waiting in self.waiting.values())
        assert parked + sum(len(ready) for ready in self._ready.values()) == len(self)

    def _ready_of(self, consumer: ConsumerState) -> ReplaySet:
        ready = self._ready.get(consumer)
        if ready is None:
            ready = self._ready[consumer] = ReplaySet()
        return ready

    def _forget(self, position: Position) -> int:
        """Drop what is known of an entry that left its place; returns its hash."""
        hashes = self._by_ledger[position.ledger_id]
        sticky_hash = hashes.pop(position.entry_id)
        if not hashes:
            del self._by_ledger[position.ledger_id]
        waiting = self.waiting[sticky_hash]
        waiting.count -= 1
        if not waiting.count:
            del self.waiting[sticky_hash]
        return sticky_hash
