"""Approximate delivery times of the entries of a subscription with one active consumer, for stats and `explain`.

A record is the time of a delivery and its first position. The delivery time of an entry is the time of the last record
at or before the entry's position. Deliveries within RESOLUTION_MS of a recorded one are not recorded.

Invariant: records ascend by position.
"""

from __future__ import annotations

from array import array

from pybroker.model.position import Position

RESOLUTION_MS = 1000
MAX_NOTES = 64
"""Maximum number of records, which take less than 2 kB per subscription."""
_MOST_LEFT = 44
_FIRST_GAP = 0.1
_PARTS = 3


class DeliveryLog:
    """Delivery times of one dispatcher, in milliseconds since 1970."""

    __slots__ = ("_last_ms", "_notes")

    def __init__(self) -> None:
        self._notes = array("q")  # ledger id, first entry id and time of each
        self._last_ms = 0

    def __len__(self) -> int:
        return len(self._notes) // _PARTS

    def delivered(self, ledger_id: int, first_entry_id: int, now_ms: int) -> None:
        if self._last_ms <= now_ms < self._last_ms + RESOLUTION_MS:
            return
        notes = self._notes
        while notes and (notes[-3], notes[-2]) >= (ledger_id, first_entry_id):
            del notes[-_PARTS:]  # The entry is delivered again.
        notes.extend((ledger_id, first_entry_id, now_ms))
        self._last_ms = now_ms
        if len(notes) > _PARTS * MAX_NOTES:
            self._thin_out(now_ms)

    def at(self, position: Position) -> int | None:
        notes = self._notes
        for index in range(len(notes) - _PARTS, -1, -_PARTS):
            if (notes[index], notes[index + 1]) <= position:
                return notes[index + 2]
        return None

    def first_after(self, time_ms: int) -> Position | None:
        notes = self._notes
        for index in range(0, len(notes), _PARTS):
            if notes[index + 2] > time_ms:
                return Position(notes[index], notes[index + 1])
        return None

    def forget_up_to(self, position: Position) -> None:
        notes = self._notes
        while len(notes) > _PARTS and (notes[_PARTS], notes[_PARTS + 1]) <= position:
            del notes[:_PARTS]

    def clear(self) -> None:
        del self._notes[:]
        self._last_ms = 0

    def check_invariants(self) -> None:
        notes = self._notes
        starts = list(zip(notes[0::_PARTS], notes[1::_PARTS], strict=True))
        assert starts == sorted(set(starts))
        assert len(self) <= MAX_NOTES

    def _thin_out(self, now_ms: int) -> None:
        gap = _FIRST_GAP
        while len(kept := self._with_gaps(gap, now_ms)) > _MOST_LEFT:
            gap *= 1.5
        self._notes = array("q", [part for index in reversed(kept) for part in self._notes[index : index + _PARTS]])

    def _with_gaps(self, gap: float, now_ms: int) -> list[int]:
        """Return the indexes of the records to keep, newest first."""
        notes = self._notes
        kept = [len(notes) - _PARTS]
        for index in range(len(notes) - 2 * _PARTS, 0, -_PARTS):
            newer_ms, older_ms = notes[kept[-1] + 2], notes[index - 1]
            if newer_ms - older_ms > gap * (abs(now_ms - newer_ms) + RESOLUTION_MS):
                kept.append(index)
        return [*kept, 0]
