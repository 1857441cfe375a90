"""One broker process in a simulation: all that the application builds, on the simulation's loop, disk, network and clock.

What must hold: it begins and stops as `app.Broker` does, and in the same order; a start that the application would refuse raises
`StartRefused`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from tests.simulate.direct_http import DirectHttp
from tests.simulate.loop import Process, SimulatedClock, SimulatedLoop
from tests.simulate.network import SimulatedNetwork
from tests.support.fault_disk import FaultDisk
from tests.support.stepped_loop import NoThreads, SteppedJournal

from pybroker.broker.service import BrokerService
from pybroker.broker_assembly import Stores, build
from pybroker.cluster.advertised_addresses import AdvertisedAddresses, BoundPorts
from pybroker.config import BrokerConfig
from pybroker.local_store.local_store import LocalStore
from pybroker.local_store.store_environment import StoreEnvironment
from pybroker.local_store.store_options import LocalStoreOptions
from pybroker.managed_ledger.orphaned_ledgers import delete_orphaned_ledgers, find_orphaned_ledgers
from pybroker.metadata import metadata_paths
from pybroker.metadata.broker_identity import DIRECTORY_ID_PATH, BrokerIdentity, directory_id, keep_directory_id
from pybroker.metadata.metadata_store import MetadataStore
from pybroker.metadata.shared_metadata import (
    client_options,
    require_usable,
    shared_addresses,
    with_local_documents,
    write_layout,
)
from pybroker.metadata.sqlite_metadata_store import SqliteMetadataStore
from pybroker.metadata.zookeeper_metadata_store import ZooKeeperMetadataStore
from pybroker.runtime.runtime import Runtime
from pybroker.runtime.tasks import TaskOwner
from pybroker.server.bind_addresses import BindAddress
from pybroker.server.command_table import command_table
from pybroker.server.handlers.session_commands import check_expiry
from pybroker.server.listener import Listener
from pybroker.server.server_context import ServerContext
from pybroker.wire.broker_entry_metadata import entry_time_ms

DIRECTORY = Path("/data")
PORT = 6650
HTTP_PORT = 8080
BROKERS_ADDRESS = "10.0.1.1"
"""The address from which brokers connect to each other, and keep their connections."""
START_S = 600.0
"""For a simulated ZooKeeper that is not reached."""


class StartRefused(AssertionError):
    """The broker would not start on what a crash has left."""


class Gone(ConnectionError):
    """The process ended while it was asked for something."""


class BrokerLife(Process):
    """One process of a broker: its service, its ports, and requests to it from outside."""

    name = "broker"

    def __init__(self, loop: SimulatedLoop, network: SimulatedNetwork, chance: Random, config: BrokerConfig) -> None:
        super().__init__()
        self.loop = loop
        self.network = network
        self.runtime = Runtime(config, SimulatedClock(loop), chance, network=network, threads=NoThreads())
        self.tasks: TaskOwner | None = None
        self.service: BrokerService | None = None
        self.context_of_server: ServerContext | None = None
        self.http: DirectHttp | None = None
        self._listener: Listener | None = None
        self.over = asyncio.Event()
        self._asked: dict[asyncio.Future[Any], None] = {}

    # --- from outside ------------------------------------------------------------------------------------------------

    async def ask(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Do `work` in this process and wait for it. Raises Gone when the process ends before."""
        if self.is_over:
            work.close()
            raise Gone
        answer: asyncio.Future[Any] = self.loop.create_future()
        task = self.loop.create_task(work, context=self.context.copy())
        task.add_done_callback(lambda ended: _pass_on(ended, answer))
        self._asked[answer] = None
        try:
            return await answer
        finally:
            self._asked.pop(answer, None)

    def end(self) -> None:
        """It is gone, in the middle of whatever it does."""
        if self.is_over:
            return
        self.loop.end(self)
        self.over.set()
        for answer in list(self._asked):
            if not answer.done():
                answer.set_exception(Gone())

    def bury(self) -> None:
        """Release what it held; the simulation is over."""
        self.loop.bury(self)

    # --- inside ------------------------------------------------------------------------------------------------------

    async def _open_ports(self, service: BrokerService, host: str) -> None:
        assert self.tasks is not None
        self.context_of_server = ServerContext(service, command_table())
        self._listener = Listener(self.context_of_server)
        self.network.serving = self
        self._listener.bind([BindAddress("0.0.0.0", PORT, False, "brokerServicePort")], None)
        ports = BoundPorts(PORT, None, HTTP_PORT, None)
        service.presence.addresses = AdvertisedAddresses(self.runtime.config, ports, host)
        self.tasks.start(self._run_background(self._listener), "background")
        await self._listener.start()
        self.http = DirectHttp(service)

    def _now_ms(self) -> float:
        return self.loop.time() * 1000

    async def _run_background(self, listener: Listener) -> None:
        assert self.service is not None
        async with asyncio.TaskGroup() as group:
            group.create_task(listener.watch(), name="listener")
            group.create_task(self._check_expired_credentials(), name="credentials")
            group.create_task(self.service.maintenance.run(), name="maintenance")

    async def _check_expired_credentials(self) -> None:
        assert self.context_of_server is not None
        while True:
            await asyncio.sleep(self.runtime.config.authentication_refresh_check_seconds)
            for connection in list(self.context_of_server.connections):
                check_expiry(connection, 0)

    async def _close_service(self) -> None:
        assert self.service is not None
        assert self._listener is not None
        assert self.http is not None
        assert self.tasks is not None
        self._listener.stop_reading()
        await self.service.tell_clients()
        await self._listener.close()
        await self.service.close()
        await self.http.close()
        await self.tasks.close()


