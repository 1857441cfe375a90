"""Retention: which ledgers of a managed ledger may be deleted, because all durable cursors have acknowledged them and
retention does not keep them.

A ledger is not kept if it was closed longer ago than the retention time, or if the remaining ledgers have at least the
retention size without it. So 0 for either keeps nothing, -1 for both keeps everything. If only one of them is -1, the
other decides. A ledger with an unacknowledged (perhaps delayed) entry does not keep later ledgers.

Invariants: only sealed ledgers are deleted, never the current one; retention keeps the newest ones, without a gap; the
newest entry stays as long as any older one, so the end of the stream never moves back. Empty ledgers are deleted
regardless of retention. Ledgers under a read lease count as needed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf

from pybroker.managed_ledger.cursor_state import CursorState
from pybroker.managed_ledger.ledger_list import LedgerList

UNLIMITED = -1


@dataclass(frozen=True, slots=True)
class RetentionLimits:
    """Retention of unneeded entries: 0 keeps none, -1 (`UNLIMITED`) is no limit."""

    time_ms: int = 0
    size_bytes: int = 0


KEEP_ALL = RetentionLimits(UNLIMITED, UNLIMITED)


def removable(
    ledgers: LedgerList,
    current_ledger_id: int,
    durable: Iterable[CursorState],
    retention: RetentionLimits,
    now_ms: int,
    held_from: int | None = None,
) -> list[int]:
    """Return the ids of the ledgers that may be deleted, oldest first. Ledgers with the id `held_from` or a higher one
    stay, because readers have leases on them. Without `durable` cursors, retention alone decides.
    """
    # The slowest first, because it mostly determines which ledgers are needed.
    states = sorted(durable, key=lambda state: state.mark_delete_position)
    newest_ledger_id = ledgers.last_position.ledger_id
    held = inf if held_from is None else held_from
    ids: list[int] = []
    left_bytes = ledgers.size_bytes
    is_kept = is_needed = False  # of an older ledger
    for ledger in ledgers.rows():
        if not ledger.is_sealed or ledger.ledger_id == current_ledger_id:
            is_kept = True
        elif not ledger.entry_count:
            ids.append(ledger.ledger_id)
        elif is_kept:
            continue
        elif ledger.ledger_id >= held or any(not state.has_deleted_all_of(ledger.ledger_id) for state in states):
            is_needed = True
        else:
            left_bytes -= ledger.size_bytes
            is_retained = _is_retained(retention, max(0, now_ms - ledger.closed_ms), left_bytes)
            is_kept = is_retained or (is_needed and ledger.ledger_id == newest_ledger_id)
            if not is_kept:
                ids.append(ledger.ledger_id)
    return ids


def _is_retained(retention: RetentionLimits, closed_for_ms: int, left_bytes: int) -> bool:
    is_young = retention.time_ms < 0 or closed_for_ms < retention.time_ms
    is_within_size = retention.size_bytes < 0 or left_bytes < retention.size_bytes
    return is_young and is_within_size
