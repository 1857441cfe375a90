"""Handling of failed reads of one subscription: retry, or skip permanently unreadable entries."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pybroker.errors import DamagedEntries, NoSuchLedger, StoreError
from pybroker.managed_ledger.ledger_list import LedgerList
from pybroker.managed_ledger.managed_cursor import ManagedCursor
from pybroker.model.position import Position
from pybroker.runtime import logs

if TYPE_CHECKING:
    from pybroker.broker.context.topic_context import TopicContext
    from pybroker.broker.delivery.subscription_base import SubscriptionBase

REMEDY = "; to continue after the unreadable entries, set autoSkipNonRecoverableData=true or skip them (pulsar-admin)"
"""Remedy for a permanent read failure, appended to the log message."""


class FailedReads:
    """Counter of consecutive failed reads; 0 if the last read succeeded."""

    def __init__(self, topic: TopicContext, subscription: str) -> None:
        self._topic = topic
        self._subscription = subscription
        self.count = 0
        self.reason = ""

    def failed(self, error: StoreError, *, is_lasting: bool) -> float:
        """Count a failed read, and log the first of consecutive failures. Return the delay in seconds until the next
        attempt. `is_lasting`: the entries are permanently unreadable.
        """
        self.count += 1
        self.reason = str(error)
        if self.count == 1:
            remedy = REMEDY if is_lasting else ""
            logs.error("read.failed", topic=self._topic.name, subscription=self._subscription, error=f"{error}{remedy}")
        return self._topic.broker_context.read_retry_delay_s(self.count)

    def succeeded(self) -> None:
        self.count = 0
        self.reason = ""


def lasting_damage(cursor: ManagedCursor, error: StoreError) -> DamagedEntries | None:
    """Return the permanently unreadable entries at the cursor that caused the failed read `error`; None if a later read
    may succeed.
    """
    if isinstance(error, NoSuchLedger):
        ledgers = cursor.ledger.ledgers
        return whole_ledger(ledgers, ledgers.normalize(cursor.read_position).ledger_id, error)
    return error if isinstance(error, DamagedEntries) else None


def whole_ledger(ledgers: LedgerList, ledger_id: int, error: NoSuchLedger) -> DamagedEntries:
    return DamagedEntries(ledger_id, 0, ledgers.entry_count_of(ledger_id) - 1, str(error))


def go_behind(cursor: ManagedCursor, damage: DamagedEntries, skip: Callable[[int, range], None] | None) -> bool:
    """Move the read position past the unreadable entries `damage`. Return False if reading cannot continue.

    If some of the unreadable entries are unacknowledged, `skip` is called with a ledger id and entry ids to acknowledge
    them. If `skip` is None (`autoSkipNonRecoverableData` is off), nothing is changed and the result is False instead.
    """
    ledger_id, first = damage.ledger_id, damage.first_entry_id
    ledgers = cursor.ledger.ledgers
    entry_ids = range(first, min(damage.last_entry_id + 1, ledgers.entry_count_of(ledger_id)))
    if not entry_ids:
        return False
    if cursor.state.undeleted_in(ledger_id, first, len(entry_ids)) != []:
        if skip is None:
            return False
        skip(ledger_id, entry_ids)
    position = ledgers.normalize(cursor.read_position)
    if position.ledger_id == ledger_id and position.entry_id in entry_ids:
        cursor.read_position = Position(ledger_id, entry_ids.stop)
    return True


def log_skipped(
    subscription: SubscriptionBase, ledger_id: int, entry_ids: range, entries: int, damage: DamagedEntries
) -> None:
    logs.warning(
        "entries.skipped",
        topic=subscription.topic.name,
        subscription=subscription.name,
        first=Position(ledger_id, entry_ids.start),
        last=Position(ledger_id, entry_ids.stop - 1),
        entries=entries,
        reason=str(damage),
    )
