"""Transactions that a topic considers open although their coordinator may already have committed them.

A commit is durable at the coordinator before the topic is notified. If the broker stops in between, the topic finds the
transaction open at its next load. Requests for the topic's last readable message wait until the coordinator has
notified the topic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from pybroker.transactions.coordinator_state import Phase, Status

if TYPE_CHECKING:
    import asyncio

    from pybroker.model.txn_id import TxnId
    from pybroker.transactions.coordinators import Coordinators


class PendingEnd(NamedTuple):
    """A transaction that may be committed although the topic considers it open, and the reason."""

    txn: TxnId
    is_committed: bool
    """False while the coordinator has not read its log."""
    last_error: str
    """Error of the coordinator's last attempt to read its log; empty without an error."""
    is_read: asyncio.Event | None
    """Set when the coordinator has read its log; None when only the notification of the topic is pending."""

    @property
    def reason(self) -> str:
        """Reason as a clause that continues the words "the transaction …" in an error text."""
        if self.is_committed:
            return "is committed, but the topic has not stored the commit yet"
        failure = f" (last error: {self.last_error})" if self.last_error else ""
        return f"may be committed: its state is known when transaction coordinator {self.txn.most} has read its log{failure}"


PendingEndOf = Callable[["TxnId"], PendingEnd | None]
"""Returns None for a transaction that is open, is being aborted, or is unknown to its coordinator."""


def pending_end_at(coordinators: Coordinators, txn: TxnId) -> PendingEnd | None:
    coordinator = coordinators.begun(txn.most)
    if coordinator is None:
        return None
    if coordinator.phase is not Phase.READY:
        # A closed coordinator does not read its log. The broker closes the topic next, which ends the wait.
        is_read = coordinator.is_read if coordinator.phase is Phase.INITIALIZING else None
        return PendingEnd(txn, False, coordinator.last_error, is_read)
    transaction = coordinator.state.find(txn.least)
    if transaction is None or transaction.status is not Status.COMMITTING:
        return None
    return PendingEnd(txn, True, "", None)


class PendingEnds:
    """Transactions that were open when the topic was loaded, and whose state is not certain yet."""

    def __init__(self, found_open: Iterable[TxnId], pending_end_of: PendingEndOf) -> None:
        self._pending_end_of = pending_end_of
        self._by_coordinator: dict[int, dict[TxnId, None]] = {}
        for txn in found_open:
            self._by_coordinator.setdefault(txn.most, {})[txn] = None

    def first(self, still_open: Mapping[TxnId, object]) -> PendingEnd | None:
        """Return one of these transactions that its coordinator has committed, or whose state at the coordinator is not
        known yet; None without one. `still_open`: the transactions that are open on the topic.
        """
        while self._by_coordinator:
            coordinator_id, txns = next(iter(self._by_coordinator.items()))
            while txns:
                txn = next(iter(txns))
                if txn in still_open and (pending := self._pending_end_of(txn)) is not None:
                    return pending
                del txns[txn]
            del self._by_coordinator[coordinator_id]
        return None
