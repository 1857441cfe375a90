"""Of messages that open transactions keep from being delivered, or from counting as read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pybroker.broker.explain import actions
from pybroker.broker.explain.message_question import MessageQuestion, Reasons
from pybroker.broker.explain.steps import for_long
from pybroker.model.findings import Code, Finding

if TYPE_CHECKING:
    from pybroker.broker.transactions.transaction_buffer import OpenTransaction
    from pybroker.model.transactions import TxnId


def held_by_transaction(asked: MessageQuestion) -> Reasons | None:
    subscription = asked.subscription
    bits = -1 if asked.batch_index is None else 1 << asked.batch_index
    txn = subscription.cursor.state.held.holder_of(asked.position, bits)
    if txn is None:
        return None
    seen = subscription.transactions.first_seen.get(txn)
    evidence, since_ms = _transaction_evidence(asked, txn)
    if seen is not None:
        since_ms, evidence["consumer"] = seen
    return Reasons(
        [
            Finding(
                Code.HELD_BY_TRANSACTION,
                f"Transaction {txn} has acknowledged message {asked.message_id} and is open"
                f"{for_long(since_ms, subscription.surroundings.clock)}: it counts when that commits, else it comes again.",
                waits=False,
                since_ms=since_ms,
                evidence=evidence,
                actions=[actions.show_transaction(txn), actions.abort_transaction(txn)],
            )
        ]
    )


def behind_transaction(asked: MessageQuestion) -> Reasons | None:
    visibility, position = asked.topic.ledger.visibility, asked.position
    if visibility.readable(position, 1) or not asked.topic.ledger.ledgers.has_entry(position):
        return None
    buffer = asked.topic.transactions.buffer
    if buffer is None or not buffer.open:
        return None
    for txn, each in buffer.open.items():
        if position.entry_id in each.entries.get(position.ledger_id, ()):
            why = f"is part of {_named(asked, txn, each)}: nobody gets it before that has committed"
            return _kept_by(asked, txn, each, Code.MESSAGE_UNCOMMITTED, why, {})
    txn, oldest = next(iter(buffer.open.items()))
    why = (
        f"stands behind {oldest.first}, the first message of {_named(asked, txn, oldest)}: nothing from there on is delivered "
        "before that has ended"
    )
    return _kept_by(asked, txn, oldest, Code.BEHIND_TRANSACTION, why, {"openTransactions": len(buffer.open)})


def _named(asked: MessageQuestion, txn: TxnId, found: OpenTransaction) -> str:
    open_for = for_long(found.opened_ms, asked.subscription.surroundings.clock)
    return f"transaction {txn} of producer {found.owner}, open{open_for}"


def _kept_by(
    asked: MessageQuestion, txn: TxnId, found: OpenTransaction, code: Code, why: str, more: dict[str, Any]
) -> Reasons:
    evidence, _ = _transaction_evidence(asked, txn)
    finding = Finding(
        code,
        f"Message {asked.message_id} {why}.",
        since_ms=found.opened_ms,
        evidence=evidence | {"firstMessageId": str(found.first), "producer": found.owner} | more,
        actions=[actions.show_transaction(txn), actions.abort_transaction(txn)],
    )
    return Reasons([finding])


def _transaction_evidence(asked: MessageQuestion, txn: TxnId) -> tuple[dict[str, Any], int | None]:
    """What its coordinator says of it, if it serves; and since when it is open."""
    seen = asked.transaction_of(txn)
    if seen is None:
        return {"transaction": str(txn)}, None
    evidence: dict[str, Any] = {
        "transaction": str(txn),
        "openedAt": seen.opened_ms,
        "timeoutAt": seen.opened_ms + seen.timeout_ms,
    }
    return evidence if seen.owner is None else {**evidence, "owner": seen.owner}, seen.opened_ms
