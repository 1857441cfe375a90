"""Selection of the next consumer of a Shared subscription: the best priority level with capacity first, round robin
within a level.
"""

from __future__ import annotations

from pybroker.dispatch.consumer_state import ConsumerState


class _PriorityLevel:
    __slots__ = ("consumers", "next_index", "priority_level")

    def __init__(self, priority_level: int) -> None:
        self.priority_level = priority_level
        self.consumers: list[ConsumerState] = []
        self.next_index = 0

    def remove(self, consumer: ConsumerState) -> None:
        """Remove a consumer. The round robin continues with the consumer that was next, unless that one was removed."""
        index = self.consumers.index(consumer)
        del self.consumers[index]
        if index < self.next_index:
            self.next_index -= 1


class PriorityLevels:
    """The consumers of one dispatcher by priority level. Invariant: levels ascend, best first, and none is empty."""

    def __init__(self) -> None:
        self._levels: list[_PriorityLevel] = []

    def add(self, consumer: ConsumerState) -> None:
        for level in self._levels:
            if level.priority_level == consumer.priority_level:
                break
        else:
            level = _PriorityLevel(consumer.priority_level)
            self._levels.append(level)
            self._levels.sort(key=lambda level: level.priority_level)
        level.consumers.append(consumer)

    def remove(self, consumer: ConsumerState) -> None:
        for level in self._levels:
            if level.priority_level == consumer.priority_level:
                level.remove(consumer)
        self._levels = [level for level in self._levels if level.consumers]

    def take_turn(self) -> ConsumerState | None:
        """Return the consumer that receives the next entries; None if no consumer can take entries."""
        for level in self._levels:
            consumers, first = level.consumers, level.next_index
            count = len(consumers)
            for step in range(count):
                index = (first + step) % count
                if consumers[index].can_take():
                    level.next_index = index + 1
                    return consumers[index]
        return None

    def check_invariants(self, consumers: list[ConsumerState]) -> None:
        by_level = [consumer for level in self._levels for consumer in level.consumers]
        assert len(by_level) == len(consumers)
        assert all(level.consumers for level in self._levels)
