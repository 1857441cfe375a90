"""Ids of a connection's producers, or consumers, that are being set up: one request for each at a time.

A client may close what is being set up and use its id again. Who comes then waits until the one before is through and, since it was
closed, gone: else each would take the other for its own, and one would stay on its topic although nobody knows it any more. How
many wait is bounded by `maxConcurrentRequestsPerConnection`, and how long by what a set-up may take.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from typing import Generic, Protocol, TypeVar


class Attached(Protocol):
    """A producer or consumer on its topic."""

    def detach(self) -> None:
        """Give its place up."""


T = TypeVar("T", bound=Attached)


class PendingSetups(Generic[T]):
    """Owned by a connection, whose producers or consumers by id are `held`: None stands for one that is being set up."""

    def __init__(self, held: dict[int, T | None]) -> None:
        self._held = held
        self._ended: dict[int, asyncio.Event] = {}

    async def passed(self, used_id: int) -> None:
        """Return once nobody sets up that id; in the same turn of the loop nobody else begins to."""
        while (ended := self._ended.get(used_id)) is not None:
            await ended.wait()

    async def set_up(self, used_id: int, attaching: Awaitable[T]) -> T | None:
        """What `attaching` attaches; None, and it is detached, when it was closed, or the connection lost, meanwhile."""
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
        """Within this that id is being set up; nobody else does."""
        assert used_id not in self._ended
        ended = self._ended[used_id] = asyncio.Event()
        try:
            yield
        finally:
            del self._ended[used_id]
            ended.set()
