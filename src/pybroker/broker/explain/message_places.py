"""Of messages that are at a consumer, wait, or have not been reached."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pybroker.broker.explain import actions
from pybroker.broker.explain.consumers import consumer_of
from pybroker.broker.explain.message_ends import batch_evidence
from pybroker.broker.explain.message_question import MessageQuestion, Reasons, Want
from pybroker.broker.explain.steps import counted, duration, for_long
from pybroker.dispatch.gates import Gate
from pybroker.dispatch.key_shared import KeySharedDispatcher
from pybroker.dispatch.multi_consumer import MultiConsumerDispatcher
from pybroker.dispatch.shared import SharedDispatcher
from pybroker.dispatch.single_active import ExclusiveDispatcher, SingleActiveDispatcher
from pybroker.model.findings import Code, Finding
from pybroker.model.hashing import key_hash
from pybroker.wire.entry_metadata import chunk_of, deliver_at_ms, sticky_key

if TYPE_CHECKING:
    from pybroker.dispatch.consumer_state import ConsumerState
    from pybroker.model.chunk import Chunk


LISTED_PARTS = 100
"""How many parts of a larger message a finding names."""


def held_by_consumer(asked: MessageQuestion) -> Reasons | Want | None:
    dispatcher, position = asked.subscription.dispatcher, asked.position
    if isinstance(dispatcher, MultiConsumerDispatcher):
        hold = dispatcher.pending.hold(position)
        if hold is None:
            return None
        state, unacked_messages, _, delivered_ms = hold
        counts = dispatcher.redelivery_counts.column(position.ledger_id, [position.entry_id])
        redelivered = counts[0] if counts else 0
        return _held(asked, state, delivered_ms or None, redelivered, unacked_messages)
    if isinstance(dispatcher, SingleActiveDispatcher):
        active = dispatcher.active_consumer
        read_position = asked.subscription.cursor.read_position
        if active is None or position >= read_position:
            return None
        outside = _outside_ranges(asked, dispatcher, active)
        return outside or _held(asked, active, dispatcher.delivered_ms(position), None, None)
    return None


def _outside_ranges(
    asked: MessageQuestion, dispatcher: SingleActiveDispatcher, active: ConsumerState
) -> Reasons | Want | None:
    ranges = dispatcher.ranges if isinstance(dispatcher, ExclusiveDispatcher) else None
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
        f"The hash {sticky_hash} of the key of message {asked.message_id} is in none of the ranges that consumer "
        f"{active.name} has asked for: it is for another reader, and stays unacknowledged here.",
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
    how_long = for_long(delivered_ms, asked.subscription.surroundings.clock)
    again_actions = [actions.explain_consumer(consumer_of(state)), actions.disconnect(consumer_of(state))]
    if redelivered is not None:
        again_actions.insert(1, actions.redeliver(asked.subscription, asked.position))
    findings = [
        Finding(
            Code.HELD_BY_CONSUMER,
            f"Consumer {state.name} has message {asked.message_id}{how_long}{again}, and has not acknowledged it. Whether it was "
            "refused there, or is to become a dead letter, only the client knows.",
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
    """Which part of a larger message it is, if it is one."""
    if not asked.subscription.kinds.may_hold_chunks(*asked.position):
        return None
    if asked.known.entry is None:
        return Want.ENTRY
    return None if asked.payload is None else chunk_of(asked.payload)


def _incomplete(asked: MessageQuestion, chunk: Chunk, state: ConsumerState) -> list[Finding]:
    """The consumer has some of the parts and not all, which nobody can make a message of."""
    dispatcher = asked.subscription.dispatcher
    if not isinstance(dispatcher, MultiConsumerDispatcher):
        return []
    message = dispatcher.chunked.find(chunk.uuid)
    if message is None or message.consumer is not state:
        return []
    held = dispatcher.chunked.held_count(message)
    if held >= message.chunk_count:
        return []
    is_at_end = not asked.subscription.cursor.has_more()
    why = "the others were never stored" if is_at_end else "the others have not come to it yet"
    return [
        Finding(
            Code.CHUNKS_MISSING,
            f"Message {asked.message_id} is part {chunk.chunk_id + 1} of {chunk.chunk_count} of a larger message, of which "
            f"consumer {state.name} has {held}: {why}, and its application sees nothing of it.",
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


# --- what waits --------------------------------------------------------------------------------------------------------


def damaged(asked: MessageQuestion) -> Reasons | Want | None:
    """Asked only where reads fail: everything else is in memory, or is read in its turn."""
    standstill = asked.subscription.standstill
    entry = asked.known.entry
    if entry is None and standstill is not None and standstill.gate is Gate.READ_FAILED:
        return Want.ENTRY
    if entry is None or not entry.is_damaged:
        return None
    finding = Finding(
        Code.ENTRY_DAMAGED,
        f"Message {asked.message_id} cannot be read from the disk, now or ever: {entry.problem}.",
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
    due_ms = asked.subscription.delayed.changed_ms(asked.position)  # by REST
    if due_ms is None and payload is not None:
        due_ms = deliver_at_ms(payload)
    left_ms = None if due_ms is None else due_ms - asked.subscription.surroundings.clock.wall_ms()
    if left_ms is None:
        when = "is delayed; when it is due could not be read"
    else:
        when = (
            f"is due in {duration(left_ms)}" if left_ms > 0 else "is due now, and goes out when a consumer can take it"
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
    """What was read, or given back, and could not go."""
    dispatcher = asked.subscription.dispatcher
    if isinstance(dispatcher, KeySharedDispatcher):
        return _waiting_for_key(asked, dispatcher)
    if isinstance(dispatcher, SharedDispatcher):
        return _waiting_for_anybody(asked, dispatcher)
    return None


def _waiting_for_key(asked: MessageQuestion, dispatcher: KeySharedDispatcher) -> Reasons | Want | None:
    position, clock = asked.position, asked.subscription.surroundings.clock
    sticky_hash = dispatcher.waiting.hash_of(position)
    if sticky_hash is None:
        return _aside_for_key(asked, dispatcher)
    waiting = dispatcher.waiting.waiting[sticky_hash]
    since_ms = round(waiting.since_ms) or None
    evidence: dict[str, Any] = {"hash": sticky_hash, "waitingOfHash": waiting.count}
    if waiting.consumer is None:
        who = waiting.filler
        why = (
            "nobody owns it"
            if who is None
            else f"consumer {who.name} has unacknowledged messages of it and owns it no more"
        )
        finding = Finding(
            Code.WAITS_FOR_KEY,
            f"Message {asked.message_id} waits{for_long(since_ms, clock)} for its key's hash {sticky_hash}: {why}.",
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
        "which can take it: it goes in its turn"
        if state.can_take()
        else f"which cannot take it now: {state.gate().value}"
    )
    return Finding(
        Code.WAITS_FOR_CONSUMER,
        f"Message {asked.message_id} waits{for_long(since_ms, asked.subscription.surroundings.clock)} for consumer "
        f"{state.name}, {why}.",
        since_ms=since_ms,
        evidence=evidence | who_has(state),
    )


def _aside_for_key(asked: MessageQuestion, dispatcher: KeySharedDispatcher) -> Reasons | Want | None:
    aside, position = dispatcher.set_aside, asked.position
    if not aside or position >= asked.subscription.cursor.read_position:
        return None
    if asked.known.entry is None:
        return Want.ENTRY
    if asked.payload is None:
        return None
    (sticky_hash,) = dispatcher.owners.selector.sticky_hashes([key_hash(sticky_key(asked.payload))])
    if not aside.covers(sticky_hash, position):
        return None
    finding = Finding(
        Code.SET_ASIDE,
        f"Message {asked.message_id} waits with all from {aside.from_position(sticky_hash)} on of its key's hash {sticky_hash}: it "
        "is read again once those before it are out.",
        evidence={"hash": sticky_hash, "setAsideFrom": str(aside.from_position(sticky_hash))},
    )
    return Reasons([finding], of_hash=sticky_hash)


def _waiting_for_anybody(asked: MessageQuestion, dispatcher: SharedDispatcher) -> Reasons | Want | None:
    position = asked.position
    if position in dispatcher.waiting:
        state = dispatcher.waiting.bound_to(position)
        if state is not None:
            finding = _for_one(asked, state, {"reason": "it has other parts of the same message"})
            return Reasons([finding], of_subscription=True)
        counts = dispatcher.redelivery_counts.column(position.ledger_id, [position.entry_id])
        before = counts[0] if counts else 0
        finding = Finding(
            Code.WAITS_FOR_REDELIVERY,
            f"Message {asked.message_id} waits to be sent, after {counted(before, 'delivery', 'deliveries')}, with "
            f"{counted(len(dispatcher.waiting), 'entry', 'entries')} that wait likewise.",
            evidence={"deliveries": before, "waitingEntries": len(dispatcher.waiting)},
        )
        return Reasons([finding], of_subscription=True)
    if not dispatcher.aside or position >= asked.subscription.cursor.read_position:
        return None
    chunk = _chunk(asked)
    if isinstance(chunk, Want):
        return chunk
    state = None if chunk is None else dispatcher.chunked.holder(chunk.uuid)
    if state is None or not dispatcher.aside.covers(state, position):
        return None
    finding = _for_one(asked, state, {"reason": "it has other parts of the same message"})
    return Reasons([finding], of_subscription=True)


def not_reached(asked: MessageQuestion) -> Reasons | None:
    cursor = asked.subscription.cursor
    ledgers = cursor.ledger.ledgers
    start = ledgers.normalize(cursor.read_position)
    if asked.position < start:
        return None
    before = ledgers.entries_between(start, asked.position)
    where = "it is the next one" if not before else f"{counted(before, 'entry stands', 'entries stand')} before it"
    finding = Finding(
        Code.NOT_REACHED_YET,
        f"Nothing is wrong with message {asked.message_id}: it has not been read yet, {where}.",
        waits=False,
        evidence={"readPosition": str(cursor.read_position), "entriesBefore": before, **batch_evidence(asked)},
    )
    return Reasons([finding], of_subscription=True)


def passed(asked: MessageQuestion) -> Reasons:
    """It was read, and is neither with a consumer nor listed."""
    subscription = asked.subscription
    filters = subscription.filters
    why = (
        "it is being read again, or an entry filter has put it off" if filters is not None else "it is being read again"
    )
    finding = Finding(
        Code.MESSAGE_PUT_OFF,
        f"Message {asked.message_id} is on its way: {why}.",
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
