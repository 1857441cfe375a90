"""Memory of incompletely received frames, counted in the broker's memory budget.

Unauthenticated connections share one limit, maxFrameBytesBeforeConnect. Above it, the broker closes the connection
whose frame has been incomplete for the longest time. A CONNECT that arrives in one read is not counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from pybroker.wire.session import Session, SessionState

if TYPE_CHECKING:
    from pybroker.config import BrokerConfig
    from pybroker.memory.broker_memory import Memory
    from pybroker.model.counters import BrokerStats
    from pybroker.waiting.slots import Slots
    from pybroker.wire.commands import Decoder


class FrameSender(Protocol):
    """The interface of a connection for `FrameMemory`."""

    session: Session

    def abort(self, reason: str) -> None:
        """Close the connection without writing queued data."""


C = TypeVar("C", bound=FrameSender)


class FrameMemory(Generic[C]):
    """The memory of incomplete frames of all connections.

    Invariant: the memory part `frames` is the sum of all counted connections.
    """

    def __init__(self, memory: Memory, unauthenticated: Slots[C], stats: BrokerStats, config: BrokerConfig) -> None:
        self._memory = memory
        self._unauthenticated = unauthenticated
        self._stats = stats
        self._unauthenticated_limit_bytes = min(config.max_frame_bytes_before_connect, memory.frames.floor_bytes)
        self.counted: dict[C, int] = {}
        """The counted bytes of each connection with an incomplete frame, changed by this class alone."""
        self._held_by: dict[C, int] = {}  # unauthenticated, longest incomplete first
        self._unauthenticated_bytes = 0

    def count(self, connection: C, decoder: Decoder) -> None:
        """Count the current size of a connection's incomplete frame instead of its previous size. After CONNECT, only
        large frames are counted (`Decoder.holds_large_frame`).
        """
        is_connected = connection.session.state is SessionState.CONNECTED
        before_bytes = self.counted.pop(connection, 0)
        now_bytes = 0 if is_connected and not decoder.holds_large_frame else decoder.held_bytes
        if now_bytes:
            self.counted[connection] = now_bytes
        if now_bytes != before_bytes:
            self._memory.follow(self._memory.frames.count(now_bytes - before_bytes))
            self._count_unauthenticated(connection, now_bytes)

    def _count_unauthenticated(self, connection: C, now_bytes: int) -> None:
        self._unauthenticated_bytes -= self._held_by.get(connection, 0)
        if now_bytes and connection in self._unauthenticated:
            self._held_by[connection] = now_bytes
            self._unauthenticated_bytes += now_bytes
        else:
            self._held_by.pop(connection, None)
        while self._unauthenticated_bytes > self._unauthenticated_limit_bytes and len(self._held_by) > 1:
            longest = next(iter(self._held_by))
            self._unauthenticated_bytes -= self._held_by.pop(longest)
            self._stats.connections_displaced += 1
            self._unauthenticated.leave(longest)
            longest.abort("displaced by a newer unauthenticated connection (maxFrameBytesBeforeConnect)")
