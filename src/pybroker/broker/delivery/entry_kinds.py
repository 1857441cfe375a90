"""Record of whether a topic may contain markers or chunks of large messages. Otherwise, entries need no inspection.
Pure.
"""

from __future__ import annotations

from pybroker.model.counters import TopicCounters
from pybroker.model.position import Position


class EntryKinds:
    """Kinds of entries that were stored since the topic was loaded. Older entries may be of any kind."""

    __slots__ = ("_counters", "_end_when_loaded", "has_markers")

    def __init__(self, end_when_loaded: Position, counters: TopicCounters) -> None:
        self._end_when_loaded = end_when_loaded
        self._counters = counters
        self.has_markers = False

    def may_hold_chunks(self, ledger_id: int, entry_id: int) -> bool:
        """Return whether this entry or a later one may be a chunk of a large message."""
        return self._counters.chunks_in > 0 or (ledger_id, entry_id) <= self._end_when_loaded

    def may_hold_markers(self, ledger_id: int, entry_id: int) -> bool:
        """Return whether this entry or a later one may be a marker."""
        return self.has_markers or (ledger_id, entry_id) <= self._end_when_loaded
