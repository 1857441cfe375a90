"""Members of a simulated cluster for tests: brokers with their sessions on one tree."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import Any

from tests.support.shared_memory_store import SharedTree

from pybroker.cluster.broker_registry import RegisteredBroker
from pybroker.cluster.load_balance.load_report import BundleFigures, LoadReport, ResourceUsage
from pybroker.cluster.membership import cluster_membership
from pybroker.cluster.membership.cluster_membership import ClusterMembership
from pybroker.cluster.membership.registration import MODULAR_LOAD_MANAGER, registration_path
from pybroker.config import BrokerConfig
from pybroker.metadata.metadata_store import MetadataStore
from pybroker.metadata.resources import Resources
from pybroker.runtime.runtime import Runtime

DEADLINE_S = 10.0


class FixedLoad:
    """A load that the test sets."""

    def __init__(self) -> None:
        self.report = LoadReport(cpu=ResourceUsage(10, 100), measured_ms=1)

    def revision(self) -> object:
        return self.report

    async def measure(self) -> LoadReport:
        return self.report

    def set(self, cpu: float = 10, **bundles: float) -> None:
        """Set the use of the processor in percent, and messages per second by bundle."""
        figures = {
            f"public/default/{name}": BundleFigures(rate, rate * 1000, topic_count=1) for name, rate in bundles.items()
        }
        self.report = LoadReport(cpu=ResourceUsage(cpu, 100), bundles=figures, measured_ms=self.report.measured_ms + 1)


class Member:
    """One broker."""

    def __init__(self, tree: SharedTree, number: int, **settings: Any) -> None:
        self.store = tree.session()
        self.load = FixedLoad()
        self.broker = broker(number)
        self.id = self.broker.broker_id
        runtime = Runtime(BrokerConfig(cluster_name="c1", **settings), random=Random(number))
        self.membership = ClusterMembership(
            runtime, self.store, Resources(self.store), self.broker, f"directory-{number}", self.load
        )

    async def start(self, deadline_s: float = 0.0) -> None:
        await self.membership.start(deadline_s)

    async def kill(self) -> None:
        """End the process: its values stay until the session expires."""
        self.store.killed()
        await self.membership.close()


def broker(number: int, load_manager_class: str = MODULAR_LOAD_MANAGER) -> RegisteredBroker:
    host = f"host-{number}"
    return RegisteredBroker(
        f"{host}:8080",
        f"http://{host}:8080",
        "",
        f"pulsar://{host}:6650",
        "",
        {},
        load_manager_class,
        1_700_000_000_000 + number,
        "0.1.0",
    )


def java_registration(number: int, **changed: object) -> bytes:
    """The registration of a Java broker."""
    found = broker(number)
    data: dict[str, object] = {
        "webServiceUrl": found.web_service_url,
        "pulsarServiceUrl": found.broker_service_url,
        "persistentTopicsEnabled": True,
        "nonPersistentTopicsEnabled": True,
        "cpu": {"usage": 10.0, "limit": 200.0},
        "memory": {"usage": 100.0, "limit": 300.0},
        "directMemory": {"usage": 1.0, "limit": 300.0},
        "bandwidthIn": {"usage": 1.0, "limit": 1e7},
        "bandwidthOut": {"usage": "NaN", "limit": 1e7},
        "msgThroughputIn": 0.0,
        "lastUpdate": 1_700_000_000_000,
        "lastStats": {},
        "numTopics": 0,
        "bundles": [],
        "brokerVersionString": "4.2.4",
        "protocols": {},
        "advertisedListeners": {},
        "loadManagerClassName": MODULAR_LOAD_MANAGER,
        "startTimestamp": 1,
        "loadReportType": "LocalBrokerData",
        **changed,
    }
    return json.dumps({name: value for name, value in data.items() if value is not None}).encode()


async def register_java(store: MetadataStore, number: int, **changed: object) -> str:
    broker_id = broker(number).broker_id
    await store.put_for_session(registration_path(broker_id), java_registration(number, **changed))
    return broker_id


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110  (what is awaited has no event)
            await asyncio.sleep(0.002)


@asynccontextmanager
async def members(count: int, *, seed: int = 0, **settings: Any) -> AsyncIterator[list[Member]]:
    """Started members with short pauses, which are closed at the end."""
    tree = SharedTree(seed)
    async with short_pauses():
        found = [Member(tree, number, **settings) for number in range(count)]
        try:
            for member in found:
                await member.start()
            await until(lambda: all(len(member.membership.brokers()) == count for member in found))
            yield found
        finally:
            for member in found:
                await member.membership.close()


@asynccontextmanager
async def short_pauses() -> AsyncIterator[None]:
    before = cluster_membership.CHECK_PAUSE_S, cluster_membership.RETRY_PAUSE_S
    cluster_membership.CHECK_PAUSE_S, cluster_membership.RETRY_PAUSE_S = 0.02, 0.005
    try:
        yield
    finally:
        cluster_membership.CHECK_PAUSE_S, cluster_membership.RETRY_PAUSE_S = before


def leaders(found: list[Member]) -> list[str]:
    return [member.id for member in found if member.membership.is_leader()]
