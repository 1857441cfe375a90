"""Locks by name for asyncio tasks, passed to waiters in order of arrival, also after an error or cancellation."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Generic, TypeVar

from pybroker.waiting.lock_table import LockTable

Name = TypeVar("Name", bound=Hashable)


class _Request:
    __slots__ = ("granted", "is_running", "purpose")

    def __init__(self, purpose: str) -> None:
        self.purpose = purpose
        self.granted: asyncio.Future[None] | None = None
        """Set while the request waits."""
        self.is_running = True
        """False until the task of a granted request that has waited runs again."""


class KeyedLock(Generic[Name]):
    """One lock for each name. Unused names take no memory. Runs on one event loop."""

    __slots__ = ("_all_free", "_table", "_wait_context")

    def __init__(self, wait_context: Callable[[Name], AbstractAsyncContextManager[None]] | None = None) -> None:
        """`wait_context` returns the context in which a request waits: it may refuse or limit the wait, and replace its
        errors. By default requests wait without a limit.
        """
        self._table: LockTable[Name, _Request] = LockTable()
        self._wait_context = wait_context
        self._all_free: asyncio.Event | None = None

    def is_held(self, name: Name) -> bool:
        """Return whether a task holds the lock. False while the lock has been passed to a waiting task that has not run
        since.
        """
        owner = self._table.owner(name)
        return owner is not None and owner.is_running

    def purpose(self, name: Name) -> str:
        """Return the purpose that the owner of the lock has stated; empty if the lock is free."""
        owner = self._table.owner(name)
        return "" if owner is None else owner.purpose

    def waiting(self, name: Name) -> int:
        return self._table.waiting(name)

    @asynccontextmanager
    async def held(self, name: Name, purpose: str = "") -> AsyncIterator[None]:
        """Hold the lock of `name` within this context, after all earlier requests. `purpose` is for error texts of
        other requests. Raises the errors of the constructor's `wait_context`, which can limit or refuse the wait.
        """
        request = _Request(purpose)
        if not self._table.take(name, request):
            context = nullcontext() if self._wait_context is None else self._wait_context(name)
            await self._wait_in(context, name, request)
        try:
            yield
        finally:
            self._release(name, request)

    async def passed(self, name: Name) -> None:
        """Wait until all current holders and waiters of the lock have released it. The wait has no limit."""
        if self.is_held(name):
            request = _Request("")
            await self._wait_in(nullcontext(), name, request)
            self._release(name, request)

    async def all_free(self) -> None:
        while self._table:
            if self._all_free is None:
                self._all_free = asyncio.Event()
            await self._all_free.wait()

    async def _wait_in(self, context: AbstractAsyncContextManager[None], name: Name, request: _Request) -> None:
        try:
            async with context:
                if not self._table.take(name, request):  # Entering the context may have taken time.
                    await self._wait(name, request)
        except BaseException:
            self._withdraw(name, request)  # The context may fail after the lock was granted.
            raise

    async def _wait(self, name: Name, request: _Request) -> None:
        request.granted = asyncio.get_running_loop().create_future()
        request.is_running = False
        self._table.wait(name, request)
        try:
            await request.granted
        except BaseException:
            self._withdraw(name, request)  # First, because the context may read the state of the lock.
            raise
        request.is_running = True

    def _withdraw(self, name: Name, request: _Request) -> None:
        if self._table.owner(name) is request:
            self._release(name, request)
        else:
            self._table.leave(name, request)

    def _release(self, name: Name, request: _Request) -> None:
        successor = self._table.release(name, request)
        while successor is not None:
            assert successor.granted is not None
            if not successor.granted.done():
                successor.granted.set_result(None)
                return
            successor = self._table.release(name, successor)  # Cancelled, and its task has not run yet.
        if self._all_free is not None and not self._table:
            self._all_free.set()
            self._all_free = None
