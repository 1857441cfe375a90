"""The broker process: creates all objects in order, runs them until a signal, and closes them in reverse order.

The only module that may import everything.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import platform
import signal
import socket
import ssl
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec

from pybroker.admin.server import HttpServer
from pybroker.auth.server_tls import CertificateRefresher, server_context
from pybroker.backup.data_snapshot import DataSnapshots, remove_earlier_snapshots
from pybroker.broker.service import BrokerService, DataDirectoryName
from pybroker.broker_assembly import Stores, build
from pybroker.cluster.advertised_addresses import AdvertisedAddresses, BoundPorts
from pybroker.config import BrokerConfig, ConfigError
from pybroker.config.ledger_store_kind import LedgerStoreKind, ledger_store_kind
from pybroker.disk.disk import Disk
from pybroker.errors import CannotListen, StoreError
from pybroker.ledgers.known_data import NOTHING_KNOWN, KnownData, decode_mark, encode_mark
from pybroker.ledgers.ledger_store import LedgerStore
from pybroker.ledgers.memory_store import MemoryCursorStore, MemoryLedgerStore
from pybroker.local_store.data_directory import (
    DataDirectoryInUse,
    DataDirectoryLock,
    ForeignDirectory,
    is_copied_directory,
    write_directory_mark,
    write_run_id,
)
from pybroker.local_store.local_store import LocalStore
from pybroker.local_store.start_up import is_new_store, older_table_text
from pybroker.local_store.store_environment import StoreEnvironment
from pybroker.local_store.store_options import LocalStoreOptions
from pybroker.managed_ledger.orphaned_ledgers import (
    Leftovers,
    delete_orphaned_ledgers,
    find_orphaned_ledgers,
    lost_names_text,
    named_entry_counts,
    path_that_names_ledgers,
)
from pybroker.memory.memory_parts import write_buffers
from pybroker.metadata import metadata_paths
from pybroker.metadata.broker_identity import (
    DIRECTORY_ID_PATH,
    BrokerIdentity,
    directory_id,
    keep_directory_id,
)
from pybroker.metadata.measured import MeasuredMetadataStore
from pybroker.metadata.memory_metadata_store import MemoryMetadataStore
from pybroker.metadata.metadata_store import MetadataStore
from pybroker.metadata.resources import Resources
from pybroker.metadata.shared_metadata import (
    SharedAddresses,
    client_options,
    open_shared_metadata,
    shared_addresses,
    with_local_documents,
    write_layout,
)
from pybroker.metadata.sqlite_metadata_store import SqliteMetadataStore, value_before_conversion
from pybroker.model.policies import ClusterData
from pybroker.process.file_descriptors import FEW, raise_limit
from pybroker.process.garbage_collection import GarbagePolicy
from pybroker.process.python_build import python_build
from pybroker.process.service_manager import ServiceManager
from pybroker.process.watchdog import LoopWatchdog
from pybroker.runtime import logs
from pybroker.runtime.runtime import Runtime
from pybroker.runtime.tasks import TaskOwner
from pybroker.server.bind_addresses import bind_addresses
from pybroker.server.command_table import command_table
from pybroker.server.connection import Connection
from pybroker.server.handlers.session_commands import check_expiry
from pybroker.server.listener import Listener
from pybroker.server.server_context import ServerContext
from pybroker.version import __version__
from pybroker.wire import core
from pybroker.wire.broker_entry_metadata import entry_time_ms

if TYPE_CHECKING:
    from pybroker.admin.http.web_service import WebService
    from pybroker.bookkeeper_store.orphans.orphaned_ledgers import OrphanedLedgers
    from pybroker.cluster.membership.cluster_membership import ClusterMembership

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_FATAL_STORAGE = 70
_SWITCH_INTERVAL_S = 0.0002
"""Shortens the journal writer's waits for the interpreter lock (docs/contributing/architecture.md)."""
_MIB = 1024 * 1024


class StartError(Exception):
    """The broker cannot start; each argument is one line for the operator."""


