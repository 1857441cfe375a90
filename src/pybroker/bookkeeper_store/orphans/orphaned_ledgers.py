"""Periodic deletion of orphaned ledgers, by the leader of the cluster."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from pybroker.bookkeeper import BookKeeperClient, BookKeeperError
from pybroker.bookkeeper.inspection.orphan_deletion import OrphanDeletion
from pybroker.bookkeeper.inspection.orphan_rule import OrphanRule
from pybroker.bookkeeper_store.orphans.named_ledgers import NamedLedgers
from pybroker.errors import StoreError
from pybroker.ledgers.ledger_properties import AGE_FACTOR, MANAGED_LEDGER, cluster_properties, named_within_ms
from pybroker.metadata.metadata_store import MetadataStore
from pybroker.runtime import logs
from pybroker.runtime.runtime import Runtime


def orphan_rule(cluster_name: str, min_age_ms: int) -> OrphanRule:
    """Return the rule by which ledgers of this cluster's topics and cursors count as orphaned, from the age
    `min_age_ms` (milliseconds) on.
    """
    return OrphanRule(cluster_properties(cluster_name), MANAGED_LEDGER, named_within_ms, AGE_FACTOR, min_age_ms)


class OrphanedLedgers:
    """The periodic deletion of orphaned ledgers by one broker. `run` works until it is cancelled or the deletion is
    disabled.
    """

    def __init__(
        self,
        client: BookKeeperClient,
        metadata: MetadataStore,
        runtime: Runtime,
        is_leader: Callable[[], Awaitable[bool]],
    ) -> None:
        self._runtime = runtime
        self._is_leader = is_leader
        config = runtime.config
        rule = orphan_rule(config.cluster_name, config.orphaned_ledger_min_age_in_seconds * 1000)
        self._deletion = OrphanDeletion(client, rule, NamedLedgers(metadata), is_leader, runtime.clock, runtime.sleep)
        self.failure = ""
        """The error of the last run; empty if it has succeeded."""
        self._deleted = self._kept = self._runs = self._failed_runs = 0

    async def run(self) -> None:
        config = self._runtime.config
        while config.orphaned_ledger_deletion_enabled:
            await self._runtime.sleep(config.orphaned_ledger_deletion_interval_in_seconds)
            await self.run_once()

    async def run_once(self) -> None:
        """Search and delete orphaned ledgers once, if this broker is the leader. Errors are logged and counted."""
        try:
            if not await self._is_leader():
                return
            counts = await self._deletion.run()
        except (BookKeeperError, StoreError) as error:
            self._fail(error)
            logs.error("orphaned_ledgers.failed", error=str(error))
            return
        except Exception as bug:  # noqa: BLE001  (a fault boundary)
            self._fail(bug)
            logs.error("orphaned_ledgers.failed", exc_info=bug)
            return
        self._runs += 1
        self._deleted += counts.deleted
        self._kept = counts.kept
        self.failure = ""
        logs.info(
            "orphaned_ledgers.searched",
            examined=counts.examined,
            deleted=counts.deleted,
            kept=counts.kept,
            complete=counts.is_complete,
        )

    def _fail(self, error: Exception) -> None:
        self._failed_runs += 1
        self.failure = str(error) or type(error).__name__

    def figures(self) -> dict[str, float]:
        return {
            "bookkeeper_orphan_runs": self._runs,
            "bookkeeper_orphan_runs_failed": self._failed_runs,
            "bookkeeper_orphan_last_run_failed": int(self.failure != ""),
            "bookkeeper_orphans_deleted": self._deleted,
            "bookkeeper_orphans_kept": self._kept,
        }
