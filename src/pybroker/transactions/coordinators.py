"""All transaction coordinators of the broker.

Clients find a coordinator as the partition of `transaction_coordinator_assign` with its number. The metadata of that
partitioned topic has the number of coordinators, by default `DEFAULT_COORDINATORS`; the topic itself does not exist.

A coordinator starts when a client connects to it, and at the start of the broker if it has a log. In a cluster, the
broker that owns its partition runs it, as in Pulsar. Each coordinator has its own log with one writer: opening the log
fences the former owner.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from pybroker.errors import AdminError, BrokerError, NotAllowedError, ServiceNotReady, TransactionCoordinatorNotFound
from pybroker.metadata import metadata_paths
from pybroker.model.names import PERSISTENT, TopicName
from pybroker.model.system_topics import COORDINATOR_ASSIGN, LOG_BESIDE_PULSAR, SYSTEM_NAMESPACE, TRANSACTION_LOG
from pybroker.runtime import logs
from pybroker.runtime.tasks import all_results
from pybroker.transactions.coordinator import Coordinator, CoordinatorContext
from pybroker.transactions.coordinator_state import Phase, not_found
from pybroker.transactions.sinks import HOMES, home_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pybroker.managed_ledger.factory import ManagedLedgerFactory
    from pybroker.metadata.metadata_store import MetadataStore
    from pybroker.metadata.partitioned_topics import PartitionedTopics
    from pybroker.model.txn_id import TxnId
    from pybroker.runtime.runtime import Runtime
    from pybroker.transactions.coordinator_state import Transaction
    from pybroker.transactions.java_brokers import JavaBrokers
    from pybroker.transactions.participant_notification import EndParticipant
    from pybroker.waiting.fair_shares import FairShares

ASSIGN = TopicName(PERSISTENT, SYSTEM_NAMESPACE, COORDINATOR_ASSIGN)
DEFAULT_COORDINATORS = HOMES
"""Number of coordinators by default, and the minimum: with fewer, sinks would move to other coordinators."""
MAX_COORDINATORS = 1024
"""Maximum number of coordinators, each of which has its own log."""
NOT_ENABLED = "Transactions are not enabled."


class CoordinatorOwnership(Protocol):
    """Decides which coordinators this broker of a cluster runs."""

    def require_served(self, topic: TopicName) -> None:
        """Raise ServiceNotReady unless this broker owns the bundle of `topic`."""


def partition_of(coordinator_id: int) -> TopicName:
    """Return the partition of `transaction_coordinator_assign` for the coordinator. The broker that owns the bundle of
    this partition runs the coordinator.
    """
    return ASSIGN.partition(coordinator_id)


class Coordinators:
    """Coordinators that this broker runs."""

    ownership: CoordinatorOwnership | None = None
    """The ownership of bundles; None if this broker runs all coordinators."""

    def __init__(
        self,
        runtime: Runtime,
        metadata: MetadataStore,
        ledgers: ManagedLedgerFactory,
        partitioned: PartitionedTopics,
        end_participant: EndParticipant,
    ) -> None:
        self._runtime = runtime
        self._metadata = metadata
        self._partitioned = partitioned
        self._context = CoordinatorContext(runtime, ledgers, end_participant)
        self._log_prefix = LOG_BESIDE_PULSAR if ledgers.store.has_pulsar_layout else TRANSACTION_LOG
        self._is_closed = False
        self._changing = asyncio.Lock()
        self._closing: dict[int, Coordinator] = {}
        """The last coordinator with this number that is being closed, because its bundle was lost or released."""
        self._ending: set[int] = set()
        """The coordinators of other brokers whose transactions are being ended."""

    @property
    def is_enabled(self) -> bool:
        return self._runtime.config.transaction_coordinator_enabled

    @property
    def count(self) -> int:
        document = self._partitioned.get(ASSIGN)
        return DEFAULT_COORDINATORS if document is None else document.partitions

    def require_enabled(self) -> None:
        if not self.is_enabled:
            raise NotAllowedError(NOT_ENABLED)

    # --- existing coordinators -----------------------------------------------------------------------------------------

    def running(self) -> list[Coordinator]:
        return [each for _, each in sorted(self._context.coordinators.items())]

    def begun(self, coordinator_id: int) -> Coordinator | None:
        return self._context.coordinators.get(coordinator_id)

    def find(self, coordinator_id: int) -> Coordinator:
        """Return a started coordinator.

        Raises TransactionCoordinatorNotFound, also if another broker runs it, because clients repeat the lookup only
        after this error.
        """
        found = self._context.coordinators.get(coordinator_id)
        if found is None:
            raise TransactionCoordinatorNotFound(f"Transaction coordinator with id {coordinator_id} not found!")
        return found

    def runs(self, coordinator_id: int) -> bool:
        """Return whether this broker must run the coordinator, whether it has started or not."""
        try:
            self._require_served(coordinator_id)
        except BrokerError:
            return False
        return True

    def _require_served(self, coordinator_id: int) -> None:
        if self.ownership is not None:
            self.ownership.require_served(partition_of(coordinator_id))

    async def ready(self, coordinator_id: int) -> Coordinator:
        """Wait until a started coordinator has read its log, and return it. Raises TransactionCoordinatorNotFound,
        ServiceNotReady.
        """
        found = self.find(coordinator_id)
        await found.ready()
        return found

    async def transaction(self, txn_id: TxnId) -> tuple[Coordinator, Transaction]:
        coordinator = await self.ready(txn_id.most)
        return coordinator, coordinator.state.existing(txn_id)

    async def listed_transaction(self, txn_id: TxnId) -> tuple[Coordinator, Transaction]:
        """Return a transaction, with its coordinator, for an administrator. Does not start a coordinator.

        Raises the same errors as `ready`, and TransactionNotFound, also if the coordinator has not started.
        """
        if self.begun(txn_id.most) is None and txn_id.most < self.count:
            raise not_found(txn_id)
        return await self.transaction(txn_id)

    async def connect(self, coordinator_id: int) -> Coordinator:
        """Start a coordinator if necessary, and wait until it is ready.

        Raises TransactionCoordinatorNotFound, ServiceNotReady, StoreError.
        """
        if coordinator_id not in self._context.coordinators:
            if coordinator_id >= self.count:
                raise TransactionCoordinatorNotFound(f"Transaction coordinator with id {coordinator_id} not found!")
            await self._require_document(DEFAULT_COORDINATORS)
        coordinator = self._begin(coordinator_id)
        await coordinator.ready()
        return coordinator

    async def of_sink(self, sink: str) -> Coordinator:
        """Return the coordinator that stores the transactions of the sink with the name `sink`. Start it if necessary.
        Raises the same errors as `connect`.
        """
        return await self.connect(home_of(sink))

    def _begin(self, coordinator_id: int) -> Coordinator:
        if self._is_closed:
            raise ServiceNotReady(
                f"transaction coordinator {coordinator_id} cannot be started: the broker is stopping; look the coordinator up again"
            )
        self._require_served(coordinator_id)
        found = self._context.coordinators.get(coordinator_id)
        if found is None:
            if coordinator_id in self._ending:
                raise ServiceNotReady(
                    f"transaction coordinator {coordinator_id} is aborting its transactions before it stops: try again"
                )
            found = self._context.coordinators[coordinator_id] = self._new(coordinator_id)
        return found

    def _new(self, coordinator_id: int) -> Coordinator:
        name = TopicName(PERSISTENT, SYSTEM_NAMESPACE, f"{self._log_prefix}{coordinator_id}")
        path = metadata_paths.managed_ledger(name)
        return Coordinator(self._context, coordinator_id, path, self._closing.get(coordinator_id))

    async def _require_document(self, count: int) -> None:
        """Create the partitioned topic of the coordinators if it does not exist. Raises StoreError."""
        async with self._changing:
            if self._partitioned.get(ASSIGN) is None:
                # The topic exists if another broker, or a request whose client has left, has created it.
                with suppress(AdminError):
                    await self._partitioned.create(ASSIGN, count)

    async def grow(self, count: int) -> None:
        """Increase the number of coordinators.

        Raises AdminError 406 if `count` is not higher than the current number, and 412 above the maximum.
        """
        if count <= self.count:
            raise AdminError(
                406,
                "Number of transaction coordinators should be more than the current number of transaction coordinator",
            )
        if count > MAX_COORDINATORS:
            raise AdminError(412, f"{count} transaction coordinators are more than the maximum of {MAX_COORDINATORS}")
        if self._partitioned.get(ASSIGN) is None:
            await self._require_document(count)
        if self.count < count:
            await self._partitioned.update(
                ASSIGN, lambda document: setattr(document, "partitions", max(count, document.partitions))
            )
        logs.info("transaction_coordinators.grown", coordinators=self.count)

    # --- shares --------------------------------------------------------------------------------------------------------

    @property
    def sizes(self) -> FairShares:
        return self._context.limits.sizes

    @property
    def limit_bytes(self) -> int:
        return self._context.limits.limit_bytes

    async def abort_all_of(self, name: str) -> int:
        return sum([await each.abort_of(name) for each in self.running()])

    async def forget_sinks_of(self, name: str) -> int:
        return sum([await each.forget_sinks_of(name) for each in self.running()])

    # --- lifecycle -----------------------------------------------------------------------------------------------------

    async def recover(self) -> None:
        """Start the coordinators of this broker that have a log, in the background. Raises StoreError."""
        for coordinator_id in await self.with_log():
            if self.runs(coordinator_id):
                self._begin(coordinator_id)

    async def with_log(self) -> list[int]:
        """Return the ids of the coordinators of the cluster that have a log. Raises StoreError."""
        if not self.is_enabled:
            return []
        children = await self._metadata.children(metadata_paths.managed_ledgers(SYSTEM_NAMESPACE, PERSISTENT))
        numbers = [each.removeprefix(self._log_prefix) for each in children if each.startswith(self._log_prefix)]
        return [int(number) for number in numbers if number.isdecimal()]

    @property
    def java_brokers(self) -> JavaBrokers | None:
        """The Java brokers of the cluster; None if the stores do not have the layout that Java brokers use."""
        return self._context.java_brokers

    async def end_all(self) -> int:
        """Abort the open transactions of the running coordinators, and wait until they have ended. Return their number.
        Raises StoreError, ServiceNotReady.
        """
        return sum([await each.end_all() for each in self.running()])

    async def end_all_of(self, coordinator_id: int) -> int:
        """Abort the open transactions of a coordinator that runs on no pybroker broker, and wait until they have ended.
        Return their number. Raises StoreError, ServiceNotReady.
        """
        if self._is_closed or coordinator_id in self._context.coordinators or coordinator_id in self._ending:
            raise ServiceNotReady(
                f"the transactions of coordinator {coordinator_id} cannot be aborted: the coordinator is being started "
                "or stopped. Try again"
            )
        coordinator = self._new(coordinator_id)
        self._ending.add(coordinator_id)
        try:
            return await coordinator.end_all()
        finally:
            await coordinator.close()
            self._ending.discard(coordinator_id)

    async def stop(self, coordinator_ids: Iterable[int]) -> None:
        """Close coordinators, because another broker may run them. Their clients look up the next owner.

        While this method runs, this broker may become the owner of their bundle again and start new coordinators. The
        new coordinators wait until the closing ones have closed their logs.
        """
        found = [self._context.coordinators.pop(each) for each in coordinator_ids if each in self._context.coordinators]
        self._closing |= {each.id: each for each in found}
        try:
            await all_results(each.close() for each in found)
        finally:
            for each in found:
                if self._closing.get(each.id) is each:
                    del self._closing[each.id]

    async def close(self) -> None:
        """Accept no more commands. Commits and aborts in progress continue when a broker starts the coordinators again."""
        self._is_closed = True
        for coordinator in self.running():
            await coordinator.close()


def is_ready(coordinator: Coordinator) -> bool:
    return coordinator.phase is Phase.READY
