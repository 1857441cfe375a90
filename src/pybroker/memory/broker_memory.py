"""The memory of a broker as its parts see it: tasks wait here for their turn, and what was read ahead is told to give way.

Which part may have what is decided by `memory/memory_budget.py`. What must hold: whatever was taken is given back, however the task
that took it ends.
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
"""What a subscription hands out at once, at most: more at a time is no faster."""
LEAST_DELIVERY_BYTES = 64 * 1024
"""The same while outboxes have no room; so little each may always have, so that one that stalls stops no other."""

LEAST_LOOK_AHEAD_BYTES = 20_000
"""What a Key_Shared subscription may always remember: a scan must find room for what it looks for."""
LEAST_DELAYED_BYTES = 64 * 1024
"""What a subscription may always remember of delayed messages: five hundred."""


class MonotonicClock(Protocol):
    """The part of the broker's clock that the memory needs."""

    def monotonic_ms(self) -> float:
        """Return milliseconds that never decrease."""


class AheadHolder(ABC):
    """Holds what was read before anybody asked for it."""

    @abstractmethod
    def give_way(self) -> None:
        """Others need the memory: drop what was read ahead."""


class Memory:
    """Owned by whoever builds the broker; runs on one loop."""

    def __init__(self, process_limit_bytes: int, own: OwnBounds, clock: MonotonicClock) -> None:
        self.process_limit_bytes = process_limit_bytes
        self.budget: MemoryBudget[object] = memory_parts.divided(memory_parts.counted_bytes(process_limit_bytes), own)
        parts = self.budget.parts
        self.reads: Part[object] = parts[memory_parts.READS]
        """What is being read for cursors, and was read ahead for them."""
        self.outboxes: Part[object] = parts[memory_parts.OUTBOXES]
        """What clients have not taken yet."""
        self.publishes: Part[object] = parts[memory_parts.PUBLISHES]
        """What clients have sent and have no receipt for."""
        self.frames: Part[object] = parts[memory_parts.FRAMES]
        """What clients have sent of frames that are not complete."""
        self.writes: Part[object] = parts[memory_parts.WRITES]
        """Entries that are in no segment file yet."""
        self.cache: Part[object] = parts[memory_parts.CACHE]
        """Recent entries."""
        self.requests: Part[object] = parts[memory_parts.REQUESTS]
        """Bodies of HTTP requests, and what large documents become when they are read."""
        self.answers: Part[object] = parts[memory_parts.ANSWERS]
        """HTTP answers, pages of metrics among them."""
        self.views: Part[object] = parts[memory_parts.VIEWS]
        """Messages that are looked at, opened."""
        self.documents: Part[object] = parts[memory_parts.DOCUMENTS]
        """Stored documents and cursors of topics that are being loaded."""
        self.lists: Part[object] = parts[memory_parts.LISTS]
        """Names of topics that are listed for somebody, or watched."""
        self.compaction: Part[object] = parts[memory_parts.COMPACTION]
        """What is read, noted and written to compact topics."""
        self.look_ahead: Part[object] = parts[memory_parts.LOOK_AHEAD]
        """What Key_Shared subscriptions have read and cannot deliver yet."""
        self.delayed: Part[object] = parts[memory_parts.DELAYED]
        """What is remembered of messages that wait for their time."""
        self.look_aheads: MemoryShares[Hashable] = MemoryShares(self.look_ahead, LEAST_LOOK_AHEAD_BYTES)
        self.delays: MemoryShares[Hashable] = MemoryShares(self.delayed, LEAST_DELAYED_BYTES)
        self._clock = clock

    @classmethod
    def ample(cls, clock: MonotonicClock) -> Memory:
        """Of a machine on which nobody has to wait."""
        return cls(memory_parts.UNKNOWN_MACHINE_BYTES, OwnBounds(), clock)

    @property
    def delivery_bytes(self) -> int:
        """What a subscription may hand out at once now."""
        return DELIVERY_BYTES if self.outboxes.room() > 0 else LEAST_DELIVERY_BYTES

    async def take(self, part: Part[object], group: Hashable, size_bytes: int) -> int:
        """Wait for so many bytes of `part`, in the turn of `group`; how many they are, which have to be given back."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.follow(part.ask(turn, group, size_bytes, self._clock.monotonic_ms()))
        if not turn.done():
            try:
                await turn
            except BaseException:
                if (settled := part.leave(turn)) is None:  # its turn came in the very moment in which this ended
                    settled = part.give_back(part.took(size_bytes))
                self.follow(settled)
                raise
        return part.took(size_bytes)

    def give_back(self, part: Part[object], size_bytes: int) -> None:
        """What `take` gave is needed no more."""
        self.follow(part.give_back(size_bytes))

    def follow(self, settled: Settled[object] | None) -> None:
        """Tell those whom a change concerns."""
        if settled is None:
            return
        for holder in settled.gave_way:
            assert isinstance(holder, AheadHolder)
            holder.give_way()
        for turn in settled.granted:
            assert isinstance(turn, asyncio.Future)
            if not turn.done():  # else its task has just been cancelled, and gives back what it got
                turn.set_result(None)


class Holding:
    """What one piece of work has of a part; `close` gives all of it back, whatever it is.

    It waits for no more than the part's floor: that much is always there sooner or later, so that who holds something of another
    part meanwhile waits for nobody who waits for him. What it needs beyond is counted.
    """

    def __init__(self, memory: Memory, part: Part[object]) -> None:
        self._memory = memory
        self._part = part
        self._taken_bytes = 0
        self._counted_bytes = 0

    @property
    def size_bytes(self) -> int:
        """All that it has."""
        return self._taken_bytes + self._counted_bytes

    async def wait(self, group: Hashable, size_bytes: int) -> None:
        """Have `size_bytes` once it is the turn of `group`; asked once."""
        assert not self._taken_bytes, "who holds something waits for nothing more"
        self._taken_bytes = await self._memory.take(self._part, group, self._part.safe_bytes(size_bytes))
        self.count(max(size_bytes, self._taken_bytes))

    def count(self, size_bytes: int) -> None:
        """It is `size_bytes` altogether now, but no less than what it waited for."""
        counted_bytes = max(0, size_bytes - self._taken_bytes)
        before_bytes, self._counted_bytes = self._counted_bytes, counted_bytes
        if counted_bytes != before_bytes:
            self._memory.follow(self._part.count(counted_bytes - before_bytes))

    def close(self) -> None:
        self.count(0)
        if self._taken_bytes:
            taken_bytes, self._taken_bytes = self._taken_bytes, 0
            self._memory.give_back(self._part, taken_bytes)
