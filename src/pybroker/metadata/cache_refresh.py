"""Keeps the caches of a shared metadata store current: after each change by any broker, the cache reads the changed
document again.

A broker's own changes cause one more read. After a time without a connection, everything is read again. An embedded
store has no other users, so nothing is watched there.

Operation: paths that changed are collected, and one task for each cache reads them one after another. A failed read is
repeated until it succeeds; the cache itself handles a document that cannot be decoded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Protocol

from pybroker.errors import StoreError
from pybroker.metadata.metadata_store import MetadataStore
from pybroker.runtime import logs
from pybroker.runtime.tasks import TaskOwner

RETRY_PAUSE_S = 1.0
MAX_PATHS = 10_000
"""If more paths changed, the whole cache is read again."""


class RefreshedCache(Protocol):
    """A cache of documents. Both methods raise StoreError if the store cannot be read."""

    async def refresh(self, path: str) -> None:
        """Read the document at `path` again and notify the cache's listeners. Ignore the path of a document that does
        not belong in the cache.
        """

    async def read_again(self) -> None:
        """Read all documents again and notify the cache's listeners."""


class CacheRefresher:
    """Refreshes the registered caches of one store."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._tasks = TaskOwner("metadata-caches")
        self._caches: list[_Refreshed] = []

    def keep(self, cache: RefreshedCache, *prefixes: str) -> None:
        """Register `cache`: after a change at or below one of the `prefixes`, its `refresh` is called with the changed
        path. Does nothing for an embedded store.

        Call this before the cache is loaded, so that no change is missed.
        """
        if not self._store.is_shared:
            return
        refreshed = _Refreshed(cache, self._tasks)
        self._caches.append(refreshed)
        for prefix in prefixes:
            self._store.watch(prefix, refreshed.changed, refreshed.missed)

    @property
    def pending(self) -> int:
        """The number of changed paths that the caches have not read again. A read in progress counts as one path, and
        so does a cache that must be read as a whole.
        """
        return sum(cache.pending for cache in self._caches)

    async def close(self) -> None:
        await self._tasks.close()


class _Refreshed:
    """One cache with its changed paths."""

    def __init__(self, cache: RefreshedCache, tasks: TaskOwner) -> None:
        self._cache = cache
        self._tasks = tasks
        self._paths: dict[str, None] = {}  # in the order of their changes
        self._must_reload = False
        self._is_running = False

    @property
    def pending(self) -> int:
        return len(self._paths) + self._must_reload + self._is_running

    def changed(self, path: str) -> None:
        self._paths[path] = None
        if len(self._paths) > MAX_PATHS:
            self.missed()
        self._begin()

    def missed(self) -> None:
        self._paths.clear()
        self._must_reload = True
        self._begin()

    def _begin(self) -> None:
        if not self._is_running:
            self._is_running = True
            self._tasks.start(self._run(), type(self._cache).__name__)

    async def _run(self) -> None:
        try:
            while self._must_reload or self._paths:
                await self._step()
        finally:
            self._is_running = False

    async def _step(self) -> None:
        """Read the paths that have changed. Changes during the call are left to the next call."""
        must_reload, self._must_reload = self._must_reload, False
        paths: Iterable[str] = list(self._paths)
        self._paths.clear()
        try:
            if must_reload:
                await self._cache.read_again()
            for path in paths:
                await self._cache.refresh(path)
        except StoreError as error:
            logs.warning("metadata_cache.refresh_failed", cache=type(self._cache).__name__, reason=str(error))
            self._must_reload = True
            self._paths.clear()
            await asyncio.sleep(RETRY_PAUSE_S)
