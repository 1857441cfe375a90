"""The events that a managed ledger reports to its topic."""

from __future__ import annotations

from abc import ABC, abstractmethod

from pybroker.errors import LedgerFenced, StoreError
from pybroker.ledgers.ledger_store import AppendRun


class ManagedLedgerListener(ABC):
    """The receiver of the events of one managed ledger, implemented by its topic. Results of appends are reported in
    the order of the appends.
    """

    @abstractmethod
    def entries_added(self, runs: list[AppendRun]) -> None:
        """Called when the entries of `runs` are durable and cursors may read them."""

    @abstractmethod
    def append_failed(self, runs: list[AppendRun], error: StoreError) -> None: ...

    @abstractmethod
    def split_context(self, context: object, entry_count: int) -> tuple[object, object]:
        """Called for an append of which only the first `entry_count` entries are stored. `context` was passed with the
        append. Return one context for these entries, and one for the other entries, which are appended to
        the next ledger.
        """

    @abstractmethod
    def fenced(self, error: LedgerFenced) -> None:
        """Called at most once, when another process has taken over the managed ledger. The topic must then be closed."""
