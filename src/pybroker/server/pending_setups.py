"""Producers or consumers of a connection that are being set up: one request for each id at a time.

A client may close a producer during its setup and reuse the id. The second request waits until the first has ended;
otherwise one of the two could stay attached to its topic unnoticed. `maxConcurrentRequestsPerConnection` limits the
waiters.
"""

from __future__ import annotations

from collections.abc import Awaitable
from contextlib import AbstractAsyncContextManager
from typing import Generic, Protocol, TypeVar

from pybroker.waiting.keyed_lock import KeyedLock


class Attached(Protocol):
    """A producer or consumer."""

    def detach(self) -> None:
        """Detach it."""


T = TypeVar("T", bound=Attached)


class PendingSetups(Generic[T]):
    """Owned by a connection. `held` has its producers or consumers by id; None while one is being set up."""

    def __init__(self, held: dict[int, T | None]) -> None:
        self._held = held
        self._locks: KeyedLock[int] = KeyedLock()

    def lock(self, used_id: int) -> AbstractAsyncContextManager[None]:
        return self._locks.held(used_id)

    async def set_up(self, used_id: int, attaching: Awaitable[T]) -> T | None:
        """Under the lock of `used_id`, return the attached object. Detach it and return None if it was closed, or the
        connection lost, meanwhile.
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
