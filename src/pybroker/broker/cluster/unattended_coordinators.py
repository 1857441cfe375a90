"""Starts the transaction coordinators of the cluster that have a log and no owner.

A broker that stops or dies leaves the bundles of its coordinators without an owner until a client looks one of them up. Open
transactions would not time out meanwhile, and their messages would block readers. So the leader looks up each such coordinator,
which assigns its bundle to a broker. Pulsar waits for a client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pybroker.cluster.ownership.bundle_ownership import OwnerKind
from pybroker.errors import AdminError, BrokerError, StoreError
from pybroker.runtime import logs
from pybroker.transactions.coordinators import partition_of

if TYPE_CHECKING:
    from pybroker.broker.lifecycle.other_brokers import OtherBrokers
    from pybroker.cluster.ownership.bundle_ownership import BundleOwnership
    from pybroker.runtime.runtime import Runtime
    from pybroker.transactions.coordinators import Coordinators

CHECK_INTERVAL_S = 10.0


class UnattendedCoordinators:
    """Owned by the broker service of a cluster."""

    def __init__(
        self, runtime: Runtime, ownership: BundleOwnership, coordinators: Coordinators, other_brokers: OtherBrokers
    ) -> None:
        self._runtime = runtime
        self._ownership = ownership
        self._coordinators = coordinators
        self._other_brokers = other_brokers

    async def run(self) -> None:
        """Check until cancelled."""
        while True:
            await self._runtime.sleep(CHECK_INTERVAL_S)
            if self._ownership.registry.is_leader():
                await self.check()

    async def check(self) -> None:
        """Assign each coordinator with a log and without an owner. A failure is logged; the next check repeats it."""
        try:
            for coordinator_id in await self._coordinators.with_log():
                await self._assign(coordinator_id)
        except (BrokerError, AdminError, StoreError) as error:
            logs.warning("transaction_coordinators.not_assigned", error=str(error))

    async def _assign(self, coordinator_id: int) -> None:
        topic = partition_of(coordinator_id)
        if await self._ownership.present_owner(self._ownership.bundle_of(topic)) is not None:
            return
        owner = await self._ownership.owner_of(topic, None, is_authoritative=False)
        if owner.kind is OwnerKind.REDIRECT:
            is_authoritative = "true" if owner.is_authoritative else "false"
            path = (
                f"/lookup/v2/topic/{topic.domain}/{topic.namespace}/{topic.local_name}?authoritative={is_authoritative}"
            )
            await self._other_brokers.call(owner.urls.http_url or owner.urls.http_url_tls, "GET", path)
        logs.info("transaction_coordinator.assigned", coordinator=coordinator_id)
