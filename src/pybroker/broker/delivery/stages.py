"""What looks at entries between a read and the dispatcher: markers, delays, filters."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from pybroker.dispatch.dispatcher import AssignInput, Dispatcher, ReadPlan

PassOver = Callable[[int, Sequence[int]], None]
"""Acknowledges entries of a ledger that no consumer of the subscription gets to see."""


class Stage(ABC):
    """One of those that a subscription has; it makes the row of them anew when policies change."""

    @abstractmethod
    def passed(self, plan: ReadPlan, entries: AssignInput, dispatcher: Dispatcher) -> AssignInput:
        """Those of the entries that go on now, perhaps none; the others are taken care of."""
