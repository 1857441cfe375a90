"""Reads and writes the leader's average rates in the metadata store, so that the next leader, also a Java broker,
continues them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from pybroker.cluster.load_balance.stored_averages import (
    BROKER_AVERAGES,
    BUNDLE_DATA,
    broker_path,
    bundle_path,
    decoded_bundle,
    encoded_broker,
    encoded_bundle,
)
from pybroker.cluster.membership.cluster_membership import ClusterMembership
from pybroker.errors import StoreError
from pybroker.metadata.metadata_store import MetadataStore, values_at
from pybroker.runtime import logs
from pybroker.runtime.runtime import Runtime

RETRY_S = 1.0
_BUNDLE_DEPTH = 3


class StoredLoadData:
    """A task that runs for the life of the broker. It reads the averages when this broker becomes the leader, and
    writes them while this broker is the leader.
    """

    def __init__(self, runtime: Runtime, membership: ClusterMembership, store: MetadataStore) -> None:
        self._runtime = runtime
        self._membership = membership
        self._store = store

    async def run(self) -> None:
        await self._perform(self.announce, "announce")
        while True:
            await self._membership.elected.wait()
            await self._perform(self.continue_averages, "continue")
            await self._runtime.sleep(RETRY_S)
            while self._membership.is_leader():
                await self._runtime.sleep(self._interval_s())
                await self._perform(self.write_once, "write")

    def _interval_s(self) -> float:
        return self._runtime.config.load_balancer_resource_quota_update_interval_minutes * 60.0

    async def _perform(self, step: Callable[[], Awaitable[None]], name: str) -> None:
        """A step that fails is repeated with the next interval or leader."""
        try:
            await step()
        except StoreError as error:
            logs.warning("load_averages.not_stored", step=name, error=str(error))

    async def announce(self) -> None:
        """Store averages of 0 for this broker, as Java brokers do when they register. Raises StoreError."""
        await self._store.put(broker_path(self._membership.own_broker.broker_id), encoded_broker(None))

    async def continue_averages(self) -> None:
        now_ms = self._runtime.clock.monotonic_ms()
        count = 0
        async for segments, stored in values_at(self._store, BUNDLE_DATA, _BUNDLE_DEPTH):
            found = decoded_bundle(stored.value)
            if found is not None:
                self._membership.averages.continue_from("/".join(segments), found, now_ms)
                count += 1
        logs.info("load_averages.continued", bundles=count)

    async def write_once(self) -> None:
        """Store the averages of the busiest bundles and of all brokers. Delete the stored averages of bundles that are
        no longer reported and of brokers that are not registered. Raises StoreError.
        """
        membership = self._membership
        if not membership.is_leader():
            return
        averages, registrations = membership.averages, membership.registrations
        most = self._runtime.config.load_balancer_max_number_of_bundles_in_bundle_load_report
        count = len(averages) if most <= 0 else most * max(1, len(registrations))
        for bundle in averages.busiest(count):
            await self._store.put(bundle_path(bundle), encoded_bundle(averages.of(bundle)))
        for broker_id, registration in list(registrations.items()):
            sums = averages.sums(registration.report.bundles)
            await self._store.put(broker_path(broker_id), encoded_broker(sums))
        await self._delete_others()

    async def _delete_others(self) -> None:
        membership = self._membership
        gone = [
            bundle_path("/".join(segments))
            async for segments, _ in values_at(self._store, BUNDLE_DATA, _BUNDLE_DEPTH)
            if "/".join(segments) not in membership.averages
        ]
        gone += [
            broker_path(broker_id)
            async for (broker_id,), _ in values_at(self._store, BROKER_AVERAGES, 1)
            if broker_id not in membership.registrations
        ]
        for path in gone:
            if not membership.is_leader():
                return
            await self._store.delete(path)

    async def forget(self, bundle: str) -> None:
        """Delete the averages of a bundle that was split. Raises StoreError."""
        self._membership.averages.forget(bundle)
        await self._store.delete(bundle_path(bundle))
