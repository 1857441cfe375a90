"""Start of transaction coordinators that no broker runs, and end of the transactions of coordinators at Java brokers.

When a broker stops, its transaction coordinators have no owner until a client looks one up. Meanwhile, open
transactions do not time out, and their messages block readers. The leader broker therefore looks up each such
coordinator, which assigns it to a broker.

A Java broker does not read the logs of these coordinators. If a Java broker owns a coordinator, or if only Java brokers
stay in the cluster, the open transactions are aborted by a pybroker.
"""

from __future__ import annotations

import asyncio
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
END_TIMEOUT_S = 10.0
"""How long the ends of the transactions of a coordinator, or of a broker that stops, are awaited."""


class UnattendedCoordinators:
    """Periodic check for transaction coordinators that no pybroker runs."""

    def __init__(
        self, runtime: Runtime, ownership: BundleOwnership, coordinators: Coordinators, other_brokers: OtherBrokers
    ) -> None:
        self._runtime = runtime
        self._ownership = ownership
        self._coordinators = coordinators
        self._other_brokers = other_brokers
        self._ended: set[int] = set()
        """Coordinators at Java brokers whose transactions have ended."""

    async def run(self) -> None:
        while True:
            await self._runtime.sleep(CHECK_INTERVAL_S)
            await self.check()

    async def check(self) -> None:
        """Assign a broker to each transaction coordinator that has a log and no owner, and abort the open transactions
        of coordinators that Java brokers own. A failure is logged, and the next check retries.
        """
        try:
            coordinator_ids = await self._coordinators.with_log() if await self._is_responsible() else []
        except (BrokerError, StoreError) as error:
            logs.warning("transaction_coordinators.not_assigned", error=str(error))
            return
        for coordinator_id in coordinator_ids:
            try:
                await self._assign(coordinator_id)
            except (BrokerError, AdminError, StoreError, TimeoutError) as error:
                reason = str(error) or f"its transactions have not ended within {END_TIMEOUT_S:g} s"
                logs.warning("transaction_coordinators.not_assigned", coordinator=coordinator_id, error=reason)

    async def _assign(self, coordinator_id: int) -> None:
        topic = partition_of(coordinator_id)
        bundle = self._ownership.bundle_of(topic)
        present = await self._ownership.present_owner(bundle)
        if present is not None:
            if present.is_pybroker:
                self._ended.discard(coordinator_id)
            elif coordinator_id not in self._ended:
                async with asyncio.timeout(END_TIMEOUT_S):
                    count = await self._coordinators.end_all_of(coordinator_id)
                self._ended.add(coordinator_id)
                logs.info("transactions.ended_for_java_broker", coordinator=coordinator_id, aborted=count)
            return
        owner = await self._ownership.owner_of(topic, None, is_authoritative=False)
        if owner.kind is OwnerKind.REDIRECT:
            is_authoritative = "true" if owner.is_authoritative else "false"
            path = (
                f"/lookup/v2/topic/{topic.domain}/{topic.namespace}/{topic.local_name}?authoritative={is_authoritative}"
            )
            await self._other_brokers.call(owner.urls.http_url or owner.urls.http_url_tls, "GET", path)
        logs.info("transaction_coordinator.assigned", coordinator=coordinator_id)

    async def _is_responsible(self) -> bool:
        """Return whether this broker is the leader, or the pybroker with the lowest id if a Java broker is the leader.
        Raises StoreError.
        """
        registry, java_brokers = self._ownership.registry, self._coordinators.java_brokers
        if registry.is_leader():
            return True
        leader = registry.leader()
        if java_brokers is None or leader is None or not self._coordinators.is_enabled:
            return False
        if not await java_brokers.is_java_broker(leader.broker_id):
            return False
        own_kind = (await java_brokers.registered()).own_kind
        return min(own_kind, default="") == registry.own_broker.broker_id

    async def end_before_stop(self) -> None:
        """Abort the open transactions if only Java brokers remain in the cluster after this broker stops. Never raises."""
        java_brokers = self._coordinators.java_brokers
        if java_brokers is None or not self._coordinators.running():
            return
        try:
            found = await java_brokers.registered()
            if not found.java or set(found.own_kind) - {self._ownership.registry.own_broker.broker_id}:
                return
            async with asyncio.timeout(END_TIMEOUT_S):
                count = await self._coordinators.end_all()
        except (BrokerError, StoreError, TimeoutError) as error:
            logs.warning(
                "transactions.left_to_java_broker",
                error=str(error) or f"they have not ended within {END_TIMEOUT_S:g} s",
                action="Java brokers deliver no message after the first message of these transactions until a pybroker runs again",
            )
        else:
            logs.info("transactions.ended_for_java_broker", aborted=count)
