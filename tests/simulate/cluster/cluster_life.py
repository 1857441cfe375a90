"""One broker process of a simulated cluster: metadata and ledgers shared with the other brokers, membership, and ownership.

What must hold: it begins and stops as `broker_process.Broker` with `ledgerStore=bookkeeper` does, and in the same order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from tests.simulate.cluster.bookies import SimulatedBookies
from tests.simulate.cluster.host_network import HostNetwork
from tests.simulate.life import HTTP_PORT, BrokerLife
from tests.simulate.loop import SimulatedLoop

from pybroker.bookkeeper import BookKeeperClient, BookKeeperError
from pybroker.bookkeeper.zookeeper_metadata import ZooKeeperBookies, ZooKeeperLedgerMetadata
from pybroker.bookkeeper_store.bookkeeper_stores import LEDGERS_ROOT, BookKeeperStores, bookkeeper_options
from pybroker.broker.lifecycle.other_brokers import PATIENCE_S
from pybroker.broker.service import BrokerService
from pybroker.broker_assembly import Stores, build
from pybroker.cluster.load_balance.load_report import BundleFigures, LoadReport, ResourceUsage
from pybroker.cluster.membership.cluster_membership import ClusterMembership
from pybroker.cluster.membership.load_shedding_task import LoadSheddingTask
from pybroker.cluster.membership.registration import MODULAR_LOAD_MANAGER, own_broker
from pybroker.config import BrokerConfig
from pybroker.errors import AdminError, ServiceNotReady, StoreError
from pybroker.metadata.broker_identity import BrokerIdentity
from pybroker.metadata.memory_metadata_store import MemoryMetadataStore
from pybroker.metadata.metadata_store import MetadataStore
from pybroker.metadata.session_report import SessionEvent
from pybroker.metadata.shared_metadata import (
    client_options,
    require_usable,
    shared_addresses,
    with_local_documents,
    write_layout,
)
from pybroker.metadata.zookeeper_metadata_store import ZooKeeperMetadataStore
from pybroker.runtime import logs
from pybroker.runtime.tasks import TaskOwner
from pybroker.version import __version__
from pybroker.zookeeper import ClientOptions, ServerAddresses, ZooKeeperClient, ZooKeeperError
from pybroker.zookeeper.session import SessionTicket

START_S = 120.0
END_SESSION_S = 10.0
CALL_S = 30.0
"""Of a REST call from broker to broker."""
MOST_REDIRECTS = 5
Exchange = Callable[[str, str, str, Any, dict[str, Any]], Awaitable[tuple[int, str, Any]]]
"""Host, method, path, body and query of an HTTP request; status, location and body of the answer. Raises ConnectionError."""


@dataclass(eq=False)
class Host:
    """A machine: what remains when its broker's process ends."""

    name: str
    network: HostNetwork
    directory_id: str
    ticket: SessionTicket | None = None
    """The content of `metadata-session.json`."""
    life: ClusterLife | None = None
    lives: int = 0
    faults: set[str] = field(default_factory=set)
    """What separates it from others, or stops it, at the moment."""

    @property
    def is_up(self) -> bool:
        life = self.life
        return life is not None and not life.is_over and life.service is not None and life.service.presence.ready


class SimulatedLoad:
    """The load of one broker: drawn figures for the machine, and its bundles. Implements `LoadSource`."""

    def __init__(self, service: BrokerService, chance: Random) -> None:
        self._service = service
        self._chance = chance

    def revision(self) -> object:
        clock = self._service.runtime.clock
        return clock.wall_ms() // 10_000, len(self._service.loaded.persistent)

    async def measure(self) -> LoadReport:
        ownership, chance = self._service.ownership, self._chance
        bundles: dict[str, BundleFigures] = {}
        if ownership is not None:
            bundles = {
                str(bundle): BundleFigures(chance.uniform(0, 50), chance.uniform(0, 4e6), topic_count=1)
                for bundle in sorted(ownership.owned_bundles(), key=str)
            }
        cpu = ResourceUsage(chance.uniform(0, 60), 100.0)
        return LoadReport(cpu, bundles=bundles, measured_ms=self._service.runtime.clock.wall_ms())


