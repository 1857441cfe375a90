"""The ids of a connection's producers, or consumers, that are being set up: one request for each id at a time.

A client may close a producer during its setup and use the id again. The second request waits until the first one has ended and its
closed producer is gone; otherwise one of the two would stay attached to its topic unnoticed. The number of waiters is limited by
`maxConcurrentRequestsPerConnection`, and the time by the duration of a setup.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from typing import Generic, Protocol, TypeVar


class Attached(Protocol):
    """A producer or consumer on its topic."""

    def detach(self) -> None:
        """Detach it."""


T = TypeVar("T", bound=Attached)


class PendingSetups(Generic[T]):
    """Owned by a connection, with its producers or consumers by id in `held`; None for one that is being set up."""

    def __init__(self, held: dict[int, T | None]) -> None:
        self._held = held
        self._ended: dict[int, asyncio.Event] = {}

    async def passed(self, used_id: int) -> None:
        """Return when no request sets up that id; in the same event loop iteration, no other one begins."""
        while (ended := self._ended.get(used_id)) is not None:
            await ended.wait()

    async def set_up(self, used_id: int, attaching: Awaitable[T]) -> T | None:
        """Return the object that `attaching` attaches; None, and it is detached, if it was closed or the connection lost
        meanwhile.
        """
        self._held[used_id] = None
        with self._begun(used_id):
            try:
                attached = await attaching
            except BaseException:
                if self._held.get(used_id, attaching) is None:
                    del self._held[used_id]
                raise
        if used_id not in self._held:
            attached.detach()
            return None
        return attached

    @contextmanager
    def _begun(self, used_id: int) -> Iterator[None]:
        """Mark that id as being set up within this context."""
        assert used_id not in self._ended
        ended = self._ended[used_id] = asyncio.Event()
        try:
            yield
        finally:
            del self._ended[used_id]
            ended.set()
