"""Construction of a broker from its runtime and stores, without a process, socket, signal, or file."""

from __future__ import annotations

from dataclasses import dataclass

from pybroker.broker.context.topic_ownership import NotJoined
from pybroker.broker.service import BrokerService
from pybroker.config import BrokerConfig, ConfigError
from pybroker.errors import AdminError, InvalidTopicName
from pybroker.ledgers.cursor_store import CursorStore
from pybroker.ledgers.ledger_store import LedgerStore
from pybroker.managed_ledger.cache.entry_cache import EntryCache
from pybroker.managed_ledger.factory import ManagedLedgerFactory
from pybroker.managed_ledger.info.info_records import InfoRecords
from pybroker.managed_ledger.rollover import LedgerLimits
from pybroker.managed_ledger.shared_resources import LedgerResources
from pybroker.metadata import metadata_paths
from pybroker.metadata.cache_refresh import CacheRefresher
from pybroker.metadata.metadata_store import MetadataStore
from pybroker.metadata.resources import Resources
from pybroker.metadata.shared_metadata import bootstrap_shared
from pybroker.runtime.runtime import Runtime
from pybroker.schema.schema_storage import SchemaStorage
from pybroker.wire.broker_entry_metadata import entry_time_ms

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Stores:
    """Stores of a broker, which the caller opens and closes."""

    metadata: MetadataStore
    ledgers: LedgerStore
    cursors: CursorStore
    records: InfoRecords | None = None
    """None: JSON values in `metadata`."""
    schemas: SchemaStorage | None = None
    """None: values in `metadata`."""


def ledger_limits(config: BrokerConfig) -> LedgerLimits:
    return LedgerLimits(
        config.managed_ledger_max_entries_per_ledger,
        config.managed_ledger_max_size_per_ledger_mbytes * _MIB,
        config.managed_ledger_min_ledger_rollover_time_minutes * 60_000,
        config.managed_ledger_max_ledger_rollover_time_minutes * 60_000,
        config.managed_ledger_inactive_ledger_rollover_time_seconds * 1000,
        config.managed_ledger_add_entry_timeout_seconds * 1000,
    )


async def build(runtime: Runtime, stores: Stores, limits: LedgerLimits | None = None) -> BrokerService:
    """Return a broker with loaded metadata. The caller sets its addresses, makes it ready for clients, and closes it.

    `limits` replace the limits of the configuration. Raises ConfigError for an invalid cluster or namespace, and
    StoreError.
    """
    refresher = CacheRefresher(stores.metadata)
    try:
        return await _build(runtime, stores, limits, refresher)
    except BaseException:
        await refresher.close()
        raise


async def _build(
    runtime: Runtime, stores: Stores, limits: LedgerLimits | None, refresher: CacheRefresher
) -> BrokerService:
    config = runtime.config
    resources = Resources(stores.metadata, config.default_number_of_namespace_bundles)
    refresher.keep(
        resources,
        metadata_paths.CLUSTERS,
        metadata_paths.POLICIES,
        metadata_paths.LOCAL_POLICIES,
        metadata_paths.TOPIC_POLICIES,
    )
    await resources.load()
    await _bootstrap(resources, config, is_shared=stores.metadata.is_shared)
    of_ledgers = LedgerResources(
        stores.ledgers,
        EntryCache(min(config.managed_ledger_cache_size_mb * _MIB, runtime.memory.cache.highest_bytes)),
        ledger_limits(config) if limits is None else limits,
        runtime.clock,
        config.cursor_flush_interval_ms,
        entry_time_ms,
        runtime.memory,
    )
    ledgers = ManagedLedgerFactory(of_ledgers, stores.cursors, stores.metadata, stores.records)
    service = BrokerService(runtime, stores.metadata, resources, ledgers, stores.schemas)
    if stores.records is not None and config.system_topic_enabled and config.topic_level_policies_enabled:
        service.keep_topic_policies_in_system_topics()
    service.cache_refresher = refresher
    if stores.metadata.is_shared and stores.records is not None:
        service.broker_context.ownership = service.transactions.ownership = NotJoined()  # the ledgers are shared too
    refresher.keep(service.dynamic, metadata_paths.DYNAMIC_CONFIGURATION)
    refresher.keep(service.partitioned, metadata_paths.PARTITIONED_TOPICS)
    refresher.keep(service.broker_context.resource_groups, metadata_paths.RESOURCE_GROUPS)
    await service.dynamic.load()
    await service.partitioned.load()
    await service.partitioned_operations.finish_deletions()
    await service.broker_context.load()
    await service.transactions.recover()
    return service


async def _bootstrap(resources: Resources, config: BrokerConfig, *, is_shared: bool) -> None:
    try:
        if is_shared:
            await bootstrap_shared(resources, config.cluster_name, config.bootstrap_namespaces)
        else:
            await resources.bootstrap(config.cluster_name, config.bootstrap_namespaces)
    except (AdminError, InvalidTopicName) as error:
        raise ConfigError(f"clusterName or bootstrapNamespaces cannot be used: {error}") from error
