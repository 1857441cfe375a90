"""JSON of coordinators and transactions. Members that Pulsar does not have are in the member `pybroker`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pybroker.admin.stats.managed_ledger_stats import cursor_stats, managed_ledger_stats
from pybroker.transactions.transaction_log import CURSOR

if TYPE_CHECKING:
    from collections.abc import Callable

    from pybroker.broker.topic.topic import Topic
    from pybroker.broker.transactions.transaction_buffer import TransactionBuffer
    from pybroker.managed_ledger.cursor_state import CursorState
    from pybroker.managed_ledger.pending_transaction_acks import PendingTransactionAcks
    from pybroker.model.position import Position
    from pybroker.model.txn_id import TxnId
    from pybroker.transactions.coordinator import Coordinator
    from pybroker.transactions.coordinator_state import Transaction
    from pybroker.transactions.transaction_log import TransactionLog

SHOWN_PARTICIPANTS = 100
_LATEST_MS = (1 << 63) - 1


def coordinator_stats(coordinator: Coordinator) -> dict[str, Any]:
    state = coordinator.state
    shown: dict[str, Any] = {
        "state": str(coordinator.phase),
        "leastSigBits": state.last_least,
        "lowWaterMark": state.low_water_mark,
        "ongoingTxnSize": len(state),
        "recoverStartTime": coordinator.recover_started_ms,
        "recoverEndTime": coordinator.recover_ended_ms,
    }
    if coordinator.last_error:
        shown["pybroker"] = {"lastError": coordinator.last_error}
    return shown


def transaction_metadata(
    coordinator: Coordinator,
    transaction: Transaction,
    now_ms: int,
    loaded: Callable[[str], Topic | None],
    *,
    with_own: bool,
) -> dict[str, Any]:
    """Return `transactionMetadata` of a transaction, with details from the topics that `loaded` returns. Topic names
    are spelled as the client sent them.

    `with_own`: include the member `pybroker`, which only the owner and superusers may see.
    """
    as_sent = transaction.as_sent
    produced: dict[str, Any] = {}
    acked: dict[str, dict[str, Any]] = {}
    holds: list[dict[str, Any]] = []
    for name in transaction.partitions:
        topic = loaded(name)
        buffer = None if topic is None else topic.transactions.buffer
        produced[as_sent.get(name, name)] = transaction_in_buffer(buffer, transaction.id)
        published = None if buffer is None else buffer.open.get(transaction.id)
        if published is not None and len(holds) < SHOWN_PARTICIPANTS:
            holds.append({"topic": name, "entries": published.entry_count})
    for name, subscription_name in transaction.subscriptions:
        topic = loaded(name)
        subscription = None if topic is None else topic.subscriptions.get(subscription_name)
        held = None if subscription is None else subscription.cursor.state.held
        acked.setdefault(as_sent.get(name, name), {})[subscription_name] = transaction_in_pending_ack(
            held, transaction.id
        )
        hold = None if held is None else held.open.get(transaction.id)
        if hold is not None and len(holds) < SHOWN_PARTICIPANTS:
            holds.append({"topic": name, "subscription": subscription_name, "entries": hold.entry_count})
    shown: dict[str, Any] = {
        "txnId": str(transaction.id),
        "status": str(transaction.status),
        "openTimestamp": transaction.opened_ms,
        "timeoutAt": min(_LATEST_MS, transaction.opened_ms + transaction.timeout_ms),
        "producedPartitions": produced,
        "ackedPartitions": acked,
    }
    if transaction.owner is not None:
        shown["owner"] = transaction.owner
    if not with_own:
        return shown
    own: dict[str, Any] = {"ageMillis": max(0, now_ms - transaction.opened_ms)}
    if as_sent:
        own["fullNames"] = {sent: name for name, sent in as_sent.items()}
    if holds:
        own["holds"] = holds
    if transaction.label is not None:
        own |= {"sink": transaction.label.sink, "batch": transaction.label.batch}
    ending = coordinator.endings.find(transaction.id)
    if ending is not None:
        waits_for = [
            each.topic if each.subscription is None else f"{each.topic} {each.subscription}"
            for each in ending.remaining[:SHOWN_PARTICIPANTS]
        ]
        own |= {"attempts": ending.attempts, "waitsForCount": len(ending.remaining), "waitsFor": waits_for}
        if ending.last_error:
            own["lastError"] = ending.last_error
    elif coordinator.waits_for_room(transaction):
        own["lastError"] = (
            "All participants have confirmed the end, but the coordinator's log cannot record it: free disk space"
        )
    shown["pybroker"] = own
    return shown


def transaction_in_buffer(buffer: TransactionBuffer | None, txn_id: TxnId) -> dict[str, Any]:
    """Return `transactionInBufferStats` with the position of the transaction's first message. An ended transaction has
    no position, because topics do not store ended transactions.
    """
    found = None if buffer is None else buffer.open.get(txn_id)
    return {"aborted": False} if found is None else {"startPosition": str(found.first), "aborted": False}


def buffer_stats(topic: Topic, *, with_low_water_marks: bool) -> dict[str, Any]:
    """Return `transactionBufferStats`. For a topic that never had transactions, the numbers of transactions are 0."""
    buffer, ledgers = topic.transactions.buffer, topic.ledger.ledgers
    limit = None if buffer is None else buffer.limit
    last = ledgers.last_position if limit is None else ledgers.previous_position(limit)
    shown: dict[str, Any] = {
        "state": "NoSnapshot" if buffer is None or not topic.transactions.last_snapshot_ms else "Ready",
        "maxReadPosition": str(last),
        "lastSnapshotTimestamps": topic.transactions.last_snapshot_ms,
        "ongoingTxnSize": 0 if buffer is None else len(buffer.open),
        "recoverStartTime": topic.loaded_ms,
        "recoverEndTime": topic.loaded_ms,
        "totalAbortedTransactions": 0 if buffer is None else buffer.aborted_total,
        "snapshotType": "Single",
    }
    if with_low_water_marks and buffer is not None:
        shown["lowWaterMarks"] = {str(id_): mark for id_, mark in sorted(buffer.low_water_marks.items())}
    return shown


def pending_ack_stats(topic: Topic, held: PendingTransactionAcks, *, with_low_water_marks: bool) -> dict[str, Any]:
    """Return `pendingAckStats`. The state is the text `None` if no transaction has acknowledged a message."""
    shown: dict[str, Any] = {
        "state": "Ready" if held.was_used else "None",
        "ongoingTxnSize": len(held.open),
        "recoverStartTime": topic.loaded_ms,
        "recoverEndTime": topic.loaded_ms,
    }
    if with_low_water_marks:
        shown["lowWaterMarks"] = {str(id_): mark for id_, mark in sorted(held.low_water_marks.items())}
    return shown


def transaction_in_pending_ack(held: PendingTransactionAcks | None, txn_id: TxnId) -> dict[str, Any]:
    """Return `transactionInPendingAckStats`: the position of the transaction's cumulative acknowledgement. Empty if it
    has none, or if `held` is None because the subscription is not loaded.
    """
    hold = None if held is None else held.open.get(txn_id)
    return {} if hold is None or hold.up_to is None else {"cumulativeAckPosition": str(hold.up_to)}


def position_in_pending_ack(state: CursorState, position: Position, batch_index: int | None) -> str:
    """Return `positionStatsInPendingAck` for an entry, or for one message of its batch: `PendingAck` if an open
    transaction has acknowledged it, otherwise `NotInPendingAck`. `MarkDelete` up to the mark-delete position;
    `InvalidPosition` for a batch index outside the batch.

    A transaction's cumulative acknowledgement includes earlier entries. A batch index is compared with the size of the
    batch only if a transaction has acknowledged a part of this batch, because the size is unknown otherwise.
    """
    if position <= state.mark_delete_position:
        return "MarkDelete"
    holder = state.held.holder_of(position)
    if batch_index is None or holder is None:
        return "NotInPendingAck" if holder is None else "PendingAck"
    part = state.held.open[holder].parts.get(position)
    if batch_index < 0 or (part is not None and batch_index >= part[1]):
        return "InvalidPosition"
    is_held = part is None or state.held.holder_of(position, 1 << batch_index) is not None
    return "PendingAck" if is_held else "NotInPendingAck"


def log_stats(coordinator: Coordinator, log: TransactionLog, *, with_metadata: bool) -> dict[str, Any]:
    cursor = cursor_stats(
        log.managed,
        log.cursor,
        opened_ms=coordinator.recover_ended_ms,
        is_waiting=False,
        is_reading=False,
        properties={},
    )
    return {
        "managedLedgerName": f"pulsar/system/persistent/__transaction_log_{coordinator.id}",
        "managedLedgerInternalStats": managed_ledger_stats(
            log.managed,
            opened_ms=coordinator.recover_started_ms,
            waiting_cursors=0,
            state="WriteFailed" if log.managed.is_write_failed else "LedgerOpened",
            with_metadata=with_metadata,
            cursors={CURSOR: cursor},
        ),
    }
