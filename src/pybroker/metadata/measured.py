"""A metadata store that counts how long the operations of another one take, and how many bytes are put into it; slow ones
are logged.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pybroker.metadata.metadata_store import ANY_VERSION, MetadataStore, OperationLatencies, Versioned, Watch
from pybroker.runtime.clock import Clock
from pybroker.runtime.slow_operations import SlowOperations


class MeasuredMetadataStore(MetadataStore):
    """Owns `store`. Each operation is counted when it is answered, from the call on."""

    def __init__(self, store: MetadataStore, clock: Clock, slow: SlowOperations) -> None:
        self._store = store
        self._slow = slow
        self._clock = clock
        self._latencies = OperationLatencies()

    @property
    def latencies(self) -> OperationLatencies:
        return self._latencies

    @contextmanager
    def _measured(self, kind: str, path: str) -> Iterator[None]:
        started_ms, status = self._clock.monotonic_ms(), "fail"
        try:
            yield
            status = "success"
        finally:
            took_ms = self._clock.monotonic_ms() - started_ms
            self._latencies.took_ms[kind, status].add(took_ms)
            if took_ms >= self._slow.threshold_ms:
                self._slow.took("metadata", took_ms, kind=kind, path=path)

    async def get(self, path: str) -> Versioned | None:
        with self._measured("get", path):
            return await self._store.get(path)

    async def put(self, path: str, value: bytes, expected_version: int = ANY_VERSION) -> int:
        with self._measured("put", path):
            version = await self._store.put(path, value, expected_version)
        self._latencies.put_bytes += len(value)
        return version

    async def delete(self, path: str, expected_version: int = ANY_VERSION) -> bool:
        with self._measured("del", path):
            return await self._store.delete(path, expected_version)

    async def children(self, path: str) -> list[str]:
        with self._measured("get", path):
            return await self._store.children(path)

    async def values_below(self, path: str, after: str, limit: int) -> list[tuple[str, Versioned]]:
        with self._measured("get", path):
            return await self._store.values_below(path, after, limit)

    async def delete_tree(self, path: str) -> int:
        with self._measured("del", path):
            return await self._store.delete_tree(path)

    def watch(self, prefix: str, watch: Watch) -> None:
        self._store.watch(prefix, watch)

    async def close(self) -> None:
        await self._store.close()
