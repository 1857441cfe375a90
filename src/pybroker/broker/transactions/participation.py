"""Admission of transactional messages and acknowledgements on a topic or subscription.

The transaction must be open and belong to the client's role, and its coordinator must have registered the topic or
subscription. Otherwise the transaction would never end here. While a coordinator reads its log, or if another broker
runs it, everything is admitted, as in Pulsar.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pybroker.auth.authorization import AuthorizationService
from pybroker.auth.proxied_role import Principal, client_role
from pybroker.errors import BrokerError, InvalidTxnStatus, NotAllowedError, TransactionNotFound
from pybroker.transactions.coordinator_state import Status, Transaction
from pybroker.transactions.coordinators import Coordinators, is_ready

if TYPE_CHECKING:
    from pybroker.model.txn_id import TxnId


class TakingPart:
    """Checks whether a client may use a transaction on a topic or subscription."""

    def __init__(self, coordinators: Coordinators, authorization: AuthorizationService) -> None:
        self._coordinators = coordinators
        self._authorization = authorization

    def refusal(
        self, txn: TxnId, principal: Principal, topic: str, subscription: str | None = None
    ) -> BrokerError | None:
        """Return the error if `principal` may not use `txn` on this topic or subscription, else None."""
        if not self._coordinators.is_enabled:
            return None
        if not self._coordinators.runs(txn.most):
            return None
        coordinator = self._coordinators.begun(txn.most)
        if coordinator is not None and not is_ready(coordinator):
            return None
        transaction = None if coordinator is None else coordinator.state.find(txn.least)
        if transaction is None:
            return TransactionNotFound(f"Transaction {txn} has ended or never existed. Please use a new transaction")
        if transaction.status is not Status.OPEN:
            return InvalidTxnStatus(f"Transaction {txn} is {transaction.status}. Please use a new transaction")
        if not self._authorization.is_known_to_use(transaction.owner, principal):
            return TransactionNotFound(f"Transaction {txn} belongs to another role than {client_role(principal)}")
        if not _takes_part(transaction, topic, subscription):
            what = topic if subscription is None else f"subscription {subscription} of {topic}"
            return NotAllowedError(
                f"{what} is not registered in transaction {txn}: register it at the coordinator first (ADD_PARTITION_TO_TXN, "
                "ADD_SUBSCRIPTION_TO_TXN)"
            )
        return None


def _takes_part(transaction: Transaction, topic: str, subscription: str | None) -> bool:
    return (
        topic in transaction.partitions if subscription is None else (topic, subscription) in transaction.subscriptions
    )
