"""The entry cache: recently appended entries of all topics in memory, up to `managedLedgerCacheSizeMB`.

Entries are evicted oldest first, regardless of reads: a consumer that catches up on an old backlog never evicts the
newest entries, which other consumers read.

Invariant: the cached entries of a ledger are consecutive; `size_bytes` is the sum of their payloads and, between calls,
at most `limit_bytes` unless a single run is larger.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from pybroker.ledgers.ledger_store import AppendRun, EntryRun
from pybroker.model.position import Position

_COMPACT_AT = 4096
_RUNS_AT_ONCE = 256


class _LedgerTail:
    """Consecutive entries of one ledger; entries before `start` have been evicted."""

    __slots__ = ("first_entry_id", "message_counts", "payloads", "start")

    def __init__(self, first_entry_id: int) -> None:
        self.first_entry_id = first_entry_id
        self.payloads: list[bytes] = []
        self.message_counts: list[int] = []
        self.start = 0


class EntryCache:
    """The cache that all managed ledgers of a broker share. Used from the event loop only."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.size_bytes = 0
        self.entry_count = 0
        self.evicted_entries_total = 0
        self.evictions_total = 0
        self.inserted_entries_total = 0
        self.hits_total = 0
        self.misses_total = 0
        self._tails: dict[int, _LedgerTail] = {}
        self._runs: deque[tuple[int, int, int]] = deque()  # ledger id, entries, bytes; in the order of eviction
        self._young_runs = 0  # inserted since the last `evict_old`
        self._hits_before = 0  # `hits_total` at the last `evict_old`

    def insert(self, run: AppendRun) -> None:
        """Cache `run`, newly appended entries. If it does not directly follow the cached entries of its ledger, those
        are dropped. Then evict the oldest entries of all ledgers while the cache is above its limit.
        """
        tail = self._tails.get(run.ledger_id)
        if tail is None or tail.first_entry_id + len(tail.payloads) != run.first_entry_id:
            # There is a gap: entries are not cached while no reader is connected.
            self.drop_ledger(run.ledger_id)
            tail = self._tails[run.ledger_id] = _LedgerTail(run.first_entry_id)
        tail.payloads += run.payloads
        tail.message_counts += run.message_counts
        count = len(run.payloads)
        self._runs.append((run.ledger_id, count, run.size_bytes))
        self._young_runs += 1
        self.size_bytes += run.size_bytes
        self.entry_count += count
        self.inserted_entries_total += count
        if self.size_bytes > self.limit_bytes:
            self._keep_limit()

    def resize(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._keep_limit()

    def evict_old(self) -> Iterator[None]:
        """Evict, in steps, the entries that were already cached at the previous call. If any entry was read from the
        cache since then, evict none. The caller may yield to the event loop after each step.
        """
        is_in_use = self.hits_total > self._hits_before
        self._hits_before = self.hits_total
        if is_in_use:
            self._young_runs = 0
            return
        last_eviction = self.evictions_total + max(0, len(self._runs) - self._young_runs)
        self._young_runs = 0
        while self._runs and self.evictions_total < last_eviction:
            for _ in range(min(_RUNS_AT_ONCE, len(self._runs), last_eviction - self.evictions_total)):
                self._evict()
            yield

    def _keep_limit(self) -> None:
        while self.size_bytes > self.limit_bytes and len(self._runs) > 1:
            self._evict()

    def _evict(self) -> None:
        ledger_id, count, size_bytes = self._runs.popleft()
        tail = self._tails[ledger_id]
        start = tail.start
        tail.payloads[start : start + count] = [b""] * count
        tail.start = start + count
        if tail.start == len(tail.payloads):
            del self._tails[ledger_id]
        elif tail.start > _COMPACT_AT and tail.start * 2 > len(tail.payloads):
            del tail.payloads[: tail.start]
            del tail.message_counts[: tail.start]
            tail.first_entry_id += tail.start
            tail.start = 0
        self.size_bytes -= size_bytes
        self.entry_count -= count
        self.evicted_entries_total += count
        self.evictions_total += 1

    def read(self, ledger_id: int, first_entry_id: int, max_entries: int, max_bytes: int) -> EntryRun | None:
        """Return the cached entries from `first_entry_id` on: at most `max_entries`, and at most `max_bytes` but at
        least one entry. None if the entry `first_entry_id` is not cached.
        """
        tail = self._tails.get(ledger_id)
        if tail is None:
            self.misses_total += 1
            return None
        index = first_entry_id - tail.first_entry_id
        if not tail.start <= index < len(tail.payloads):
            self.misses_total += 1
            return None
        payloads = tail.payloads[index : index + max_entries]
        if sum(map(len, payloads)) > max_bytes:
            payloads = _first(payloads, max_bytes)
        self.hits_total += len(payloads)
        return EntryRun(ledger_id, first_entry_id, payloads, tail.message_counts[index : index + len(payloads)])

    def contains(self, position: Position) -> bool:
        tail = self._tails.get(position.ledger_id)
        return tail is not None and tail.start <= position.entry_id - tail.first_entry_id < len(tail.payloads)

    def drop_ledger(self, ledger_id: int) -> None:
        if self._tails.pop(ledger_id, None) is None:
            return
        kept: deque[tuple[int, int, int]] = deque()
        for run in self._runs:
            if run[0] == ledger_id:
                self.entry_count -= run[1]
                self.size_bytes -= run[2]
            else:
                kept.append(run)
        self._runs = kept

    def check_invariants(self) -> None:
        held = sum(len(payload) for tail in self._tails.values() for payload in tail.payloads)
        assert held == self.size_bytes, (held, self.size_bytes)
        assert self.entry_count == sum(len(tail.payloads) - tail.start for tail in self._tails.values())


def part_of(run: EntryRun, index: int, max_entries: int, max_bytes: int) -> EntryRun:
    """Return the entries of `run` from index `index` on: at most `max_entries`, and at most `max_bytes` but at least
    one entry.
    """
    payloads = run.payloads[index : index + max_entries]
    if sum(map(len, payloads)) > max_bytes:
        payloads = _first(payloads, max_bytes)
    counts = run.message_counts[index : index + len(payloads)]
    return EntryRun(run.ledger_id, run.first_entry_id + index, payloads, counts)


def _first(payloads: list[bytes], max_bytes: int) -> list[bytes]:
    """Return the first payloads that fit into `max_bytes` together, at least one."""
    return payloads[: max(1, count_within(payloads, max_bytes))]


def count_within(payloads: list[bytes], max_bytes: int) -> int:
    size_bytes = 0
    for count, payload in enumerate(payloads):
        size_bytes += len(payload)
        if size_bytes > max_bytes:
            return count
    return len(payloads)
