"""Opens the stores of a broker with ledgers on BookKeeper."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol
from weakref import WeakValueDictionary

from pybroker.bookkeeper import BookKeeperClient, BookKeeperError, BookKeeperOptions, DigestType, Quorums
from pybroker.bookkeeper.zookeeper_metadata import ZooKeeperBookies, ZooKeeperLedgerMetadata
from pybroker.bookkeeper_store.bookie_security import bookie_transport
from pybroker.bookkeeper_store.bookkeeper_cursor_store import BookKeeperCursorStore
from pybroker.bookkeeper_store.bookkeeper_ledger_store import BookKeeperLedgerStore
from pybroker.bookkeeper_store.client_options import NO_LIMIT, max_entry_bytes
from pybroker.bookkeeper_store.documents.cursor_node import CursorNode
from pybroker.bookkeeper_store.naming_limit import NamingLimit
from pybroker.bookkeeper_store.orphans.orphaned_ledgers import OrphanedLedgers
from pybroker.bookkeeper_store.pulsar_records import PulsarRecords
from pybroker.bookkeeper_store.pulsar_schemas import PulsarSchemaStorage
from pybroker.bookkeeper_store.store_errors import store_error
from pybroker.config import BrokerConfig, ConfigError
from pybroker.errors import StoreError
from pybroker.ledgers.ledger_properties import ClusterMark
from pybroker.metadata import metadata_paths
from pybroker.metadata.metadata_store import MetadataStore
from pybroker.metadata.shared_metadata import client_options
from pybroker.runtime.runtime import Runtime
from pybroker.wire.entry_columns import message_counts
from pybroker.zookeeper import ServerAddresses, ZooKeeperClient, ZooKeeperError

LEDGERS_ROOT = metadata_paths.LEDGERS
DIGEST_TYPES = {"MAC": DigestType.HMAC} | {each.name: each for each in DigestType if each is not DigestType.HMAC}
"""Pulsar's names of digest types."""
NEVER = 1 << 62
"""A number of errors that never occurs, to disable a check."""


def bookkeeper_options(config: BrokerConfig) -> BookKeeperOptions:
    sizes = (
        config.managed_ledger_default_ensemble_size,
        config.managed_ledger_default_write_quorum,
        config.managed_ledger_default_ack_quorum,
    )
    if not sizes[0] >= sizes[1] >= sizes[2]:
        raise ConfigError(
            f"managedLedgerDefaultEnsembleSize={sizes[0]}, managedLedgerDefaultWriteQuorum={sizes[1]} and "
            f"managedLedgerDefaultAckQuorum={sizes[2]} are invalid: the write quorum must not exceed the "
            "ensemble size, and the ack quorum must not exceed the write quorum"
        )
    timeout_ms = config.bookkeeper_client_timeout_in_seconds * 1000
    return BookKeeperOptions(
        quorums=Quorums(*sizes),
        digest_type=DIGEST_TYPES[config.managed_ledger_digest_type],
        password=config.managed_ledger_password.encode(),
        add_timeout_ms=timeout_ms,
        read_timeout_ms=timeout_ms,
        append_timeout_ms=2 * timeout_ms,
        quarantine_failures=(
            config.bookkeeper_client_health_check_error_threshold_per_interval
            if config.bookkeeper_client_health_check_enabled
            else NEVER
        ),
        quarantine_interval_ms=config.bookkeeper_client_health_check_interval_seconds * 1000,
        quarantine_ms=config.bookkeeper_client_health_check_quarantine_time_in_seconds * 1000,
        use_batch_reads=config.bookkeeper_enable_batch_read,
        **NO_LIMIT,
    )


class Connection(Protocol):
    """A connection of the BookKeeper client, which is closed with the stores."""

    async def close(self) -> None: ...


class BookKeeperStores:
    """The ledger store, cursor store and info records of one broker, with their connections."""

    def __init__(
        self,
        client: BookKeeperClient,
        options: BookKeeperOptions,
        metadata: MetadataStore,
        runtime: Runtime,
        connections: Sequence[Connection] = (),
    ) -> None:
        """`connections`: connections of the client, which are closed after the stores, in order."""
        nodes: WeakValueDictionary[str, CursorNode] = WeakValueDictionary()
        largest = max_entry_bytes(options)
        self._connections = connections
        config = runtime.config
        mark = ClusterMark.of_age(config.cluster_name, config.orphaned_ledger_min_age_in_seconds * 1000)
        naming = NamingLimit(runtime.clock, mark)
        self._metadata = metadata
        self._runtime = runtime
        self.ledgers = BookKeeperLedgerStore(
            client, runtime.memory, message_counts, max_entry_bytes=largest, naming=naming
        )
        self.cursors = BookKeeperCursorStore(
            client,
            metadata,
            nodes,
            max_entry_bytes=largest,
            max_entries=config.managed_ledger_cursor_max_entries_per_ledger,
            naming=naming,
        )
        self.records = PulsarRecords(client, metadata, nodes, runtime.clock)
        self.schemas = PulsarSchemaStorage(client, metadata)

    @classmethod
    async def open(cls, addresses: ServerAddresses, metadata: MetadataStore, runtime: Runtime) -> BookKeeperStores:
        """Open the stores, with a separate ZooKeeper session for the metadata of ledgers.

        Raises StoreError, and ConfigError for an invalid configuration.
        """
        config = runtime.config
        options = bookkeeper_options(config)
        open_transport = bookie_transport(runtime)
        zookeeper = ZooKeeperClient(addresses, client_options(config))
        bookies = ZooKeeperBookies(zookeeper, LEDGERS_ROOT)
        try:
            await zookeeper.start(float(config.metadata_store_start_timeout_seconds))
            if await zookeeper.exists(f"{LEDGERS_ROOT}/available") is None:
                raise StoreError(
                    f"the metadata store {addresses} has no node {LEDGERS_ROOT}/available, so no bookie has registered: start"
                    " bookies with this metadata store, or set ledgerStore=local"
                )
            await bookies.start()
        except BaseException as error:
            await bookies.close()
            await zookeeper.close()
            if isinstance(error, BookKeeperError):
                raise store_error(error) from error
            if isinstance(error, ZooKeeperError):
                raise StoreError(f"the metadata of ledgers in {addresses} cannot be read: {error}") from error
            raise
        client = BookKeeperClient(
            ZooKeeperLedgerMetadata(zookeeper, LEDGERS_ROOT),
            bookies,
            options,
            chance=runtime.random,
            clock=runtime.clock,
            open_transport=open_transport,
        )
        stores = cls(client, options, metadata, runtime, (bookies, zookeeper))
        stores.ledgers.watch.start()
        return stores

    def orphaned_ledgers(self, is_leader: Callable[[], Awaitable[bool]]) -> OrphanedLedgers:
        """Return the object that deletes orphaned ledgers periodically; the caller runs it. `is_leader` returns whether
        this broker is the leader of the cluster.
        """
        self.ledgers.orphans = OrphanedLedgers(self.ledgers.client, self._metadata, self._runtime, is_leader)
        return self.ledgers.orphans

    async def close(self) -> None:
        await self.cursors.close()
        await self.ledgers.close()
        for connection in self._connections:
            await connection.close()
