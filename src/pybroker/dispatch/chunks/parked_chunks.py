"""Chunks of a Shared subscription that wait for one consumer and are not listed: from a position on, all of that consumer.

What a consumer must put together waits for it, listed by position while there is room (`bound_replay.py`). Beyond that it is set
aside: from there on no chunk that belongs to the consumer is looked at any more, until it has got all that is listed and can take
more. Then a *scan* reads once more what the cursor has passed, from there on, and goes on up to where the cursor reads.

Pure state of a dispatcher, which says who wants a scan, and what it found.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pybroker.dispatch.consumer_state import ConsumerState
from pybroker.model.position import Position


class ParkedChunks:
    """Owned by a Shared dispatcher.

    Invariant: `position`, of the scan under way, is there exactly while that looks for something of somebody.
    """

    __slots__ = ("_from", "_scanned", "position")

    def __init__(self) -> None:
        self._from: dict[ConsumerState, Position] = {}
        self._scanned: set[ConsumerState] = set()
        self.position: Position | None = None

    def __bool__(self) -> bool:
        return bool(self._from)

    def __iter__(self) -> Iterator[ConsumerState]:
        """For whom something is set aside."""
        return iter(self._from)

    def from_position(self, consumer: ConsumerState) -> Position | None:
        """From where on things are set aside for that consumer; None when nothing is."""
        return self._from.get(consumer)

    def covers(self, consumer: ConsumerState, position: Position) -> bool:
        """Whether a chunk of that consumer that stands there is set aside, and no scan has come by it."""
        first = self._from.get(consumer)
        if first is None or position < first:
            return False
        return consumer not in self._scanned or self.position is None or position >= self.position

    def is_scanned(self, consumer: ConsumerState) -> bool:
        """Whether the scan under way looks for chunks of that consumer."""
        return consumer in self._scanned

    def add(self, consumer: ConsumerState, position: Position) -> None:
        """From there on everything of that consumer, for which nothing was set aside in front of it."""
        assert consumer not in self._scanned
        before = self._from.get(consumer)
        assert before is None or position < before, "set aside already"
        self._from[consumer] = position

    def begin_scan(self, consumers: Iterable[ConsumerState]) -> Position:
        """Look for what these wait for, who can take it; from there on."""
        assert self.position is None
        self._scanned.update(consumer for consumer in consumers if consumer in self._from)
        self.position = min(self._from[consumer] for consumer in self._scanned)
        return self.position

    def advance_scan(self, position: Position) -> None:
        """What the scan has read, up to this position, is taken care of."""
        assert self.position is not None
        assert position >= self.position, "a scan went back"
        self.position = position

    def leave_scan(self, consumer: ConsumerState, position: Position) -> None:
        """There was no room for its chunk, which stands there: the scan goes on without it."""
        self._scanned.discard(consumer)
        self._from[consumer] = position
        self._end_if_empty()

    def finish_scan(self) -> None:
        """The scan has come to where the cursor reads."""
        for consumer in self._scanned:
            del self._from[consumer]
        self._scanned.clear()
        self._end_if_empty()

    def forget(self, consumer: ConsumerState) -> bool:
        """It left; whether something was set aside for it, of which nothing is known now."""
        self._scanned.discard(consumer)
        self._end_if_empty()
        return self._from.pop(consumer, None) is not None

    def clear(self) -> None:
        self._from.clear()
        self._scanned.clear()
        self.position = None

    def check_invariants(self) -> None:
        """Assert what must hold between calls; for tests."""
        assert self._scanned <= self._from.keys()
        assert bool(self._scanned) == (self.position is not None)

    def _end_if_empty(self) -> None:
        if not self._scanned:
            self.position = None
