"""The stages that entries pass between a read and the dispatcher: markers, transactions, delays, filters."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from pybroker.dispatch.dispatcher import AssignInput, Dispatcher, ReadPlan

PassOver = Callable[[int, Sequence[int]], None]
"""Acknowledges entries of a ledger that no consumer of the subscription gets to see."""


class Stage(ABC):
    """One stage of a subscription, which rebuilds the list of stages when policies change."""

    @abstractmethod
    def passed(self, plan: ReadPlan, entries: AssignInput, dispatcher: Dispatcher) -> AssignInput:
        """Those of the entries that go on now, perhaps none; the others are taken care of."""
