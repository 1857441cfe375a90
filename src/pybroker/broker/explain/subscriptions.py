"""Findings about a subscription, about one of its consumers or keys, and about subscriptions of non-persistent topics.

If the whole subscription is blocked, consumers and keys are not examined.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any

from pybroker.broker.explain import actions, bookies, consumers, keys, subscription_state
from pybroker.broker.explain.consumers import consumer_of, described, reference
from pybroker.broker.explain.steps import LISTED, Steps, counted, for_long, names
from pybroker.broker.explain.subscription_state import STOP_ALL, Waiting, no_consumers, waiting_of, what_stops_all
from pybroker.dispatch.blocked_reasons import BlockedReason
from pybroker.dispatch.views import KeyOrderView
from pybroker.model.findings import Code, Finding, ordered

if TYPE_CHECKING:
    from pybroker.broker.delivery.consumer import Consumer
    from pybroker.broker.delivery.subscription import Subscription
    from pybroker.broker.delivery.subscription_base import SubscriptionBase
    from pybroker.broker.topic.topic import Topic
    from pybroker.dispatch.consumer_state import ConsumerState
    from pybroker.model.position import Position


def explain_subscription(topic: Topic, subscription: Subscription) -> Steps:
    """Return the findings about a subscription, most urgent first."""
    waiting = waiting_of(subscription)
    found = subscription_state.transaction_open(topic) + bookies.of_cursor(topic, subscription)
    if waiting:
        found += yield from _of_waiting(subscription, waiting)
    elif subscription.consumers:
        found += yield from consumers.of_silent(subscription, list(subscription.consumers))
    found += subscription_state.delayed(subscription)
    if subscription.consumers and not waiting.has_unread:
        found += yield from subscription_state.chunks_missing(subscription)
    return ordered(found)


def _of_waiting(subscription: Subscription, waiting: Waiting) -> Steps:
    if not subscription.consumers:
        return [no_consumers(subscription, waiting)]
    dispatcher = subscription.dispatcher
    stops = yield from what_stops_all(subscription, waiting)
    found = list(stops)
    waits_for: dict[ConsumerState, int] = {}
    if (key_order := subscription.key_order) is not None:
        held = yield from keys.held_back(key_order)
        found += yield from keys.of_hashes(subscription, key_order, held)
        waits_for = dict(held.for_consumers)
    elif (chunk_order := subscription.chunk_order) is not None:
        waits_for = consumers.waits_for_parts(chunk_order)
    if dispatcher is not subscription.dispatcher:
        return found  # All consumers have left since.
    if waiting.is_for_consumers and not any(finding.code in STOP_ALL for finding in stops):
        stuck = consumers.stuck_consumers(subscription, waits_for)
        found += yield from consumers.of_stuck(subscription, stuck, waiting.entries)
    found += yield from consumers.of_silent(subscription, list(subscription.consumers))
    return found


HASHES_PER_PIECE = 2000
SAME_NAME = 20
"""Maximum number of examined consumers with one name. Clients choose the names, so a name need not be unique."""


def named(subscription: Subscription, name: str) -> list[Consumer]:
    return [each for each in subscription.consumers if each.name == name]


def consumer_subject(subscription: Subscription, name: str) -> dict[str, Any]:
    found = named(subscription, name)
    subject: dict[str, Any] = {"kind": "consumer", "consumer": name, "connected": len(found)}
    if found:
        subject |= {"permits": found[0].state.permits, "unackedMessages": found[0].state.unacked_messages}
    return subject


def consumers_named(subscription: Subscription, name: str) -> Generator[None, None, list[dict[str, Any]]]:
    dispatcher = subscription.dispatcher
    shown = []
    drained: Counter[ConsumerState] = Counter()
    key_order = subscription.key_order
    if key_order is not None:
        for index, sticky_hash in enumerate(key_order.draining.hashes()):
            holder = key_order.draining.holder(sticky_hash)
            if holder is not None:
                drained[holder] += 1
            if index % HASHES_PER_PIECE == HASHES_PER_PIECE - 1:
                yield
    for each in named(subscription, name)[:SAME_NAME]:
        yield
        document = described(each)
        if key_order is not None:
            document["drainingHashes"] = drained[each.state]
        if dispatcher is not None and dispatcher.active_consumer is not None:
            document["isActive"] = dispatcher.active_consumer is each.state
        shown.append(document)
    return shown


def explain_consumer(topic: Topic, subscription: Subscription, name: str) -> Steps:
    """Return findings that explain why the consumers named `name` receive no messages, and why they block other
    consumers.
    """
    waiting = waiting_of(subscription)
    mine = named(subscription, name)[:SAME_NAME]
    found = subscription_state.transaction_open(topic)
    dispatcher = subscription.dispatcher
    if not mine or dispatcher is None:
        found.append(_not_connected(subscription, name, waits=bool(waiting)))
        if waiting and not subscription.consumers:
            found.append(no_consumers(subscription, waiting))
        return ordered(found)
    states = {each.state for each in mine}
    stops = (yield from what_stops_all(subscription, waiting)) if waiting else []
    found += stops
    active = dispatcher.active_consumer
    if active is not None and active not in states:
        found += [_stands_by(each, active) for each in mine]
        return ordered(found)
    waits_for: dict[ConsumerState, int] = {}
    if (key_order := subscription.key_order) is not None:
        held = (yield from keys.held_back(key_order)).because_of(states, key_order)
        waits_for = dict(held.for_consumers)
        found += yield from keys.of_hashes(subscription, key_order, held)
    elif (chunk_order := subscription.chunk_order) is not None:
        waits_for = consumers.waits_for_parts(chunk_order)
    if waiting.is_for_consumers and not any(finding.code in STOP_ALL for finding in stops):
        cannot_take = [(each, waits_for.get(each.state, 0)) for each in mine if not each.state.can_take()]
        found += yield from consumers.of_stuck(subscription, cannot_take, waiting.entries)
    for each in mine:
        found += yield from consumers.of_silent(subscription, [each])
        found += yield from consumers.of_held(subscription, each)
    return ordered(found)


def _not_connected(subscription: Subscription, name: str, *, waits: bool) -> Finding:
    others: Sequence[str] = sorted({each.name for each in subscription.consumers})
    there = (
        f"connected {'is' if len(others) == 1 else 'are'} {names(others)}"
        if others
        else "the subscription has no consumers"
    )
    return Finding(
        Code.CONSUMER_NOT_CONNECTED,
        f"No consumer {name} is connected: {there}.",
        waits=waits,
        evidence={"connected": list(others[:LISTED]), "moreConsumers": max(0, len(others) - LISTED)},
    )


def _stands_by(consumer: Consumer, active: ConsumerState) -> Finding:
    return Finding(
        Code.CONSUMER_STANDS_BY,
        f"Consumer {consumer.name} is not active: consumer {active.name} is the active consumer and receives all messages.",
        waits=False,
        since_ms=consumer.connected_since_ms,
        evidence={"consumer": reference(consumer), "active": reference(consumer_of(active))},
    )


def explain_key(topic: Topic, subscription: Subscription, sticky_hash: int | None) -> Steps:
    """Return findings that explain why messages of a key wait. `sticky_hash` is None for subscription types that do not
    use keys.

    Findings about the whole subscription are included, because the keys of unread entries are unknown.
    """
    waiting = waiting_of(subscription)
    found = subscription_state.transaction_open(topic) + subscription_state.delayed(subscription)
    dispatcher = subscription.dispatcher
    if not subscription.consumers or dispatcher is None:
        return ordered([*found, no_consumers(subscription, waiting)] if waiting else found)
    if waiting:
        found += yield from what_stops_all(subscription, waiting)
    key_order = subscription.key_order
    if sticky_hash is None or key_order is None:
        if waiting:
            stuck = consumers.stuck_consumers(subscription, {})
            found += yield from consumers.of_stuck(subscription, stuck, waiting.entries)
        return ordered(found)
    held = yield from keys.held_back(key_order, sticky_hash)
    found += yield from keys.of_hashes(subscription, key_order, held)
    stuck = consumers.stuck_consumers(subscription, held.for_consumers)
    owner = key_order.place(sticky_hash)
    if owner is not None:
        stuck = [each for each in stuck if each[0].state is owner]
        if stuck and (held.for_consumers or waiting.has_unread):
            found += yield from consumers.of_stuck(subscription, stuck, waiting.entries)
    holder = key_order.draining.holder(sticky_hash) or owner
    if holder is not None:
        found += yield from consumers.of_silent(subscription, [consumer_of(holder)])
        found += yield from _held_of_hash(subscription, key_order, sticky_hash, holder)
    return ordered(found)


def _held_of_hash(
    subscription: Subscription, key_order: KeyOrderView, sticky_hash: int, holder: ConsumerState
) -> Generator[None, None, list[Finding]]:
    ids: list[Position] = (yield from keys.held_ids(key_order.pending, {sticky_hash: holder}))[sticky_hash]
    if not ids:
        return []
    consumer = consumer_of(holder)
    since_ms = min(
        (each for position in ids if (each := key_order.pending.delivered_ms(position)) is not None), default=None
    )
    clock = subscription.runtime.clock
    amount = counted(len(ids), "entry", "entries") if len(ids) < consumers.IDS_LISTED else f"{len(ids)} or more entries"
    return [
        Finding(
            Code.HELD_BY_CONSUMER,
            f"Consumer {consumer.name} has not acknowledged {amount} of hash {sticky_hash}, the first{for_long(since_ms, clock)}:"
            f" {', '.join(map(str, ids))}.",
            waits=False,
            since_ms=since_ms,
            evidence={
                "consumer": reference(consumer),
                "hash": sticky_hash,
                "messageIds": [str(position) for position in ids],
            },
            actions=(actions.show_unacked(consumer), actions.disconnect(consumer)),
        )
    ]


def explain_non_persistent(subscription: SubscriptionBase) -> list[Finding]:
    found: list[Finding] = []
    dropped = f"the broker drops new messages for {{}} ({subscription.counters.dropped_messages:,} dropped so far)"
    for blocked_reason, code, why in (
        (BlockedReason.NO_PERMITS, Code.NO_PERMITS, "no permits, because its receiver queue is full"),
        (BlockedReason.CONNECTION_FULL, Code.CONNECTION_FULL, "not read from the connection"),
    ):
        stuck = [
            each
            for each in subscription.consumers
            if not each.state.can_take() and each.state.blocked_reason() is blocked_reason
        ]
        if not stuck:
            continue
        one = len(stuck) == 1
        who = (
            f"Consumer {stuck[0].name} has"
            if one
            else f"{len(stuck):,} consumers ({names([e.name for e in stuck])}) have"
        )
        found.append(
            Finding(
                code,
                f"{who} {why}: {dropped.format('it' if one else 'them')}.",
                waits=False,
                since_ms=min(each.counters.last_consumed_ms or each.connected_since_ms for each in stuck),
                evidence={
                    "consumers": [reference(each) | {"permits": each.state.permits} for each in stuck[:LISTED]],
                    "moreConsumers": max(0, len(stuck) - LISTED),
                    "droppedMessages": subscription.counters.dropped_messages,
                },
                actions=(),
            )
        )
    return ordered(found)
