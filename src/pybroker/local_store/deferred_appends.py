"""Appends that wait for a checkpoint, because memory and journal hold as much as they may; pure.

Runs of one owner go in their order, also when he has gone on in another ledger meanwhile: what is in the next ledger must not be
durable, and seen, before the rest of the one before it. Owners go in turns: one whose many runs wait does not keep those of others
back.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator

from pybroker.ledgers.ledger_store import AppendListener, AppendRun


class DeferredAppends:
    """Owned by the store. Invariant: no row is empty."""

    def __init__(self) -> None:
        self._rows: OrderedDict[AppendListener, deque[AppendRun]] = OrderedDict()  # by owner, in the order of turns
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def holds(self, owner: AppendListener) -> bool:
        """Whether runs of `owner` wait, behind which his next one has to stand."""
        return owner in self._rows

    def hold(self, run: AppendRun) -> None:
        self._rows.setdefault(run.listener, deque()).append(run)
        self._count += 1

    def release(self, may_go: Callable[[AppendRun], bool]) -> Iterator[AppendRun]:
        """Those that may go, which is asked in turns, of each owner until one may not; they wait no more."""
        turns = deque(self._rows)
        while turns:
            owner = turns.popleft()
            row = self._rows[owner]
            if not may_go(row[0]):
                continue
            run = row.popleft()
            self._count -= 1
            if row:
                self._rows.move_to_end(owner)
                turns.append(owner)
            else:
                del self._rows[owner]
            yield run

    def take(self, ledger_id: int) -> list[AppendRun]:
        """All of one ledger, which wait no more."""
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
        self._count -= len(taken)
        return taken

    def take_all(self) -> list[AppendRun]:
        """All; those of one owner in their order."""
        runs = [run for row in self._rows.values() for run in row]
        self._rows.clear()
        self._count = 0
        return runs
