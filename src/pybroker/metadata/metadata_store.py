"""The interface of metadata stores: a tree of small values with versions.

Paths look like `/admin/policies/public/default`. Each put increments the version of a value. A put or delete may state
the version that it expects, so two writers never overwrite each other unnoticed. `put` returns when the value is
durable.

Concurrency: called on the event loop. Watches are called on it after the change is durable.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple

from pybroker.model.counters import Buckets

ANY_VERSION = -1
NOT_EXISTING = -2
PAGE_VALUES = 1000
"""The number of values that `values_at` reads with one operation of the store."""


class Versioned(NamedTuple):
    """`version` is 0 for the first put."""

    value: bytes
    version: int


Watch = Callable[[str], None]


LATENCY_BOUNDS_MS: tuple[float, ...] = (1, 3, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)


class OperationLatencies:
    """Durations of operations since the start, in milliseconds, by kind and result; and the bytes that were put."""

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
        """The measured latencies; None without measurement."""
        return None

    @abstractmethod
    async def get(self, path: str) -> Versioned | None:
        """None without a value."""

    @abstractmethod
    async def put(self, path: str, value: bytes, expected_version: int = ANY_VERSION) -> int:
        """Return the version. `expected_version` NOT_EXISTING: only if there is no value yet. Parents need not exist."""

    @abstractmethod
    async def delete(self, path: str, expected_version: int = ANY_VERSION) -> bool:
        """Delete the value at `path` (not its children). Return False if there was none."""

    @abstractmethod
    async def children(self, path: str) -> list[str]:
        """Return the sorted names of everything directly below `path`, values or inner nodes."""

    @abstractmethod
    async def values_below(self, path: str, after: str, limit: int) -> list[tuple[str, Versioned]]:
        """Return up to `limit` values below `path`, with their paths and in their order, behind `after`.

        `after` "" begins; a list shorter than `limit` ends. Costs a fraction of single `get` calls.
        """

    @abstractmethod
    async def delete_tree(self, path: str) -> int:
        """Delete `path` and everything below it in one step. Return the number of values."""

    @abstractmethod
    def watch(self, prefix: str, watch: Watch) -> None:
        """Call `watch(path)` after every change at or below `prefix`, for as long as the store lives."""

    @abstractmethod
    async def close(self) -> None:
        """Release the back end. Idempotent."""


async def values_at(
    store: MetadataStore, path: str, depth: int, page_values: int = PAGE_VALUES
) -> AsyncIterator[tuple[list[str], Versioned]]:
    """Yield each value that is exactly `depth` segments below `path`, with these segments, in the order of the paths.

    Takes one operation of the store for each `page_values` values below `path`. Raises StoreError.
    """
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
