"""Handover of this broker's bundles to other brokers of the cluster, before it stops.

A few bundles at a time are released and then looked up at the leader, which assigns them to other brokers at once. So a
topic pauses only while its own bundle moves. The broker has already left the cluster, so the leader does not choose it;
it still serves its remaining bundles and answers lookups.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from pybroker.errors import AdminError, BrokerError, StoreError
from pybroker.runtime import logs

if TYPE_CHECKING:
    from pybroker.broker.lifecycle.other_brokers import OtherBrokers
    from pybroker.cluster.broker_registry import RegisteredBroker
    from pybroker.cluster.ownership.bundle_ownership import BundleOwnership
    from pybroker.cluster.ownership.namespace_bundle import NamespaceBundle
    from pybroker.runtime.runtime import Runtime


class BundleHandover:
    """Handover of all bundles, used once, after the broker has left the cluster."""

    def __init__(self, runtime: Runtime, ownership: BundleOwnership, others: OtherBrokers, per_s: int) -> None:
        """`per_s`: maximum number of bundles per second; 0 for no limit."""
        self._runtime = runtime
        self._ownership = ownership
        self._others = others
        self._per_s = per_s
        self._config = runtime.config

    async def run(self) -> None:
        """Hand over all bundles, also those that are being acquired. Without another broker, do nothing."""
        ownership, clock = self._ownership, self._runtime.clock
        ownership.is_leaving = True
        if not await self._has_other_brokers():
            return
        started_ms, count = clock.monotonic_ms(), 0
        slots = asyncio.Semaphore(self._config.max_concurrent_bundle_handovers)
        while bundles := ownership.shared_bundles():
            async with asyncio.TaskGroup() as group:
                for bundle in bundles:
                    await slots.acquire()
                    group.create_task(self._hand_over(bundle)).add_done_callback(lambda _: slots.release())
                    if self._per_s > 0:
                        await self._runtime.sleep(1 / self._per_s)
            count += len(bundles)
        if count:
            logs.info("bundles.handed_over", bundles=count, took_ms=round(clock.monotonic_ms() - started_ms))

    def _other_brokers(self) -> list[RegisteredBroker]:
        registry = self._ownership.registry
        own = registry.own_broker.broker_id
        leader = registry.leader()
        found = sorted(registry.brokers().values(), key=lambda each: (each is not leader, each.broker_id))
        return [each for each in found if each.broker_id != own]

    async def _has_other_brokers(self) -> bool:
        """Return whether another broker can take bundles. Waits up to `bundleHandoverLeaderTimeoutMs` for a
        leader, which assigns by load.
        """
        if not self._other_brokers():
            return False
        try:
            async with asyncio.timeout(self._config.bundle_handover_leader_timeout_ms / 1000):
                while self._other_brokers() and self._ownership.registry.leader() not in self._other_brokers():  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        except TimeoutError:
            pass  # each broker assigns for itself
        return bool(self._other_brokers())

    async def _hand_over(self, bundle: NamespaceBundle) -> None:
        await self._ownership.release(bundle)
        for broker in self._other_brokers():
            if await self._assigned(bundle, broker):
                return

    async def _assigned(self, bundle: NamespaceBundle, broker: RegisteredBroker) -> bool:
        url = broker.web_service_url or broker.web_service_url_tls
        try:
            async with asyncio.timeout(self._config.bundle_handover_lookup_timeout_ms / 1000):
                await self._others.look_up(url, bundle, is_authoritative=False, patience_s=0)
        except (AdminError, BrokerError, StoreError, TimeoutError) as error:
            # The first client that looks up a topic of the bundle gives it an owner.
            logs.warning("bundle.not_assigned", bundle=str(bundle), broker=url, reason=str(error) or "timed out")
            return False
        return True
