"""Which ledgers of a managed ledger may go: behind every durable cursor, and not kept by the retention policy.

A ledger goes when no durable cursor needs an entry of it and when it was closed longer ago than the retention time, or what
would be left without it is still as much as the retention size. So 0 of either keeps nothing, -1 of both keeps everything, and
-1 of one leaves the decision to the other.

Invariants: only sealed ledgers go, never the current one; of those that hold entries the oldest go first, without a gap, so that
what is left is the end of the stream. Empty ledgers go whatever the policy says: no position needs them.
"""

from __future__ import annotations

from dataclasses import dataclass

from pybroker.managed_ledger.ledger_list import LedgerList
from pybroker.model.position import Position

UNLIMITED = -1


@dataclass(frozen=True, slots=True)
class RetentionLimits:
    """What is kept of entries that no durable cursor needs: 0 nothing, -1 (`UNLIMITED`) without limit."""

    time_ms: int = 0
    size_bytes: int = 0


KEEP_ALL = RetentionLimits(UNLIMITED, UNLIMITED)


def removable(
    ledgers: LedgerList, current_ledger_id: int, slowest: Position, retention: RetentionLimits, now_ms: int
) -> list[int]:
    """The ids of the ledgers that may go, oldest first.

    `slowest` is the mark-delete position of the slowest durable cursor, LATEST when there is none: then retention alone decides.
    """
    ids: list[int] = []
    left_bytes = ledgers.size_bytes
    are_leading = True
    for ledger in ledgers.rows():
        if not ledger.is_sealed or ledger.ledger_id == current_ledger_id:
            are_leading = False
        elif not ledger.entry_count:
            ids.append(ledger.ledger_id)
        elif are_leading:
            left_bytes -= ledger.size_bytes
            are_leading = Position(ledger.ledger_id, ledger.entry_count - 1) <= slowest and not _is_retained(
                retention, max(0, now_ms - ledger.closed_ms), left_bytes
            )
            if are_leading:
                ids.append(ledger.ledger_id)
    return ids


def _is_retained(retention: RetentionLimits, closed_for_ms: int, left_bytes: int) -> bool:
    is_young = retention.time_ms < 0 or closed_for_ms < retention.time_ms
    is_within_size = retention.size_bytes < 0 or left_bytes < retention.size_bytes
    return is_young and is_within_size
