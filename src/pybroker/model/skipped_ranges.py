"""Moves of a subscription's cursor that were no acknowledgements, remembered for people who ask what became of a message.

Pure. Kept in memory only, the last few: what is older, or was before the topic was loaded, nobody can tell from acknowledgements.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pybroker.model.position import Position

MAX_REMEMBERED = 8


class SkippedRanges(NamedTuple):
    """Entries behind `after`, up to and including `up_to`, `entries` of which were not acknowledged, are counted as read.

    `is_certain`: none of them had been acknowledged. `at_ms` is since 1970.
    """

    after: Position
    up_to: Position
    entries: int
    at_ms: int
    why: str
    is_expiry: bool
    is_certain: bool


def remembered(moves: Sequence[SkippedRanges], move: SkippedRanges) -> Sequence[SkippedRanges]:
    """The last moves with one more."""
    return (*moves, move)[-MAX_REMEMBERED:]


def as_of(moves: Sequence[SkippedRanges], mark_delete_position: Position) -> Sequence[SkippedRanges]:
    """What is left of them when the cursor goes back to that position: what is behind it is unacknowledged again."""
    return tuple(
        move if move.up_to <= mark_delete_position else move._replace(up_to=mark_delete_position)
        for move in moves
        if move.after < mark_delete_position
    )


def move_over(moves: Sequence[SkippedRanges], position: Position) -> SkippedRanges | None:
    """The last one that passed over the entry at `position`."""
    return next((move for move in reversed(moves) if move.after < position <= move.up_to), None)
