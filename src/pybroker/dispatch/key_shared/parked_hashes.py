"""Parked hashes of a Key_Shared subscription: key hashes whose further entries do not fit into the full look-ahead
buffer (`keySharedLookAheadMaxBytesPerSubscription`), and must be read again.

An entry beyond the limit is *parked* with all later entries of its hash; only the position of the first is recorded.
When the hash's owner can take entries again, a *scan* rereads entries that the cursor has passed, and takes the entries
of parked hashes. A scan starts where the previous scan ran out of memory, so that each parked entry is reread about
once.

    listed or held, or acknowledged | parked, or acknowledged                         | not read yet
    --------------------------------^ from_position of the hash ----------------------^ the cursor's read position

Memory: about a hundred bytes a hash, for at most 65,535 hashes.

Invariants: no entry of a hash at or after its from-position is listed; a scanned hash is parked, and none of its
entries is parked before the scan's position.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator

from pybroker.dispatch.consumer_state import ConsumerState
from pybroker.model.position import Position

HASH_BYTES = 160
"""Cost of one hash: its entry in the table of positions and in its consumer's set."""


class ParkedHashes:
    """The parked hashes of one dispatcher, by position and consumer.

    `place` returns the consumer that may receive entries of a hash now, or None. The dispatcher reports changes:
    `place_again` for one hash, `replace_all` if owners changed.
    """

    __slots__ = ("_at", "_firsts", "_from", "_place", "_scanned", "position")

    def __init__(self, place: Callable[[int], ConsumerState | None]) -> None:
        self._place = place
        self._from: dict[int, Position] = {}
        self._at: dict[ConsumerState | None, set[int]] = {}  # the hashes of each consumer; no set is empty
        self._firsts: dict[ConsumerState | None, Position] = {}  # the lowest position per consumer, where known
        self._scanned: set[int] = set()
        self.position: Position | None = None
        """The position at which the active scan continues; None without a scan."""

    def __bool__(self) -> bool:
        return bool(self._from)

    def __len__(self) -> int:
        return len(self._from)

    def __contains__(self, sticky_hash: int) -> bool:
        return sticky_hash in self._from

    def __iter__(self) -> Iterator[tuple[int, Position]]:
        for sticky_hash in self._from:
            yield sticky_hash, self.from_position(sticky_hash)

    @property
    def hashes(self) -> Collection[int]:
        return self._from

    @property
    def size_bytes(self) -> int:
        return HASH_BYTES * len(self._from)

    def from_position(self, sticky_hash: int) -> Position:
        """Return the position from which entries of this hash must be read again. The hash must be parked."""
        position = self._from[sticky_hash]
        if self.position is not None and sticky_hash in self._scanned:
            return max(position, self.position)
        return position

    def covers(self, sticky_hash: int, position: Position) -> bool:
        return sticky_hash in self._from and position >= self.from_position(sticky_hash)

    def first_for(self, consumer: ConsumerState) -> Position | None:
        """Return the position from which entries must be read again to find the parked entries for `consumer`; None if
        it has none. During a scan, the position may be too low.
        """
        hashes = self._at.get(consumer)
        if not hashes:
            return None
        first = self._firsts.get(consumer)
        if first is None:
            first = self._firsts[consumer] = min(map(self.from_position, hashes))
        return first

    def add(self, sticky_hash: int, position: Position) -> None:
        if sticky_hash not in self._from:
            self._put(sticky_hash, position)
        elif position < self.from_position(sticky_hash):
            self._scanned.discard(sticky_hash)
            if not self._scanned:
                self.position = None
            self._firsts.clear()
            self._put(sticky_hash, position)

    def place_again(self, sticky_hash: int) -> bool:
        """Determine again which consumer may receive the parked entries of this hash. Return True if the hash is parked
        and another consumer than before may receive its entries.
        """
        if sticky_hash not in self._from:
            return False
        place = self._place(sticky_hash)
        if sticky_hash in self._at.get(place, ()):
            return False
        self._leave_place(None, sticky_hash)
        self._put(sticky_hash, self._from[sticky_hash])
        return place is not None

    def replace_all(self) -> None:
        self._at = {}
        self._firsts = {}
        for sticky_hash in self._from:
            self._at.setdefault(self._place(sticky_hash), set()).add(sticky_hash)

    # --- the scan ----------------------------------------------------------------------------------------------------

    def begin_scan(self, consumers: Iterable[ConsumerState]) -> Position:
        """Begin a scan for the parked entries of these consumers, of which at least one must have some. Return the
        position of the first entry to read.
        """
        assert self.position is None
        for consumer in consumers:
            self._scanned |= self._at.get(consumer, set())
        self.position = min(self._from[sticky_hash] for sticky_hash in self._scanned)
        return self.position

    def is_scanned(self, sticky_hash: int) -> bool:
        return sticky_hash in self._scanned

    def advance_scan(self, position: Position) -> None:
        assert self.position is not None
        assert position >= self.position, "a scan went back"
        self.position = position

    def leave_scan(self, sticky_hash: int, position: Position) -> None:
        """Continue the scan without the consumer of this hash, because the look-ahead buffer has no capacity for its
        entry at `position`.
        """
        place = self._place(sticky_hash)
        for each in [each for each in self._scanned if self._place(each) is place]:
            self._scanned.discard(each)
            self._from[each] = max(self._from[each], position)
        self._firsts.clear()
        if not self._scanned:
            self.position = None

    def finish_scan(self) -> None:
        for sticky_hash in self._scanned:
            del self._from[sticky_hash]
            self._leave_place(self._place(sticky_hash), sticky_hash)
        self._scanned = set()
        self._firsts.clear()
        self.position = None

    def clear(self) -> None:
        self._from = {}
        self._at = {}
        self._firsts = {}
        self._scanned = set()
        self.position = None

    def check_invariants(self) -> None:
        assert all(self._at.values())
        assert sorted(each for hashes in self._at.values() for each in hashes) == sorted(self._from)
        for place, hashes in self._at.items():
            assert all(self._place(each) is place for each in hashes), "a hash is not where it belongs"
            if place in self._firsts:
                first = min(map(self.from_position, hashes))
                assert self._firsts[place] == first or (self._scanned and self._firsts[place] < first)
        assert self._scanned <= self._from.keys()
        assert bool(self._scanned) == (self.position is not None)

    def _put(self, sticky_hash: int, position: Position) -> None:
        place = self._place(sticky_hash)
        self._from[sticky_hash] = position
        self._at.setdefault(place, set()).add(sticky_hash)
        first = self._firsts.get(place)
        if first is None or position < first:
            self._firsts.pop(place, None)

    def _leave_place(self, place: ConsumerState | None, sticky_hash: int) -> None:
        hashes = self._at[place]
        hashes.discard(sticky_hash)
        self._firsts.pop(place, None)
        if not hashes:
            del self._at[place]
