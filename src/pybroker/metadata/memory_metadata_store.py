"""MetadataStore in memory, for tests and for brokers without durable data.

One contract test runs against all implementations.
"""

from __future__ import annotations

from heapq import nsmallest

from pybroker.errors import BadVersionError, StoreError
from pybroker.metadata.metadata_store import ANY_VERSION, NOT_EXISTING, MetadataStore, Versioned, Watch
from pybroker.metadata.watches import Watches, prefix_below


class MemoryMetadataStore(MetadataStore):
    """A dict of values by path."""

    def __init__(self) -> None:
        self._values: dict[str, Versioned] = {}
        self._watches = Watches()
        self._closed = False

    def copied(self) -> MemoryMetadataStore:
        """Return a store with the same values, without watches."""
        copy = MemoryMetadataStore()
        copy._values = dict(self._values)
        return copy

    async def get(self, path: str) -> Versioned | None:
        self._require_open()
        return self._values.get(path)

    async def put(self, path: str, value: bytes, expected_version: int = ANY_VERSION) -> int:
        self._require_open()
        existing = self._values.get(path)
        require_version(path, existing.version if existing else None, expected_version)
        version = existing.version + 1 if existing else 0
        self._values[path] = Versioned(bytes(value), version)
        self._watches.tell((path,))
        return version

    async def delete(self, path: str, expected_version: int = ANY_VERSION) -> bool:
        self._require_open()
        existing = self._values.get(path)
        require_version(path, existing.version if existing else None, expected_version)
        if existing is None:
            return False
        del self._values[path]
        self._watches.tell((path,))
        return True

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
            del self._values[key]
        self._watches.tell(dropped)
        return len(dropped)

    def watch(self, prefix: str, watch: Watch) -> None:
        self._watches.add(prefix, watch)

    async def close(self) -> None:
        self._closed = True

    def _require_open(self) -> None:
        if self._closed:
            raise StoreError("the metadata store is closed")


def require_version(path: str, present: int | None, expected: int) -> None:
    """Raise BadVersionError unless `present`, None without a value, is the expected version."""
    if expected == ANY_VERSION:
        return
    if expected == NOT_EXISTING:
        if present is not None:
            raise BadVersionError(f"{path} exists already, version {present}")
    elif present != expected:
        found = "does not exist" if present is None else f"has version {present}"
        raise BadVersionError(f"{path} {found}, expected version {expected}")
