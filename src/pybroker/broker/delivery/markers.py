"""Step of dispatching that removes entries which consumers never receive: markers, and aborted messages.

Markers are messages from broker to broker. They use no permits, and are acknowledged when they are read. Aborted
messages belong to aborted transactions.
"""

from __future__ import annotations

from pybroker.broker.delivery.stages import PassOver, Stage
from pybroker.dispatch.dispatcher import AssignInput, Dispatcher, ReadPlan
from pybroker.managed_ledger.max_read_position import ReadLimit
from pybroker.wire import entry_columns


class Markers(Stage):
    """Removes markers and aborted messages from entries that were read."""

    def __init__(self, read_limit: ReadLimit, pass_over: PassOver) -> None:
        self._read_limit = read_limit
        self._pass_over = pass_over

    def passed(self, plan: ReadPlan, entries: AssignInput, dispatcher: Dispatcher) -> AssignInput:
        """Acknowledge markers and aborted messages. Return the remaining entries."""
        limit = self._read_limit
        if limit.hidden and (hidden := limit.hidden_among(entries.ledger_id, entries.entry_ids)):
            self._pass_over(entries.ledger_id, list(hidden))
            entries = entries.rows([index for index, each in enumerate(entries.entry_ids) if each not in hidden])
            if not entries.entry_ids:
                return entries
        are_markers = entry_columns.markers(entries.payloads)
        if not any(are_markers):
            return entries
        ids = [entry_id for entry_id, is_one in zip(entries.entry_ids, are_markers, strict=True) if is_one]
        self._pass_over(entries.ledger_id, ids)
        return entries.rows([index for index, is_one in enumerate(are_markers) if not is_one])
