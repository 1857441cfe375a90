"""Ids of a connection's producers, or consumers, that are being set up: one request for each at a time.

A client may close what is being set up and use its id again. Who comes then waits until the one before is through and, since it was
closed, gone: else each would take the other for its own, and one would stay on its topic although nobody knows it any more. How
many wait is bounded by `maxConcurrentRequestsPerConnection`, and how long by what a set-up may take.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class SetUps:
    """Owned by a connection."""

    def __init__(self) -> None:
        self._ended: dict[int, asyncio.Event] = {}

    async def passed(self, used_id: int) -> None:
        """Return once nobody sets up that id; in the same turn of the loop nobody else begins to."""
        while (ended := self._ended.get(used_id)) is not None:
            await ended.wait()

    @contextmanager
    def begun(self, used_id: int) -> Iterator[None]:
        """Within this that id is being set up; nobody else does."""
        assert used_id not in self._ended
        ended = self._ended[used_id] = asyncio.Event()
        try:
            yield
        finally:
            del self._ended[used_id]
            ended.set()
