"""Cursor moves other than acknowledgements (seek, skip, expiry), recorded to explain why a message was not delivered.
Pure.

Only the last moves are kept, in memory. Older moves cannot be distinguished from acknowledgements.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pybroker.model.position import Position

MAX_REMEMBERED = 8


class SkippedRanges(NamedTuple):
    """A cursor move over the entries after `after`, up to and including `up_to`; `entries` of them were unacknowledged.

    `is_certain`: none of the skipped entries had been acknowledged. `at_ms` is in milliseconds since 1970.
    """

    after: Position
    up_to: Position
    entries: int
    at_ms: int
    why: str
    is_expiry: bool
    is_certain: bool


def remembered(moves: Sequence[SkippedRanges], move: SkippedRanges) -> Sequence[SkippedRanges]:
    return (*moves, move)[-MAX_REMEMBERED:]


def as_of(moves: Sequence[SkippedRanges], mark_delete_position: Position) -> Sequence[SkippedRanges]:
    """Return `moves` without the entries after `mark_delete_position`, to which the cursor was moved: these entries are
    unacknowledged again. A move over only such entries is omitted; a move over some of them is shortened.
    """
    return tuple(
        move if move.up_to <= mark_delete_position else move._replace(up_to=mark_delete_position)
        for move in moves
        if move.after < mark_delete_position
    )


def move_over(moves: Sequence[SkippedRanges], position: Position) -> SkippedRanges | None:
    return next((move for move in reversed(moves) if move.after < position <= move.up_to), None)
