"""Interface of the stages between reading an entry and assigning it to a consumer.

The stages are markers, pending transaction acks, delayed delivery, and entry filters.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from pybroker.dispatch.dispatcher import AssignInput, Dispatcher, ReadPlan

PassOver = Callable[[int, Sequence[int]], None]
"""Acknowledges entries (ledger id, entry ids) that no consumer of the subscription receives."""


class Stage(ABC):
    """One step that removes or defers entries. When policies change, the subscription creates its stages again."""

    @abstractmethod
    def passed(self, plan: ReadPlan, entries: AssignInput, dispatcher: Dispatcher) -> AssignInput: ...
