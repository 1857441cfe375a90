"""The events that a managed ledger reports to its topic."""

from __future__ import annotations

from abc import ABC, abstractmethod

from pybroker.errors import LedgerFenced, StoreError
from pybroker.ledgers.ledger_store import AppendRun


class ManagedLedgerListener(ABC):
    """Implemented by the topic. Results of appends arrive in order."""

    @abstractmethod
    def entries_added(self, runs: list[AppendRun]) -> None:
        """Called when these entries are durable and cursors may read them."""

    @abstractmethod
    def append_failed(self, runs: list[AppendRun], error: StoreError) -> None: ...

    @abstractmethod
    def split_context(self, context: object, entry_count: int) -> tuple[object, object]:
        """Divide the context that the topic passed with an append. Return one context for its first `entry_count`
        entries and one for the others.
        """

    @abstractmethod
    def fenced(self, error: LedgerFenced) -> None:
        """Called at most once, when another process has taken over the managed ledger. The topic must then be closed."""
