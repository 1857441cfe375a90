"""Parked chunks of a Shared subscription: chunks that do not fit into the full look-ahead buffer, and are read again
later. For each consumer, only the position of its first parked chunk is recorded.

When the look-ahead buffer has no capacity for a chunk (`shared_redelivery.py`), later chunks for the same consumer are
ignored until it has received its chunks in the buffer. Then a *scan* reads the entries again from the recorded position
up to the cursor's read position.

Pure: the dispatcher decides when to scan and reports the result.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pybroker.dispatch.consumer_state import ConsumerState
from pybroker.model.position import Position


class ParkedChunks:
    """The position of the first parked chunk of each consumer.

    Invariant: `position` is set exactly while a scan looks for chunks of at least one consumer.
    """

    __slots__ = ("_scanned", "first_by_consumer", "position")

    def __init__(self) -> None:
        self.first_by_consumer: dict[ConsumerState, Position] = {}
        """The position of the first parked chunk of each consumer, changed by this class alone."""
        self._scanned: set[ConsumerState] = set()
        self.position: Position | None = None

    def __bool__(self) -> bool:
        return bool(self.first_by_consumer)

    def __iter__(self) -> Iterator[ConsumerState]:
        return iter(self.first_by_consumer)

    def from_position(self, consumer: ConsumerState) -> Position | None:
        return self.first_by_consumer.get(consumer)

    def covers(self, consumer: ConsumerState, position: Position) -> bool:
        """Return whether the consumer's chunk at `position` is parked: it is not before the consumer's first parked chunk,
        and a running scan, which reads the parked chunks again, has not passed it.
        """
        first = self.first_by_consumer.get(consumer)
        if first is None or position < first:
            return False
        return consumer not in self._scanned or self.position is None or position >= self.position

    def is_scanned(self, consumer: ConsumerState) -> bool:
        return consumer in self._scanned

    def add(self, consumer: ConsumerState, position: Position) -> None:
        """Park all chunks of the consumer from `position` on. The consumer must have no parked chunk at an earlier
        position.
        """
        assert consumer not in self._scanned
        before = self.first_by_consumer.get(consumer)
        assert before is None or position < before, "set aside already"
        self.first_by_consumer[consumer] = position

    def begin_scan(self, consumers: Iterable[ConsumerState]) -> Position:
        """Begin a scan for the parked chunks of these consumers. Return the position of the first entry to read."""
        assert self.position is None
        self._scanned.update(consumer for consumer in consumers if consumer in self.first_by_consumer)
        self.position = min(self.first_by_consumer[consumer] for consumer in self._scanned)
        return self.position

    def advance_scan(self, position: Position) -> None:
        assert self.position is not None
        assert position >= self.position, "a scan went back"
        self.position = position

    def leave_scan(self, consumer: ConsumerState, position: Position) -> None:
        """Continue the scan without this consumer, because the look-ahead buffer has no capacity for its chunk at
        `position`.
        """
        self._scanned.discard(consumer)
        self.first_by_consumer[consumer] = position
        self._end_if_empty()

    def finish_scan(self) -> None:
        for consumer in self._scanned:
            del self.first_by_consumer[consumer]
        self._scanned.clear()
        self._end_if_empty()

    def forget(self, consumer: ConsumerState) -> bool:
        """Remove a consumer. Return whether it had parked chunks; the dispatcher must then read all entries again to
        find these chunks.
        """
        self._scanned.discard(consumer)
        self._end_if_empty()
        return self.first_by_consumer.pop(consumer, None) is not None

    def clear(self) -> None:
        self.first_by_consumer.clear()
        self._scanned.clear()
        self.position = None

    def check_invariants(self) -> None:
        assert self._scanned <= self.first_by_consumer.keys()
        assert bool(self._scanned) == (self.position is not None)

    def _end_if_empty(self) -> None:
        if not self._scanned:
            self.position = None
