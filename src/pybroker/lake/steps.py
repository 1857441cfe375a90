"""Named steps of a pipeline, at which tests can kill it."""

from __future__ import annotations

from collections.abc import Callable

_listeners: list[Callable[[str], None]] = []


def reached(step: str) -> None:
    """Notify all listeners that the pipeline has reached `step`."""
    for listener in _listeners:
        listener(step)


def listen(listener: Callable[[str], None]) -> None:
    """Register `listener` for all steps in this process."""
    _listeners.append(listener)
