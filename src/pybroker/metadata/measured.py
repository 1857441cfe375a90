"""A metadata store that measures the durations and written bytes of another store, and logs slow operations."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager

from pybroker.metadata.metadata_store import (
    ANY_VERSION,
    PAGE_VALUES,
    Change,
    MetadataStore,
    Missed,
    NodeTimes,
    OperationLatencies,
    Put,
    SessionListener,
    Versioned,
    Watch,
)
from pybroker.metadata.session_report import SessionReport, SessionState
from pybroker.runtime.clock import Clock
from pybroker.runtime.slow_operations import SlowOperations


class MeasuredMetadataStore(MetadataStore):
    """Owns the measured `store`. An operation is counted when it completes, with the time since its call."""

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

    async def times_of(self, path: str) -> NodeTimes | None:
        with self._measured("get", path):
            return await self._store.times_of(path)

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

    def values_at(
        self, path: str, depth: int, page_values: int = PAGE_VALUES
    ) -> AsyncIterator[tuple[list[str], Versioned]]:
        """Yield the values of the measured store. The reads of an embedded store are measured; those of a shared store
        are not.
        """
        if self._store.is_shared:
            return self._store.values_at(path, depth, page_values)
        return super().values_at(path, depth, page_values)

    async def values_of(self, paths: Sequence[str]) -> list[Versioned | None]:
        with self._measured("get", paths[0] if paths else ""):
            return await self._store.values_of(paths)

    async def change_together(self, changes: Sequence[Change]) -> list[int | None]:
        with self._measured("put", changes[0].path if changes else ""):
            versions = await self._store.change_together(changes)
        self._latencies.put_bytes += sum(len(change.value) for change in changes if isinstance(change, Put))
        return versions

    async def put_for_session(self, path: str, value: bytes) -> int:
        with self._measured("put", path):
            version = await self._store.put_for_session(path, value)
        self._latencies.put_bytes += len(value)
        return version

    async def create_sequential(self, path: str, value: bytes, *, for_session: bool) -> str:
        with self._measured("put", path):
            created = await self._store.create_sequential(path, value, for_session=for_session)
        self._latencies.put_bytes += len(value)
        return created

    async def sync(self) -> None:
        with self._measured("get", "/"):
            await self._store.sync()

    def watch(self, prefix: str, watch: Watch, missed: Missed | None = None) -> None:
        self._store.watch(prefix, watch, missed)

    @property
    def is_shared(self) -> bool:
        return self._store.is_shared

    @property
    def session_state(self) -> SessionState:
        return self._store.session_state

    @property
    def session_report(self) -> SessionReport | None:
        return self._store.session_report

    def holds_session(self) -> bool:
        return self._store.holds_session()

    def listen(self, listener: SessionListener) -> None:
        self._store.listen(listener)

    async def close(self) -> None:
        await self._store.close()