class ClusterLife(BrokerLife):
    """Owned by the simulation of the cluster, one at a time for each host."""

    def __init__(
        self,
        loop: SimulatedLoop,
        host: Host,
        chance: Random,
        config: BrokerConfig,
        bookies: SimulatedBookies,
        exchange: Exchange,
    ) -> None:
        host.lives += 1
        self.name = f"{host.name}.{host.lives}"
        super().__init__(loop, host.network, chance, config)
        self.host = host
        self.metadata: ZooKeeperMetadataStore | None = None
        self._bookies = bookies
        self._exchange = exchange
        self._membership: ClusterMembership | None = None
        self._closers = AsyncExitStack()

    @property
    def session_id(self) -> int:
        """The session with ZooKeeper, as this process knows it; 0 without one."""
        return 0 if self.metadata is None else self.metadata._client.session_id

    @property
    def membership(self) -> ClusterMembership:
        assert self._membership is not None
        return self._membership

    async def start(self) -> None:
        self.tasks = TaskOwner("app")
        runtime, config = self.runtime, self.runtime.config
        addresses = shared_addresses(config)
        assert addresses is not None
        options = replace(client_options(config), clock_ms=self._now_ms)
        metadata, identity = await self._open_metadata(addresses.metadata, options)
        stores = await self._open_stores(addresses.metadata, options, metadata)
        self.service = service = await build(
            runtime, Stores(metadata, stores.ledgers, stores.cursors, stores.records, stores.schemas)
        )
        service.identity = identity
        await self._open_ports(service, self.host.name)
        own = own_broker(
            service.presence.broker_id,
            service.presence.addresses,
            MODULAR_LOAD_MANAGER,
            runtime.clock.wall_ms(),
            __version__,
        )
        self._membership = membership = ClusterMembership(
            runtime,
            service.metadata_store,
            service.resources,
            own,
            self.host.directory_id,
            SimulatedLoad(service, runtime.random),
        )
        self._closers.push_async_callback(membership.close)
        service.membership = membership
        others = await service.join(membership)
        others.call = self._call  # type: ignore[method-assign]
        await membership.start(START_S)
        self.tasks.start(LoadSheddingTask(runtime, membership, others).run(), "shedding")
        service.presence.ready = True

    async def _open_metadata(
        self, addresses: ServerAddresses, options: ClientOptions
    ) -> tuple[MetadataStore, BrokerIdentity]:
        config, host = self.runtime.config, self.host
        if host.ticket is not None:
            await self._end_left_session(addresses, options, host.ticket)
        self.metadata = store = await ZooKeeperMetadataStore.open(addresses, options, START_S, self.runtime.random)
        self._keep_ticket()
        store.listen(lambda event: self._keep_ticket() if event is SessionEvent.RENEWED else None)
        await require_usable(store, config.cluster_name, "the simulated ZooKeeper")
        identity = BrokerIdentity(store, f"{host.name}:{HTTP_PORT}", host.directory_id, {})
        metadata = with_local_documents(config, store, MemoryMetadataStore())
        self._closers.push_async_callback(metadata.close)
        self._closers.push_async_callback(identity.close)
        await identity.claim(START_S)
        await write_layout(store)
        return metadata, identity

    def _keep_ticket(self) -> None:
        assert self.metadata is not None
        if self.metadata.session_ticket is not None:
            self.host.ticket = self.metadata.session_ticket

    async def _end_left_session(
        self, addresses: ServerAddresses, options: ClientOptions, ticket: SessionTicket
    ) -> None:
        """As `left_session.end_left_session`, with a file in memory."""
        client = ZooKeeperClient(addresses, options, self.runtime.random)
        client._session.resume(ticket)
        with suppress(ZooKeeperError):
            await client.start(END_SESSION_S)
            await client.close()

    async def _open_stores(
        self, addresses: ServerAddresses, options: ClientOptions, metadata: MetadataStore
    ) -> BookKeeperStores:
        """As `BookKeeperStores.open`, on the simulated network."""
        runtime = self.runtime
        zookeeper = ZooKeeperClient(addresses, options, runtime.random)
        bookies = ZooKeeperBookies(zookeeper, LEDGERS_ROOT)
        try:
            await zookeeper.start(START_S)
            await bookies.start()
        except (BookKeeperError, ZooKeeperError) as error:
            raise StoreError(f"the bookies cannot be listed: {error}") from error
        of_ledgers = bookkeeper_options(runtime.config)
        client = BookKeeperClient(
            ZooKeeperLedgerMetadata(zookeeper, LEDGERS_ROOT),
            bookies,
            of_ledgers,
            chance=runtime.random,
            clock=runtime.clock,
            open_transport=self._bookies.transport_of(self.host.name),
        )
        stores = BookKeeperStores(client, of_ledgers, metadata, runtime, (bookies, zookeeper))
        stores.ledgers.watch.start()
        self._closers.push_async_callback(stores.close)
        return stores

    async def _call(
        self, base_url: str, method: str, path: str, body: object = None, *, patience_s: float = PATIENCE_S
    ) -> Any:
        """As `OtherBrokers.call`, on the simulated network."""
        url = urlsplit(base_url + path)
        try:
            async with asyncio.timeout(CALL_S + patience_s):
                for _ in range(MOST_REDIRECTS):
                    query = dict(parse_qsl(url.query))
                    status, location, answer = await self._exchange(url.hostname or "", method, url.path, body, query)
                    if status != 307:
                        break
                    url = urlsplit(location)
        except (ConnectionError, TimeoutError) as error:
            raise ServiceNotReady(f"broker {base_url} did not answer: {error}; try again") from error
        if status >= 400:
            reason = answer.get("reason", "") if isinstance(answer, dict) else str(answer)
            raise AdminError(status, reason)
        return answer

    async def stop(self) -> None:
        """As `Broker.close`, on SIGTERM."""
        assert self._listener is not None
        assert self._membership is not None
        try:
            async with asyncio.timeout(self.runtime.config.broker_shutdown_timeout_ms / 1000):
                try:
                    await self._membership.leave()
                except StoreError as error:
                    logs.warning("broker.deregistration_failed", reason=str(error))
                await self._close_service()
        except TimeoutError:
            logs.error("broker.stop_timed_out")
            self._listener.abort()
        await self._closers.aclose()
        self.host.ticket = None
