"""Setup of producers and consumers: one request per id at a time.

A client may close a producer during its setup and reuse the id. The second request waits for the first; otherwise both
producers could be attached to the topic while the connection knows only one.
"""

from __future__ import annotations

from collections.abc import Awaitable
from contextlib import AbstractAsyncContextManager
from typing import Generic, Protocol, TypeVar

from pybroker.waiting.keyed_lock import KeyedLock


class Attached(Protocol):
    """A producer or consumer."""

    def detach(self) -> None:
        """Detach the producer or consumer from its topic."""


T = TypeVar("T", bound=Attached)


class PendingSetups(Generic[T]):
    """Setup locks of a connection. `held` maps ids to producers or consumers, with None during setup."""

    def __init__(self, held: dict[int, T | None]) -> None:
        self._held = held
        self._locks: KeyedLock[int] = KeyedLock()

    def lock(self, used_id: int) -> AbstractAsyncContextManager[None]:
        return self._locks.held(used_id)

    async def set_up(self, used_id: int, attaching: Awaitable[T]) -> T | None:
        """Attach a producer or consumer and return it. If its id was closed or the connection lost meanwhile, detach it
        and return None. The caller holds the lock of `used_id`.
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
