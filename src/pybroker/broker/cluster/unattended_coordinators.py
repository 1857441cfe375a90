"""Start of transaction coordinators that have a log but no owner broker.

When a broker stops or dies, the bundles of its transaction coordinators have no owner until a client looks up a
coordinator. Until then, open transactions do not time out, and their messages block readers. The leader broker
therefore looks up each such coordinator, which assigns its bundle to a broker. Pulsar waits for a client.
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
    """Periodic check for transaction coordinators without an owner. Runs on the leader broker of a cluster."""

    def __init__(
        self, runtime: Runtime, ownership: BundleOwnership, coordinators: Coordinators, other_brokers: OtherBrokers
    ) -> None:
        self._runtime = runtime
        self._ownership = ownership
        self._coordinators = coordinators
        self._other_brokers = other_brokers

    async def run(self) -> None:
        """Check periodically until cancelled."""
        while True:
            await self._runtime.sleep(CHECK_INTERVAL_S)
            if self._ownership.registry.is_leader():
                await self.check()

    async def check(self) -> None:
        """Assign a broker to each coordinator that has a log and no owner. Log a failure; the next check retries."""
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
