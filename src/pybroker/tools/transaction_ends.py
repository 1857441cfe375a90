"""Recovery of the ends of transactions (commit or abort) from coordinators' logs and topics' markers. Pure.

A coordinator deletes a transaction only when all participants have durably ended it. If a participant has an open
transaction that its coordinator does not know, the participant's record of the end is lost.
"""

from __future__ import annotations

from collections.abc import Iterable

from pybroker.errors import StoreError
from pybroker.model.txn_id import TxnAction, TxnId
from pybroker.transactions.coordinator_state import CoordinatorState, Status
from pybroker.transactions.records import WITHOUT_SINKS, Kind, Record, decode, encode

_ACTIONS = {
    Kind.COMMITTING: TxnAction.COMMIT,
    Kind.COMMITTED: TxnAction.COMMIT,
    Kind.ABORTING: TxnAction.ABORT,
    Kind.ABORTED: TxnAction.ABORT,
}


class TransactionEnds:
    """The known states and ends of all transactions."""

    def __init__(self) -> None:
        self._coordinators: dict[int, CoordinatorState] = {}
        self._actions: dict[TxnId, TxnAction] = {}
        self._highest: dict[int, int] = {}

    def read_log(self, coordinator: int, payloads: Iterable[bytes]) -> int:
        """Apply the entries of a coordinator's log in order. Return the number of unreadable entries."""
        state = self._coordinators.setdefault(coordinator, CoordinatorState(coordinator))
        unreadable = 0
        for payload in payloads:
            try:
                record = decode(payload)
            except StoreError:
                unreadable += 1
                continue
            state.apply(record)
            if (action := _ACTIONS.get(record.kind)) is not None:
                self._actions[TxnId(coordinator, record.least)] = action
            self._actions.update(dict.fromkeys((TxnId(coordinator, each) for each in record.commits), TxnAction.COMMIT))
            self._actions.update(dict.fromkeys((TxnId(coordinator, each) for each in record.aborts), TxnAction.ABORT))
        return unreadable

    def marked(self, txn: TxnId, action: TxnAction) -> None:
        self._actions.setdefault(txn, action)

    def seen(self, txn: TxnId) -> None:
        """Record that a transaction has existed, so that its id is not assigned again."""
        self._highest[txn.most] = max(txn.least, self._highest.get(txn.most, 0))

    def will_end(self, txn: TxnId) -> bool:
        state = self._coordinators.get(txn.most)
        transaction = None if state is None else state.find(txn.least)
        if transaction is None:
            return False
        # If the transaction is open and a participant knows its end, the coordinator has lost its record of the end.
        return transaction.status is not Status.OPEN or txn not in self._actions

    def is_open(self, txn: TxnId) -> bool:
        state = self._coordinators.get(txn.most)
        transaction = None if state is None else state.find(txn.least)
        return transaction is not None and transaction.status is Status.OPEN

    def action_of(self, txn: TxnId) -> TxnAction | None:
        return self._actions.get(txn)

    def forgotten_ids(self) -> dict[int, int]:
        """Return, by coordinator, the highest transaction id that participants know, if it is above all ids in the
        coordinator's log.
        """
        return {
            coordinator: highest
            for coordinator, highest in self._highest.items()
            if coordinator not in self._coordinators or self._coordinators[coordinator].last_least < highest
        }

    def highest_id(self, coordinator: int) -> int:
        state = self._coordinators.get(coordinator)
        return max(self._highest.get(coordinator, 0), 0 if state is None else state.last_least)


def record_of_nothing(highest_id: int) -> bytes:
    """Return a log entry after which the coordinator assigns only ids above `highest_id`: the record of an abort of the
    transaction `highest_id`, although the log does not contain this transaction.
    """
    return encode(Record(WITHOUT_SINKS, Kind.ABORTED, 0, highest_id))
