"""Delayed messages of a subscription, by position."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pybroker.broker.inspection.pages import ENTRIES_PER_STEP, Steps
from pybroker.model.position import Position

if TYPE_CHECKING:
    from pybroker.broker.delivery.delayed_delivery import DelayedDelivery


def delayed_positions(delayed: DelayedDelivery, after: Position, max_entries: int) -> Steps[list[Position]]:
    """The first entries behind `after` that wait for their time."""
    found: list[Position] = []
    for ledger_id in delayed.ledger_ids():
        if ledger_id < after.ledger_id or len(found) >= max_entries:
            continue
        yield
        entry_ids = delayed.waiting_in(ledger_id)
        if ledger_id == after.ledger_id:
            entry_ids.remove_range(0, after.entry_id + 1)
        for entry_id in entry_ids[: max_entries - len(found)]:
            found.append(Position(ledger_id, entry_id))
            if len(found) % ENTRIES_PER_STEP == 0:
                yield
    return found
