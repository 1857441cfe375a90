"""Tasks that wait until something happens to a connection."""

from __future__ import annotations

import asyncio


class Waiters:
    """Owned by a connection."""

    __slots__ = ("_events",)

    def __init__(self) -> None:
        self._events: list[asyncio.Event] = []

    def __bool__(self) -> bool:
        """Return whether there are waiters."""
        return bool(self._events)

    async def wait(self) -> None:
        """Return after the next `wake`."""
        self._events.append(event := asyncio.Event())
        try:
            await event.wait()
        finally:
            if event in self._events:
                self._events.remove(event)

    def wake(self) -> None:
        events, self._events = self._events, []
        for event in events:
            event.set()
