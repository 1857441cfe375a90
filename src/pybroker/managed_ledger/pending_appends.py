"""Appends that wait while a managed ledger changes to its next ledger. Pure.

An append waits for one of two reasons: the current ledger is being closed, or it is unknown whether the store has
stored it. Sealing the ledger decides the second case: entries that the sealed ledger contains are stored; the others
are appended to the next ledger, in their order and before later appends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pybroker.ledgers.ledger_store import AppendRun

SplitContext = Callable[[object, int], tuple[object, object]]
"""Divides the owner's context of a run: (context, entries of the first part)."""


class PendingAppends:
    """Owned by the managed ledger."""

    def __init__(self) -> None:
        self._unknown: list[AppendRun] = []
        self._waiting: list[AppendRun] = []

    def __bool__(self) -> bool:
        return bool(self._unknown or self._waiting)

    @property
    def has_unknown(self) -> bool:
        return bool(self._unknown)

    def wait(self, run: AppendRun) -> None:
        self._waiting.append(run)

    def add_unknown(self, runs: Sequence[AppendRun]) -> None:
        """Add appends with an unknown outcome, and later ones of the same ledger, which are not stored."""
        self._unknown += runs

    def decide(self, ledger_id: int, entry_count: int, split_context: SplitContext) -> list[AppendRun]:
        """Return the unknown runs that are stored. `ledger_id` is sealed with `entry_count` entries.

        A run of which only the first entries are stored is divided.
        """
        unknown, self._unknown = self._unknown, []
        stored: list[AppendRun] = []
        missing: list[AppendRun] = []
        for run in unknown:
            assert run.ledger_id == ledger_id, "an unknown append of a ledger that is sealed already"
            count = min(len(run.payloads), max(0, entry_count - run.first_entry_id))
            if count == len(run.payloads):
                stored.append(run)
            elif count == 0:
                missing.append(run)
            else:
                head, tail = run.divided(count, split_context(run.context, count))
                stored.append(head)
                missing.append(tail)
        self._waiting[:0] = missing
        return stored

    def take_all(self) -> list[AppendRun]:
        """Return all appends, in order, and forget them."""
        runs = self._unknown + self._waiting
        self._unknown, self._waiting = [], []
        return runs
