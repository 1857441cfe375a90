"""Of messages that nobody gets, or nobody gets any more: acknowledged, passed over, aborted, or not messages at all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pybroker.broker.explain import actions
from pybroker.broker.explain.message_absence import outside_batch
from pybroker.broker.explain.message_question import MessageQuestion, Reasons, Want
from pybroker.broker.explain.steps import counted, duration
from pybroker.errors import ProtocolViolation
from pybroker.model import ack_set
from pybroker.model.findings import Action, Code, Finding
from pybroker.model.passed_over import move_over
from pybroker.wire.entry_metadata import is_marker
from pybroker.wire.transaction_metadata import is_end_marker, of_transaction

if TYPE_CHECKING:
    from pybroker.model.transactions import TxnId


LISTED_INDEXES = 100
"""How many messages of a batch a finding names."""
MAX_BATCH_INDEX = 1 << 24
"""No batch is as large; what is asked for costs as many bits."""


def out_of_batch(asked: MessageQuestion) -> Reasons | Want | None:
    if asked.batch_index is None or not asked.topic.ledger.ledgers.has_entry(asked.position):
        return None
    count = asked.topic.ledger.message_count_at_hand(asked.position)
    if not count:
        if asked.known.entry is None:
            return Want.ENTRY
        count = asked.known.entry.message_count
    if not 0 <= asked.batch_index < (count or MAX_BATCH_INDEX):
        return Reasons([outside_batch(asked, count)])
    return None


def hidden(asked: MessageQuestion) -> Reasons | Want | None:
    """Messages of aborted transactions and markers; which of both it is, only the entry says."""
    if not asked.topic.ledger.visibility.is_hidden(asked.position):
        return None
    if asked.known.entry is None:
        return Want.ENTRY
    payload = asked.payload
    said = None if payload is None else in_transaction(payload)
    if payload is not None and is_end_marker(payload):
        return Reasons([_marker(asked, said)])
    named = "a transaction" if said is None else f"transaction {said}"
    return Reasons(
        [
            Finding(
                Code.MESSAGE_ABORTED,
                f"Message {asked.message_id} is part of {named} that was aborted: nobody ever gets it.",
                waits=False,
                evidence={} if said is None else {"transaction": str(said)},
            )
        ]
    )


def _marker(asked: MessageQuestion, txn: TxnId | None) -> Finding:
    of = "" if txn is None else f" of transaction {txn}"
    return Finding(
        Code.MARKER,
        f"Entry {asked.position} is a marker{of} that the broker has written: nobody gets it.",
        waits=False,
        evidence={} if txn is None else {"transaction": str(txn)},
    )


def acknowledged(asked: MessageQuestion) -> Reasons | Want | None:
    subscription, position = asked.subscription, asked.position
    state = subscription.cursor.state
    if not asked.topic.ledger.ledgers.has_entry(position):  # the compacted view has it
        if position > state.mark_delete_position:
            return None
    elif not state.is_deleted(*position):
        return None
    move = move_over(subscription.cursor.passed_over, position)
    evidence: dict[str, Any] = {
        "markDeletePosition": str(state.mark_delete_position),
        "by": "mark-delete position" if position <= state.mark_delete_position else "single acknowledgement",
    }
    clock = subscription.surroundings.clock
    if move is not None:
        evidence |= {"passedOverFrom": str(move.after), "passedOverTo": str(move.up_to), "entries": move.entries}
        verb = "expired" if move.is_expiry else "skipped"
        is_all = "" if move.is_certain else ", unless it had been acknowledged before"
        return Reasons(
            [
                Finding(
                    Code.EXPIRED if move.is_expiry else Code.SKIPPED,
                    f"Message {asked.message_id} was {verb} {duration(max(0, clock.wall_ms() - move.at_ms))} ago with "
                    f"{counted(move.entries, 'entry', 'entries')}{is_all}: {move.why}.",
                    waits=False,
                    since_ms=move.at_ms,
                    evidence=evidence,
                )
            ]
        )
    unusual = _never_delivered(asked)
    if unusual is not None:
        return unusual
    where = (
        f"everything up to {state.mark_delete_position} does"
        if position <= state.mark_delete_position
        else f"it was acknowledged by itself, behind {state.mark_delete_position}"
    )
    return Reasons(
        [
            Finding(
                Code.ALREADY_ACKNOWLEDGED,
                f"Message {asked.message_id} counts as read in subscription {subscription.name}: {where}. It was acknowledged, or "
                "passed over before the broker began to remember that.",
                waits=False,
                evidence=evidence,
                actions=[_reset_to(asked)],
            )
        ]
    )


def _never_delivered(asked: MessageQuestion) -> Reasons | Want | None:
    """What was passed over as it is no message for consumers; as the entry and the filters of now say."""
    subscription, position = asked.subscription, asked.position
    filters = subscription.filters
    may_be_marker = subscription.kinds.may_hold_markers(*position)
    if (filters is None and not may_be_marker) or not asked.topic.ledger.ledgers.has_entry(position):
        return None
    if asked.known.entry is None:
        return Want.ENTRY
    payload = asked.payload
    if payload is None:
        return None
    if is_marker(payload):
        return Reasons([_marker(asked, in_transaction(payload))])
    if filters is None or not filters.rejects(position, payload):
        return None
    return Reasons(
        [
            Finding(
                Code.FILTERED,
                f"Message {asked.message_id} is rejected by the entry filters of now: no consumer may have it.",
                waits=False,
                evidence={"entryFilters": [type(each).__name__ for each in filters.filters]},
            )
        ]
    )


def acknowledged_in_batch(asked: MessageQuestion) -> Reasons | Want | None:
    left = _unacked_of_batch(asked)
    if asked.batch_index is None or left is None or left >> asked.batch_index & 1:
        return None
    return Reasons(
        [
            Finding(
                Code.ALREADY_ACKNOWLEDGED,
                f"Message {asked.message_id} is acknowledged; of its batch "
                f"{counted(left.bit_count(), 'message is', 'messages are')} not.",
                waits=False,
                evidence=batch_evidence(asked),
            )
        ]
    )


def _unacked_of_batch(asked: MessageQuestion) -> int | None:
    """Messages of the batch that are not acknowledged, as bits; None when all are not, or it is none."""
    words = asked.subscription.cursor.state.ack_set_of(*asked.position)
    return None if words is None else ack_set.from_words(words)


def batch_evidence(asked: MessageQuestion) -> dict[str, Any]:
    left = _unacked_of_batch(asked)
    if left is None:
        return {}
    more = left.bit_count() - LISTED_INDEXES
    listed: list[int] = []
    while left and len(listed) < LISTED_INDEXES:
        lowest = left & -left
        listed.append(lowest.bit_length() - 1)
        left ^= lowest
    return {"unacknowledgedBatchIndexes": listed} | ({"more": more} if more > 0 else {})


def in_transaction(payload: bytes) -> TxnId | None:
    try:
        said = of_transaction(payload)
    except ProtocolViolation:
        return None
    return None if said is None else said.txn


def _reset_to(asked: MessageQuestion) -> Action:
    path = actions.subscription_path(asked.subscription) + "/resetcursor"
    body = {"ledgerId": asked.position.ledger_id, "entryId": asked.position.entry_id}
    return Action("Have it, and all behind it, delivered again", "POST", path, body)