class Life(BrokerLife):
    """Owned by the simulation, one at a time. `on_fatal` is called when the store says that the process has to end."""

    def __init__(
        self,
        loop: SimulatedLoop,
        disk: FaultDisk,
        network: SimulatedNetwork,
        chance: Random,
        config: BrokerConfig,
        options: LocalStoreOptions,
        on_fatal: Callable[[Life, BaseException], None],
    ) -> None:
        super().__init__(loop, network, chance, config)
        self.disk = disk
        self.options = options
        self.on_fatal = on_fatal
        self.store: LocalStore | None = None
        self.metadata: SqliteMetadataStore | None = None
        self.shared: MetadataStore | None = None
        """What the broker uses: `metadata`, or a store that several brokers share and `metadata` for local documents."""
        self._identity: BrokerIdentity | None = None

    def bury(self) -> None:
        self.disk.is_off = True
        super().bury()
        if self.store is not None:
            self.store._table.close()
        if self.metadata is not None and self.metadata._closing is None:
            self.metadata._table.connection.close()

    # --- inside ------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """As `app.Broker.start`."""
        self.tasks = TaskOwner("app")
        given = self.runtime
        self.metadata = await SqliteMetadataStore.open(DIRECTORY / "metadata.db", self.disk, None, given.threads)
        environment = StoreEnvironment(self.disk, given.clock, given.random, given.threads)
        self.store = store = await LocalStore.open(
            DIRECTORY, self.options, self._fatal, environment, entry_time_ms, SteppedJournal
        )
        leftovers = await find_orphaned_ledgers(store, self.metadata, await store.list_ledgers())
        if leftovers.ids_not_given:
            raise StartRefused(f"ledgers {leftovers.ids_not_given} have names, and were never made")
        if leftovers.entries:
            has_topics = bool(await self.metadata.children(metadata_paths.MANAGED_LEDGERS))
            is_foreign = self.options.sync_data and not has_topics
            if lost := leftovers.entries if is_foreign else leftovers.lost_names(store):
                raise StartRefused(f"ledgers with entries have lost their names: {lost}")
        metadata = self.shared = await self._shared_metadata(self.metadata)
        self.service = service = await build(given, Stores(metadata, store, store))
        service.identity = self._identity
        await self._open_ports(service, "broker")
        service.presence.ready = True
        self.tasks.start(delete_orphaned_ledgers(store, leftovers), "leftovers")

    async def _shared_metadata(self, embedded: SqliteMetadataStore) -> MetadataStore:
        """The embedded store, or beside it a simulated ZooKeeper if the configuration names one. As the application does."""
        config = self.runtime.config
        addresses = shared_addresses(config)
        if addresses is None:
            return embedded
        options = replace(client_options(config), clock_ms=self._now_ms)
        shared = await ZooKeeperMetadataStore.open(addresses.metadata, options, START_S, self.runtime.random)
        await require_usable(shared, config.cluster_name, "the simulated ZooKeeper")
        stored = await embedded.get(DIRECTORY_ID_PATH)
        identity = directory_id(None if stored is None else stored.value, self.runtime)
        self._identity = BrokerIdentity(shared, "broker", identity, {})
        await self._identity.claim(START_S)
        await keep_directory_id(embedded, identity)
        await write_layout(shared)
        return with_local_documents(config, shared, embedded)

    async def stop(self) -> None:
        """As `app.Broker.close`."""
        await self._close_service()
        assert self.store is not None
        assert self.metadata is not None
        await self.store.close()
        if self._identity is not None:
            await self._identity.close()
        assert self.shared is not None
        await self.shared.close()

    def _fatal(self, error: BaseException) -> None:
        self.on_fatal(self, error)


def _pass_on(ended: asyncio.Task[Any], answer: asyncio.Future[Any]) -> None:
    if answer.done():
        return
    if ended.cancelled():
        answer.set_exception(Gone())
    elif (error := ended.exception()) is not None:
        answer.set_exception(error)
    else:
        answer.set_result(ended.result())
