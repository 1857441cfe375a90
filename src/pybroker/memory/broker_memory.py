"""Tasks that wait for memory of the broker's budget, and the release of read-ahead when other parts need memory.

`memory/memory_budget.py` decides how memory is divided. A task returns all memory that it took, even after an error.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Hashable
from typing import Protocol

from pybroker.memory import memory_parts
from pybroker.memory.memory_budget import MemoryBudget, Part, Settled
from pybroker.memory.memory_parts import OwnBounds
from pybroker.memory.memory_shares import MemoryShares

DELIVERY_BYTES = 256 * 1024
"""Maximum bytes that a subscription delivers at once; more is no faster."""
LEAST_DELIVERY_BYTES = 64 * 1024
"""Minimum delivery while outboxes are full. Each subscription may always deliver this much, so that one stalled
subscription blocks no other.
"""

LEAST_LOOK_AHEAD_BYTES = 20_000
"""Each Key_Shared subscription may always use this much for entries that it has read and cannot deliver."""
LEAST_DELAYED_BYTES = 64 * 1024
"""Each subscription may always use this much: five hundred delayed messages."""
LEAST_WEBSOCKET_BYTES = 64 * 1024
"""Each WebSocket session may always use this much."""


class MonotonicClock(Protocol):
    """A monotonic clock, for tests and simulators."""

    def monotonic_ms(self) -> float: ...


class AheadHolder(ABC):
    """An object with read-ahead (entries that were read before a consumer requested them), which it can drop."""

    @abstractmethod
    def give_way(self) -> None:
        """Drop the read-ahead, because other parts need the memory."""


class Memory:
    """Memory budget of one broker. Used from one event loop."""

    def __init__(self, process_limit_bytes: int, own: OwnBounds, clock: MonotonicClock) -> None:
        self.process_limit_bytes = process_limit_bytes
        self.budget: MemoryBudget[object] = memory_parts.divided(memory_parts.counted_bytes(process_limit_bytes), own)
        parts = self.budget.parts
        self.reads: Part[object] = parts[memory_parts.READS]
        """Data being read for cursors, and read-ahead."""
        self.outboxes: Part[object] = parts[memory_parts.OUTBOXES]
        """Data that clients have not received yet."""
        self.publishes: Part[object] = parts[memory_parts.PUBLISHES]
        """Messages received from clients that have no receipt yet."""
        self.frames: Part[object] = parts[memory_parts.FRAMES]
        """Received bytes of incomplete frames."""
        self.writes: Part[object] = parts[memory_parts.WRITES]
        """Entries that are not in a segment file yet."""
        self.cache: Part[object] = parts[memory_parts.CACHE]
        """Recent entries."""
        self.requests: Part[object] = parts[memory_parts.REQUESTS]
        """Bodies of HTTP requests, and large documents after parsing."""
        self.answers: Part[object] = parts[memory_parts.ANSWERS]
        """HTTP responses, including metrics pages."""
        self.views: Part[object] = parts[memory_parts.VIEWS]
        """Decoded messages for inspection."""
        self.documents: Part[object] = parts[memory_parts.DOCUMENTS]
        """Metadata of topics and cursors while they are loaded."""
        self.lists: Part[object] = parts[memory_parts.LISTS]
        """Topic names for listings and watchers."""
        self.compaction: Part[object] = parts[memory_parts.COMPACTION]
        """Data that compaction reads, records and writes."""
        self.look_ahead: Part[object] = parts[memory_parts.LOOK_AHEAD]
        """Entries that Key_Shared subscriptions have read and cannot deliver yet."""
        self.delayed: Part[object] = parts[memory_parts.DELAYED]
        """State of messages that wait for their delivery time."""
        self.look_aheads: MemoryShares[Hashable] = MemoryShares(self.look_ahead, LEAST_LOOK_AHEAD_BYTES)
        self.delays: MemoryShares[Hashable] = MemoryShares(self.delayed, LEAST_DELAYED_BYTES)
        self.websockets: MemoryShares[Hashable] = MemoryShares(parts[memory_parts.WEBSOCKETS], LEAST_WEBSOCKET_BYTES)
        """Messages that WebSocket sessions have received and not stored, or have not sent to their clients yet."""
        self._clock = clock

    @classmethod
    def ample(cls, clock: MonotonicClock) -> Memory:
        """Create a budget so large that no task waits."""
        return cls(memory_parts.UNKNOWN_MACHINE_BYTES, OwnBounds(), clock)

    @property
    def delivery_bytes(self) -> int:
        outboxes = self.outboxes
        # With nothing in use there is room, because the part has a guaranteed minimum.
        return DELIVERY_BYTES if not outboxes.used_bytes or outboxes.room() > 0 else LEAST_DELIVERY_BYTES

    async def take(self, part: Part[object], group: Hashable, size_bytes: int) -> int:
        """Wait until `size_bytes` of `part` are free, or the part's maximum if that is less, and take them. Waiting
        tasks are served round robin by `group` (such as a connection). Return the number of bytes taken; the caller
        must pass it to `give_back` later.
        """
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.follow(part.ask(turn, group, size_bytes, self._clock.monotonic_ms()))
        if not turn.done():
            try:
                await turn
            except BaseException:
                if (settled := part.leave(turn)) is None:  # granted at the moment of the cancellation
                    settled = part.give_back(part.took(size_bytes))
                self.follow(settled)
                raise
        return part.took(size_bytes)

    def give_back(self, part: Part[object], size_bytes: int) -> None:
        self.follow(part.give_back(size_bytes))

    def follow(self, settled: Settled[object] | None) -> None:
        if settled is None:
            return
        for holder in settled.gave_way:
            assert isinstance(holder, AheadHolder)
            holder.give_way()
        for turn in settled.granted:
            assert isinstance(turn, asyncio.Future)
            if not turn.done():  # a task that was just cancelled gives its memory back itself
                turn.set_result(None)


class Holding:
    """Memory of one operation; `close` returns all of it.

    `wait` waits for at most the part's guaranteed minimum, so an operation that uses memory of another part can wait
    without a deadlock. Memory beyond that is counted without waiting.
    """

    def __init__(self, memory: Memory, part: Part[object]) -> None:
        self._memory = memory
        self._part = part
        self._taken_bytes = 0
        self._counted_bytes = 0

    @property
    def size_bytes(self) -> int:
        return self._taken_bytes + self._counted_bytes

    async def wait(self, group: Hashable, size_bytes: int) -> None:
        """Take `size_bytes` for the operation: wait for at most the part's guaranteed minimum, and add the rest without
        waiting. Waiting operations are served round robin by `group`. Call this only once.
        """
        assert not self._taken_bytes, "an operation that uses memory must not wait for more"
        self._taken_bytes = await self._memory.take(self._part, group, self._part.safe_bytes(size_bytes))
        self.count(max(size_bytes, self._taken_bytes))

    def count(self, size_bytes: int) -> None:
        """Set the total memory of the operation to `size_bytes` without waiting. The bytes for which `wait` has waited
        stay taken until `close`, even if `size_bytes` is less.
        """
        counted_bytes = max(0, size_bytes - self._taken_bytes)
        before_bytes, self._counted_bytes = self._counted_bytes, counted_bytes
        if counted_bytes != before_bytes:
            self._memory.follow(self._part.count(counted_bytes - before_bytes))

    def close(self) -> None:
        self.count(0)
        if self._taken_bytes:
            taken_bytes, self._taken_bytes = self._taken_bytes, 0
            self._memory.give_back(self._part, taken_bytes)