def run(
    config: BrokerConfig,
    ready_file: Path | None,
    warnings: list[str],
    disk: Disk | None = None,
    read_again: Callable[[], BrokerConfig] | None = None,
) -> int:
    """Serve until SIGTERM or Ctrl-C and return the exit code. Raises ConfigError for errors found during construction.

    `ready_file` is created when the broker is ready. `warnings` of the configuration are logged. `disk` is the file
    system of the ledger store. `read_again` reads the configuration at SIGHUP, and raises ConfigError.
    """
    logs.configure(config.log_level, log_format=config.log_format)
    for warning in warnings:
        logs.warning("config.warning", warning=warning)
    logs.info("python.detected", version=platform.python_version(), build=python_build())
    tune_process()
    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            return runner.run(_serve(config, ready_file, disk, read_again))
    except StartError as error:
        for problem in error.args:
            print(f"pybroker: {problem}", file=sys.stderr)
        return EXIT_FAILED
    except (DataDirectoryInUse, ForeignDirectory, StoreError) as error:
        print(f"pybroker: {error}", file=sys.stderr)
        return EXIT_FAILED


def tune_process() -> None:
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    raise_limit()


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop's factory if it is installed, else None for the standard event loop."""
    try:
        import uvloop  # noqa: PLC0415  (not everywhere)
    except ImportError:
        return None
    return uvloop.new_event_loop


async def _serve(
    config: BrokerConfig,
    ready_file: Path | None,
    disk: Disk | None,
    read_again: Callable[[], BrokerConfig] | None,
) -> int:
    stop = asyncio.Event()
    manager = ServiceManager()
    broker = Broker(Runtime(config), OwnProcess(stop.set), disk)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if not await _started(broker, stop):
        return EXIT_OK
    broker.own_collector()
    try:
        print(broker.banner(), flush=True)
        tasks = TaskOwner("service")
        tasks.start(manager.run_watchdog(), "watchdog")
        if read_again is not None:
            tasks.start(_reload_at_hangup(broker, manager, read_again), "reload")
        if ready_file is not None:
            # last, so that a reader of the file finds everything complete
            _write_ready_file(ready_file, broker.description())
        manager.ready(broker.status())
        await stop.wait()
        manager.stopping()
        await tasks.close()
    finally:
        is_clean = await broker.close()
        gc.freeze()  # the interpreter's last collection would visit all objects: a second for 20,000 topics
    return EXIT_OK if is_clean else EXIT_FAILED


async def _started(broker: Broker, stop: asyncio.Event) -> bool:
    starting = asyncio.current_task()
    assert starting is not None, "within a coroutine"

    async def cancel_at_stop() -> None:
        await stop.wait()
        starting.cancel()

    tasks = TaskOwner("start")
    tasks.start(cancel_at_stop(), "stop")
    try:
        await broker.start()
    except asyncio.CancelledError:
        if not stop.is_set():
            raise
        starting.uncancel()
        logs.info("broker.start_interrupted")
        return False
    finally:
        await tasks.close()
    return True


class BrokerHost(Protocol):
    """The program in which a broker runs: the broker calls it to stop, to create connections, and on a failed disk."""

    def request_stop(self) -> None: ...

    def new_connection(self, context: ServerContext) -> Connection: ...

    def storage_is_lost(self, error: BaseException) -> None:
        """Handle a failed durable write: the broker must not continue."""


class OwnProcess:
    """Host of a broker that is alone in its process."""

    def __init__(self, request_stop: Callable[[], None] = lambda: None) -> None:
        self._request_stop = request_stop

    def request_stop(self) -> None:
        self._request_stop()

    def new_connection(self, context: ServerContext) -> Connection:
        return Connection(context)

    def storage_is_lost(self, error: BaseException) -> None:
        """End the process, because the content of the disk is unknown, and a retry could report a false success."""
        logs.error(
            "storage.lost", error=str(error), action="the process ends: check the disk, then start the broker again"
        )
        os._exit(EXIT_FATAL_STORAGE)


async def _reload_at_hangup(broker: Broker, manager: ServiceManager, read_again: Callable[[], BrokerConfig]) -> None:
    """Reload certificates and dynamic configuration at each SIGHUP, until cancelled."""
    hangup = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, hangup.set)
    while True:
        await hangup.wait()
        hangup.clear()
        manager.reloading()
        try:
            broker.reload(await asyncio.to_thread(read_again))
        except ConfigError as error:
            logs.error(
                "config.reload_failed", problems="; ".join(error.problems), in_force="the previous configuration"
            )
        manager.ready(broker.status())


