"""The interface of metadata stores: a tree of small values with versions.

Paths look like `/admin/policies/public/default`. Each put increments the version of a value. A put or delete may state
the version that it expects, so two writers never overwrite each other unnoticed. `put` returns when the value is
durable.

Stores: in memory and in SQLite (embedded: this process is their only user), and in ZooKeeper (shared by several
brokers). Differences of a shared store:

* Values change without this process. `watch` reports it; a cache must also handle `missed`, after which changes may have
  gone unnoticed. Reads may be older than another broker's last change; `sync` ends that.
* The store may be unreachable: MetadataUnavailable, a change did not happen. If the answer to a change was lost, the store
  reads back and continues, or raises UnknownOutcome if that does not decide.
* The process has a session. Session values (`put_for_session`) disappear with it. While the session is suspended, nothing
  may start that needs them; once it is lost, everything that relied on them must end. `holds_session` asks the clock, and
  is right immediately after the process was frozen.
* The version of a first put is 0 or, where the path had values below it before, greater. An empty value at a path with
  values below it does not last.
* `delete_tree` is repeatable and not atomic.

Concurrency: called on the event loop. Watches are called on it after the change is durable.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from pybroker.metadata.session_report import SessionEvent, SessionReport, SessionState
from pybroker.model.counters import Buckets

if TYPE_CHECKING:
    from pybroker.zookeeper.session import SessionTicket
from pybroker.runtime import logs

ANY_VERSION = -1
NOT_EXISTING = -2
PAGE_VALUES = 1000
"""The number of values that `values_at` reads with one operation of the store."""


class Versioned(NamedTuple):
    """A value with its version, which is 0 after the first put."""

    value: bytes
    version: int


class NodeTimes(NamedTuple):
    """The times of the first put and of the last change of a value, in milliseconds since 1970."""

    created_ms: int
    changed_ms: int


class Put(NamedTuple):
    """A put within `change_together`, with the meaning of `MetadataStore.put`."""

    path: str
    value: bytes
    expected_version: int = ANY_VERSION


class Delete(NamedTuple):
    """A deletion within `change_together`. Unlike `MetadataStore.delete`, it fails if there is no value."""

    path: str
    expected_version: int = ANY_VERSION


class Check(NamedTuple):
    """A condition within `change_together`: the value must have this version. `expected_version` cannot be
    NOT_EXISTING.
    """

    path: str
    expected_version: int


Change: TypeAlias = Put | Delete | Check


Watch = Callable[[str], None]
Missed = Callable[[], None]
SessionListener = Callable[[SessionEvent], None]


LATENCY_BOUNDS_MS: tuple[float, ...] = (1, 3, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)


class OperationLatencies:
    """Durations of operations since the start in milliseconds, by kind and result; and the number of bytes that were
    put.
    """

    def __init__(self) -> None:
        self.took_ms = {
            (kind, status): Buckets(LATENCY_BOUNDS_MS)
            for kind in ("get", "put", "del")
            for status in ("success", "fail")
        }
        self.put_bytes = 0


class MetadataStore(ABC):
    """Values by path. Raises BadVersionError on a version mismatch and StoreError when the back end fails."""

    @property
    def latencies(self) -> OperationLatencies | None:
        return None

    # --- session -----------------------------------------------------------------------------------------------------

    @property
    def is_shared(self) -> bool:
        return False

    @property
    def session_state(self) -> SessionState:
        return SessionState.CONNECTED

    def holds_session(self) -> bool:
        """Return whether this process certainly has its session now, so that its session values exist. Always True for
        an embedded store.
        """
        return True

    @property
    def session_report(self) -> SessionReport | None:
        """Return the state of the session with a shared store; None for an embedded store."""
        return None

    @property
    def session_ticket(self) -> SessionTicket | None:
        """Return a ticket with which a later process can end this session immediately; None for an embedded store."""
        return None

    def listen(self, listener: SessionListener) -> None:  # noqa: B027  (an embedded store has no events)
        """Call `listener` for each event of the session."""

    # --- values ------------------------------------------------------------------------------------------------------

    @abstractmethod
    async def get(self, path: str) -> Versioned | None:
        """Return the value at `path`; None if there is no value."""

    async def times_of(self, path: str) -> NodeTimes | None:
        """Return when the value at `path` was created and last changed; None if there is no value, or if the store does
        not record times. Raises StoreError.
        """
        return None

    @abstractmethod
    async def put(self, path: str, value: bytes, expected_version: int = ANY_VERSION) -> int:
        """Store a value and return its new version. Raises BadVersionError if the present version is not
        `expected_version` (NOT_EXISTING: there must be no value). Parents need not exist.
        """

    @abstractmethod
    async def delete(self, path: str, expected_version: int = ANY_VERSION) -> bool:
        """Delete the value at `path`, not the values below it. Return False if there was none."""

    @abstractmethod
    async def children(self, path: str) -> list[str]:
        """Return the sorted names directly below `path`: names of values, and names of paths that only have values
        below them.
        """

    @abstractmethod
    async def values_below(self, path: str, after: str, limit: int) -> list[tuple[str, Versioned]]:
        """Return up to `limit` values below `path` with their paths, sorted by path, beginning after the path `after`
        ("": with the first one).

        A list shorter than `limit` means that no more values exist. One call is much faster than a `get` for each
        value.
        """

    def values_at(
        self, path: str, depth: int, page_values: int = PAGE_VALUES
    ) -> AsyncIterator[tuple[list[str], Versioned]]:
        """Yield each value that is exactly `depth` segments below `path`, with these `depth` segments, sorted by path.
        `page_values`: number of values below `path` to read with one operation of the store. Raises StoreError.
        """
        return _values_at(self, path, depth, page_values)

    @abstractmethod
    async def delete_tree(self, path: str) -> int:
        """Delete the value at `path` and all values below it. Return the number of deleted values.

        Atomic in an embedded store. In a shared store, some values may remain after an error; a further call deletes
        them.
        """

    @abstractmethod
    async def values_of(self, paths: Sequence[str]) -> list[Versioned | None]:
        """Return the values at these paths, None for a path without value. One call is much faster than a `get` for
        each path.
        """

    @abstractmethod
    async def change_together(self, changes: Sequence[Change]) -> list[int | None]:
        """Perform all changes or none. Return one item for each change: the new version for a Put, otherwise None.

        Each path may occur once. Raises BadVersionError if a change expects another version than the present one.
        """

    @abstractmethod
    async def put_for_session(self, path: str, value: bytes) -> int:
        """Store a value that disappears at the end of this process's session, and return its version. Raises
        BadVersionError if a value exists.

        Later puts and deletes work as with other values. A deletion that began in one session never takes effect in a
        later session, where the value may be another broker's. A session value cannot have values below it.
        """

    @abstractmethod
    async def create_sequential(self, path: str, value: bytes, *, for_session: bool) -> str:
        """Store a value at a new path: `path` followed by ten digits, a number that rises with each call for the same
        parent. Return the new path. `for_session`: the value disappears at the end of the session.

        No number is used twice, even after a restart. In an embedded store, the parent cannot have a value of its own.
        After UnknownOutcome, a value may exist although no caller knows its path.
        """

    async def sync(self) -> None:  # noqa: B027  (an embedded store has no other users)
        """Return when reads see all changes that other brokers completed before the call."""

    @abstractmethod
    def watch(self, prefix: str, watch: Watch, missed: Missed | None = None) -> None:
        """Call `watch(path)` after every change at or below `prefix`, until the store is closed.

        Call `missed()` when changes may have gone unreported, because a shared store was unreachable. The caller then
        reads all cached values again. A shared store also reports parents that are created or deleted.
        """

    @abstractmethod
    async def close(self) -> None:
        """Close the store. Idempotent."""


def values_at(
    store: MetadataStore, path: str, depth: int, page_values: int = PAGE_VALUES
) -> AsyncIterator[tuple[list[str], Versioned]]:
    """Yield each value that is exactly `depth` segments below `path`, as the method `store.values_at` does."""
    return store.values_at(path, depth, page_values)


async def _values_at(
    store: MetadataStore, path: str, depth: int, page_values: int = PAGE_VALUES
) -> AsyncIterator[tuple[list[str], Versioned]]:
    after, start = "", len(path) + 1
    while True:
        page = await store.values_below(path, after, page_values)
        for found_path, found in page:
            segments = found_path[start:].split("/")
            if len(segments) == depth:
                yield segments, found
        if len(page) < page_values:
            return
        after = page[-1][0]


def prefix_below(path: str) -> str:
    """Return the common prefix of all paths below `path`."""
    assert path.startswith("/"), path
    return path.rstrip("/") + "/"


class Watches:
    """The registered watches of one store.

    An error of a watch is logged, and affects neither other watches nor the store.
    """

    def __init__(self) -> None:
        self._watches: list[tuple[str, str, Watch]] = []

    def add(self, prefix: str, watch: Watch) -> None:
        self._watches.append((prefix, prefix_below(prefix), watch))

    def tell(self, paths: Iterable[str]) -> None:
        if not self._watches:
            return
        for path in paths:
            for exact, below, watch in self._watches:
                if path == exact or path.startswith(below):
                    try:
                        watch(path)
                    except Exception as error:  # noqa: BLE001  (the boundary between the store and its listeners)
                        logs.error("metadata_watch.failed", path=path, exc_info=error)
