"""Rollover: the rule that decides when a managed ledger changes to its next ledger, and the appends that wait
meanwhile. Pure.

A ledger at its size limit is left immediately. At its entry limit it is left only when it is also old enough, so that
small messages do not create many ledgers. The next ledger is prepared earlier, so that the switch needs no wait.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from pybroker.ledgers.ledger_store import AppendRun

PREPARE_AT = 0.9
"""The next ledger is created when the current one has reached this fraction of a limit."""


@dataclass(frozen=True, slots=True)
class LedgerLimits:
    """The limits at which a managed ledger changes to its next ledger. A ledger without entries is never left."""

    max_entries_per_ledger: int = 50_000
    max_bytes_per_ledger: int = 2048 * 1024 * 1024
    min_rollover_ms: int = 10 * 60_000
    """A younger ledger is not closed for its number of entries."""
    max_rollover_ms: int = 240 * 60_000
    inactive_rollover_ms: int = 0
    """A ledger without an append for this time is closed; 0: no limit."""
    add_entry_timeout_ms: int = 0
    """Appends that wait this long for the next ledger fail with an error; 0: no limit."""


class RolloverStep(Enum):
    """The next action of a managed ledger towards its next ledger."""

    STAY = auto()
    PREPARE = auto()
    """Create the next ledger."""
    SWITCH = auto()
    """Append to the next ledger. Create it if it does not exist yet."""


def rollover_step(
    limits: LedgerLimits, entry_count: int, size_bytes: int, age_ms: float, idle_ms: float, *, frees_space: bool
) -> RolloverStep:
    """Return the next action for a current ledger with this size and age, and at least one entry. `idle_ms`: the time
    since its last append. `frees_space`: the disk is full, and the change to the next ledger would permit the deletion
    of the current one.
    """
    if (
        frees_space
        or age_ms >= limits.max_rollover_ms
        or 0 < limits.inactive_rollover_ms <= idle_ms
        or size_bytes >= limits.max_bytes_per_ledger
        or (entry_count >= limits.max_entries_per_ledger and age_ms >= limits.min_rollover_ms)
    ):
        return RolloverStep.SWITCH
    is_nearly_full = entry_count >= int(limits.max_entries_per_ledger * PREPARE_AT) or size_bytes >= int(
        limits.max_bytes_per_ledger * PREPARE_AT
    )
    return RolloverStep.PREPARE if is_nearly_full else RolloverStep.STAY


SplitContext = Callable[[object, int], tuple[object, object]]
"""Divides the context of an append: (context, number of entries in the first part) -> (context, context)."""


class PendingAppends:
    """Appends that wait while one managed ledger changes to its next ledger.

    An append waits for one of two reasons: the current ledger is being closed, or it is unknown whether the store has
    stored the append. Sealing the ledger decides the second case: entries that the sealed ledger contains are stored;
    the other ones are appended to the next ledger, in their order and before later appends.
    """

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
        """Queue appends until `decide`: appends to the current ledger whose result is unknown, and later ones, which the
        store has refused because of them.
        """
        self._unknown += runs

    def decide(self, ledger_id: int, entry_count: int, split_context: SplitContext) -> list[AppendRun]:
        """Return the appends that are stored, now that the ledger is sealed with `entry_count` entries. The others wait
        for the next ledger. An append of which only the first entries are stored is divided.
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
        runs = self._unknown + self._waiting
        self._unknown, self._waiting = [], []
        return runs
