"""Interface of the steps between reading an entry and assigning it to a consumer.

The steps are markers, pending transaction acks, delayed delivery, and entry filters.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from pybroker.dispatch.dispatcher import AssignInput, Dispatcher, ReadPlan

PassOver = Callable[[int, Sequence[int]], None]
"""Acknowledges entries (ledger id, entry ids) that no consumer of the subscription receives."""


class Stage(ABC):
    """One step that removes or defers entries. When policies change, the subscription creates its steps again."""

    @abstractmethod
    def passed(self, plan: ReadPlan, entries: AssignInput, dispatcher: Dispatcher) -> AssignInput: ...
