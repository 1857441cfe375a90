"""The shared resources of all managed ledgers of a broker: stores, ledger limits, cache, and background tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator

from pybroker.ledgers.ledger_store import AppendRun, EntryRun, LedgerStore
from pybroker.managed_ledger.cache.entry_cache import EntryCache
from pybroker.managed_ledger.cache.recent_reads import RecentReads
from pybroker.managed_ledger.rollover import LedgerLimits
from pybroker.memory.broker_memory import Memory
from pybroker.model.counters import LedgerCounters
from pybroker.runtime.clock import Clock
from pybroker.runtime.tasks import TaskOwner

MAX_RECENT_READS_BYTES = 16 * 1024 * 1024
"""A larger cache would not help: cursors that share a read are close to each other."""
RECENT_READS_PART = 8
"""The cache of recent reads may take this part of the memory for reads."""


class LedgerResources:
    """Resources that all managed ledgers of a broker share. The factory passes them to each managed ledger, and ends
    the background tasks.
    """

    def __init__(
        self,
        store: LedgerStore,
        cache: EntryCache,
        limits: LedgerLimits,
        clock: Clock,
        cursor_flush_interval_ms: int,
        publish_time_of: Callable[[bytes], int],
        memory: Memory | None = None,
    ) -> None:
        """`publish_time_of` returns the publish time of an entry's bytes in milliseconds since 1970; it never raises.
        Without `memory` there is no memory limit.
        """
        self.store = store
        self.cache = cache
        self.memory = memory or Memory.ample(clock)
        self.recent_reads = RecentReads(min(MAX_RECENT_READS_BYTES, self.memory.reads.most_bytes // RECENT_READS_PART))
        self.limits = limits
        self.clock = clock
        self.publish_time_of = publish_time_of
        self.tasks = TaskOwner("managed ledgers")
        self.counters = LedgerCounters()
        self._flushes: list[Callable[[], None]] = []
        self._flush_interval_s = cursor_flush_interval_ms / 1000

    def keep_cached(self, run: AppendRun) -> None:
        before_bytes = self.cache.size_bytes
        self.cache.insert(run)
        if (settled := self.memory.cache.count(self.cache.size_bytes - before_bytes)) is not None:
            self.memory.follow(settled)

    def resize_cache(self, limit_bytes: int) -> None:
        """Set the size limit of the entry cache to `limit_bytes`, or to the cache's memory budget if that is smaller."""
        before_bytes = self.cache.size_bytes
        self.cache.resize(min(limit_bytes, self.memory.cache.highest_bytes))
        self.memory.follow(self.memory.cache.count(self.cache.size_bytes - before_bytes))

    def evict_old_cached(self) -> Generator[None, None, None]:
        """Evict, in small steps, the entries that were already cached at the previous call. If any entry was read from
        the cache since then, evict none. The generator yields after each step.
        """
        before_bytes = self.cache.size_bytes
        for _ in self.cache.evict_old():
            self.memory.follow(self.memory.cache.count(self.cache.size_bytes - before_bytes))
            yield
            before_bytes = self.cache.size_bytes

    def keep_recent(self, run: EntryRun) -> None:
        before_bytes = self.recent_reads.size_bytes
        self.recent_reads.put(run)
        self.memory.follow(self.memory.reads.count(self.recent_reads.size_bytes - before_bytes))

    def drop_ledger(self, ledger_id: int) -> None:
        cached_bytes, recent_bytes = self.cache.size_bytes, self.recent_reads.size_bytes
        self.cache.drop_ledger(ledger_id)
        self.recent_reads.drop_ledger(ledger_id)
        self.memory.follow(self.memory.cache.count(self.cache.size_bytes - cached_bytes))
        self.memory.follow(self.memory.reads.count(self.recent_reads.size_bytes - recent_bytes))

    def flush_soon(self, flush: Callable[[], None]) -> None:
        if not self._flushes:
            asyncio.get_running_loop().call_later(self._flush_interval_s, self.flush)
        self._flushes.append(flush)

    def flush(self) -> None:
        flushes, self._flushes = self._flushes, []
        for flush in flushes:
            flush()
