"""The rule that decides when a managed ledger begins its next ledger. Pure.

A ledger at its size limit is left immediately. At its entry limit it is left only when it is also old enough, so that
small messages do not create many ledgers. The next ledger is prepared earlier, so that the switch needs no wait.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

PREPARE_AT = 0.9
"""The next ledger is created when the current one has reached this fraction of a limit."""


@dataclass(frozen=True, slots=True)
class LedgerLimits:
    """The limits at which the next ledger begins. A ledger without entries is never left."""

    max_entries_per_ledger: int = 50_000
    max_bytes_per_ledger: int = 2048 * 1024 * 1024
    min_rollover_ms: int = 10 * 60_000
    """A younger ledger is not closed for its number of entries."""
    max_rollover_ms: int = 240 * 60_000
    inactive_rollover_ms: int = 0
    """A ledger without an append for this time is closed; 0: no limit."""


class RolloverStep(Enum):
    """The next action of a managed ledger."""

    STAY = auto()
    PREPARE = auto()
    """Create the next ledger."""
    SWITCH = auto()
    """Append to the next ledger. Create it if it does not exist yet."""


def rollover_step(
    limits: LedgerLimits, entry_count: int, size_bytes: int, age_ms: float, idle_ms: float, *, frees_space: bool
) -> RolloverStep:
    """Return the action that is due for a ledger with at least one entry.

    `frees_space`: the disk is full and the ledger can be deleted once it is left.
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