class Broker:
    """All objects of one broker. `start` and `close` are called once each, on the running event loop."""

    def __init__(
        self,
        runtime: Runtime,
        host: BrokerHost,
        disk: Disk | None = None,
        *,
        stores: Stores | None = None,
    ) -> None:
        """`stores` replace the stores of the configuration; the caller closes them."""
        self.runtime = runtime
        self.config = runtime.config
        self._host = host
        self._disk = disk or Disk()
        self._stores = stores
        self._directory = Path(self.config.data_directory)
        self._identity: BrokerIdentity | None = None
        self._instance = ""
        self._closers: list[Callable[[], object]] = []
        self._tasks = TaskOwner("app")
        self._garbage: GarbagePolicy | None = None
        self._sqlite: SqliteMetadataStore | None = None
        self._shared = None if stores is not None else shared_addresses(self.config)
        self._kind = LedgerStoreKind.MEMORY if stores is not None else ledger_store_kind(self.config)
        self._refresher: CertificateRefresher | None = None
        self._orphaned_ledgers: OrphanedLedgers | None = None
        self.service: BrokerService
        self.listener: Listener
        self.http: HttpServer

    @property
    def is_stored_locally(self) -> bool:
        if self._stores is not None:
            return False
        return self._kind is LedgerStoreKind.LOCAL or self.config.metadata_store == "sqlite"

    async def start(self) -> None:
        """Open the stores, recover, bind the ports, and serve. Raises StartError, ConfigError, StoreError,
        DataDirectoryInUse or ForeignDirectory, after closing everything.
        """
        try:
            await self._start()
        except BaseException:
            await self._take_down()
            raise

    async def _start(self) -> None:
        if self.is_stored_locally:
            self._lock_directory()
        metadata = await self._open_metadata()
        await self._require_ledgers(metadata)
        stores = await self._open_storage(metadata)
        ledger_store = stores.ledgers
        leftovers = Leftovers()
        if stores.records is None:  # otherwise the ledgers belong to all brokers
            leftovers = await find_orphaned_ledgers(ledger_store, metadata, await ledger_store.list_ledgers())
            await self._require_names(metadata, ledger_store, leftovers)
        self.service = await build(self.runtime, stores)
        self.service.request_stop = self._host.request_stop
        self.service.identity = self._identity
        if self._kind is LedgerStoreKind.LOCAL:
            self.service.data_directory = DataDirectoryName(
                write_run_id(self._directory, self.runtime.random), str(self._directory.absolute())
            )
        if self._sqlite is not None and isinstance(ledger_store, LocalStore):
            await asyncio.to_thread(remove_earlier_snapshots, self._directory)
            self.service.data_snapshots = DataSnapshots(self._directory, ledger_store, self._sqlite, self.runtime)
            self._closers.append(self.service.data_snapshots.close)
        descriptors = self.service.descriptors
        logs.info("descriptors.limit", **descriptors._asdict())
        logs.info("wire_core.selected", implementation=core.IMPLEMENTATION, crc32c=core.CRC32C)
        if descriptors.limit < FEW:
            logs.warning(
                "descriptors.few",
                limit=descriptors.limit,
                advice="raise the limit with ulimit -n to allow more connections",
            )
        await self._bind()
        self._create_membership()
        await self._publish_addresses(self.service.resources)
        await self.listener.start()
        await self.http.start()
        if self.service.membership is not None:
            await self._join_cluster(self.service.membership)
        self.service.presence.ready = True
        self._tasks.start(delete_orphaned_ledgers(ledger_store, leftovers), "leftovers")

    def own_collector(self) -> None:
        """Replace Python's settings for garbage collection by the policy in `GarbagePolicy`. Only for a broker that is
        alone in its process.
        """
        service = self.service
        stats = self.runtime.stats
        policy = GarbagePolicy(stats, self.runtime.clock, lambda: stats.topic_loads - len(service.loaded.persistent))
        policy.start()
        self._garbage = policy
        self._closers.append(policy.stop)
        self._tasks.start(policy.run(), "garbage")

    def _lock_directory(self) -> None:
        try:
            lock = DataDirectoryLock(self._directory)
        except OSError as error:
            raise StartError(
                f"the data directory {self._directory} cannot be used: {error.strerror or error}"
            ) from error
        self._closers.append(lock.release)

    async def _open_metadata(self) -> MetadataStore:
        if self._stores is not None:
            return MeasuredMetadataStore(self._stores.metadata, self.runtime.clock, self.runtime.slow_operations)
        # All checks of the shared store come first: a refused start leaves the data directory as it is.
        shared = None if self._shared is None else await self._open_shared_metadata(self._shared)
        store: MetadataStore
        if self.config.metadata_store == "memory":
            store = MemoryMetadataStore()
        else:
            store = self._sqlite = await SqliteMetadataStore.open(
                self._directory / "metadata.db",
                self._disk,
                self._directory / "metadata.end",
                self.runtime.threads,
            )
        self._closers.append(store.close)
        if shared is not None:
            if self._identity is not None:
                await keep_directory_id(store, self._identity.directory_id)
            await write_layout(shared)
            store = with_local_documents(self.config, shared, store)
        return MeasuredMetadataStore(store, self.runtime.clock, self.runtime.slow_operations)

    async def _open_shared_metadata(self, addresses: SharedAddresses) -> MetadataStore:
        """Connect to the metadata store, and claim this broker's id before anything is written."""
        stored_id = None
        if self.config.metadata_store != "memory":
            stored_id = await asyncio.to_thread(
                value_before_conversion, self._directory / "metadata.db", DIRECTORY_ID_PATH
            )
        keeps_session = self._kind is LedgerStoreKind.BOOKKEEPER and self.is_stored_locally
        if keeps_session:
            from pybroker.bookkeeper_store.left_session import (  # noqa: PLC0415  (only in a cluster)
                end_left_session,
                forget_session,
                keep_session,
            )

            await end_left_session(self._directory, addresses.metadata, client_options(self.config))
        store = await open_shared_metadata(self.config, addresses, self.runtime.random)
        if keeps_session:
            self._closers.append(lambda: forget_session(self._directory))
            keep_session(store, self._directory)
        self._closers.append(store.close)
        broker_id = self._fixed_broker_id()
        self._instance = directory_id(stored_id, self.runtime)
        if broker_id is not None:
            facts = {"host": socket.gethostname(), "process": os.getpid(), "version": __version__}
            self._identity = identity = BrokerIdentity(store, broker_id, self._instance, facts)
            self._closers.append(identity.close)
            await identity.claim(float(self.config.metadata_store_start_timeout_seconds))
        return store

    def _fixed_broker_id(self) -> str | None:
        """Return the id by which other brokers know this broker; None if it depends on a port that is not chosen yet."""
        port = self.config.web_service_port or self.config.web_service_port_tls
        host = self.config.advertised_address or socket.gethostname()
        return f"{host}:{port}" if port else None

    async def _require_names(self, metadata: MetadataStore, store: LedgerStore, leftovers: Leftovers) -> None:
        """Check ledgers against metadata. Raises StartError for ledgers with entries but without a topic (metadata was
        lost), and for listed ledgers with ids that the store never assigned (its table was lost).
        """
        if leftovers.ids_not_given:
            raise StartError(older_table_text("checkpoint.db", leftovers.ids_not_given))
        if not leftovers.entries or self.config.metadata_store == "memory":
            return
        has_topics = bool(await metadata.children(metadata_paths.MANAGED_LEDGERS))
        # There is no topic: so many ledgers cannot all have been deleted in the seconds before a power failure.
        is_foreign = self.config.journal_sync_data and not has_topics
        if lost := leftovers.entries if is_foreign else leftovers.lost_names(store):
            raise StartError(lost_names_text(self._directory, lost, has_topics=has_topics))

    async def _require_ledgers(self, metadata: MetadataStore) -> None:
        """Raise StartError if topics have ledgers but the store has no files, because the same ledger ids would be
        assigned again.
        """
        stored_locally = self._kind is LedgerStoreKind.LOCAL and self.config.metadata_store != "memory"
        if stored_locally and is_new_store(self._directory) and (path := await path_that_names_ledgers(metadata)):
            raise StartError(
                f"The data directory {self._directory} contains topics ({path}), but no ledgers, no journal "
                "and no checkpoint.db: restore these files, or move the content of the directory away to "
                "start without data"
            )

    async def _known_data(self, metadata: MetadataStore) -> KnownData:
        """Return the ledgers and cursors that the local store must have according to the metadata."""
        if self._sqlite is None:
            return NOTHING_KNOWN
        found = await metadata.get(metadata_paths.JOURNAL_MARK)
        mark = decode_mark(None if found is None else found.value)
        is_copy = await asyncio.to_thread(is_copied_directory, self._directory)
        return KnownData(mark, await named_entry_counts(metadata), is_copy)

    async def _open_storage(self, metadata: MetadataStore) -> Stores:
        if self._stores is not None:
            return Stores(
                metadata, self._stores.ledgers, self._stores.cursors, self._stores.records, self._stores.schemas
            )
        if self._kind is LedgerStoreKind.MEMORY:
            return Stores(metadata, MemoryLedgerStore(entry_time_ms), MemoryCursorStore())
        if self._kind is LedgerStoreKind.BOOKKEEPER:
            return await self._open_bookkeeper(metadata)
        store = await self._open_local_store(await self._known_data(metadata))
        return Stores(metadata, store, store)

    async def _open_bookkeeper(self, metadata: MetadataStore) -> Stores:
        from pybroker.bookkeeper_store.bookkeeper_stores import BookKeeperStores  # noqa: PLC0415  (only where it is used)

        assert self._shared is not None, "`ledger_store_kind` has checked it"
        opened = await BookKeeperStores.open(self._shared.metadata, metadata, self.runtime)
        self._closers.append(opened.close)
        self._orphaned_ledgers = opened.orphaned_ledgers(self._is_leader)
        return Stores(metadata, opened.ledgers, opened.cursors, opened.records, opened.schemas)

    async def _is_leader(self) -> bool:
        return self.service.membership is not None and self.service.membership.is_leader()

    async def _open_local_store(self, known: KnownData) -> LocalStore:
        config = self.config
        buffers = write_buffers(config.checkpoint_max_bytes, self.runtime.memory.writes.most_bytes)
        options = LocalStoreOptions(
            sync_data=config.journal_sync_data,
            direct_io=config.journal_direct_io,
            journal_file_bytes=config.journal_file_size_mb * _MIB,
            max_batch_bytes=config.journal_max_batch_bytes,
            checkpoint_max_bytes=buffers.checkpoint_bytes,
            journal_max_bytes=min(LocalStoreOptions().journal_max_bytes, buffers.all_bytes),
            checkpoint_max_entries=config.checkpoint_max_entries,
            read_threads=config.ledger_read_threads,
            bulk_read_threads=config.max_concurrent_bulk_reads,
            min_free_bytes=config.storage_min_free_space_mb * _MIB,
            reserve_bytes=config.storage_reserve_mb * _MIB,
        )
        given = self.runtime
        runtime = StoreEnvironment(self._disk, given.clock, given.random, given.threads, given.slow_operations)
        store = await LocalStore.open(
            self._directory, options, self._host.storage_is_lost, runtime, entry_time_ms, known=known
        )
        self._closers.append(store.close)
        await asyncio.to_thread(write_directory_mark, self._directory)
        if self._sqlite is not None:
            await self._sqlite.keep_beside(metadata_paths.JOURNAL_MARK, lambda: encode_mark(store.mark()))
        return store

    async def _bind(self) -> None:
        config = self.config
        tls: ssl.SSLContext | None = None
        addresses = bind_addresses(config)
        if config.web_service_port_tls is not None or any(address.is_tls for address in addresses):
            tls = server_context(config)
            self._refresher = CertificateRefresher(tls, config, self.runtime.stats)
        self.listener = Listener(ServerContext(self.service, command_table()), self._host.new_connection)
        self.http = HttpServer(self.service, tls, self.runtime.clock, self._web_services())
        problems: list[str] = []
        try:
            self.listener.bind(addresses, tls)
        except CannotListen as error:
            problems += error.problems
        try:
            self.http.bind()
        except CannotListen as error:
            problems += error.problems
        if problems:
            # release bound ports, so that an embedded broker can retry
            await self.listener.close()
            await self.http.close()
            problems[-1] += " (another broker? --port and --http-port choose other ports)"
            raise StartError(*problems)
        ports = BoundPorts(self.listener.port, self.listener.port_tls, self.http.port, self.http.port_tls)
        self.service.presence.addresses = AdvertisedAddresses(config, ports, socket.gethostname())
        self._tasks.start(self._run_background(self._refresher), "background")

    def _web_services(self) -> list[WebService]:
        if not self.config.web_socket_service_enabled:
            return []
        from pybroker.websocket.websocket_service import WebSocketService  # noqa: PLC0415  (only for its users)

        return [WebSocketService(self.service)]

    async def _publish_addresses(self, resources: Resources) -> None:
        """Store this broker's addresses in the cluster document, unless the metadata store is shared."""
        if self._shared is not None:
            return
        found = self.service.presence.addresses.resolve(None)
        cluster = resources.cluster(self.config.cluster_name) or ClusterData()
        current = msgspec.structs.replace(
            cluster,
            serviceUrl=found.http_url or None,
            serviceUrlTls=found.http_url_tls or None,
            brokerServiceUrl=found.broker_url or None,
            brokerServiceUrlTls=found.broker_url_tls or None,
        )
        if current != cluster:
            await resources.put_cluster(self.config.cluster_name, current)

    def _create_membership(self) -> None:
        if self._shared is None or self._kind is not LedgerStoreKind.BOOKKEEPER:
            return
        from pybroker.admin.stats.measured_load import MeasuredLoad  # noqa: PLC0415  (only in a cluster)
        from pybroker.cluster.membership.cluster_membership import ClusterMembership  # noqa: PLC0415
        from pybroker.cluster.membership.registration import MODULAR_LOAD_MANAGER, own_broker  # noqa: PLC0415

        service, rates = self.service, self.http.rates
        own = own_broker(
            service.presence.broker_id,
            service.presence.addresses,
            MODULAR_LOAD_MANAGER,
            rates.started_wall_ms,
            __version__,
        )
        membership = ClusterMembership(
            self.runtime,
            service.metadata_store,
            service.resources,
            own,
            self._instance,
            MeasuredLoad(service, rates),
        )
        self._closers.append(membership.close)
        service.membership = membership

    async def _join_cluster(self, membership: ClusterMembership) -> None:
        """Start to own bundles, and register. From then on, Java brokers send clients here. Raises StoreError."""
        from pybroker.cluster.membership.bundle_split_task import BundleSplitTask  # noqa: PLC0415  (only in a cluster)
        from pybroker.cluster.membership.load_shedding_task import LoadSheddingTask  # noqa: PLC0415
        from pybroker.cluster.membership.stored_load_data import StoredLoadData  # noqa: PLC0415

        others = await self.service.join(membership)
        await membership.start(float(self.config.metadata_store_start_timeout_seconds))
        self._tasks.start(LoadSheddingTask(self.runtime, membership, others).run(), "shedding")
        stored = StoredLoadData(self.runtime, membership, self.service.metadata_store)
        self._tasks.start(stored.run(), "load averages")
        splits = BundleSplitTask(self.runtime, membership, self.service.resources, stored, others)
        self._tasks.start(splits.run(), "bundle splits")

    async def _leave_cluster(self) -> None:
        """Deregister, so that no new bundle is assigned to this broker. Never raises."""
        if self.service.membership is None:
            return
        try:
            await self.service.membership.leave()
        except StoreError as error:
            logs.warning("broker.deregistration_failed", reason=str(error))

    async def _run_background(self, refresher: CertificateRefresher | None) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self.listener.watch(), name="keep-alive")
            group.create_task(self._check_expired_credentials(), name="credentials")
            group.create_task(self.service.maintenance.run(), name="maintenance")
            group.create_task(
                LoopWatchdog(self.runtime.stats, self.config.event_loop_watchdog_ms).run(), name="watchdog"
            )
            if refresher is not None:
                group.create_task(refresher.run(), name="certificates")
            if self._orphaned_ledgers is not None:
                group.create_task(self._orphaned_ledgers.run(), name="orphaned ledgers")

    async def _check_expired_credentials(self) -> None:
        if not self.config.authentication_enabled:
            return
        period_s = self.config.authentication_refresh_check_seconds
        while True:
            await asyncio.sleep(period_s)
            for connection in list(self.listener.context.connections):
                check_expiry(connection, period_s)

    def reload(self, config: BrokerConfig) -> None:
        if self._refresher is not None:
            self._refresher.refresh()
        needs_restart = self.service.dynamic.reload(config)
        logs.info("config.reloaded")
        if needs_restart:
            logs.warning("config.restart_needed", keys=", ".join(needs_restart))

    async def crash(self) -> None:
        """Stop like a killed process, without notifying clients. Running work may still write to the stores: a caller
        that starts another broker on the stored data must use a copy of it.
        """
        self.listener.stop_reading()
        self.listener.abort()
        await self.http.close(deadline_s=0)
        await self.service.close()
        await self._take_down()

    async def close(self) -> bool:
        """Close all producers, consumers and connections, write pending state, and release everything. Return False if
        `brokerShutdownTimeoutMs` was exceeded.
        """
        logs.info("broker.stopping")
        if self._garbage is not None:
            self._garbage.rest()
        is_clean = True
        try:
            async with asyncio.timeout(self.config.broker_shutdown_timeout_ms / 1000):
                await self.service.end_transactions()
                await self._leave_cluster()
                await self.service.hand_over()
                await self.http.close_services()
                self.listener.stop_reading()
                await self.service.tell_clients()
                await self.listener.close()
                await self.service.close()
                await self.http.close()
        except TimeoutError:
            logs.error("broker.stop_timed_out", timeout_ms=self.config.broker_shutdown_timeout_ms)
            self.listener.abort()
            is_clean = False
        await self._take_down()
        logs.info("broker.stopped")
        return is_clean

    async def _take_down(self) -> None:
        await self._tasks.close()
        while self._closers:
            closing = self._closers.pop()()
            if asyncio.iscoroutine(closing):
                await closing

    # --- status output --------------------------------------------------------------------------------

    def description(self) -> dict[str, object]:
        found = self.service.presence.addresses.resolve(None)
        return {
            "pid": os.getpid(),
            "version": __version__,
            "broker_port": self.listener.port,
            "broker_port_tls": self.listener.port_tls,
            "http_port": self.http.port,
            "http_port_tls": self.http.port_tls,
            "broker_url": found.broker_url,
            "broker_url_tls": found.broker_url_tls,
            "http_url": found.http_url,
            "http_url_tls": found.http_url_tls,
        }

    def status(self) -> str:
        found = self.service.presence.addresses.resolve(None)
        return f"Serving {found.broker_url or found.broker_url_tls}"

    def banner(self) -> str:
        found = self.service.presence.addresses.resolve(None)
        urls = "  ".join(
            url for url in (found.broker_url, found.broker_url_tls, found.http_url, found.http_url_tls) if url
        )
        http_url = found.http_url or found.http_url_tls
        console = f"{http_url}/console/" if http_url and self.config.console_enabled else ""
        return "\n".join(
            (
                f"pybroker {__version__}, cluster {self.config.cluster_name}",
                f"  serving     {urls}",
                *([f"  console     {console}"] if console else ()),
                f"  data        {self._directory.resolve() if self.is_stored_locally else 'in memory only'}",
                f"  durability  {self._durability()}",
            )
        )

    def _durability(self) -> str:
        if self._kind is LedgerStoreKind.BOOKKEEPER:
            quorum = self.config.managed_ledger_default_ack_quorum
            return f"a receipt confirms that {quorum} bookies have the message on disk (managedLedgerDefaultAckQuorum)"
        if self._kind is LedgerStoreKind.MEMORY:
            return "none: all data is lost when the broker stops"
        if self.config.journal_sync_data:
            return "a receipt confirms that the message is on disk (journalSyncData=true)"
        return "a receipt confirms that the operating system has the message (journalSyncData=false)"


def _write_ready_file(path: Path, description: dict[str, object]) -> None:
    partial = path.with_name(path.name + ".partial")
    try:
        partial.write_text(json.dumps(description) + "\n")
        partial.replace(path)
    except OSError as error:
        raise StartError(f"the ready file {path} cannot be written: {error.strerror or error}") from error
