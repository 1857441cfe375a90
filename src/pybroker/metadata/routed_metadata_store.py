"""A metadata store that passes each operation to one of several stores, chosen by the path.

In a shared store, the broker keeps documents that all brokers need. Documents that only make sense with its local
ledgers are in the embedded store of its data directory. The documents that several clusters share may be in a third
store.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pybroker.metadata.metadata_store import (
    ANY_VERSION,
    PAGE_VALUES,
    Change,
    MetadataStore,
    Missed,
    NodeTimes,
    SessionListener,
    Versioned,
    Watch,
)
from pybroker.metadata.session_report import SessionReport, SessionState

if TYPE_CHECKING:
    from pybroker.zookeeper.session import SessionTicket


class RoutedMetadataStore(MetadataStore):
    """`routes` maps paths to stores: a store has the values at and below its path, and the longest matching path
    counts. All other paths are in `rest`.

    The session is the session of `rest`. This object owns the stores. An operation must not involve two stores.
    """

    def __init__(self, routes: Mapping[str, MetadataStore], rest: MetadataStore) -> None:
        # Longest first, so that the first match counts.
        self._routes = sorted(routes.items(), key=lambda route: len(route[0]), reverse=True)
        self._rest = rest

    def _store(self, path: str) -> MetadataStore:
        for prefix, store in self._routes:
            if path.startswith(prefix) and path[len(prefix) : len(prefix) + 1] in ("", "/"):
                return store
        return self._rest

    @property
    def is_shared(self) -> bool:
        return self._rest.is_shared

    @property
    def session_state(self) -> SessionState:
        return self._rest.session_state

    @property
    def session_report(self) -> SessionReport | None:
        return self._rest.session_report

    @property
    def session_ticket(self) -> SessionTicket | None:
        return self._rest.session_ticket

    def holds_session(self) -> bool:
        return self._rest.holds_session()

    def listen(self, listener: SessionListener) -> None:
        self._rest.listen(listener)

    async def get(self, path: str) -> Versioned | None:
        return await self._store(path).get(path)

    async def times_of(self, path: str) -> NodeTimes | None:
        return await self._store(path).times_of(path)

    async def put(self, path: str, value: bytes, expected_version: int = ANY_VERSION) -> int:
        return await self._store(path).put(path, value, expected_version)

    async def delete(self, path: str, expected_version: int = ANY_VERSION) -> bool:
        return await self._store(path).delete(path, expected_version)

    async def children(self, path: str) -> list[str]:
        return await self._store(path).children(path)

    async def values_below(self, path: str, after: str, limit: int) -> list[tuple[str, Versioned]]:
        return await self._store(path).values_below(path, after, limit)

    def values_at(
        self, path: str, depth: int, page_values: int = PAGE_VALUES
    ) -> AsyncIterator[tuple[list[str], Versioned]]:
        return self._store(path).values_at(path, depth, page_values)

    async def delete_tree(self, path: str) -> int:
        return await self._store(path).delete_tree(path)

    async def values_of(self, paths: Sequence[str]) -> list[Versioned | None]:
        found: dict[str, Versioned | None] = {}
        by_store: dict[MetadataStore, list[str]] = {}
        for path in paths:
            by_store.setdefault(self._store(path), []).append(path)
        for store, own in by_store.items():
            found.update(zip(own, await store.values_of(own), strict=True))
        return [found[path] for path in paths]

    async def change_together(self, changes: Sequence[Change]) -> list[int | None]:
        stores = {self._store(change.path) for change in changes}
        assert len(stores) <= 1, "changes of two stores cannot happen together"
        return await (stores.pop() if stores else self._rest).change_together(changes)

    async def put_for_session(self, path: str, value: bytes) -> int:
        return await self._store(path).put_for_session(path, value)

    async def create_sequential(self, path: str, value: bytes, *, for_session: bool) -> str:
        return await self._store(path).create_sequential(path, value, for_session=for_session)

    async def sync(self) -> None:
        for store in self._all():
            await store.sync()

    def watch(self, prefix: str, watch: Watch, missed: Missed | None = None) -> None:
        self._store(prefix).watch(prefix, watch, missed)

    async def close(self) -> None:
        for store in self._all():
            await store.close()

    def _all(self) -> list[MetadataStore]:
        return list(dict.fromkeys([store for _, store in self._routes] + [self._rest]))
