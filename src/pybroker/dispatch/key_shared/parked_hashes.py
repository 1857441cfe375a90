"""Hashes of a Key_Shared subscription of which more waits than there is room to list: from where on, and who looks again.

What is listed costs bytes an entry, so there is a bound (`KeySharedSettings.look_ahead_bytes`). An entry that finds no
room is *set aside* with all that follow of its hash: all that is kept of them is the position of the first. The cursor
goes on for the other hashes. When the hash's owner can take something again, a *scan* reads what the cursor has passed
once more and takes out what is set aside of its hashes. Each scan goes on where the room ended that the one before found,
so what is set aside is read about once more, however much it is.

A hash is set aside from a position on:

    listed or held, or acknowledged | set aside, or acknowledged                      | not read yet
    --------------------------------^ from_position of the hash ----------------------^ the cursor's read position

While a scan is under way, nothing of its hashes is set aside in front of its own position.

Memory: a hundred bytes a hash, of which there are 65,535.

Invariants: no entry of a hash that stands at its from-position or behind it is listed; a scanned hash is set aside.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator

from pybroker.dispatch.consumer_state import ConsumerState
from pybroker.model.position import Position

HASH_BYTES = 160
"""What one hash costs: its entry in the table of positions and in the set of its place."""


class ParkedHashes:
    """Owned by a Key_Shared dispatcher, whose `place` says who may have entries of a hash now, None for nobody.

    The dispatcher says when that changes: `place_again` for one hash, `replace_all` when owners changed.
    """

    __slots__ = ("_at", "_firsts", "_from", "_place", "_scanned", "position")

    def __init__(self, place: Callable[[int], ConsumerState | None]) -> None:
        self._place = place
        self._from: dict[int, Position] = {}
        self._at: dict[ConsumerState | None, set[int]] = {}  # the hashes of each place; none is empty
        self._firsts: dict[ConsumerState | None, Position] = {}  # the lowest of each place, where it is known
        self._scanned: set[int] = set()
        self.position: Position | None = None
        """Where the scan under way goes on; None without one."""

    def __bool__(self) -> bool:
        return bool(self._from)

    def __len__(self) -> int:
        return len(self._from)

    def __contains__(self, sticky_hash: int) -> bool:
        return sticky_hash in self._from

    def __iter__(self) -> Iterator[tuple[int, Position]]:
        """Every hash and its from-position, to look at."""
        for sticky_hash in self._from:
            yield sticky_hash, self.from_position(sticky_hash)

    @property
    def hashes(self) -> Collection[int]:
        """All of them."""
        return self._from

    @property
    def size_bytes(self) -> int:
        """About how much memory this takes."""
        return HASH_BYTES * len(self._from)

    def from_position(self, sticky_hash: int) -> Position:
        """From where on `sticky_hash`, which is, is set aside."""
        position = self._from[sticky_hash]
        if self.position is not None and sticky_hash in self._scanned:
            return max(position, self.position)
        return position

    def covers(self, sticky_hash: int, position: Position) -> bool:
        """Whether an entry of this hash that stands there is set aside."""
        return sticky_hash in self._from and position >= self.from_position(sticky_hash)

    def first_for(self, consumer: ConsumerState) -> Position | None:
        """The lowest from-position of the hashes that `consumer` may have; it may be too low while a scan is under way."""
        hashes = self._at.get(consumer)
        if not hashes:
            return None
        first = self._firsts.get(consumer)
        if first is None:
            first = self._firsts[consumer] = min(map(self.from_position, hashes))
        return first

    def add(self, sticky_hash: int, position: Position) -> None:
        """Of this hash everything from `position` on is set aside; nothing changes if it is already."""
        if sticky_hash not in self._from:
            self._put(sticky_hash, position)
        elif position < self.from_position(sticky_hash):
            self._scanned.discard(sticky_hash)
            if not self._scanned:
                self.position = None
            self._firsts.clear()
            self._put(sticky_hash, position)

    def place_again(self, sticky_hash: int) -> bool:
        """Whether this hash is set aside, and somebody may have it now who might not before."""
        if sticky_hash not in self._from:
            return False
        place = self._place(sticky_hash)
        if sticky_hash in self._at.get(place, ()):
            return False
        self._leave_place(None, sticky_hash)
        self._put(sticky_hash, self._from[sticky_hash])
        return place is not None

    def replace_all(self) -> None:
        """Owners of hashes changed."""
        self._at = {}
        self._firsts = {}
        for sticky_hash in self._from:
            self._at.setdefault(self._place(sticky_hash), set()).add(sticky_hash)

    # --- the scan ----------------------------------------------------------------------------------------------------

    def begin_scan(self, consumers: Iterable[ConsumerState]) -> Position:
        """Look again at the hashes that these consumers, of which at least one has some, may have: from there on."""
        assert self.position is None
        for consumer in consumers:
            self._scanned |= self._at.get(consumer, set())
        self.position = min(self._from[sticky_hash] for sticky_hash in self._scanned)
        return self.position

    def is_scanned(self, sticky_hash: int) -> bool:
        return sticky_hash in self._scanned

    def advance_scan(self, position: Position) -> None:
        """What the scan has read, up to this position, is taken care of."""
        assert self.position is not None
        assert position >= self.position, "a scan went back"
        self.position = position

    def leave_scan(self, sticky_hash: int, position: Position) -> None:
        """There was no room for an entry of this hash, which stands there: the scan ends for all hashes of its place."""
        place = self._place(sticky_hash)
        for each in [each for each in self._scanned if self._place(each) is place]:
            self._scanned.discard(each)
            self._from[each] = max(self._from[each], position)
        self._firsts.clear()
        if not self._scanned:
            self.position = None

    def finish_scan(self) -> None:
        """The scan has come to where the cursor reads: nothing of its hashes is set aside any more."""
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
        """Assert what must hold between calls; slow, for tests."""
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
