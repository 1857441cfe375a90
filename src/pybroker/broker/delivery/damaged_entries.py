"""What a subscription does about entries that the store will never give: wait, or go on behind them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pybroker import logs
from pybroker.errors import DamagedEntries, NoSuchLedger, StoreError
from pybroker.model.position import Position

if TYPE_CHECKING:
    from pybroker.broker.delivery.subscription import Subscription


def lasting_damage(subscription: Subscription, error: StoreError) -> DamagedEntries | None:
    """Which entries will never be read; None when the read may succeed later."""
    if isinstance(error, NoSuchLedger):
        cursor = subscription.cursor
        return whole_ledger(subscription, cursor.ledger.ledgers.normalize(cursor.read_position).ledger_id, error)
    return error if isinstance(error, DamagedEntries) else None


def whole_ledger(subscription: Subscription, ledger_id: int, error: NoSuchLedger) -> DamagedEntries:
    """All entries of a ledger that is gone."""
    entry_count = subscription.cursor.ledger.ledgers.entry_count_of(ledger_id)
    return DamagedEntries(ledger_id, 0, entry_count - 1, str(error))


def go_behind(subscription: Subscription, damage: DamagedEntries) -> bool:
    """Go on behind entries that cannot be read, if nobody waits for them or the configuration says so."""
    ledger_id, first = damage.ledger_id, damage.first_entry_id
    cursor = subscription.cursor
    ledgers = cursor.ledger.ledgers
    entry_ids = range(first, min(damage.last_entry_id + 1, ledgers.entry_count_of(ledger_id)))
    if not entry_ids:
        return False
    if cursor.state.undeleted_in(ledger_id, first, len(entry_ids)) != []:
        if not subscription.surroundings.config.auto_skip_non_recoverable_data:
            return False
        _skip(subscription, ledger_id, entry_ids, damage)
    position = ledgers.normalize(cursor.read_position)
    if position.ledger_id == ledger_id and position.entry_id in entry_ids:
        cursor.read_position = Position(ledger_id, entry_ids.stop)
    return True


def _skip(subscription: Subscription, ledger_id: int, entry_ids: range, damage: DamagedEntries) -> None:
    assert subscription.dispatcher is not None
    skipped = subscription.cursor.state.acknowledge(ledger_id, entry_ids)
    subscription.surroundings.stats.skipped_damaged_entries += skipped
    subscription.dispatcher.acked(ledger_id, entry_ids)
    subscription.cursor.changed(None)
    logs.warning(
        "entries.skipped",
        topic=subscription.topic.name,
        subscription=subscription.name,
        first=Position(ledger_id, entry_ids.start),
        last=Position(ledger_id, entry_ids.stop - 1),
        entries=skipped,
        reason=str(damage),
    )
    subscription.tell_if_at_end()
