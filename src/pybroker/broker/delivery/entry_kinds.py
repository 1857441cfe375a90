"""Record of whether a topic may contain markers or chunks of large messages. Otherwise, entries need no inspection.
Pure.
"""

from __future__ import annotations

from collections.abc import Callable

from pybroker.model.position import Position


class EntryKinds:
    """Kinds of entries that were stored since the topic was loaded. Older entries may be of any kind."""

    __slots__ = ("_changed", "end_when_loaded", "has_chunks", "has_markers")

    def __init__(self, end_when_loaded: Position, changed: Callable[[], None]) -> None:
        """`changed` is called when the first entry of a kind was published."""
        self.end_when_loaded = end_when_loaded
        """The position of the last entry that may be of any kind."""
        self.has_chunks = False
        self.has_markers = False
        """Whether markers, or messages of transactions, which may be aborted, were published."""
        self._changed = changed

    def chunks_published(self) -> None:
        if not self.has_chunks:
            self.has_chunks = True
            self._changed()

    def markers_published(self) -> None:
        if not self.has_markers:
            self.has_markers = True
            self._changed()

    def may_hold_chunks(self, ledger_id: int, entry_id: int) -> bool:
        """Return whether this entry or a later one may be a chunk of a large message."""
        return self.has_chunks or (ledger_id, entry_id) <= self.end_when_loaded

    def may_hold_markers(self, ledger_id: int, entry_id: int) -> bool:
        """Return whether this entry or a later one may be a marker."""
        return self.has_markers or (ledger_id, entry_id) <= self.end_when_loaded
