"""Findings about one message: which consumer has it, why it waits, or why it is never delivered.

The first rule that applies decides, so their order matters. The rules do no IO: a rule that needs the stored entry or
the compacted view returns a `Want`, and the caller performs that read and calls all rules again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from pybroker.broker.explain import actions
from pybroker.broker.explain.consumers import consumer_of
from pybroker.broker.explain.steps import counted, duration, for_long
from pybroker.dispatch.blocked_reasons import BlockedReason
from pybroker.dispatch.views import ChunkOrderView, InOrderView, KeyOrderView
from pybroker.errors import ProtocolViolation
from pybroker.model import ack_set
from pybroker.model.findings import Code, Finding
from pybroker.model.hashing import key_hash
from pybroker.model.position import Position
from pybroker.model.skipped_ranges import move_over
from pybroker.wire.entry_metadata import chunk_of, deliver_at_ms, is_marker, sticky_key
from pybroker.wire.transaction_metadata import is_end_marker, of_transaction

if TYPE_CHECKING:
    from pybroker.broker.delivery.subscription import Subscription
    from pybroker.broker.topic.topic import Topic
    from pybroker.broker.transactions.transaction_buffer import OpenTransaction
    from pybroker.dispatch.consumer_state import ConsumerState
    from pybroker.managed_ledger.managed_ledger import ManagedLedger
    from pybroker.model.chunk import Chunk
    from pybroker.model.txn_id import TxnId


class Want(Enum):
    """Data that the caller must read before the rules can decide."""

    ENTRY = "the entry as it is stored"
    VIEW = "whether the compacted view has it"


@dataclass(frozen=True, slots=True)
class StoredEntry:
    """Result of reading the entry: the entry, or the error."""

    payload: bytes | None
    message_count: int = 0
    problem: str = ""
    is_damaged: bool = False
    """True if the entry is permanently unreadable."""


@dataclass(frozen=True, slots=True)
class TransactionSeen:
    """State of an open transaction at its coordinator. Times are in milliseconds since 1970."""

    opened_ms: int
    timeout_ms: int
    owner: str | None


@dataclass(slots=True)
class LookedUp:
    """Results of the reads so far; None for data that was not read."""

    entry: StoredEntry | None = None
    is_in_view: bool | None = None


@dataclass(frozen=True, slots=True)
class Reasons:
    """Findings about the message, and the objects that the caller must examine too: its consumer, its key hash, or the
    whole subscription.
    """

    findings: list[Finding]
    of_subscription: bool = False
    of_consumer: ConsumerState | None = None
    of_hash: int | None = None


class MessageQuestion:
    """Input of the rules: one `explain` request about a message."""

    def __init__(
        self, topic: Topic, subscription: Subscription, position: Position, batch_index: int | None = None
    ) -> None:
        self.topic = topic
        self.subscription = subscription
        self.position = position
        self.batch_index = batch_index
        self.known = LookedUp()
        self.transaction_of: Callable[[TxnId], TransactionSeen | None] = _unknown
        """Returns the state of a transaction at its coordinator; None if the coordinator is not available."""

    @property
    def message_id(self) -> str:
        return str(self.position) if self.batch_index is None else f"{self.position}:{self.batch_index}"

    @property
    def payload(self) -> bytes | None:
        return None if self.known.entry is None else self.known.entry.payload


def _unknown(_: TxnId) -> TransactionSeen | None:
    return None


def absence(asked: MessageQuestion) -> Reasons | Want | None:
    """Return the finding that the message does not exist or is still being stored; None if the topic, or this
    subscription's compacted view, contains it. Return `Want.VIEW` if the caller must read the view first.
    """
    ledger, position = asked.topic.ledger, asked.position
    if ledger.ledgers.has_entry(position):
        return None
    if _is_being_stored(ledger, position):
        return Reasons(
            [
                Finding(
                    Code.MESSAGE_BEING_STORED,
                    f"Message {asked.message_id} is being written to the disk: "
                    f"{counted(ledger.pending_entries, 'entry of the topic is', 'entries of the topic are')} not stored yet.",
                    evidence={"pendingEntries": ledger.pending_entries},
                )
            ]
        )
    if _may_be_in_view(asked):
        if asked.known.is_in_view is None:
            return Want.VIEW
        if asked.known.is_in_view:
            return None
        return Reasons([compacted_away(asked)])
    gone = _gone(ledger, asked)
    return Reasons([gone if gone is not None else _never_existed(ledger, asked)])


def _is_being_stored(ledger: ManagedLedger, position: Position) -> bool:
    end = ledger.ledgers.entry_count_of(position.ledger_id)
    return position.ledger_id == ledger.current_ledger_id and end <= position.entry_id < end + ledger.pending_entries


def replacement(asked: MessageQuestion) -> Reasons | Want | None:
    """Return the finding that compaction removed the message, so that consumers with `readCompacted` do not receive it;
    None for other messages. Return `Want.VIEW` if the caller must read the compacted view first.
    """
    if not _may_be_in_view(asked):
        return None
    if asked.known.is_in_view is None:
        return Want.VIEW
    return None if asked.known.is_in_view else Reasons([compacted_away(asked)])


def _may_be_in_view(asked: MessageQuestion) -> bool:
    view = asked.topic.ledger.compacted
    return (
        view is not None
        and asked.subscription.reads.compacted is not None
        and asked.position <= Position(*view.horizon)
    )


def compacted_away(asked: MessageQuestion) -> Finding:
    view = asked.topic.ledger.compacted
    horizon = None if view is None else str(Position(*view.horizon))
    return Finding(
        Code.COMPACTED_AWAY,
        f"Message {asked.message_id} is not in the compacted view, which has the last message of each key up to {horizon}: "
        "a later message has the same key, or the message has no key.",
        waits=False,
        evidence={"horizon": horizon, "compactedEntries": 0 if view is None else view.entries},
    )


def _gone(ledger: ManagedLedger, asked: MessageQuestion) -> Finding | None:
    ledger_id, entry_id = asked.position
    gone, evidence = ledger.document.gone, _what_there_is(ledger)
    if entry_id < 0 or ledger.ledgers.has_ledger(ledger_id):
        return None
    known = next((count for each, count in gone.rows if each == ledger_id), None)
    if known is not None and entry_id < known:
        evidence["trimmedLedger"] = {"ledgerId": ledger_id, "entries": known}
        return Finding(
            Code.MESSAGE_TRIMMED,
            f"Message {asked.message_id} was deleted with its ledger {ledger_id} of {counted(known, 'entry', 'entries')}: "
            "all durable subscriptions had acknowledged it, and retention did not keep it.",
            waits=False,
            evidence=evidence,
        )
    if known is None and 0 <= ledger_id <= gone.until:
        evidence["forgottenUpToLedger"] = gone.until
        return Finding(
            Code.MESSAGE_TRIMMED,
            f"Message {asked.message_id} does not exist: the topic's ledgers up to {gone.until} were deleted, and the broker "
            "does not remember which of them belonged to the topic.",
            waits=False,
            evidence=evidence,
        )
    return None


def _never_existed(ledger: ManagedLedger, asked: MessageQuestion) -> Finding:
    ledger_id, entry_id = asked.position
    row = ledger.ledgers.row_of(ledger_id)
    last = ledger.last_confirmed
    trimmed = next((count for each, count in ledger.document.gone.rows if each == ledger_id), None)
    if ledger_id < 0 or entry_id < 0:
        why = "ledger and entry ids begin at 0"
    elif row is not None and row.is_sealed:
        why = f"ledger {ledger_id} is closed and has {counted(row.entry_count, 'entry', 'entries')}, with ids from 0"
    elif row is not None or asked.position > last:
        why = f"the id is after the last message of the topic, {last}" if last.entry_id >= 0 else "the topic is empty"
    elif trimmed is not None:
        why = f"ledger {ledger_id} was deleted, and had only {counted(trimmed, 'entry', 'entries')}"
    else:
        why = f"ledger {ledger_id} does not belong to the topic: the id is of another topic, or the ledger was empty"
    return Finding(
        Code.MESSAGE_NEVER_EXISTED,
        f"There is no message {asked.message_id}: {why}.",
        waits=False,
        evidence=_what_there_is(ledger),
    )


def outside_batch(asked: MessageQuestion, message_count: int) -> Finding:
    return Finding(
        Code.MESSAGE_NEVER_EXISTED,
        f"There is no message {asked.message_id}: entry {asked.position} has "
        f"{counted(message_count, 'message')}, with batch indexes from 0.",
        waits=False,
        evidence={"batchSize": message_count},
    )


def _what_there_is(ledger: ManagedLedger) -> dict[str, Any]:
    last = ledger.last_confirmed
    return {
        "firstMessageId": str(ledger.ledgers.first_position),
        "lastMessageId": None if last.entry_id < 0 else str(last),
        "ledgers": len(ledger.ledgers),
    }


LISTED_INDEXES = 100
"""Maximum number of batch indexes in a finding."""
MAX_BATCH_INDEX = 1 << 24
"""Limit of the batch index in a request, larger than any batch. A request allocates up to this many bits."""


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
    """Return the finding about a marker or a message of an aborted transaction, which consumers never receive; None for
    other messages. Return `Want.ENTRY` if the caller must read the entry first.
    """
    if not asked.topic.ledger.read_limit.is_hidden(asked.position):
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
                f"Message {asked.message_id} is part of {named} that was aborted: no consumer receives it.",
                waits=False,
                evidence={} if said is None else {"transaction": str(said)},
            )
        ]
    )


def _marker(asked: MessageQuestion, txn: TxnId | None) -> Finding:
    of = "" if txn is None else f" of transaction {txn}"
    return Finding(
        Code.MARKER,
        f"Entry {asked.position} is a marker{of} written by the broker: no consumer receives it.",
        waits=False,
        evidence={} if txn is None else {"transaction": str(txn)},
    )


def acknowledged(asked: MessageQuestion) -> Reasons | Want | None:
    subscription, position = asked.subscription, asked.position
    state = subscription.cursor.state
    if not asked.topic.ledger.ledgers.has_entry(position):  # The compacted view contains it.
        if position > state.mark_delete_position:
            return None
    elif not state.is_deleted(*position):
        return None
    move = move_over(subscription.cursor.skipped_ranges, position)
    evidence: dict[str, Any] = {
        "markDeletePosition": str(state.mark_delete_position),
        "by": "mark-delete position" if position <= state.mark_delete_position else "single acknowledgement",
    }
    clock = subscription.runtime.clock
    if move is not None:
        evidence |= {"passedOverFrom": str(move.after), "passedOverTo": str(move.up_to), "entries": move.entries}
        verb = "expired" if move.is_expiry else "skipped"
        is_all = "" if move.is_certain else ", unless a consumer had acknowledged it"
        return Reasons(
            [
                Finding(
                    Code.EXPIRED if move.is_expiry else Code.SKIPPED,
                    f"Message {asked.message_id} was {verb} {duration(max(0, clock.wall_ms() - move.at_ms))} ago in a range of "
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
        f"all messages up to the mark-delete position {state.mark_delete_position} are acknowledged"
        if position <= state.mark_delete_position
        else f"it was acknowledged individually, and is after the mark-delete position {state.mark_delete_position}"
    )
    return Reasons(
        [
            Finding(
                Code.ALREADY_ACKNOWLEDGED,
                f"Message {asked.message_id} is acknowledged in subscription {subscription.name}: {where}. A consumer acknowledged "
                "the message, or the message was skipped so long ago that the broker has no record of the skip.",
                waits=False,
                evidence=evidence,
                actions=[actions.seek_to(asked.subscription, asked.position)],
            )
        ]
    )


def _never_delivered(asked: MessageQuestion) -> Reasons | Want | None:
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
                f"Message {asked.message_id} is rejected by the current entry filters: no consumer receives it.",
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
                f"Message {asked.message_id} is acknowledged; {counted(left.bit_count(), 'other message')} of its batch "
                f"{'is' if left.bit_count() == 1 else 'are'} not.",
                waits=False,
                evidence=batch_evidence(asked),
            )
        ]
    )


def _unacked_of_batch(asked: MessageQuestion) -> int | None:
    """Return a bitmap of the unacknowledged messages of the batch; None if no message is acknowledged, or the entry is
    no batch.
    """
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


def held_by_transaction(asked: MessageQuestion) -> Reasons | None:
    subscription = asked.subscription
    bits = -1 if asked.batch_index is None else 1 << asked.batch_index
    txn = subscription.cursor.state.held.holder_of(asked.position, bits)
    if txn is None:
        return None
    seen = subscription.transactions.first_seen.get(txn)
    remedies = actions.of_open_transaction(asked.topic, txn)
    evidence, since_ms = _transaction_evidence(asked, txn)
    if seen is not None:
        since_ms, evidence["consumer"] = seen
    return Reasons(
        [
            Finding(
                Code.HELD_BY_TRANSACTION,
                f"Transaction {txn} has acknowledged message {asked.message_id} and is open"
                f"{for_long(since_ms, subscription.runtime.clock)}: the acknowledgement takes effect with the commit;"
                " after an abort the message is redelivered." + ("" if remedies else actions.ONLY_JAVA_ENDS_IT),
                waits=False,
                since_ms=since_ms,
                evidence=evidence,
                actions=remedies,
            )
        ]
    )


def behind_transaction(asked: MessageQuestion) -> Reasons | None:
    read_limit, position = asked.topic.ledger.read_limit, asked.position
    if read_limit.readable(position, 1) or not asked.topic.ledger.ledgers.has_entry(position):
        return None
    buffer = asked.topic.transactions.buffer
    if buffer is None or not buffer.open:
        return None
    for txn, each in buffer.open.items():
        if position.entry_id in each.entries.get(position.ledger_id, ()):
            why = f"is part of {_named(asked, txn, each)}: it is delivered only after the commit"
            return _kept_by(asked, txn, each, Code.MESSAGE_UNCOMMITTED, why, {})
    txn, oldest = next(iter(buffer.open.items()))
    why = (
        f"is after {oldest.first}, the first message of {_named(asked, txn, oldest)}: messages from there on are delivered only "
        "after the transaction has ended"
    )
    return _kept_by(asked, txn, oldest, Code.BEHIND_TRANSACTION, why, {"openTransactions": len(buffer.open)})


def _named(asked: MessageQuestion, txn: TxnId, found: OpenTransaction) -> str:
    open_for = for_long(found.opened_ms, asked.subscription.runtime.clock)
    return f"transaction {txn} of producer {found.owner}, open{open_for}"


def _kept_by(
    asked: MessageQuestion, txn: TxnId, found: OpenTransaction, code: Code, why: str, more: dict[str, Any]
) -> Reasons:
    evidence, _ = _transaction_evidence(asked, txn)
    pending = asked.topic.broker_context.pending_end_of(txn)
    if pending is None:
        remedies = actions.of_open_transaction(asked.topic, txn)
        more_text = "" if remedies else actions.ONLY_JAVA_ENDS_IT
    else:  # a transaction with a pending commit cannot be aborted
        remedies = (actions.show_transaction(txn), actions.show_coordinator(txn))
        more_text = f" The transaction {pending.reason}."
    finding = Finding(
        code,
        f"Message {asked.message_id} {why}.{more_text}",
        since_ms=found.opened_ms,
        evidence=evidence | {"firstMessageId": str(found.first), "producer": found.owner} | more,
        actions=remedies,
    )
    return Reasons([finding])


def _transaction_evidence(asked: MessageQuestion, txn: TxnId) -> tuple[dict[str, Any], int | None]:
    seen = asked.transaction_of(txn)
    if seen is None:
        return {"transaction": str(txn)}, None
    evidence: dict[str, Any] = {
        "transaction": str(txn),
        "openedAt": seen.opened_ms,
        "timeoutAt": seen.opened_ms + seen.timeout_ms,
    }
    return evidence if seen.owner is None else {**evidence, "owner": seen.owner}, seen.opened_ms


LISTED_PARTS = 100
"""Maximum number of listed chunks of a large message."""
OTHER_CHUNKS = "the consumer has received other chunks of the same message"


def held_by_consumer(asked: MessageQuestion) -> Reasons | Want | None:
    dispatcher, position = asked.subscription.dispatcher, asked.position
    if dispatcher is None:
        return None
    if (individual := dispatcher.individual) is not None:
        hold = individual.pending.hold(position)
        if hold is None:
            return None
        state, unacked_messages, _, delivered_ms = hold
        counts = individual.redelivery_counts.column(position.ledger_id, [position.entry_id])
        redelivered = counts[0] if counts else 0
        return _held(asked, state, delivered_ms or None, redelivered, unacked_messages)
    if (in_order := dispatcher.in_order) is not None:
        active = dispatcher.active_consumer
        read_position = asked.subscription.cursor.read_position
        if active is None or position >= read_position:
            return None
        outside = _outside_ranges(asked, in_order, active)
        return outside or _held(asked, active, in_order.delivered_ms(position), None, None)
    return None


def _outside_ranges(asked: MessageQuestion, in_order: InOrderView, active: ConsumerState) -> Reasons | Want | None:
    ranges = in_order.ranges
    if ranges is None:
        return None
    if asked.known.entry is None:
        return Want.ENTRY
    if asked.payload is None:
        return None
    (sticky_hash,) = ranges.sticky_hashes([key_hash(sticky_key(asked.payload))])
    if ranges.owner(sticky_hash) is not None:
        return None
    finding = Finding(
        Code.OUTSIDE_HASH_RANGES,
        f"The hash {sticky_hash} of the key of message {asked.message_id} is outside the hash ranges that consumer "
        f"{active.name} has requested: a reader of other ranges receives it, and it stays unacknowledged in this subscription.",
        waits=False,
        evidence={"hash": sticky_hash, "ranges": [list(each) for each in active.key_shared.ranges or ()]},
    )
    return Reasons([finding])


def _held(
    asked: MessageQuestion,
    state: ConsumerState,
    delivered_ms: int | None,
    redelivered: int | None,
    unacked_messages: int | None,
) -> Reasons | Want:
    chunk = _chunk(asked)
    if isinstance(chunk, Want):
        return chunk
    evidence = {**who_has(state), **batch_evidence(asked)}
    if unacked_messages is not None:
        evidence["unacknowledgedMessages"] = unacked_messages
    again = ""
    if redelivered is not None:
        evidence["deliveryCount"] = redelivered + 1
        again = f", for the {_nth(redelivered + 1)} time" if redelivered else ""
    how_long = for_long(delivered_ms, asked.subscription.runtime.clock)
    again_actions = [actions.explain_consumer(consumer_of(state)), actions.disconnect(consumer_of(state))]
    if redelivered is not None:
        again_actions.insert(1, actions.redeliver(asked.subscription, asked.position))
    findings = [
        Finding(
            Code.HELD_BY_CONSUMER,
            f"Consumer {state.name} has had message {asked.message_id}{how_long}{again}, and has not acknowledged it. The broker "
            "does not know whether the client will request a redelivery (negative acknowledgement) or publish a dead letter.",
            waits=False,
            since_ms=delivered_ms,
            evidence=evidence,
            actions=again_actions,
        )
    ]
    if chunk is not None:
        findings += _incomplete(asked, chunk, state)
    return Reasons(findings, of_consumer=state)


def _chunk(asked: MessageQuestion) -> Chunk | Want | None:
    if not asked.subscription.kinds.may_hold_chunks(*asked.position):
        return None
    if asked.known.entry is None:
        return Want.ENTRY
    return None if asked.payload is None else chunk_of(asked.payload)


def _incomplete(asked: MessageQuestion, chunk: Chunk, state: ConsumerState) -> list[Finding]:
    individual = asked.subscription.individual
    if individual is None:
        return []
    message = individual.chunked.find(chunk.uuid)
    if message is None or message.consumer is not state:
        return []
    held = individual.chunked.held_count(message)
    if held >= message.chunk_count:
        return []
    is_at_end = not asked.subscription.cursor.has_more()
    why = "the other chunks were never stored" if is_at_end else "the broker has not sent the other chunks yet"
    return [
        Finding(
            Code.CHUNKS_MISSING,
            f"Message {asked.message_id} is chunk {chunk.chunk_id + 1} of {chunk.chunk_count} of a larger message. Consumer "
            f"{state.name} has received {counted(held, 'chunk')}, and {why}: its program does not receive the larger message.",
            waits=False,
            evidence={
                "uuid": chunk.uuid.decode("utf-8", "replace"),
                "chunkId": chunk.chunk_id,
                "chunks": chunk.chunk_count,
                "heldChunks": held,
                "messageIds": [str(each) for each in sorted(message.positions)[:LISTED_PARTS]],
                **who_has(state),
            },
        )
    ]


# --- waiting messages ------------------------------------------------------------------------------------------------


def damaged(asked: MessageQuestion) -> Reasons | Want | None:
    """Return the finding that the entry is permanently unreadable; None for other entries. Return `Want.ENTRY` if reads
    of the subscription fail and the caller must read the entry first.
    """
    stall = asked.subscription.stall
    entry = asked.known.entry
    if entry is None and stall is not None and stall.blocked_reason is BlockedReason.READ_FAILED:
        return Want.ENTRY
    if entry is None or not entry.is_damaged:
        return None
    finding = Finding(
        Code.ENTRY_DAMAGED,
        f"Message {asked.message_id} is damaged on the disk and can never be read: {entry.problem}.",
        evidence={"messageId": str(asked.position)},
        actions=[actions.acknowledge(asked.subscription, asked.position)],
    )
    return Reasons([finding], of_subscription=True)


def delayed(asked: MessageQuestion) -> Reasons | Want | None:
    waiting = asked.subscription.delayed.held_back.get(asked.position.ledger_id)
    if waiting is None or asked.position.entry_id not in waiting:
        return None
    if asked.known.entry is None:
        return Want.ENTRY
    payload = asked.payload
    due_ms = asked.subscription.delayed.changed_ms(asked.position)  # changed by REST
    if due_ms is None and payload is not None:
        due_ms = deliver_at_ms(payload)
    left_ms = None if due_ms is None else due_ms - asked.subscription.runtime.clock.wall_ms()
    if left_ms is None:
        when = "is delayed; its delivery time could not be read"
    else:
        when = (
            f"is due in {duration(left_ms)}"
            if left_ms > 0
            else "is due now, and is delivered when a consumer can receive it"
        )
    finding = Finding(
        Code.DELAYED,
        f"Message {asked.message_id} {when}.",
        waits=left_ms is not None and left_ms <= 0,
        evidence={"deliverAt": due_ms, "delayedMessages": asked.subscription.delayed.entry_count},
        actions=[actions.deliver_now(asked.subscription, asked.position)],
    )
    return Reasons([finding], of_subscription=left_ms is not None and left_ms <= 0)


def waiting(asked: MessageQuestion) -> Reasons | Want | None:
    if (key_order := asked.subscription.key_order) is not None:
        return _waiting_for_key(asked, key_order)
    if (chunk_order := asked.subscription.chunk_order) is not None:
        return _waiting_for_consumers(asked, chunk_order)
    return None


def _waiting_for_key(asked: MessageQuestion, key_order: KeyOrderView) -> Reasons | Want | None:
    position, clock = asked.position, asked.subscription.runtime.clock
    sticky_hash = key_order.waiting.hash_of(position)
    if sticky_hash is None:
        return _parked_for_key(asked, key_order)
    waiting = key_order.waiting.waiting[sticky_hash]
    since_ms = round(waiting.since_ms) or None
    evidence: dict[str, Any] = {"hash": sticky_hash, "waitingOfHash": waiting.count}
    if waiting.consumer is None:
        who = waiting.filler
        why = (
            "the hash is outside the hash ranges of all connected consumers"
            if who is None
            else f"consumer {who.name} has not acknowledged messages that it received before the key moved to another consumer"
        )
        finding = Finding(
            Code.WAITS_FOR_KEY,
            f"Message {asked.message_id} has waited{for_long(since_ms, clock)} because its key (hash {sticky_hash}) is blocked:"
            f" {why}.",
            since_ms=since_ms,
            evidence=evidence | ({} if who is None else who_has(who)),
        )
        return Reasons([finding], of_hash=sticky_hash)
    return Reasons(
        [_for_one(asked, waiting.consumer, evidence, since_ms)],
        of_hash=sticky_hash,
    )


def _for_one(
    asked: MessageQuestion, state: ConsumerState, evidence: dict[str, Any], since_ms: int | None = None
) -> Finding:
    why = (
        "which can receive messages: the broker sends the message next"
        if state.can_take()
        else f"which cannot receive messages now: {state.blocked_reason().value}"
    )
    return Finding(
        Code.WAITS_FOR_CONSUMER,
        f"Message {asked.message_id} waits{for_long(since_ms, asked.subscription.runtime.clock)} for consumer "
        f"{state.name}, {why}.",
        since_ms=since_ms,
        evidence=evidence | who_has(state),
    )


def _parked_for_key(asked: MessageQuestion, key_order: KeyOrderView) -> Reasons | Want | None:
    parked, position = key_order.parked, asked.position
    if not parked or position >= asked.subscription.cursor.read_position:
        return None
    if asked.known.entry is None:
        return Want.ENTRY
    if asked.payload is None:
        return None
    (sticky_hash,) = key_order.owners.selector.sticky_hashes([key_hash(sticky_key(asked.payload))])
    if not parked.covers(sticky_hash, position):
        return None
    finding = Finding(
        Code.SET_ASIDE,
        f"Message {asked.message_id} waits for earlier messages with hash {sticky_hash}, the hash of its key. The look-ahead "
        f"buffer has no space for messages with this hash from {parked.from_position(sticky_hash)} on; the broker reads these "
        "messages again when the earlier messages are delivered.",
        evidence={"hash": sticky_hash, "setAsideFrom": str(parked.from_position(sticky_hash))},
    )
    return Reasons([finding], of_hash=sticky_hash)


def _waiting_for_consumers(asked: MessageQuestion, chunk_order: ChunkOrderView) -> Reasons | Want | None:
    position = asked.position
    if position in chunk_order.waiting:
        state = chunk_order.waiting.bound_to(position)
        if state is not None:
            finding = _for_one(asked, state, {"reason": OTHER_CHUNKS})
            return Reasons([finding], of_subscription=True)
        counts = chunk_order.redelivery_counts.column(position.ledger_id, [position.entry_id])
        before = counts[0] if counts else 0
        finding = Finding(
            Code.WAITS_FOR_REDELIVERY if before else Code.WAITS_FOR_CONSUMER,
            f"Message {asked.message_id} waits for a consumer that can receive it. It was delivered {counted(before, 'time')} "
            f"before. {counted(len(chunk_order.waiting), 'entry waits', 'entries wait')} in this subscription.",
            evidence={"deliveries": before, "waitingEntries": len(chunk_order.waiting)},
        )
        return Reasons([finding], of_subscription=True)
    if not chunk_order.parked_chunks or position >= asked.subscription.cursor.read_position:
        return None
    chunk = _chunk(asked)
    if isinstance(chunk, Want):
        return chunk
    state = None if chunk is None else chunk_order.chunked.holder(chunk.uuid)
    if state is None or not chunk_order.parked_chunks.covers(state, position):
        return None
    finding = _for_one(asked, state, {"reason": OTHER_CHUNKS})
    return Reasons([finding], of_subscription=True)


def not_reached(asked: MessageQuestion) -> Reasons | None:
    cursor = asked.subscription.cursor
    ledgers = cursor.ledger.ledgers
    start = ledgers.normalize(cursor.read_position)
    if asked.position < start:
        return None
    before = ledgers.entries_between(start, asked.position)
    where = (
        "the message is the next entry"
        if not before
        else f"{counted(before, 'entry is', 'entries are')} before the message"
    )
    finding = Finding(
        Code.NOT_REACHED_YET,
        f"Nothing is wrong with message {asked.message_id}: the broker has not read it yet, and {where}.",
        waits=False,
        evidence={"readPosition": str(cursor.read_position), "entriesBefore": before, **batch_evidence(asked)},
    )
    return Reasons([finding], of_subscription=True)


def passed(asked: MessageQuestion) -> Reasons:
    """Return the finding about a message that no other rule explains: its entry was read before, and the broker is
    reading it again, or an entry filter has deferred it.
    """
    subscription = asked.subscription
    filters = subscription.filters
    why = (
        "the broker is reading it again, or an entry filter has deferred it"
        if filters is not None
        else "the broker is reading it again"
    )
    finding = Finding(
        Code.MESSAGE_PUT_OFF,
        f"Message {asked.message_id} is being delivered: {why}.",
        waits=filters is not None or subscription.is_reading,
        evidence={"readPosition": str(subscription.cursor.read_position)},
    )
    return Reasons([finding], of_subscription=True)


def who_has(state: ConsumerState) -> dict[str, Any]:
    consumer = consumer_of(state)
    return {"consumer": state.name, "consumerId": consumer.consumer_id, "address": consumer.peer.address}


def _nth(number: int) -> str:
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def explain_message(asked: MessageQuestion) -> Reasons | Want:
    """Return the findings of the first rule of this module that applies to the message, or the data that the caller
    must read first.
    """
    rules: tuple[Callable[[MessageQuestion], Reasons | Want | None], ...] = (
        absence,
        out_of_batch,
        hidden,
        replacement,
        acknowledged,
        acknowledged_in_batch,
        held_by_transaction,
        held_by_consumer,
        behind_transaction,
        damaged,
        delayed,
        waiting,
        not_reached,
    )
    for rule in rules:
        found = rule(asked)
        if found is not None:
            return found
    return passed(asked)
