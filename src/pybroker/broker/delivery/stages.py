"""The stages that entries pass between a read and the dispatcher: markers, transactions, delays, filters."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from pybroker.dispatch.dispatcher import AssignInput, Dispatcher, ReadPlan

PassOver = Callable[[int, Sequence[int]], None]
"""Acknowledges entries of a ledger that no consumer of the subscription receives."""


class Stage(ABC):
    """The subscription rebuilds its stages when policies change."""

    @abstractmethod
    def passed(self, plan: ReadPlan, entries: AssignInput, dispatcher: Dispatcher) -> AssignInput:
        """Return the entries that continue now, perhaps none, and handle the others."""
