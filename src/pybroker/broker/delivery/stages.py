"""The interface of the stages that entries pass between read and dispatcher: markers, transactions, delays, filters."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from pybroker.dispatch.dispatcher import AssignInput, Dispatcher, ReadPlan

PassOver = Callable[[int, Sequence[int]], None]
"""Acknowledges entries of a ledger that no consumer of the subscription receives."""


class Stage(ABC):
    """The subscription creates its stages again when policies change."""

    @abstractmethod
    def passed(self, plan: ReadPlan, entries: AssignInput, dispatcher: Dispatcher) -> AssignInput: ...
