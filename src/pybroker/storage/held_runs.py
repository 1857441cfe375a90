"""Appends that wait for a checkpoint, because memory and journal hold as much as they may; pure.

Runs of one ledger go in their order, ledgers in turns: one that many runs wait for does not keep those of others back.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator

from pybroker.storage.ledger_store import AppendRun


class HeldRuns:
    """Owned by the store. Invariant: no row is empty."""

    def __init__(self) -> None:
        self._rows: OrderedDict[int, deque[AppendRun]] = OrderedDict()  # by ledger, in the order of turns
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def holds(self, ledger_id: int) -> bool:
        """Whether runs of this ledger wait, behind which the next one has to stand."""
        return ledger_id in self._rows

    def hold(self, run: AppendRun) -> None:
        self._rows.setdefault(run.ledger_id, deque()).append(run)
        self._count += 1

    def release(self, may_go: Callable[[AppendRun], bool]) -> Iterator[AppendRun]:
        """Those that may go, which is asked in turns, of each ledger until one may not; they wait no more."""
        turns = deque(self._rows)
        while turns:
            ledger_id = turns.popleft()
            row = self._rows[ledger_id]
            if not may_go(row[0]):
                continue
            run = row.popleft()
            self._count -= 1
            if row:
                self._rows.move_to_end(ledger_id)
                turns.append(ledger_id)
            else:
                del self._rows[ledger_id]
            yield run

    def take(self, ledger_id: int) -> list[AppendRun]:
        """All of one ledger, which wait no more."""
        runs = list(self._rows.pop(ledger_id, ()))
        self._count -= len(runs)
        return runs

    def take_all(self) -> list[AppendRun]:
        """All; those of one ledger in their order."""
        runs = [run for row in self._rows.values() for run in row]
        self._rows.clear()
        self._count = 0
        return runs
