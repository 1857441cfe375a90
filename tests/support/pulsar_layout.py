"""Managed ledgers in Pulsar's layout on the model of bookies, with brokers that take over from each other."""

from __future__ import annotations

from random import Random
from weakref import WeakValueDictionary

from tests.support.bookkeeper_store_model import ModelCluster
from tests.unit.managed_ledger.stack import PATH, SMALL, FakeClock, Topic, publish_time_of

from pybroker.bookkeeper_store.bookkeeper_cursor_store import BookKeeperCursorStore
from pybroker.bookkeeper_store.client_options import max_entry_bytes
from pybroker.bookkeeper_store.documents.cursor_node import CursorNode
from pybroker.bookkeeper_store.naming_limit import NamingLimit
from pybroker.bookkeeper_store.pulsar_records import PulsarRecords
from pybroker.ledgers.ledger_properties import ClusterMark
from pybroker.managed_ledger.cache.entry_cache import EntryCache
from pybroker.managed_ledger.factory import ManagedLedgerFactory
from pybroker.managed_ledger.managed_ledger import ManagedLedger
from pybroker.managed_ledger.rollover import LedgerLimits
from pybroker.managed_ledger.shared_resources import LedgerResources
from pybroker.metadata.memory_metadata_store import MemoryMetadataStore
from pybroker.metadata.metadata_store import MetadataStore
from pybroker.runtime.clock import Clock


class LayoutBroker:
    """One broker on the shared metadata and bookies."""

    def __init__(
        self,
        cluster: ModelCluster,
        metadata: MetadataStore,
        limits: LedgerLimits = SMALL,
        max_cursor_entries: int = 50_000,
        max_state_bytes: int | None = None,
        mark: ClusterMark | None = None,
        client_clock: Clock | None = None,
    ) -> None:
        self.clock = FakeClock()
        self.metadata = metadata
        nodes: WeakValueDictionary[str, CursorNode] = WeakValueDictionary()
        naming = NamingLimit(self.clock, mark)
        self.store = cluster.store(client_clock, naming=naming)
        self.cursors = BookKeeperCursorStore(
            self.store.client,
            metadata,
            nodes,
            max_entry_bytes=max_state_bytes or max_entry_bytes(cluster.options),
            max_entries=max_cursor_entries,
            naming=naming,
        )
        resources = LedgerResources(self.store, EntryCache(1 << 20), limits, self.clock, 10_000, publish_time_of)
        self.records = PulsarRecords(self.store.client, metadata, nodes, self.clock)
        self.factory = ManagedLedgerFactory(resources, self.cursors, metadata, self.records)

    async def open(self, path: str = PATH) -> tuple[ManagedLedger, Topic]:
        managed = await self.factory.open(path)
        return managed, Topic(managed)

    async def stop(self) -> None:
        """Close in order."""
        await self.factory.close()
        await self.crash()

    async def crash(self) -> None:
        await self.factory.tasks.close()
        await self.cursors.close()
        await self.store.close()


class Layout:
    """Bookies and metadata."""

    def __init__(self, seed: int = 1, metadata: MetadataStore | None = None) -> None:
        self.cluster = ModelCluster(Random(seed))
        self.metadata = MemoryMetadataStore() if metadata is None else metadata

    def broker(
        self,
        limits: LedgerLimits = SMALL,
        max_cursor_entries: int = 50_000,
        max_state_bytes: int | None = None,
        mark: ClusterMark | None = None,
        client_clock: Clock | None = None,
    ) -> LayoutBroker:
        return LayoutBroker(
            self.cluster,
            self.metadata,
            limits,
            max_cursor_entries,
            max_state_bytes=max_state_bytes,
            mark=mark,
            client_clock=client_clock,
        )
