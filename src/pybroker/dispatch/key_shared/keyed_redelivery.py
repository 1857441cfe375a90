"""Entries of a Key_Shared subscription that were read and wait for delivery: their positions and sticky key hashes.

Entries wait for redelivery, or because their hash could not be delivered when they were read: its owner had no permits,
the hash drains at another consumer, or has no owner. All waiting entries of one hash are in one set, so that they are
delivered in order. The set is *ready* for the hash's owner, or *parked* while no consumer may receive its entries.
Parked entries cost no time until their hash is freed or owners change.

Memory: six to ten bytes an entry.

Each waiting hash is charged to the consumer that delays it (`bytes_of`): its owner while the hash is ready, the
draining consumer while it is parked. So one consumer cannot use all memory.

Invariant: a position is listed once; `waiting` counts the positions of each hash.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import compress

from pyroaring import BitMap

from pybroker.dispatch.consumer_state import ConsumerState
from pybroker.dispatch.redelivery_queue import ReplaySet, Waiting
from pybroker.model.position import Position

ENTRY_BYTES = 8
"""Cost of an entry: two bytes for its hash, and at most three each in the bitmaps of its column and its set."""
HASH_BYTES = 320
"""Additional cost of a waiting hash, with its table entries."""
PART_BYTES = 350
"""Cost of a column, and of a set per ledger in which it has entries."""
_BLOCK_BITS = 16

# The consumer that delays a hash; None if the hash has no owner.
Filler = ConsumerState | None


class WaitingHash:
    """The waiting entries of one hash: ready for `consumer`, or parked if `consumer` is None.

    Their memory is charged to the consumer `filler`. They wait since `since_ms` on the dispatcher's clock.
    """

    __slots__ = ("consumer", "count", "filler", "parked", "since_ms")

    def __init__(self, consumer: ConsumerState | None, filler: Filler, since_ms: float) -> None:
        self.consumer = consumer
        self.filler = filler
        self.count = 0
        self.since_ms = since_ms
        self.parked: ReplaySet | None = ReplaySet() if consumer is None else None


class _Column:
    """Waiting entries of one block of a ledger. `hashes[i]` belongs to the i-th lowest id; no id is higher than
    `last`.
    """

    __slots__ = ("hashes", "last", "members")

    def __init__(self) -> None:
        self.members = BitMap()
        self.hashes = array("H")
        self.last = -1

    def add(self, entry_id: int, sticky_hash: int) -> bool:
        """Add an entry with its sticky key hash. Return False if the entry waits already."""
        if entry_id > self.last:
            self.hashes.append(sticky_hash)
            self.last = entry_id
        elif entry_id in self.members:
            return False
        else:
            self.hashes.insert(self.members.rank(entry_id), sticky_hash)
        self.members.add(entry_id)
        return True

    def remove(self, entry_id: int) -> int:
        sticky_hash = self.hashes.pop(self.members.rank(entry_id) - 1)
        self.members.remove(entry_id)
        return sticky_hash

    def remove_up_to(self, entry_id: int) -> Counter[int]:
        index = self.members.rank(entry_id)
        counts = Counter(self.hashes[:index])
        del self.hashes[:index]
        self.members.remove_range(0, entry_id + 1)
        return counts


class KeyedReplay(Waiting):
    """Waiting entries of one dispatcher, by position, hash and consumer.

    `place` returns the consumer that may receive entries of a hash now, or None. `drained_at` returns the consumer that
    drains a hash. The dispatcher reports changes: `unpark` for one hash, `replace_all` if owners changed.
    """

    __slots__ = ("_bytes", "_columns", "_count", "_drained_at", "_parts", "_place", "_ready", "now_ms", "waiting")

    def __init__(
        self, place: Callable[[int], ConsumerState | None], drained_at: Callable[[int], Filler] = lambda _: None
    ) -> None:
        self._place = place
        self._drained_at = drained_at
        self._columns: dict[int, dict[int, _Column]] = {}  # by ledger and block; no column is empty
        self._ready: dict[ConsumerState, ReplaySet] = {}  # no set is empty
        self._count = 0
        self._bytes: dict[Filler, int] = {}  # cost of entries and hashes by delaying consumer; none is 0
        self._parts = 0  # columns, plus ledgers of the sets
        self.waiting: dict[int, WaitingHash] = {}
        self.now_ms = 0.0
        """The current time, recorded as the start of waiting when a hash begins to wait."""

    def __len__(self) -> int:
        return self._count

    def __bool__(self) -> bool:
        return bool(self._columns)

    def __contains__(self, position: Position) -> bool:
        column = self._column_of(position)
        return column is not None and position.entry_id in column.members

    def count_among(self, ledger_id: int, entry_ids: BitMap) -> int:
        columns = self._columns.get(ledger_id, {}).values()
        return sum(int(column.members.intersection_cardinality(entry_ids)) for column in columns)

    def __iter__(self) -> Iterator[tuple[Position, int]]:
        for ledger_id, columns in self._columns.items():
            for column in columns.values():
                for entry_id, sticky_hash in zip(column.members, column.hashes, strict=True):
                    yield Position(ledger_id, entry_id), sticky_hash

    def hash_of(self, position: Position) -> int | None:
        column = self._column_of(position)
        if column is None or position.entry_id not in column.members:
            return None
        return column.hashes[column.members.rank(position.entry_id) - 1]

    @property
    def size_bytes(self) -> int:
        """The approximate memory of all waiting entries, rounded up."""
        return ENTRY_BYTES * self._count + HASH_BYTES * len(self.waiting) + PART_BYTES * self._parts

    def bytes_of(self, filler: Filler) -> int:
        """Return the approximate memory, in bytes, of the waiting entries that the consumer `filler` may receive, or
        whose hash drains at it; for None, of the waiting entries whose hash has no owner.
        """
        return self._bytes.get(filler, 0)

    def filler_of(self, sticky_hash: int) -> Filler:
        waiting = self.waiting.get(sticky_hash)
        return self._filler(sticky_hash, self._place(sticky_hash)) if waiting is None else waiting.filler

    def first_ready(self, consumer: ConsumerState) -> Position | None:
        ready = self._ready.get(consumer)
        return None if ready is None else ready.first()

    # --- add ---------------------------------------------------------------------------------------------------------

    def add(self, ledger_id: int, entry_ids: Iterable[int], sticky_hashes: Iterable[int]) -> None:
        """Add waiting entries of one ledger with their sticky key hashes. Entries that wait already are ignored."""
        columns = self._columns.setdefault(ledger_id, {})
        ready: dict[ConsumerState, list[int]] = {}
        for entry_id, sticky_hash in zip(entry_ids, sticky_hashes, strict=True):
            column = columns.get(entry_id >> _BLOCK_BITS)
            if column is None:
                column = columns[entry_id >> _BLOCK_BITS] = _Column()
                self._parts += 1
            if not column.add(entry_id, sticky_hash):
                continue
            self._count += 1
            waiting = self.waiting.get(sticky_hash)
            if waiting is None:
                consumer = self._place(sticky_hash)
                waiting = WaitingHash(consumer, self._filler(sticky_hash, consumer), self.now_ms)
                self.waiting[sticky_hash] = waiting
                self._charge(waiting.filler, HASH_BYTES)
            waiting.count += 1
            self._charge(waiting.filler, ENTRY_BYTES)
            if waiting.consumer is not None:
                ready.setdefault(waiting.consumer, []).append(entry_id)
            else:
                assert waiting.parked is not None
                self._put(waiting.parked, ledger_id, (entry_id,))
        if not columns:
            del self._columns[ledger_id]
        for consumer, ids in ready.items():
            self._put(self._ready_of(consumer), ledger_id, ids)

    # --- take --------------------------------------------------------------------------------------------------------

    def take(self, consumer: ConsumerState, max_entries: int, before: Position | None) -> list[tuple[Position, int]]:
        """Remove and return the lowest entries that are ready for `consumer`, ascending, each with its sticky key hash.
        With `before`, take only entries before this position.
        """
        ready = self._ready.get(consumer)
        if ready is None:
            return []
        self._parts -= ready.part_count
        positions = ready.take(max_entries, before)
        self._parts += ready.part_count
        if not ready:
            del self._ready[consumer]
        return [(position, self._forget(position)) for position in positions]

    def discard(self, ledger_id: int, entry_ids: Iterable[int]) -> None:
        columns = self._columns.get(ledger_id)
        if columns is None:
            return
        for entry_id in entry_ids:
            column = columns.get(entry_id >> _BLOCK_BITS)  # Clients may acknowledge ids outside a bitmap's range.
            if column is None or entry_id not in column.members:
                continue
            position = Position(ledger_id, entry_id)
            waiting = self.waiting[column.hashes[column.members.rank(entry_id) - 1]]
            self._drop_from_place(waiting, position)
            self._forget(position)

    def discard_up_to(self, position: Position) -> None:
        for ledger_id in sorted(ledger_id for ledger_id in self._columns if ledger_id <= position.ledger_id):
            columns = self._columns[ledger_id]
            last = max(columns) + 1 << _BLOCK_BITS
            if ledger_id == position.ledger_id:
                last = min(last, position.entry_id)
            counts: Counter[int] = Counter()
            for block, column in list(columns.items()):
                counts.update(column.remove_up_to(min(last, column.last)))
                if not column.hashes:
                    del columns[block]
                    self._parts -= 1
            if not columns:
                del self._columns[ledger_id]
            gone = Position(ledger_id, last)
            places = {id(place): place for place in map(self._place_of, map(self.waiting.__getitem__, counts))}
            for place in places.values():
                self._parts -= place.part_count
                place.discard_up_to(gone)
                self._parts += place.part_count
            self._ready = {consumer: ready for consumer, ready in self._ready.items() if ready}
            for sticky_hash, count in counts.items():
                self._fewer(sticky_hash, count)

    def unlist(self, from_positions: Mapping[int, Position]) -> None:
        """Remove waiting entries of these sticky key hashes: for each hash, the entries at or after its position."""
        wanted = {sticky_hash: each for sticky_hash, each in from_positions.items() if sticky_hash in self.waiting}
        first = min(wanted.values(), default=None)
        if first is None:
            return
        for ledger_id in [ledger_id for ledger_id in self._columns if ledger_id >= first.ledger_id]:
            found = [
                entry_id
                for column in self._columns[ledger_id].values()
                if Position(ledger_id, column.last) >= first
                for entry_id, sticky_hash in zip(column.members, column.hashes, strict=True)
                if sticky_hash in wanted and wanted[sticky_hash] <= (ledger_id, entry_id)
            ]
            self.discard(ledger_id, found)

    # --- changed owners ----------------------------------------------------------------------------------------------

    def unpark(self, sticky_hash: int) -> bool:
        """Make the parked entries of this hash, which no consumer could receive, ready for the consumer that may
        receive them now. Return False if there are no parked entries or no such consumer.
        """
        waiting = self.waiting.get(sticky_hash)
        if waiting is None or waiting.parked is None:
            return False
        consumer = self._place(sticky_hash)
        if consumer is None:
            self._count_for(waiting, self._filler(sticky_hash, None))
            return False
        ready = self._ready_of(consumer)
        self._parts -= waiting.parked.part_count + ready.part_count
        ready.add_all(waiting.parked)
        self._parts += ready.part_count
        waiting.consumer = consumer
        waiting.parked = None
        self._count_for(waiting, consumer)
        return True

    def replace_all(self) -> None:
        parked: dict[int, ReplaySet] = {}
        self._ready = {}
        self._bytes = {}
        for sticky_hash, waiting in self.waiting.items():
            waiting.consumer = self._place(sticky_hash)
            waiting.filler = self._filler(sticky_hash, waiting.consumer)
            waiting.parked = None
            self._charge(waiting.filler, HASH_BYTES + ENTRY_BYTES * waiting.count)
            if waiting.consumer is None:
                waiting.parked = parked[sticky_hash] = ReplaySet()
        for ledger_id, columns in self._columns.items():
            for column in columns.values():
                self._place_column(ledger_id, column, parked)
        places = [*self._ready.values(), *parked.values()]
        self._parts = sum(map(len, self._columns.values())) + sum(place.part_count for place in places)

    def _place_column(self, ledger_id: int, column: _Column, parked: Mapping[int, ReplaySet]) -> None:
        """Processes a whole column at once, because hundreds of thousands of entries may wait when a consumer joins."""
        consumers = [self.waiting[sticky_hash].consumer for sticky_hash in column.hashes]
        for consumer in set(consumers):
            chosen: Sequence[int] = list(compress(column.members, [each is consumer for each in consumers]))
            if consumer is not None:
                self._ready_of(consumer).add(ledger_id, chosen)
                continue
            by_hash: dict[int, list[int]] = {}
            for entry_id, sticky_hash in zip(column.members, column.hashes, strict=True):
                if sticky_hash in parked:
                    by_hash.setdefault(sticky_hash, []).append(entry_id)
            for sticky_hash, entry_ids in by_hash.items():
                parked[sticky_hash].add(ledger_id, entry_ids)

    def clear(self) -> None:
        self._columns = {}
        self._ready = {}
        self._count = 0
        self._bytes = {}
        self._parts = 0
        self.waiting = {}

    def check_invariants(self) -> None:
        counts: Counter[int] = Counter()
        fillers: Counter[Filler] = Counter()
        for position, sticky_hash in self:
            counts[sticky_hash] += 1
            waiting = self.waiting[sticky_hash]
            fillers[waiting.filler] += ENTRY_BYTES
            assert waiting.consumer is self._place(sticky_hash), "waiting entries are not where their hash belongs"
            assert waiting.filler is self._filler(sticky_hash, waiting.consumer), "a hash counts for the wrong consumer"
            for consumer, ready in self._ready.items():
                assert (position in ready) == (consumer is waiting.consumer), "an entry is ready for the wrong consumer"
            assert (waiting.parked is None) == (waiting.consumer is not None)
            assert waiting.parked is None or position in waiting.parked
        assert counts == {sticky_hash: waiting.count for sticky_hash, waiting in self.waiting.items()}
        fillers.update(dict.fromkeys((waiting.filler for waiting in self.waiting.values()), 0))
        for waiting in self.waiting.values():
            fillers[waiting.filler] += HASH_BYTES
        assert fillers == self._bytes
        assert all(self._columns.values())
        assert all(self._ready.values())
        parked = [waiting.parked for waiting in self.waiting.values() if waiting.parked is not None]
        places = [*self._ready.values(), *parked]
        assert sum(map(len, places)) == len(self) == counts.total()
        assert self._parts == sum(map(len, self._columns.values())) + sum(place.part_count for place in places)

    def _filler(self, sticky_hash: int, consumer: ConsumerState | None) -> Filler:
        return self._drained_at(sticky_hash) if consumer is None else consumer

    def _column_of(self, position: Position) -> _Column | None:
        columns = self._columns.get(position.ledger_id)
        return None if columns is None else columns.get(position.entry_id >> _BLOCK_BITS)

    def _place_of(self, waiting: WaitingHash) -> ReplaySet:
        if waiting.consumer is not None:
            return self._ready[waiting.consumer]
        assert waiting.parked is not None
        return waiting.parked

    def _ready_of(self, consumer: ConsumerState) -> ReplaySet:
        ready = self._ready.get(consumer)
        if ready is None:
            ready = self._ready[consumer] = ReplaySet()
        return ready

    def _put(self, place: ReplaySet, ledger_id: int, entry_ids: Sequence[int]) -> None:
        before = place.part_count
        place.add(ledger_id, entry_ids)
        self._parts += place.part_count - before

    def _drop_from_place(self, waiting: WaitingHash, position: Position) -> None:
        place = self._place_of(waiting)
        before = place.part_count
        place.discard(position.ledger_id, (position.entry_id,))
        self._parts += place.part_count - before
        if not place and waiting.consumer is not None:
            del self._ready[waiting.consumer]

    def _forget(self, position: Position) -> int:
        """Remove an entry that is no longer in its set. Return its hash."""
        columns = self._columns[position.ledger_id]
        column = columns[position.entry_id >> _BLOCK_BITS]
        sticky_hash = column.remove(position.entry_id)
        if not column.hashes:
            del columns[position.entry_id >> _BLOCK_BITS]
            self._parts -= 1
            if not columns:
                del self._columns[position.ledger_id]
        self._fewer(sticky_hash, 1)
        return sticky_hash

    def _fewer(self, sticky_hash: int, count: int) -> None:
        waiting = self.waiting[sticky_hash]
        waiting.count -= count
        self._count -= count
        self._charge(waiting.filler, -ENTRY_BYTES * count)
        if not waiting.count:
            del self.waiting[sticky_hash]
            self._charge(waiting.filler, -HASH_BYTES)

    def _count_for(self, waiting: WaitingHash, filler: Filler) -> None:
        cost_bytes = HASH_BYTES + ENTRY_BYTES * waiting.count
        self._charge(waiting.filler, -cost_bytes)
        waiting.filler = filler
        self._charge(filler, cost_bytes)

    def _charge(self, filler: Filler, cost_bytes: int) -> None:
        charged = self._bytes.get(filler, 0) + cost_bytes
        if charged:
            self._bytes[filler] = charged
        else:
            del self._bytes[filler]
