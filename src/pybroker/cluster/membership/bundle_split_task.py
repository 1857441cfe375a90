"""The leader's automatic splits: it asks the owners of overloaded bundles to split them."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Protocol

from pybroker.cluster.broker_registry import RegisteredBroker
from pybroker.cluster.bundles import bundles_of
from pybroker.cluster.load_balance.broker_choice import namespace_of
from pybroker.cluster.load_balance.bundle_splits import Split, SplitSettings, bundles_to_split
from pybroker.cluster.load_balance.load_report import LoadReport
from pybroker.cluster.membership.cluster_membership import ClusterMembership
from pybroker.cluster.membership.stored_load_data import StoredLoadData
from pybroker.config import BrokerConfig
from pybroker.errors import AdminError, BrokerError, StoreError
from pybroker.metadata.resources import Resources
from pybroker.model.names import NamespaceName
from pybroker.runtime import logs
from pybroker.runtime.runtime import Runtime

CHECK_S = 5.0
"""The shortest interval between load reports."""
SPLIT_DEADLINE_S = 60.0
MIB = 1 << 20


class BundleSplitter(Protocol):
    """Asks the owner of a bundle to split it: `PUT /admin/v2/namespaces/…/{bundle}/split?unload=`."""

    async def split(self, bundle: str, owner: RegisteredBroker, *, unload: bool) -> None:
        """Ask `owner` to split `bundle` and, with `unload`, to unload the parts. Return when the bundle is split.
        Raises AdminError and BrokerError.
        """


class BundleSplitTask:
    """A task that runs for the life of the broker, and has effect while this broker is the leader of at least two
    brokers.
    """

    def __init__(
        self,
        runtime: Runtime,
        membership: ClusterMembership,
        resources: Resources,
        stored: StoredLoadData,
        splitter: BundleSplitter,
    ) -> None:
        self._runtime = runtime
        self._membership = membership
        self._resources = resources
        self._stored = stored
        self._splitter = splitter
        self._checked: dict[str, LoadReport] = {}  # the last checked report of each broker

    async def run(self) -> None:
        while True:
            await self._runtime.sleep(CHECK_S)
            await self.run_once()

    async def run_once(self) -> None:
        """Check the load reports that are new since the last check, and split overloaded bundles."""
        config, membership = self._runtime.config, self._membership
        is_enabled = config.load_balancer_enabled and config.load_balancer_auto_bundle_split_enabled
        if not is_enabled or not membership.is_leader() or len(membership.registrations) < 2:
            self._checked.clear()
            return
        reports = {broker_id: each.report for broker_id, each in membership.registrations.items()}
        new = {broker_id: each for broker_id, each in reports.items() if self._checked.get(broker_id) is not each}
        self._checked = reports
        for split in bundles_to_split(new, membership.averages, self._bundles_of, split_settings(config)):
            if not membership.is_leader():
                return
            await self._split(split)

    def _bundles_of(self, namespace: str) -> Collection[str]:
        tenant, _, local_name = namespace.partition("/")
        policies = self._resources.namespace(NamespaceName(tenant, local_name))
        return [] if policies is None else {f"{namespace}/{each}" for each in bundles_of(policies.bundles.boundaries)}

    async def _split(self, split: Split) -> None:
        owner = self._membership.brokers().get(split.owner_id)
        if owner is None:
            return
        unload = self._unloads(split)
        try:
            async with asyncio.timeout(SPLIT_DEADLINE_S):
                await self._splitter.split(split.bundle, owner, unload=unload)
            await self._stored.forget(split.bundle)
        except (AdminError, BrokerError, StoreError, TimeoutError) as error:
            logs.warning("bundle.auto_split_failed", **split._asdict(), error=str(error) or "timed out")
        else:
            self._membership.split_total += 1
            logs.info("bundle.auto_split", **split._asdict(), unload=unload)

    def _unloads(self, split: Split) -> bool:
        """Return whether the parts are unloaded: only if another broker may have them.

        Namespaces of an anti-affinity group stay, because only one broker of several may have them.
        """
        if not self._runtime.config.load_balancer_auto_unload_split_bundles_enabled:
            return False
        if self._membership.has_anti_affinity(namespace_of(split.bundle)):
            return False
        return self._membership.best_destination(split.bundle, split.owner_id) is not None


def split_settings(config: BrokerConfig) -> SplitSettings:
    return SplitSettings(
        config.load_balancer_namespace_bundle_max_topics,
        config.load_balancer_namespace_bundle_max_sessions,
        config.load_balancer_namespace_bundle_max_msg_rate,
        config.load_balancer_namespace_bundle_max_bandwidth_mbytes * MIB,
        config.load_balancer_namespace_maximum_bundles,
    )
