"""The ids of a connection's producers, or consumers, that are being set up: one request for each id at a time.

A client may close a producer during its setup and use the id again. The second request waits until the first one has ended and its
closed producer is gone; otherwise one of the two would stay attached to its topic unnoticed. The number of waiters is limited by
`maxConcurrentRequestsPerConnection`, and the time by the duration of a setup.
"""

from __future__ import annotations

from collections.abc import Awaitable
from contextlib import AbstractAsyncContextManager
from typing import Generic, Protocol, TypeVar

from pybroker.waiting.keyed_lock import KeyedLock


class Attached(Protocol):
    """A producer or consumer on its topic."""

    def detach(self) -> None:
        """Detach it."""


T = TypeVar("T", bound=Attached)


class PendingSetups(Generic[T]):
    """Owned by a connection, with its producers or consumers by id in `held`; None for one that is being set up."""

    def __init__(self, held: dict[int, T | None]) -> None:
        self._held = held
        self._locks: KeyedLock[int] = KeyedLock()

    def lock(self, used_id: int) -> AbstractAsyncContextManager[None]:
        """Hold the lock of that id, for one request that sets it up."""
        return self._locks.held(used_id)

    async def set_up(self, used_id: int, attaching: Awaitable[T]) -> T | None:
        """Under the lock of that id, return the object that `attaching` attaches; None, and it is detached, if it was closed or the
        connection lost meanwhile.
        """
        assert self._locks.is_held(used_id)
        self._held[used_id] = None
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
