"""What a managed ledger tells the topic above it."""

from __future__ import annotations

from abc import ABC, abstractmethod

from pybroker.errors import LedgerFenced, StoreError
from pybroker.ledgers.ledger_store import AppendRun


class ManagedLedgerListener(ABC):
    """The topic above: told about its appends, in order."""

    @abstractmethod
    def entries_added(self, runs: list[AppendRun]) -> None:
        """These entries are durable and visible to cursors."""

    @abstractmethod
    def append_failed(self, runs: list[AppendRun], error: StoreError) -> None:
        """These entries are not stored."""

    @abstractmethod
    def fenced(self, error: LedgerFenced) -> None:
        """Somebody else owns the managed ledger now: it takes no more appends and is to be closed. Told once at most."""
