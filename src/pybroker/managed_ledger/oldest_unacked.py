"""The age of the oldest unacknowledged message of a cursor. Its publish time is cached until another entry is the
oldest.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from pybroker.model.position import EARLIEST, Position

if TYPE_CHECKING:
    from pybroker.managed_ledger.cursor_state import CursorState
    from pybroker.managed_ledger.ledger_list import LedgerList
    from pybroker.runtime.clock import Clock

UNKNOWN_AGE_S = -1


class OldestUnacked:
    """Cached publish time of the first unacknowledged entry. Owned by a managed cursor.

    Invariant: `_publish_time_ms` is the publish time of the entry at `_position`.
    """

    __slots__ = ("_clock", "_ledgers", "_position", "_publish_time_ms", "_state", "_time_at_hand", "_time_of")

    def __init__(
        self,
        state: CursorState,
        ledgers: LedgerList,
        time_at_hand: Callable[[Position], int | None],
        time_of: Callable[[Position], Awaitable[int]],
        clock: Clock,
    ) -> None:
        """`time_at_hand` returns the publish time of an entry if it is in memory; `time_of` reads it from the store if
        needed.
        """
        self._state = state
        self._ledgers = ledgers
        self._time_at_hand = time_at_hand
        self._time_of = time_of
        self._clock = clock
        self._position = EARLIEST
        self._publish_time_ms = 0

    @property
    def position(self) -> Position | None:
        position = self._state.first_undeleted(EARLIEST)
        return position if self._ledgers.has_entry(position) else None

    def known_ms(self) -> int | None:
        """Return the publish time of the first unacknowledged entry in milliseconds since 1970; None if the time is not
        in memory, or if there is no such entry.
        """
        position = self.position
        if position is None:
            return None
        if position != self._position:
            publish_time_ms = self._time_at_hand(position)
            if publish_time_ms is None:
                return None
            self._position, self._publish_time_ms = position, publish_time_ms
        return self._publish_time_ms

    def known_age_s(self) -> int:
        """Return the age of the first unacknowledged entry in seconds; -1 if its publish time is not in memory, or if
        there is no such entry.
        """
        publish_time_ms = self.known_ms()
        return UNKNOWN_AGE_S if publish_time_ms is None else max(0, self._clock.wall_ms() - publish_time_ms) // 1000

    async def look(self) -> tuple[Position, int] | None:
        """Return the position of the first unacknowledged entry and its publish time (milliseconds since 1970), which
        is read from the store if needed. None if there is no such entry. Raises StoreError.
        """
        position = self.position
        if position is None:
            return None
        known = self.known_ms()
        if known is None:
            known = await self._time_of(position)
            self._position, self._publish_time_ms = position, known
        return position, known
