"""The events that a managed ledger reports to its topic."""

from __future__ import annotations

from abc import ABC, abstractmethod

from pybroker.errors import LedgerFenced, StoreError
from pybroker.ledgers.ledger_store import AppendRun


class ManagedLedgerListener(ABC):
    """Implemented by the topic, which receives the results of its appends in order."""

    @abstractmethod
    def entries_added(self, runs: list[AppendRun]) -> None:
        """These entries are durable and visible to cursors."""

    @abstractmethod
    def append_failed(self, runs: list[AppendRun], error: StoreError) -> None:
        """These entries are not stored."""

    @abstractmethod
    def split_context(self, context: object, entry_count: int) -> tuple[object, object]:
        """Divide the context of a run: for its first `entry_count` entries, and for the others."""

    @abstractmethod
    def fenced(self, error: LedgerFenced) -> None:
        """Another process has taken over the managed ledger, which must be closed. Called at most once."""
