"""A shared metadata store in memory: several brokers, each with its own session, on one tree.

Operations take a random number of event loop iterations, and watches are called in a later one, so that tests meet races. A seed
repeats a run. A test ends sessions (`lose`, `expire`, `renew`) and makes the store unreachable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from random import Random

from pybroker.errors import MetadataUnavailable
from pybroker.metadata.memory_metadata_store import MemoryMetadataStore
from pybroker.metadata.metadata_store import ANY_VERSION, Change, SessionListener, Versioned, Watches
from pybroker.metadata.session_report import SessionEvent, SessionReport, SessionState

MAX_ITERATIONS = 3


class SharedTree:
    """The values of all sessions."""

    def __init__(self, seed: int = 0) -> None:
        self.values: dict[str, Versioned] = {}
        self.owners: dict[str, SessionStore] = {}
        self.random = Random(seed)
        self.stores: list[SessionStore] = []

    def session(self) -> SessionStore:
        store = SessionStore(self)
        self.stores.append(store)
        return store


class _BroadcastWatches(Watches):
    """Watches of one session; a change is told to those of all sessions, in a later iteration."""

    def __init__(self, tree: SharedTree) -> None:
        super().__init__()
        self._tree = tree

    def tell(self, paths: Iterable[str]) -> None:
        found = list(paths)
        for store in self._tree.stores:
            asyncio.get_running_loop().call_soon(store.tell_own, found)

    def tell_own(self, paths: list[str]) -> None:
        super().tell(paths)


class SessionStore(MemoryMetadataStore):
    """The store as one broker sees it."""

    def __init__(self, tree: SharedTree) -> None:
        super().__init__()
        self._tree = tree
        self._values = tree.values
        self._watches: _BroadcastWatches = _BroadcastWatches(tree)
        self._listeners: list[SessionListener] = []
        self._has_session = True
        self.is_reachable = True
        self.sessions = 1
        self.puts = 0

    # --- session -----------------------------------------------------------------------------------------------------

    @property
    def is_shared(self) -> bool:
        return True

    @property
    def session_state(self) -> SessionState:
        return SessionState.CONNECTED if self._has_session else SessionState.LOST

    @property
    def session_report(self) -> SessionReport:
        return SessionReport("zk:memory", self.session_state, 0, self.sessions, 5000, 0, self.sessions - 1, 0, "")

    def holds_session(self) -> bool:
        return self._has_session

    def listen(self, listener: SessionListener) -> None:
        self._listeners.append(listener)

    def lose(self) -> None:
        """The broker gives the session up, by its own clock. Its values exist until `expire`."""
        self._has_session = False
        self._tell_listeners(SessionEvent.LOST)

    def expire(self) -> None:
        """The server deletes the values of the session, of which a killed broker is not told."""
        gone = [path for path, owner in self._tree.owners.items() if owner is self]
        for path in gone:
            self._drop(path)
        self._watches.tell(gone)

    def renew(self) -> None:
        self.expire()
        self.sessions += 1
        self._has_session = True
        self._tell_listeners(SessionEvent.RENEWED)

    def killed(self) -> None:
        """The process ends without a word: no listener, no watch, no operation any more."""
        self.is_reachable = False
        self._tree.stores.remove(self)

    def _tell_listeners(self, event: SessionEvent) -> None:
        for listener in self._listeners:
            listener(event)

    def tell_own(self, paths: list[str]) -> None:
        self._watches.tell_own(paths)

    # --- values ------------------------------------------------------------------------------------------------------

    async def _travel(self) -> int:
        """Raises MetadataUnavailable. Return the session in which the operation began."""
        session = self.sessions
        for _ in range(self._tree.random.randrange(MAX_ITERATIONS)):
            await asyncio.sleep(0)
        if not self.is_reachable:
            raise MetadataUnavailable("the store is unreachable")
        return session

    def _require_session(self, session: int) -> None:
        if session != self.sessions or not self._has_session:
            raise MetadataUnavailable("the session ended")

    async def get(self, path: str) -> Versioned | None:
        await self._travel()
        found = await super().get(path)
        await self._travel()
        return found

    async def values_below(self, path: str, after: str, limit: int) -> list[tuple[str, Versioned]]:
        await self._travel()
        return await super().values_below(path, after, limit)

    async def put(self, path: str, value: bytes, expected_version: int = ANY_VERSION) -> int:
        await self._travel()
        self.puts += 1
        version = await super().put(path, value, expected_version)
        await self._travel()
        return version

    async def delete(self, path: str, expected_version: int = ANY_VERSION) -> bool:
        session = await self._travel()
        if path in self._tree.owners:
            self._require_session(session)
        deleted = await super().delete(path, expected_version)
        await self._travel()
        return deleted

    async def put_for_session(self, path: str, value: bytes) -> int:
        session = await self._travel()
        self._require_session(session)
        version = await super().put_for_session(path, value)
        self._tree.owners[path] = self
        await self._travel()
        return version

    async def change_together(self, changes: Sequence[Change]) -> list[int | None]:
        await self._travel()
        return await super().change_together(changes)

    def _drop(self, path: str) -> None:
        super()._drop(path)
        self._tree.owners.pop(path, None)
