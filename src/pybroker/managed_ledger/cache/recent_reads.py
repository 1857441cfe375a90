"""Cache of the last reads from the ledger store, so that one read serves all cursors at nearly the same position.

Pure. Invariants: `size_bytes` is the sum of the runs, at most `limit_bytes`, in at most `MAX_RUNS` runs; the oldest run
is evicted first.
"""

from __future__ import annotations

from collections import deque

from pybroker.ledgers.ledger_store import EntryRun
from pybroker.model.position import Position

MAX_RUNS = 256


class RecentReads:
    """The cache that all managed ledgers of a broker share. Used from the event loop only."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.size_bytes = 0
        self.hits_total = 0
        self._runs: deque[tuple[EntryRun, int]] = deque()
        self._by_ledger: dict[int, list[EntryRun]] = {}

    def put(self, run: EntryRun) -> None:
        """Cache entries that were read. The caller must not change the lists of `run` afterwards."""
        size_bytes = sum(map(len, run.payloads))
        if size_bytes > self.limit_bytes:
            return
        self._runs.append((run, size_bytes))
        self._by_ledger.setdefault(run.ledger_id, []).append(run)
        self.size_bytes += size_bytes
        while self.size_bytes > self.limit_bytes or len(self._runs) > MAX_RUNS:
            self._forget(*self._runs.popleft())

    def find(self, position: Position) -> EntryRun | None:
        ledger_id, entry_id = position
        for run in reversed(self._by_ledger.get(ledger_id, ())):
            if run.first_entry_id <= entry_id < run.first_entry_id + len(run.payloads):
                self.hits_total += 1
                return run
        return None

    def drop_ledger(self, ledger_id: int) -> None:
        if ledger_id in self._by_ledger:
            kept = deque((run, size) for run, size in self._runs if run.ledger_id != ledger_id)
            del self._by_ledger[ledger_id]
            self._runs = kept
            self.size_bytes = sum(size for _, size in kept)

    def _forget(self, run: EntryRun, size_bytes: int) -> None:
        self.size_bytes -= size_bytes
        own = self._by_ledger[run.ledger_id]
        own.remove(run)
        if not own:
            del self._by_ledger[run.ledger_id]

    def check_invariants(self) -> None:
        assert self.size_bytes == sum(len(payload) for run, _ in self._runs for payload in run.payloads)
        assert self.size_bytes <= self.limit_bytes
        assert len(self._runs) == sum(map(len, self._by_ledger.values())) <= MAX_RUNS
        assert all(self._by_ledger.values())
