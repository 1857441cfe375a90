"""Findings of the rules of `explain`, for tests without an event loop."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator
    from typing import TypeVar

    T = TypeVar("T")


def at_once(steps: Generator[None, None, T]) -> T:
    """Run all steps without pauses."""
    return counting_pauses(steps)[1]


def counting_pauses(steps: Generator[None, None, T]) -> tuple[int, T]:
    """Return the number of pauses and the findings."""
    pauses = 0
    while True:
        try:
            next(steps)
        except StopIteration as done:
            return pauses, done.value
        pauses += 1
