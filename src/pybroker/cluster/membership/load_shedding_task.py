"""The leader's periodic shedding: it asks the owners of bundles to unload them to brokers with less load."""

from __future__ import annotations

import asyncio
from typing import Protocol

from pybroker.cluster.broker_registry import RegisteredBroker
from pybroker.cluster.load_balance.broker_choice import namespace_of
from pybroker.cluster.load_balance.shedding import MIB, LoadShedding, Move, SheddingSettings
from pybroker.cluster.membership.cluster_membership import ClusterMembership
from pybroker.config import BrokerConfig
from pybroker.errors import AdminError, BrokerError, StoreError
from pybroker.model.names import NamespaceName
from pybroker.model.system_topics import is_heartbeat_namespace
from pybroker.runtime import logs
from pybroker.runtime.runtime import Runtime

UNLOAD_DEADLINE_S = 60.0


class BundleUnloader(Protocol):
    """Asks the owner of a bundle to unload it: `PUT /admin/v2/namespaces/…/{bundle}/unload?destinationBroker=`."""

    async def unload(self, bundle: str, owner: RegisteredBroker, destination: RegisteredBroker) -> None:
        """Ask `owner` to unload `bundle` to the broker `destination`. Return when the owner has released the bundle.
        Raises AdminError and BrokerError.
        """


class LoadSheddingTask:
    """The periodic task of a broker that sheds load while this broker is the leader."""

    def __init__(self, runtime: Runtime, membership: ClusterMembership, unloader: BundleUnloader) -> None:
        self._runtime = runtime
        self._membership = membership
        self._unloader = unloader
        self._shedding = LoadShedding(membership.averages)

    async def run(self) -> None:
        while True:
            await self._runtime.sleep(self._interval_s())
            await self.run_once()

    def _interval_s(self) -> float:
        return self._runtime.config.load_balancer_shedding_interval_minutes * 60.0

    async def run_once(self) -> None:
        """Perform one round of shedding: ask the owners of the chosen bundles to unload them."""
        config, membership = self._runtime.config, self._membership
        if not membership.is_leader():
            self._shedding = LoadShedding(membership.averages)
            return
        if not (config.load_balancer_enabled and config.load_balancer_shedding_enabled):
            return
        moves = self._shedding.moves(
            membership.candidates(),
            membership.best_destination,
            lambda bundle: is_movable(bundle, config),
            shedding_settings(config),
            self._runtime.clock.monotonic_ms(),
        )
        for move in moves:
            if not membership.is_leader():
                return
            await self._move(move)

    async def _move(self, move: Move) -> None:
        brokers = self._membership.brokers()
        source, destination = brokers.get(move.source_id), brokers.get(move.destination_id)
        if source is None or destination is None:
            return
        self._membership.assign(move.bundle, move.destination_id)
        try:
            async with asyncio.timeout(UNLOAD_DEADLINE_S):
                await self._unloader.unload(move.bundle, source, destination)
        except (AdminError, BrokerError, StoreError, TimeoutError) as error:
            logs.warning("bundle.shedding_failed", **move._asdict(), reason=str(error) or "timed out")
        else:
            self._membership.moved_total += 1
            logs.info("bundle.shed", **move._asdict())


def is_movable(bundle: str, config: BrokerConfig) -> bool:
    name = namespace_of(bundle)
    tenant, _, local_name = name.partition("/")
    if is_heartbeat_namespace(NamespaceName(tenant, local_name)):
        return False
    return name not in config.load_balancer_shedding_excluded_namespaces


def shedding_settings(config: BrokerConfig) -> SheddingSettings:
    return SheddingSettings(
        config.load_balancer_broker_threshold_shedder_percentage / 100,
        config.load_balancer_history_resource_percentage,
        config.load_balancer_bundle_unload_min_throughput_threshold * MIB,
        config.load_balancer_shedding_grace_period_minutes * 60_000.0,
    )
