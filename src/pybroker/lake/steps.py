"""Names of the moments between which a pipeline can be killed; tests listen here and die where they want."""

from __future__ import annotations

from collections.abc import Callable

_listeners: list[Callable[[str], None]] = []


def reached(step: str) -> None:
    """Say that the next thing after `step` begins; costs nothing when nobody listens."""
    for listener in _listeners:
        listener(step)


def listen(listener: Callable[[str], None]) -> None:
    """Have `listener` called at each step of this process."""
    _listeners.append(listener)
