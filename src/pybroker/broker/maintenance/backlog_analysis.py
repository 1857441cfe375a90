"""Analysis of a subscription's backlog: counts entries and messages, and the verdicts of entry filters.

The analysis reads the entries; it moves no cursor and delivers nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pybroker.broker.delivery.filter_chain import FilterJury
from pybroker.broker.entry_filters import Verdict
from pybroker.ledgers.ledger_store import EntryRun
from pybroker.model.position import Position
from pybroker.wire.entry_metadata import is_marker

if TYPE_CHECKING:
    from pybroker.broker.delivery.subscription import Subscription

READ_ENTRIES = 100
READ_BYTES = 1024 * 1024


@dataclass
class BacklogAnalysis:
    """Result of the analysis. `is_aborted`: the analysis reached a limit before the end of the backlog."""

    entries: int = 0
    messages: int = 0
    marker_messages: int = 0
    accepted_entries: int = 0
    accepted_messages: int = 0
    rejected_entries: int = 0
    rejected_messages: int = 0
    rescheduled_entries: int = 0
    rescheduled_messages: int = 0
    is_aborted: bool = False
    first: Position | None = None
    last: Position | None = None


async def analyze_backlog(
    subscription: Subscription, start: Position | None, max_entries: int, max_ms: float
) -> BacklogAnalysis:
    """Count the unacknowledged entries from `start` on, or in the whole backlog if `start` is None. Stop after
    `max_entries` entries or `max_ms` milliseconds; the result then has `is_aborted` set. Raises StoreError.

    If `start` is before the mark-delete position, the acknowledged entries between them are counted as well.
    """
    cursor = subscription.cursor
    ledger = subscription.cursor.ledger
    clock = subscription.runtime.clock
    filters = FilterJury(subscription, subscription.topic.entry_filters)
    found = BacklogAnalysis()
    deadline_ms = clock.monotonic_ms() + max_ms
    position = cursor.first_unacked_position if start is None else start
    while not found.is_aborted:
        if position > cursor.mark_delete_position:
            position = cursor.state.first_undeleted(position)
        position = ledger.ledgers.normalize(position)
        if not ledger.ledgers.has_entry(position):
            break
        run = await ledger.read_if_there(position, READ_ENTRIES, READ_BYTES)
        if run is None:
            continue  # It was trimmed: continue with the next existing entry.
        _count(found, run, subscription, filters, max_entries)
        position = Position(run.ledger_id, run.first_entry_id + len(run.payloads))
        found.is_aborted = found.is_aborted or clock.monotonic_ms() >= deadline_ms
    return found


def _count(
    found: BacklogAnalysis, run: EntryRun, subscription: Subscription, filters: FilterJury, max_entries: int
) -> None:
    state = subscription.cursor.state
    for index, payload in enumerate(run.payloads):
        position = Position(run.ledger_id, run.first_entry_id + index)
        if position > state.mark_delete_position and state.is_deleted(*position):
            continue
        if found.entries >= max_entries:
            found.is_aborted = True
            return
        messages = run.message_counts[index]
        found.first = found.first or position
        found.last = position
        found.entries += 1
        found.messages += messages
        if is_marker(payload):
            found.marker_messages += messages
        match filters.verdict(filters.entry(position, payload)):
            case Verdict.ACCEPT:
                found.accepted_entries += 1
                found.accepted_messages += messages
            case Verdict.REJECT:
                found.rejected_entries += 1
                found.rejected_messages += messages
            case Verdict.RESCHEDULE:
                found.rescheduled_entries += 1
                found.rescheduled_messages += messages
