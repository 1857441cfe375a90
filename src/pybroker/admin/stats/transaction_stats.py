"""Open transactions in the stats of a topic and of a subscription: which they are, whose, and how long they hold things back."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pybroker.broker.delivery.subscription import Subscription
    from pybroker.broker.topic.topic import Topic

SHOWN = 100
"""The oldest so many; the counts say how many there are."""


def of_topic(topic: Topic) -> dict[str, Any]:
    """The counts of Pulsar, and while transactions are open what holds delivery back."""
    buffer = topic.transactions.buffer
    if buffer is None:
        return {"ongoingTxnCount": 0, "abortedTxnCount": 0, "committedTxnCount": 0}
    document: dict[str, Any] = {
        "ongoingTxnCount": len(buffer.open),
        "abortedTxnCount": buffer.aborted_total,
        "committedTxnCount": buffer.committed_total,
    }
    if buffer.open:
        now_ms = topic.runtime.clock.wall_ms()
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


def of_subscription(subscription: Subscription) -> dict[str, Any]:
    """Nothing, unless transactions hold acknowledgements."""
    held = subscription.cursor.state.held
    if not held:
        return {}
    now_ms = subscription.runtime.clock.wall_ms()
    rows = []
    for txn, hold in islice(held.open.items(), SHOWN):
        since_ms, owner = subscription.transactions.first_seen.get(txn, (None, ""))
        row: dict[str, Any] = {"txnId": str(txn), "entries": hold.entry_count, "owner": owner}
        if since_ms is not None:
            row["openForMs"] = max(0, now_ms - since_ms)
        if hold.up_to is not None:
            row["cumulativeUpTo"] = str(hold.up_to)
        rows.append(row)
    return {"pendingAckTransactionCount": len(held.open), "pendingAckTransactions": rows}
