"""The metadata store in memory, for tests and for brokers without durable data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import nsmallest

from pybroker.errors import BadVersionError, StoreError
from pybroker.metadata.metadata_store import (
    ANY_VERSION,
    NOT_EXISTING,
    Change,
    Check,
    Delete,
    MetadataStore,
    Missed,
    Put,
    Versioned,
    Watch,
    Watches,
    prefix_below,
)


class MemoryMetadataStore(MetadataStore):
    """A metadata store in a dict of values by path."""

    def __init__(self) -> None:
        self._values: dict[str, Versioned] = {}
        self._of_session: set[str] = set()
        self._watches = Watches()
        self._closed = False

    def copied(self) -> MemoryMetadataStore:
        """Return a copy of the store without session values and without watches: the content of the store after this
        broker has ended.
        """
        copy = MemoryMetadataStore()
        copy._values = {path: value for path, value in self._values.items() if path not in self._of_session}
        return copy

    async def get(self, path: str) -> Versioned | None:
        self._require_open()
        return self._values.get(path)

    async def put(self, path: str, value: bytes, expected_version: int = ANY_VERSION) -> int:
        self._require_open()
        existing = self._values.get(path)
        require_version(path, existing.version if existing else None, expected_version)
        version = self._put(path, value)
        self._watches.tell((path,))
        return version

    def _put(self, path: str, value: bytes) -> int:
        existing = self._values.get(path)
        version = existing.version + 1 if existing else 0
        self._values[path] = Versioned(bytes(value), version)
        return version

    async def delete(self, path: str, expected_version: int = ANY_VERSION) -> bool:
        self._require_open()
        existing = self._values.get(path)
        require_version(path, existing.version if existing else None, expected_version)
        if existing is None:
            return False
        self._drop(path)
        self._watches.tell((path,))
        return True

    def _drop(self, path: str) -> None:
        del self._values[path]
        self._of_session.discard(path)

    async def children(self, path: str) -> list[str]:
        self._require_open()
        prefix = prefix_below(path)
        return sorted({key[len(prefix) :].partition("/")[0] for key in self._values if key.startswith(prefix)})

    async def values_below(self, path: str, after: str, limit: int) -> list[tuple[str, Versioned]]:
        self._require_open()
        prefix = prefix_below(path)
        # By bytes, as SQLite orders them.
        keys = (key for key in self._values if key.startswith(prefix) and key.encode() > after.encode())
        return [(key, self._values[key]) for key in nsmallest(limit, keys, key=str.encode)]

    async def delete_tree(self, path: str) -> int:
        self._require_open()
        prefix = prefix_below(path)
        dropped = [key for key in self._values if key == path or key.startswith(prefix)]
        for key in dropped:
            self._drop(key)
        self._watches.tell(dropped)
        return len(dropped)

    async def values_of(self, paths: Sequence[str]) -> list[Versioned | None]:
        self._require_open()
        return [self._values.get(path) for path in paths]

    async def change_together(self, changes: Sequence[Change]) -> list[int | None]:
        self._require_open()
        require_changes(changes, lambda path: found.version if (found := self._values.get(path)) else None)
        versions: list[int | None] = []
        for change in changes:
            versions.append(self._put(change.path, change.value) if isinstance(change, Put) else None)
            if isinstance(change, Delete):
                self._drop(change.path)
        self._watches.tell([change.path for change in changes if not isinstance(change, Check)])
        return versions

    async def put_for_session(self, path: str, value: bytes) -> int:
        self._require_open()
        existing = self._values.get(path)
        require_version(path, existing.version if existing else None, NOT_EXISTING)
        version = self._put(path, value)
        self._of_session.add(path)
        self._watches.tell((path,))
        return version

    async def create_sequential(self, path: str, value: bytes, *, for_session: bool) -> str:
        self._require_open()
        parent = path.rpartition("/")[0]
        existing = self._values.get(parent)
        require_countable(parent, existing)
        created = f"{path}{self._put(parent, b''):010d}"
        self._put(created, value)
        if for_session:
            self._of_session.add(created)
        self._watches.tell((parent, created))
        return created

    def watch(self, prefix: str, watch: Watch, missed: Missed | None = None) -> None:
        self._watches.add(prefix, watch)

    async def close(self) -> None:
        self._closed = True

    def _require_open(self) -> None:
        if self._closed:
            raise StoreError("the metadata store is closed")


def require_changes(changes: Sequence[Change], version_of: Callable[[str], int | None]) -> None:
    """Raise BadVersionError if a change expects another version than the present one, or deletes or checks a path
    without value. `version_of` returns the present version of a path, None for a path without value.
    """
    assert len({change.path for change in changes}) == len(changes), "a path occurs once"
    for change in changes:
        present = version_of(change.path)
        require_version(change.path, present, change.expected_version)
        if present is None and not isinstance(change, Put):
            raise BadVersionError(f"{change.path} does not exist")


def require_countable(parent: str, existing: Versioned | None) -> None:
    """Raise StoreError if `existing`, the value at `parent`, is not empty.

    Each new numbered child gets its number from the version of `parent`. To increment that version, an empty value is
    stored at `parent`, which would overwrite another value.
    """
    if existing is not None and existing.value:
        raise StoreError(
            f"no numbered node can be created below {parent} in the metadata store, because {parent} itself has a value"
        )


def require_version(path: str, present: int | None, expected: int) -> None:
    """Raise BadVersionError unless `present`, the version of the value at `path` (None without a value), meets the
    expectation: a version, ANY_VERSION, or NOT_EXISTING.
    """
    if expected == ANY_VERSION:
        return
    if expected == NOT_EXISTING:
        if present is not None:
            raise BadVersionError(f"the node {path} already exists with version {present}")
    elif present != expected:
        found = "does not exist" if present is None else f"has version {present}"
        raise BadVersionError(f"the node {path} {found}, but version {expected} was expected")
