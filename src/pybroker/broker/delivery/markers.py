"""Markers: messages that brokers write for each other between those of applications.

No consumer gets them and no permit is spent on them; every subscription has them acknowledged as it comes to them. They count as
messages that were published, and have an id and an index like any other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pybroker.broker.delivery import acknowledgement
from pybroker.dispatch.dispatcher import AssignInput
from pybroker.wire.entry_metadata import is_marker

if TYPE_CHECKING:
    from pybroker.broker.delivery.subscription import Subscription


def passed_over(subscription: Subscription, entries: AssignInput) -> AssignInput:
    """The entries that are no markers; the others are acknowledged."""
    are_markers = [is_marker(payload) for payload in entries.payloads]
    if not any(are_markers):
        return entries
    ids = [entry_id for entry_id, is_one in zip(entries.entry_ids, are_markers, strict=True) if is_one]
    acknowledgement.acknowledge_for_all(subscription, entries.ledger_id, ids)
    return entries.rows([index for index, is_one in enumerate(are_markers) if not is_one])
