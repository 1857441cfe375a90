"""The schema registry of a broker: registration, lookup, compatibility checks and deletion of schemas.

A partition has the schemas of its partitioned topic. A `SchemaStorage` has the versions: in the metadata store, or in
Pulsar's layout on BookKeeper.

Invariants: a returned version is durable. Versions of a topic are consecutive and are assigned once, also under
concurrent registration. Registering an equal schema returns its existing version. In this process a lock serializes
changes of a topic's schemas; between brokers, a version is written only if it does not exist.

The caller checks permissions and selects the compatibility strategy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TypeVar
from weakref import WeakValueDictionary

from pybroker.errors import StoreError
from pybroker.metadata.metadata_store import MetadataStore
from pybroker.model.counters import OperationCounters, SchemaCounters
from pybroker.model.names import NamespaceName, TopicName
from pybroker.runtime import logs
from pybroker.runtime.clock import Clock
from pybroker.schema.compatibility import CompatibilityStrategy, check
from pybroker.schema.history import History, HistoryCache, StoredSchema
from pybroker.schema.identity import schema_digest
from pybroker.schema.schema_data import Incompatible, SchemaData
from pybroker.schema.schema_storage import MetadataSchemaStorage, SchemaPosition, SchemaRecord, SchemaStorage
from pybroker.schema.validation import validate

THREAD_BYTES = 16 * 1024
"""Larger schemas are parsed and compared in a thread, one request at a time: 1 MB can take seconds."""
_Result = TypeVar("_Result")
CACHE_LIMIT_BYTES = 16 * 1024 * 1024
_WRITE_ATTEMPTS = 5  # retries after another writer's version

# Under these strategies, a consumer's schema must be able to read all versions; otherwise the newest.
_CHECKED_AGAINST_ALL = frozenset({CompatibilityStrategy.BACKWARD_TRANSITIVE, CompatibilityStrategy.FULL_TRANSITIVE})


class SchemaRegistry:
    """The schemas of all topics. All methods raise StoreError if the metadata store fails."""

    def __init__(self, store: MetadataStore, clock: Clock, storage: SchemaStorage | None = None) -> None:
        """`store` reports changes by other brokers. Without `storage`, the versions are in `store` too."""
        self._storage = storage or MetadataSchemaStorage(store)
        self._clock = clock
        self._cache = HistoryCache(CACHE_LIMIT_BYTES)
        # Locks of topics with a running operation.
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._writing: set[str] = set()
        self._stale: set[str] = set()  # changed by another broker during a read
        self._large = asyncio.Semaphore(1)
        self.counters: dict[NamespaceName, SchemaCounters] = {}
        store.watch(self._storage.root, self._changed, self._missed)

    # --- read --------------------------------------------------------------------------------------------------------

    async def history(self, topic: TopicName) -> History:
        counters = self._counters(topic)
        with self._measured(counters.get):
            path = self._storage.topic_path(topic)
            found = self._cache.get(path)
            if found is None:
                async with self._lock(path):
                    found = await self._history(path)
            return found

    async def positions(self, topic: TopicName) -> list[SchemaPosition]:
        """Return the ledger entries in which the versions of a topic's schema are stored; an empty list if the storage
        does not use ledgers. Raises StoreError.
        """
        return await self._storage.positions(self._storage.topic_path(topic))

    async def version_of(self, topic: TopicName, schema: SchemaData) -> int | None:
        digest = await self._in_proportion([schema], lambda: schema_digest(schema))
        found = (await self.history(topic)).with_digest(digest)
        return None if found is None else found.version

    # --- check -------------------------------------------------------------------------------------------------------

    async def check(self, topic: TopicName, schema: SchemaData, strategy: str) -> None:
        """Raise InvalidSchema or Incompatible if `register` would refuse `schema` for the topic now."""
        await self._in_proportion([schema], lambda: validate(schema))
        await self._check(topic, strategy, (await self.history(topic)).versions, schema)

    async def check_consumer(self, topic: TopicName, schema: SchemaData, strategy: str) -> None:
        """Raise InvalidSchema or Incompatible if a consumer with `schema` may not subscribe to the topic: if the schema
        cannot read the topic's messages, if `strategy` refuses every schema, or if the topic is used without a schema.
        """
        if strategy == CompatibilityStrategy.ALWAYS_COMPATIBLE:
            return
        await self._in_proportion([schema], lambda: validate(schema))
        versions = (await self.history(topic)).versions
        if not versions or strategy == CompatibilityStrategy.ALWAYS_INCOMPATIBLE:
            self._counters(topic).incompatible += 1
            raise Incompatible(
                f"the compatibility strategy {strategy} refuses the {schema.type.name} schema of every consumer. "
                "Subscribe without a schema, or change the strategy of the namespace"
                if versions
                else f"the topic is in use without a schema, so its messages may not match the consumer's {schema.type.name} schema"
            )
        if strategy in _CHECKED_AGAINST_ALL:
            await self._check(topic, strategy, versions, schema)
        else:
            await self._check(topic, CompatibilityStrategy.BACKWARD, versions[-1:], schema)

    async def _check(
        self, topic: TopicName, strategy: str, existing: Sequence[StoredSchema], schema: SchemaData
    ) -> None:
        if not existing:
            return
        counters = self._counters(topic)
        older = [each.schema for each in existing]
        try:
            await self._in_proportion([*older, schema], lambda: check(CompatibilityStrategy(strategy), older, schema))
        except Incompatible:
            counters.incompatible += 1
            raise
        counters.compatible += 1

    async def _in_proportion(self, schemas: Sequence[SchemaData], act: Callable[[], _Result]) -> _Result:
        """Call `act`: in a thread if `schemas` are large, otherwise on the event loop."""
        if sum(len(schema.data) for schema in schemas) < THREAD_BYTES:
            return act()
        async with self._large:
            return await asyncio.to_thread(act)

    # --- change ------------------------------------------------------------------------------------------------------

    async def register(self, topic: TopicName, schema: SchemaData, strategy: str) -> int:
        """Return the version of `schema` for the topic; a new schema is registered first. Raises InvalidSchema or
        Incompatible.
        """
        digest = await self._in_proportion([schema], lambda: _validated_digest(schema))
        path = self._storage.topic_path(topic)
        known = self._cache.get(path)
        if known is not None and (found := known.with_digest(digest)) is not None:
            return found.version  # the usual case: a client reconnects
        counters = self._counters(topic)
        with self._measured(counters.put):
            async with self._lock(path):
                for _ in range(_WRITE_ATTEMPTS):
                    history = await self._history(path)
                    if (found := history.with_digest(digest)) is not None:
                        return found.version
                    await self._check(topic, strategy, history.versions, schema)
                    added = StoredSchema(history.next_version, schema, self._clock.wall_ms(), digest)
                    if await self._append(path, history.next_version, SchemaRecord(schema, added.timestamp_ms)):
                        self._keep(path, history.added(added))
                        logs.info("schema.registered", topic=topic, type=schema.type.name, version=added.version)
                        return added.version
        raise StoreError(f"the schemas of topic {topic} are being changed by other requests: try again")

    async def delete(self, topic: TopicName) -> int:
        """Delete all schema versions of a topic. Return the version number that the deletion itself gets."""
        counters, path = self._counters(topic), self._storage.topic_path(topic)
        with self._measured(counters.delete):
            async with self._lock(path):
                for _ in range(_WRITE_ATTEMPTS):
                    history = await self._history(path)
                    deletion = SchemaRecord(None, self._clock.wall_ms())
                    if await self._append(path, history.next_version, deletion):
                        self._keep(path, history.deleted())
                        logs.info("schema.deleted", topic=topic, version=history.next_version)
                        return history.next_version
        raise StoreError(f"the schemas of topic {topic} are being changed by other requests: try again")

    async def drop(self, topic: TopicName) -> None:
        """Remove the schemas of a topic that was deleted. Does nothing for a partition, whose schemas belong to the
        partitioned topic.
        """
        if topic.partition_index >= 0:
            return
        counters, path = self._counters(topic), self._storage.topic_path(topic)
        with self._measured(counters.delete):
            async with self._lock(path):
                self._cache.drop(path)
                if await self._storage.drop(path):
                    logs.info("schema.dropped", topic=topic)

    async def drop_namespace(self, namespace: NamespaceName) -> None:
        """Remove all schemas of a namespace that was deleted. The caller must have stopped registrations."""
        path = self._storage.namespace_path(namespace)
        await self._storage.drop(path)
        self._cache.drop_below(path)
        self.counters.pop(namespace, None)

    # --- the store ---------------------------------------------------------------------------------------------------

    def _lock(self, path: str) -> asyncio.Lock:
        return self._locks.setdefault(path, asyncio.Lock())

    async def _history(self, path: str) -> History:
        """Return the schema versions at `path`. The caller must have the topic's lock; otherwise an outdated history
        could be cached.
        """
        found = self._cache.get(path)
        if found is not None:
            return found
        stored = await self._storage.read(path)
        versions: list[StoredSchema] = []
        for version, (schema, timestamp_ms) in stored.records:
            assert schema is not None, "versions since the last deletion"
            digest = await self._in_proportion([schema], partial(schema_digest, schema))
            versions.append(StoredSchema(version, schema, timestamp_ms, digest))
        history = History(tuple(versions), stored.next_version)
        self._keep(path, history)
        return history

    async def _append(self, path: str, version: int, record: SchemaRecord) -> bool:
        written = self._storage.document_path(path, version)
        self._writing.add(written)
        try:
            is_stored = await self._storage.append(path, version, record)
        finally:
            self._writing.discard(written)
        if not is_stored:
            self._cache.drop(path)
        return is_stored

    def _keep(self, path: str, history: History) -> None:
        """Cache a history read or written under the lock, unless another broker changed it meanwhile."""
        if path in self._stale:
            self._stale.discard(path)
        else:
            self._cache.put(path, history)

    def _changed(self, path: str) -> None:
        """Invalidate the cached history after a change by another broker or a deletion."""
        if path in self._writing:
            return
        topic_path = self._storage.topic_path_of_change(path)
        self._cache.drop(topic_path)
        if topic_path in self._locks:
            self._stale.add(topic_path)

    def _missed(self) -> None:
        """Forget all histories: changes by other brokers may have gone unreported."""
        self._cache.drop_below(self._storage.root)
        self._stale.update(self._locks.keys())

    # --- counting ----------------------------------------------------------------------------------------------------

    def _counters(self, topic: TopicName) -> SchemaCounters:
        counters = self.counters.get(topic.namespace)
        if counters is None:
            counters = self.counters[topic.namespace] = SchemaCounters()
        return counters

    @contextmanager
    def _measured(self, operation: OperationCounters) -> Iterator[None]:
        started_ms = self._clock.monotonic_ms()
        try:
            yield
        except StoreError:
            operation.failures += 1
            raise
        operation.took_ms.add(self._clock.monotonic_ms() - started_ms)


def _validated_digest(schema: SchemaData) -> bytes:
    validate(schema)
    return schema_digest(schema)
