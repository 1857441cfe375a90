"""Findings about a consumer: why it receives no more messages, and which messages it has not acknowledged."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from pybroker.broker.explain import actions
from pybroker.broker.explain.steps import LISTED, PIECE, client_address, counted, duration, for_long, names, wall_ms
from pybroker.broker.explain.topics import throttled_client
from pybroker.broker.snapshots.subscription_snapshot import consumer_snapshot
from pybroker.dispatch.blocked_reasons import BlockedReason
from pybroker.model.findings import Code, Finding
from pybroker.model.position import Position

if TYPE_CHECKING:
    from pybroker.broker.delivery.consumer import Consumer
    from pybroker.broker.delivery.subscription import Subscription
    from pybroker.dispatch.consumer_state import ConsumerState
    from pybroker.dispatch.views import ChunkOrderView

IDS_LISTED = 5
"""Maximum number of listed message ids per consumer or key."""

_CODES = {
    BlockedReason.NO_PERMITS: Code.NO_PERMITS,
    BlockedReason.CONNECTION_FULL: Code.CONNECTION_FULL,
    BlockedReason.UNACKED_CONSUMER: Code.UNACKED_LIMIT_CONSUMER,
}


def consumer_of(state: ConsumerState) -> Consumer:
    return cast("Consumer", state.peer)


def reference(consumer: Consumer) -> dict[str, Any]:
    """Return JSON that identifies the consumer: name, id and address."""
    return {
        "name": consumer.name,
        "id": consumer.consumer_id,
        "address": client_address(consumer.peer.address, consumer.properties),
    }


def described(consumer: Consumer) -> dict[str, Any]:
    """Return the consumer's state as JSON. Times are in milliseconds since 1970; None for events that have not
    happened.
    """
    subscription, peer = cast("Subscription", consumer.subscription), consumer.peer
    snapshot = consumer_snapshot(consumer)
    counters = snapshot.counters
    shown = reference(consumer) | {
        "permits": snapshot.permits,
        "unackedMessages": snapshot.unacked_messages,
        "connectedAt": snapshot.connected_since_ms,
        "lastAskedAt": counters.last_consumed_flow_ms or None,
        "lastAcknowledgedAt": counters.last_acked_ms or None,
        "lastSentAt": counters.last_consumed_ms or None,
        "heldSince": held_since_ms(subscription, consumer),
        "clientVersion": snapshot.client_version,
    }
    if snapshot.max_unacked_messages:
        shown["maxUnackedMessages"] = snapshot.max_unacked_messages
    if not snapshot.is_writable:
        shown["unsentBytes"] = peer.unsent_bytes
    if peer.not_heard_because is not None:
        shown["notHeardBecause"] = peer.not_heard_because
    return shown


def described_all(consumers: Sequence[Consumer]) -> Generator[None, None, list[dict[str, Any]]]:
    """Return the state of each consumer as JSON. The generator yields after each consumer, because finding the oldest
    unacknowledged entry may take long.
    """
    shown = []
    for each in consumers:
        shown.append(described(each))
        yield
    return shown


def waits_for_parts(chunk_order: ChunkOrderView) -> dict[ConsumerState, int]:
    """Return the consumers that must receive waiting chunks because they hold other chunks of the same message, each
    with the number of its waiting chunks.
    """
    return {**dict.fromkeys(chunk_order.parked_chunks, 1), **chunk_order.bound_entries()}


def stuck_consumers(subscription: Subscription, waits_for: Mapping[ConsumerState, int]) -> list[tuple[Consumer, int]]:
    """Return the consumers that block the subscription because they cannot receive entries now, each with the number of
    entries that wait for it.

    `waits_for`: for each consumer, the number of waiting entries that only this consumer may receive. If no consumer
    can receive entries, all consumers are returned; otherwise only consumers in `waits_for`.
    """
    dispatcher = subscription.dispatcher
    assert dispatcher is not None
    active = dispatcher.active_consumer
    candidates = list(subscription.consumers) if active is None else [consumer_of(active)]
    stuck = [each for each in candidates if not each.state.can_take()]
    if len(stuck) < len(candidates):
        stuck = [each for each in stuck if each.state in waits_for]
    return [(each, waits_for.get(each.state, 0)) for each in stuck]


def of_stuck(
    subscription: Subscription, stuck: Sequence[tuple[Consumer, int]], waiting_entries: int
) -> Generator[None, None, list[Finding]]:
    groups: dict[Code, list[tuple[Consumer, int]]] = {}
    for index, (consumer, listed) in enumerate(stuck):
        if consumer.state.can_take() or consumer.is_closed:
            continue  # It has left or can receive since.
        code = _CODES[consumer.state.blocked_reason()]
        if code is not Code.CONNECTION_FULL and consumer.peer.not_heard_because is not None:
            code = Code.CONNECTION_HELD
        groups.setdefault(code, []).append((consumer, listed))
        if index % PIECE == PIECE - 1:
            yield
    findings: list[Finding] = []
    for code, group in groups.items():
        findings.append((yield from _stuck(subscription, code, group, waiting_entries)))
    return findings


def _stuck(
    subscription: Subscription, code: Code, group: list[tuple[Consumer, int]], waiting_entries: int
) -> Generator[None, None, Finding]:
    clock = subscription.runtime.clock
    group = sorted(group, key=lambda each: stuck_since_ms(code, each[0]))
    since_ms = stuck_since_ms(code, group[0][0])
    entries = sum(listed for _, listed in group) or waiting_entries
    first = group[0][0]
    throttled = throttled_client(first.peer, subscription.broker_context) if code is Code.CONNECTION_HELD else None
    because = str(first.peer.not_heard_because) if throttled is None else throttled.reason
    # The reason contains names, which may contain braces.
    because = because.replace("{", "{{").replace("}", "}}")
    why = {
        Code.NO_PERMITS: "{} a full receiver queue{}: {} requests more messages after processing those in the queue",
        Code.CONNECTION_FULL: "{} not read from the connection{}: {} receives nothing until its client reads",
        Code.CONNECTION_HELD: "{} waited{} for the broker to read from the connection: " + because,
        Code.UNACKED_LIMIT_CONSUMER: "{} received no messages{}: {} has as many unacknowledged messages as the limit allows"
        f" ({first.state.max_unacked_messages:,}, maxUnackedMessagesPerConsumer) and receives more when half of them are"
        " acknowledged",
    }[code]
    has = "has" if len(group) == 1 else "have"
    said = why.format(has, for_long(since_ms, clock), "it" if len(group) == 1 else "each")
    held = f" ({first.state.unacked_messages:,} unacknowledged)" if first.state.unacked_messages else ""
    subject = f"Consumer {first.name}{held}" if len(group) == 1 else f"{len(group):,} consumers"
    descriptions = yield from described_all([each for each, _ in group[:LISTED]])
    evidence: dict[str, Any] = {
        "waitingEntries": entries,
        "consumers": [
            shown | {"waitingEntries": listed or None, "since": stuck_since_ms(code, each)}
            for shown, (each, listed) in zip(descriptions, group, strict=False)
        ],
        "moreConsumers": max(0, len(group) - LISTED),
    }
    suggested = [actions.explain_consumer(first)]
    if throttled is not None:
        evidence |= throttled.evidence
        suggested += throttled.actions
    if code is Code.UNACKED_LIMIT_CONSUMER:
        limit = first.state.max_unacked_messages
        evidence["limit"] = limit
        suggested.append(actions.show_unacked(first))
        suggested.append(
            actions.raise_limit(
                subscription.topic.name,
                "maxUnackedMessagesOnConsumer",
                2 * limit,
                f"Raise the limit of unacknowledged messages of each consumer of the topic from {limit:,} to {2 * limit:,}",
            )
        )
        suggested.append(actions.disconnect(first))
    else:
        # Without another consumer, the same client would receive the same messages again.
        suggested += actions.hand_over(first)
    several = "" if len(group) == 1 else f" ({names([each.name for each, _ in group])})"
    return Finding(
        code,
        f"{subject}{several} {said}; {counted(entries, 'entry waits', 'entries wait')}.",
        since_ms=since_ms,
        evidence=evidence,
        actions=suggested,
    )


def stuck_since_ms(code: Code, consumer: Consumer) -> int:
    """Return the start of the condition `code` that stops delivery to `consumer`, in milliseconds since 1970."""
    if code is Code.CONNECTION_FULL and consumer.peer.full_since_ms is not None:
        return wall_ms(consumer.peer.full_since_ms, consumer.subscription.runtime.clock)
    return consumer.counters.last_consumed_ms or consumer.connected_since_ms


# --- silent consumers ------------------------------------------------------------------------------------------------


def silent_since_ms(subscription: Subscription, consumer: Consumer) -> int | None:
    """Return when a silent consumer last acknowledged or requested messages, or connected, in milliseconds since 1970;
    None for other consumers.

    A consumer is silent if it has unacknowledged messages, and has neither acknowledged, requested nor received
    messages for `explainSilentConsumerMs`.
    """
    silent_ms = subscription.runtime.config.explain_silent_consumer_ms
    counters = consumer.counters
    if not silent_ms or not counters.last_consumed_ms or not _holds_something(subscription, consumer):
        return None
    sign_ms = max(consumer.connected_since_ms, counters.last_acked_ms, counters.last_consumed_flow_ms)
    # The consumer may be processing its last message, however long it was idle before.
    latest_ms = max(sign_ms, counters.last_consumed_ms)
    return sign_ms if subscription.runtime.clock.wall_ms() - latest_ms >= silent_ms else None


def _holds_something(subscription: Subscription, consumer: Consumer) -> bool:
    dispatcher = subscription.dispatcher
    if subscription.individual is not None:
        return consumer.state.unacked_messages > 0
    is_active = dispatcher is not None and dispatcher.active_consumer is consumer.state
    return is_active and subscription.cursor.read_position > subscription.cursor.first_unacked_position


def of_silent(subscription: Subscription, candidates: Sequence[Consumer]) -> Generator[None, None, list[Finding]]:
    """Return one finding about all consumers among `candidates` that `silent_since_ms` reports as silent; empty if
    there are none. The finding is blocking if the subscription has a backlog.
    """
    silent: list[tuple[int, Consumer]] = []
    for index, consumer in enumerate(candidates):
        since_ms = silent_since_ms(subscription, consumer)
        if since_ms is not None and not consumer.is_closed:
            silent.append((since_ms, consumer))
        if index % PIECE == PIECE - 1:
            yield
    if not silent:
        return []
    silent.sort(key=lambda each: each[0])
    since_ms, first = silent[0]
    asleep = duration(subscription.runtime.clock.wall_ms() - since_ms)
    if len(silent) == 1:
        unacked = first.state.unacked_messages
        held = counted(unacked, "unacknowledged message") if unacked else "unacknowledged messages"
        sentence = (
            f"Consumer {first.name} is connected with {held}, and has neither acknowledged nor requested messages for"
            f" {asleep}."
        )
    else:
        sentence = (
            f"{len(silent):,} consumers ({names([each.name for _, each in silent])}) are connected with unacknowledged messages,"
            f" and have neither acknowledged nor requested messages, the first for {asleep}."
        )
    descriptions = yield from described_all([each for _, each in silent[:LISTED]])
    finding = Finding(
        Code.CONSUMER_SILENT,
        sentence,
        waits=subscription.backlog_entries > 0,
        since_ms=since_ms,
        evidence={
            "consumers": [
                shown | {"since": each_ms} for shown, (each_ms, _) in zip(descriptions, silent, strict=False)
            ],
            "moreConsumers": max(0, len(silent) - LISTED),
            "silentAfterMs": subscription.runtime.config.explain_silent_consumer_ms,
        },
        actions=(actions.show_unacked(first), actions.disconnect(first)),
    )
    return [finding]


# --- unacknowledged messages of a consumer ---------------------------------------------------------------------------------


def held_since_ms(subscription: Subscription, consumer: Consumer) -> int | None:
    """Return when the consumer's oldest unacknowledged entry was delivered, in milliseconds since 1970; None if there
    is none.
    """
    if (individual := subscription.individual) is not None:
        return individual.pending.oldest_delivered_ms(consumer.state)
    if (in_order := subscription.in_order) is not None and _holds_something(subscription, consumer):
        return in_order.delivered_ms(subscription.cursor.first_unacked_position)
    return None


def of_held(subscription: Subscription, consumer: Consumer) -> Generator[None, None, list[Finding]]:
    """Return a finding, only for information, about the unacknowledged messages of a consumer. The list is empty if it
    has none.
    """
    individual = subscription.individual
    if not _holds_something(subscription, consumer):
        return []
    clock = subscription.runtime.clock
    if individual is None:
        cursor = subscription.cursor
        first, last = cursor.first_unacked_position, cursor.read_position
        sent_up_to = cursor.ledger.ledgers.previous_position(last)
        entries = cursor.ledger.ledgers.entries_between(cursor.mark_delete_position, sent_up_to)
        since_ms = held_since_ms(subscription, consumer)
        how_long = "" if since_ms is None else f", delivered {duration(max(0, clock.wall_ms() - since_ms))} ago"
        return [
            Finding(
                Code.HELD_BY_CONSUMER,
                f"Consumer {consumer.name} has received all messages up to {sent_up_to}. Its first"
                f" unacknowledged message is {first}{how_long}.",
                waits=False,
                since_ms=since_ms,
                evidence={"consumer": reference(consumer), "firstUnacked": str(first), "entries": entries},
            )
        ]
    since_ms = held_since_ms(subscription, consumer)
    ids: list[str] = []
    looked_at = 0
    for ledger_id, entry_ids, _ in individual.pending.deliveries(consumer.state):
        for entry_id in entry_ids:
            looked_at += 1
            if not looked_at % PIECE:
                yield
            position = Position(ledger_id, entry_id)
            if len(ids) < IDS_LISTED and individual.pending.holder(position) is consumer.state:
                ids.append(str(position))
        if len(ids) >= IDS_LISTED:
            break
    messages = consumer.state.unacked_messages
    return [
        Finding(
            Code.HELD_BY_CONSUMER,
            f"Consumer {consumer.name} has not acknowledged {counted(messages, 'message')}, the oldest{for_long(since_ms, clock)}.",
            waits=False,
            since_ms=since_ms,
            evidence={"consumer": reference(consumer), "unackedMessages": messages, "messageIds": ids},
            actions=(actions.show_unacked(consumer), actions.disconnect(consumer)),
        )
    ]
