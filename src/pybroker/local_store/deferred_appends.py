"""Queues of appends that wait because the memory limit or the journal's size limit is reached. Pure.

The runs of one owner are released in order, even across ledgers: an entry of the next ledger must not become durable
and visible before the rest of the previous one. Owners are served round robin.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator

from pybroker.ledgers.ledger_store import AppendListener, AppendRun


class DeferredAppends:
    """Queues of deferred runs, one per owner (the managed ledger that appends). Invariant: no queue is empty."""

    def __init__(self) -> None:
        self._rows: OrderedDict[AppendListener, deque[AppendRun]] = OrderedDict()  # by owner, in the order of release
        self.count = 0
        """The number of deferred runs."""

    def holds(self, owner: AppendListener) -> bool:
        """Return whether appends of `owner` wait. If so, the owner's next append must wait too."""
        return owner in self._rows

    def hold(self, run: AppendRun) -> None:
        self._rows.setdefault(run.listener, deque()).append(run)
        self.count += 1

    def release(self, may_go: Callable[[AppendRun], bool]) -> Iterator[AppendRun]:
        """Remove and yield waiting appends, one per owner in turn, until `may_go` returns False for the next append of
        each owner.
        """
        turns = deque(self._rows)
        while turns:
            owner = turns.popleft()
            row = self._rows[owner]
            if not may_go(row[0]):
                continue
            run = row.popleft()
            self.count -= 1
            if row:
                self._rows.move_to_end(owner)
                turns.append(owner)
            else:
                del self._rows[owner]
            yield run

    def take(self, ledger_id: int) -> list[AppendRun]:
        taken = []
        for owner, row in list(self._rows.items()):
            own = [run for run in row if run.ledger_id == ledger_id]
            if not own:
                continue
            taken += own
            if len(own) == len(row):
                del self._rows[owner]
            else:
                self._rows[owner] = deque(run for run in row if run.ledger_id != ledger_id)
        self.count -= len(taken)
        return taken

    def take_all(self) -> list[AppendRun]:
        runs = [run for row in self._rows.values() for run in row]
        self._rows.clear()
        self.count = 0
        return runs
