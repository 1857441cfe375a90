"""What the rules of `explain` find, for tests that have no loop to turn to."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator
    from typing import TypeVar

    T = TypeVar("T")


def at_once(steps: Generator[None, None, T]) -> T:
    """All of it, without pauses."""
    return counting_pauses(steps)[1]


def counting_pauses(steps: Generator[None, None, T]) -> tuple[int, T]:
    """How often it lets others run, and what it finds."""
    pauses = 0
    while True:
        try:
            next(steps)
        except StopIteration as done:
            return pauses, done.value
        pauses += 1
