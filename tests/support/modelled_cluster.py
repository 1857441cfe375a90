"""Brokers of one cluster in the test's process: real ports and topics, modelled metadata servers and bookies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager
from random import Random
from typing import Any
from weakref import WeakValueDictionary

import uvloop
from tests.support.bookkeeper_store_model import ModelCluster
from tests.support.cluster_brokers import FixedRegistry
from tests.support.shared_store import SharedSession, SharedTree
from tests.support.waiting import until

from pybroker.admin.stats.measured_load import MeasuredLoad
from pybroker.bookkeeper_store.bookkeeper_cursor_store import BookKeeperCursorStore
from pybroker.bookkeeper_store.client_options import max_entry_bytes
from pybroker.bookkeeper_store.documents.cursor_node import CursorNode
from pybroker.bookkeeper_store.naming_limit import NamingLimit
from pybroker.bookkeeper_store.pulsar_records import PulsarRecords
from pybroker.broker.service import BrokerService
from pybroker.broker_assembly import Stores
from pybroker.broker_process import Broker, OwnProcess
from pybroker.cluster.advertised_addresses import LookupResult
from pybroker.cluster.broker_registry import RegisteredBroker
from pybroker.cluster.membership.cluster_membership import ClusterMembership
from pybroker.cluster.membership.registration import MODULAR_LOAD_MANAGER, own_broker
from pybroker.config import BrokerConfig
from pybroker.metadata.resources import Resources
from pybroker.runtime.runtime import Runtime

SETTINGS: dict[str, Any] = {
    "cluster_name": "c1",
    "bind_address": "127.0.0.1",
    "broker_service_port": 0,
    "web_service_port": 0,
    "transaction_coordinator_enabled": False,
    "system_topic_enabled": False,
    "topic_level_policies_enabled": False,
}


class ClusterBroker:
    """One broker."""

    def __init__(self, cluster: ModelledCluster, settings: Mapping[str, Any]) -> None:
        self.store = SharedSession(cluster.tree)
        self.settings = settings
        runtime = Runtime(BrokerConfig(**{**SETTINGS, **settings}))
        nodes: WeakValueDictionary[str, CursorNode] = WeakValueDictionary()
        self._ledgers = cluster.bookies.store()
        self._cursors = BookKeeperCursorStore(
            self._ledgers.client,
            self.store,
            nodes,
            max_entry_bytes=max_entry_bytes(cluster.bookies.options),
            max_entries=50_000,
            naming=NamingLimit(runtime.clock, None),
        )
        records = PulsarRecords(self._ledgers.client, self.store, nodes, runtime.clock)
        stores = Stores(self.store, self._ledgers, self._cursors, records)
        self.is_killed = False
        self.membership: ClusterMembership | None = None
        """Only with `has_membership`."""
        self.process = Broker(runtime, OwnProcess(), stores=stores)

    async def start(self) -> None:
        await self.process.start()

    @property
    def service(self) -> BrokerService:
        return self.process.service

    @property
    def registered(self) -> RegisteredBroker:
        found = self.service.presence.addresses.resolve(None)
        listeners = {"inside": LookupResult("pulsar://inside:1", "", "", "")}
        return RegisteredBroker(self.service.presence.broker_id, found.http_url, "", found.broker_url, "", listeners)

    async def become_member(self, number: int) -> None:
        """Register and take part in the election, as a whole broker process does."""
        service, rates = self.service, self.process.http.rates
        own = own_broker(
            service.presence.broker_id, service.presence.addresses, MODULAR_LOAD_MANAGER, rates.started_wall_ms, "0.1.0"
        )
        load = MeasuredLoad(service, rates)
        self.membership = service.membership = membership = ClusterMembership(
            service.runtime, self.store, service.resources, own, f"directory-{number}", load
        )
        await service.join(membership)
        await membership.start(5.0)

    async def kill(self) -> None:
        """End like a killed process: no client is notified, and the server ends the session later (`end_past_sessions`)."""
        self.is_killed = True
        self.process.listener.stop_reading()
        self.process.listener.abort()
        self.store.lose()
        await self.process.crash()

    async def close(self, *, hands_over: bool = False) -> None:
        """End like a stopped process. At the end of a test there are no other brokers that could take the bundles."""
        if not hands_over:
            self.service.other_brokers = None
        if not self.is_killed:
            await self.process.close()
        if self.membership is not None:
            await self.membership.close()
        await self._cursors.close()
        await self._ledgers.close()
        await self.store.end_past_sessions()
        await self.store.tree.end(self.store.session)


class ModelledCluster:
    """Its brokers; the first is the leader."""

    def __init__(self) -> None:
        self.tree = SharedTree()
        self.bookies = ModelCluster(Random(1))
        self.brokers: list[ClusterBroker] = []
        self._starts = 100  # numbers of the data directories of restarted brokers
        self.chosen = 0
        """Which broker the leader chooses next."""

    async def restart(self, index: int) -> ClusterBroker:
        """Stop a broker in order, and start one at the same addresses. Only with membership."""
        before = self.brokers[index]
        ports = {"broker_service_port": before.process.listener.port, "web_service_port": before.process.http.port}
        await before.close(hands_over=True)
        self._starts += 1
        broker = ClusterBroker(self, {**before.settings, **ports})
        await broker.start()
        self.brokers[index] = broker
        await broker.become_member(self._starts)
        return broker

    def choose(self, _bundle: str) -> RegisteredBroker:
        return self.brokers[self.chosen].registered


def run_on_uvloop(test: Coroutine[Any, Any, None]) -> None:
    """Run a test on the event loop of `pybroker serve`. The loop of Python 3.11 does not close a connection that is
    accepted in the same iteration in which a killed broker closes its port (CPython issue 109564).
    """
    uvloop.run(test)


@asynccontextmanager
async def modelled_cluster(
    brokers: int = 2, *, has_membership: bool = False, **settings: Any
) -> AsyncIterator[ModelledCluster]:
    """Run a cluster for the block. `settings` are attributes of `BrokerConfig`. Without membership, the first broker is the
    leader, and the test chooses the owners of bundles.
    """
    cluster = ModelledCluster()
    resources = Resources(SharedSession(cluster.tree))
    await resources.load()
    await resources.bootstrap("c1")
    try:
        for _ in range(brokers):
            broker = ClusterBroker(cluster, settings)
            await broker.start()
            cluster.brokers.append(broker)
        if has_membership:
            for number, each in enumerate(cluster.brokers):
                await each.become_member(number)
            await until(lambda: all(each.membership and each.membership.leader() for each in cluster.brokers))
            await until(
                lambda: all(each.membership and len(each.membership.brokers()) == brokers for each in cluster.brokers)
            )
            yield cluster
            return
        registered = {each.registered.broker_id: each.registered for each in cluster.brokers}
        for each in cluster.brokers:
            registry = FixedRegistry(each.registered, registered)
            registry.leader_id = cluster.brokers[0].registered.broker_id
            registry.choose = cluster.choose
            await each.service.join(registry)
        yield cluster
    finally:
        async with asyncio.TaskGroup() as group:
            for each in cluster.brokers:
                group.create_task(each.close())
