"""Named steps of a pipeline, at which tests can kill the process."""

from __future__ import annotations

from collections.abc import Callable

_listeners: list[Callable[[str], None]] = []


def reached(step: str) -> None:
    for listener in _listeners:
        listener(step)


def listen(listener: Callable[[str], None]) -> None:
    _listeners.append(listener)
