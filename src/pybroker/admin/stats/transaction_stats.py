"""Open transactions in the statistics of a topic or subscription."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pybroker.broker.snapshots.subscription_snapshot import SubscriptionSnapshot
    from pybroker.broker.snapshots.topic_snapshot import TopicSnapshot

SHOWN = 100
"""Maximum number of listed transactions, oldest first. Counts include all."""


def of_topic(snapshot: TopicSnapshot, now_ms: int) -> dict[str, Any]:
    """Return the JSON of a topic's open transactions; empty without any. `now_ms` is in Unix milliseconds."""
    buffer = snapshot.transactions
    if buffer is None:
        return {"ongoingTxnCount": 0, "abortedTxnCount": 0, "committedTxnCount": 0}
    document: dict[str, Any] = {
        "ongoingTxnCount": len(buffer.open),
        "abortedTxnCount": buffer.aborted_total,
        "committedTxnCount": buffer.committed_total,
    }
    if buffer.open:
        document["openTransactions"] = [
            {
                "txnId": str(txn),
                "startPosition": str(each.first),
                "openForMs": max(0, now_ms - each.opened_ms),
                "owner": each.owner,
                "entries": each.entry_count,
            }
            for txn, each in islice(buffer.open.items(), SHOWN)
        ]
    return document


def of_subscription(snapshot: SubscriptionSnapshot, now_ms: int) -> dict[str, Any]:
    """Return the JSON of a subscription's pending transaction acks; empty without any. `now_ms` is in Unix
    milliseconds.
    """
    pending, transactions = snapshot.pending_transaction_acks, snapshot.transactions
    if pending is None or transactions is None:
        return {}
    rows = []
    for txn, hold in islice(pending.open.items(), SHOWN):
        since_ms, owner = transactions.first_seen.get(txn, (None, ""))
        row: dict[str, Any] = {"txnId": str(txn), "entries": hold.entry_count, "owner": owner}
        if since_ms is not None:
            row["openForMs"] = max(0, now_ms - since_ms)
        if hold.up_to is not None:
            row["cumulativeUpTo"] = str(hold.up_to)
        rows.append(row)
    return {"pendingAckTransactionCount": len(pending.open), "pendingAckTransactions": rows}
