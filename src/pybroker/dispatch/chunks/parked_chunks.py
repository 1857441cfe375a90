"""Parked chunks of a Shared subscription: chunks of one consumer that are not listed from a position on.

Chunks that wait for a consumer are listed while capacity is available (`bound_replay.py`). Beyond that they are
parked: later chunks of the consumer are ignored until it has received all listed ones and can take more. Then a
*scan* rereads entries that the cursor has passed, from that position up to the cursor's read position.

This class is pure state. The dispatcher decides when to scan and reports the result.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pybroker.dispatch.consumer_state import ConsumerState
from pybroker.model.position import Position


class ParkedChunks:
    """Parked positions by consumer.

    Invariant: `position` is set exactly while a scan looks for chunks of at least one consumer.
    """

    __slots__ = ("_from", "_scanned", "position")

    def __init__(self) -> None:
        self._from: dict[ConsumerState, Position] = {}
        self._scanned: set[ConsumerState] = set()
        self.position: Position | None = None

    def __bool__(self) -> bool:
        return bool(self._from)

    def __iter__(self) -> Iterator[ConsumerState]:
        """Yield the consumers with parked chunks."""
        return iter(self._from)

    def from_position(self, consumer: ConsumerState) -> Position | None:
        """Return the position from which this consumer's chunks are parked; None if none are."""
        return self._from.get(consumer)

    def covers(self, consumer: ConsumerState, position: Position) -> bool:
        """Return whether a chunk of that consumer at this position is parked and not scanned yet."""
        first = self._from.get(consumer)
        if first is None or position < first:
            return False
        return consumer not in self._scanned or self.position is None or position >= self.position

    def is_scanned(self, consumer: ConsumerState) -> bool:
        """Return whether the active scan looks for chunks of that consumer."""
        return consumer in self._scanned

    def add(self, consumer: ConsumerState, position: Position) -> None:
        """Park all chunks of that consumer from the position on. None may be parked before it."""
        assert consumer not in self._scanned
        before = self._from.get(consumer)
        assert before is None or position < before, "set aside already"
        self._from[consumer] = position

    def begin_scan(self, consumers: Iterable[ConsumerState]) -> Position:
        """Start a scan for these consumers, which can take entries. Return its first position."""
        assert self.position is None
        self._scanned.update(consumer for consumer in consumers if consumer in self._from)
        self.position = min(self._from[consumer] for consumer in self._scanned)
        return self.position

    def advance_scan(self, position: Position) -> None:
        """Record that entries before this position were scanned."""
        assert self.position is not None
        assert position >= self.position, "a scan went back"
        self.position = position

    def leave_scan(self, consumer: ConsumerState, position: Position) -> None:
        """Stop scanning for a consumer, because its chunk at this position exceeds the capacity."""
        self._scanned.discard(consumer)
        self._from[consumer] = position
        self._end_if_empty()

    def finish_scan(self) -> None:
        """End the scan at the cursor's read position."""
        for consumer in self._scanned:
            del self._from[consumer]
        self._scanned.clear()
        self._end_if_empty()

    def forget(self, consumer: ConsumerState) -> bool:
        """Forget a consumer that left. Return whether it had parked chunks; their positions are now unknown."""
        self._scanned.discard(consumer)
        self._end_if_empty()
        return self._from.pop(consumer, None) is not None

    def clear(self) -> None:
        self._from.clear()
        self._scanned.clear()
        self.position = None

    def check_invariants(self) -> None:
        assert self._scanned <= self._from.keys()
        assert bool(self._scanned) == (self.position is not None)

    def _end_if_empty(self) -> None:
        if not self._scanned:
            self.position = None
