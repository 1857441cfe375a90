"""What all managed ledgers of a broker share: where they store, when they begin a ledger, who does what in the background."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from pybroker.clock import Clock
from pybroker.managed_ledger.entry_cache import EntryCache
from pybroker.model.stats import LedgerCounters
from pybroker.storage.ledger_store import LedgerStore
from pybroker.tasks import TaskOwner


@dataclass(frozen=True, slots=True)
class LedgerLimits:
    """When the next ledger is begun."""

    max_entries_per_ledger: int = 50_000
    max_bytes_per_ledger: int = 2048 * 1024 * 1024
    min_rollover_ms: int = 10 * 60_000
    """A younger ledger is not closed for its number of entries."""
    max_rollover_ms: int = 240 * 60_000
    """An older ledger is closed, unless it is empty."""
    inactive_rollover_ms: int = 0
    """A ledger without an append for so long is closed, unless it is empty; 0: it is not."""


class LedgerSurroundings:
    """Made by who builds a broker; the factory hands it to each managed ledger, and ends its tasks."""

    def __init__(
        self,
        store: LedgerStore,
        cache: EntryCache,
        limits: LedgerLimits,
        clock: Clock,
        cursor_flush_interval_ms: int,
        publish_time_of: Callable[[bytes], int],
    ) -> None:
        """`publish_time_of` reads when an entry was published, in milliseconds, out of it; it never raises."""
        self.store = store
        self.cache = cache
        self.limits = limits
        self.clock = clock
        self.publish_time_of = publish_time_of
        self.tasks = TaskOwner("managed ledgers")
        self.counters = LedgerCounters()
        """What all managed ledgers together have read since the start."""
        self._flushes: list[Callable[[], None]] = []
        self._flush_interval_s = cursor_flush_interval_ms / 1000

    def flush_soon(self, flush: Callable[[], None]) -> None:
        """Call `flush`, of a cursor that has changed, within the flush interval."""
        if not self._flushes:
            asyncio.get_running_loop().call_later(self._flush_interval_s, self.flush)
        self._flushes.append(flush)

    def flush(self) -> None:
        """Call all that wait for it, now."""
        flushes, self._flushes = self._flushes, []
        for flush in flushes:
            flush()
