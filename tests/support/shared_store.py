"""A metadata store that several brokers in one process share, with sessions that a test loses and ends.

The rules of ZooKeeper that ownership relies on: a session value belongs to the session that created it; the server ends a session
later than its client counts it as lost; an operation that is under way then may still happen, and its client does not learn it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from pybroker.errors import BadVersionError, MetadataUnavailable, UnknownOutcome
from pybroker.metadata.memory_metadata_store import MemoryMetadataStore
from pybroker.metadata.metadata_store import (
    ANY_VERSION,
    Change,
    MetadataStore,
    Missed,
    SessionListener,
    Versioned,
    Watch,
)
from pybroker.metadata.session_report import SessionEvent, SessionState

Pause = Callable[[], Awaitable[None]]


async def _no_pause() -> None:
    return


class SharedTree:
    """The servers: values, and the session of each session value."""

    def __init__(self) -> None:
        self.values = MemoryMetadataStore()
        self.session_of: dict[str, int] = {}
        self._sessions = 0

    def new_session(self) -> int:
        self._sessions += 1
        return self._sessions

    async def end(self, session: int) -> None:
        """Delete the values of a session."""
        for path in [path for path, each in self.session_of.items() if each == session]:
            del self.session_of[path]
            await self.values.delete(path)

    def note_deleted(self, path: str) -> None:
        self.session_of.pop(path, None)


class SharedSession(MetadataStore):
    """One broker's connection. `pause` runs before and behind each operation."""

    def __init__(self, tree: SharedTree, pause: Pause = _no_pause) -> None:
        self.tree = tree
        self.pause = pause
        self.session = tree.new_session()
        self.is_lost = False
        self._past: list[int] = []  # sessions that this client lost and the server has not ended
        self._listeners: list[SessionListener] = []
        self._missed: list[Missed] = []
        self._is_told = True

    # --- what a test does --------------------------------------------------------------------------------------------

    def lose(self, *, with_event: bool = True) -> None:
        """The client's clock says that the session is over. Without the event: the process was frozen until now."""
        assert not self.is_lost
        self.is_lost = True
        self._past.append(self.session)
        self._is_told = False
        if with_event:
            self.tell_loss()

    def tell_loss(self) -> None:
        if not self._is_told:
            self._is_told = True
            self._tell(SessionEvent.LOST)

    async def end_past_sessions(self) -> None:
        """The server ends the sessions that the client has lost."""
        past, self._past = self._past, []
        for session in past:
            await self.tree.end(session)

    def renew(self) -> None:
        self.tell_loss()
        self.session, self.is_lost = self.tree.new_session(), False
        self._tell(SessionEvent.RENEWED)
        for missed in self._missed:
            missed()

    def _tell(self, event: SessionEvent) -> None:
        for listener in self._listeners:
            listener(event)

    # --- the store ---------------------------------------------------------------------------------------------------

    @property
    def is_shared(self) -> bool:
        return True

    @property
    def session_state(self) -> SessionState:
        return SessionState.LOST if self.is_lost else SessionState.CONNECTED

    def holds_session(self) -> bool:
        return not self.is_lost

    def listen(self, listener: SessionListener) -> None:
        self._listeners.append(listener)

    async def _begin(self) -> int:
        session = self.session
        await self.pause()
        if self.is_lost or session != self.session:
            raise MetadataUnavailable("the session is lost")
        return session

    async def _end(self, session: int) -> None:
        await self.pause()
        if self.is_lost or session != self.session:
            raise UnknownOutcome("the answer is lost with the session")

    def _require_session(self) -> int:
        if self.is_lost:
            raise MetadataUnavailable("the session is lost")
        return self.session

    def _require_sent(self, session: int) -> None:
        """A request that was sent before the loss of its session still reaches the server, unless the server has ended it."""
        if session != self.session and session not in self._past:
            raise MetadataUnavailable("the session is lost")

    async def get(self, path: str) -> Versioned | None:
        session = await self._begin()
        found = await self.tree.values.get(path)
        await self.pause()
        if self.is_lost or session != self.session:
            raise MetadataUnavailable("the session is lost")
        return found

    async def put(self, path: str, value: bytes, expected_version: int = ANY_VERSION) -> int:
        session = await self._begin()
        version = await self.tree.values.put(path, value, expected_version)
        await self._end(session)
        return version

    async def delete(self, path: str, expected_version: int = ANY_VERSION) -> bool:
        session = self._require_session()
        await self.pause()
        self._require_sent(session)
        existed = await self.tree.values.delete(path, expected_version)
        self.tree.note_deleted(path)
        await self._end(session)
        return existed

    async def children(self, path: str) -> list[str]:
        await self._begin()
        return await self.tree.values.children(path)

    async def values_below(self, path: str, after: str, limit: int) -> list[tuple[str, Versioned]]:
        await self._begin()
        return await self.tree.values.values_below(path, after, limit)

    async def delete_tree(self, path: str) -> int:
        await self._begin()
        return await self.tree.values.delete_tree(path)

    async def values_of(self, paths: Sequence[str]) -> list[Versioned | None]:
        session = await self._begin()
        found = await self.tree.values.values_of(paths)
        await self.pause()
        if self.is_lost or session != self.session:
            raise MetadataUnavailable("the session is lost")
        return found

    async def change_together(self, changes: Sequence[Change]) -> list[int | None]:
        session = await self._begin()
        versions = await self.tree.values.change_together(changes)
        await self._end(session)
        return versions

    async def put_for_session(self, path: str, value: bytes) -> int:
        session = self._require_session()
        await self.pause()
        self._require_sent(session)
        if await self.tree.values.get(path) is not None:
            raise BadVersionError(f"the node {path} already exists")
        self.tree.session_of[path] = session
        version = await self.tree.values.put(path, value)
        await self._end(session)
        await self.pause()  # the caller continues later than the answer arrives
        return version

    async def create_sequential(self, path: str, value: bytes, *, for_session: bool) -> str:
        await self._begin()
        return await self.tree.values.create_sequential(path, value, for_session=for_session)

    def watch(self, prefix: str, watch: Watch, missed: Missed | None = None) -> None:
        self.tree.values.watch(prefix, watch)
        if missed is not None:
            self._missed.append(missed)

    async def close(self) -> None:
        """Nothing: the values stay, as after kill -9, until `end_past_sessions`."""
