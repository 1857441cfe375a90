"""One consumer: why it gets nothing, what it holds and for how long, and whom it keeps waiting."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any

from pybroker.broker.explain import beside, consumers, keys
from pybroker.broker.explain.consumers import consumer_of, described, reference
from pybroker.broker.explain.steps import LISTED, Steps, names
from pybroker.broker.explain.stops import STOP_ALL, no_consumers, what_stops_all
from pybroker.broker.explain.waiting import waiting_of
from pybroker.dispatch.key_shared import KeySharedDispatcher
from pybroker.dispatch.shared import SharedDispatcher
from pybroker.model.findings import Code, Finding, ordered

if TYPE_CHECKING:
    from pybroker.broker.delivery.consumer import Consumer
    from pybroker.broker.delivery.subscription import Subscription
    from pybroker.broker.topic.topic import Topic
    from pybroker.dispatch.consumer_state import ConsumerState

HASHES_PER_PIECE = 2000
SAME_NAME = 20
"""How many consumers of one name are looked at: names are chosen by clients, and need not differ."""


def named(subscription: Subscription, name: str) -> list[Consumer]:
    """The connected consumers of that name."""
    return [each for each in subscription.consumers if each.name == name]


def consumer_subject(subscription: Subscription, name: str) -> dict[str, Any]:
    """How many consumers of that name there are, mostly one, and how the first stands."""
    found = named(subscription, name)
    subject: dict[str, Any] = {"kind": "consumer", "consumer": name, "connected": len(found)}
    if found:
        subject |= {"permits": found[0].state.permits, "unackedMessages": found[0].state.unacked_messages}
    return subject


def consumers_named(subscription: Subscription, name: str) -> Generator[None, None, list[dict[str, Any]]]:
    """What is known of each consumer of that name."""
    dispatcher = subscription.dispatcher
    shown = []
    drained: Counter[ConsumerState] = Counter()
    if isinstance(dispatcher, KeySharedDispatcher):
        for index, sticky_hash in enumerate(dispatcher.draining.hashes()):
            holder = dispatcher.draining.holder(sticky_hash)
            if holder is not None:
                drained[holder] += 1
            if index % HASHES_PER_PIECE == HASHES_PER_PIECE - 1:
                yield
    for each in named(subscription, name)[:SAME_NAME]:
        yield
        document = described(each)
        if isinstance(dispatcher, KeySharedDispatcher):
            document["drainingHashes"] = drained[each.state]
        if dispatcher is not None and dispatcher.active_consumer is not None:
            document["isActive"] = dispatcher.active_consumer is each.state
        shown.append(document)
    return shown


def explain_consumer(topic: Topic, subscription: Subscription, name: str) -> Steps:
    """What keeps messages from the consumers of that name, and what they keep from others."""
    waiting = waiting_of(subscription)
    mine = named(subscription, name)[:SAME_NAME]
    found = beside.transaction_open(topic)
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
    holds_up: set[ConsumerState] = set()
    if isinstance(dispatcher, KeySharedDispatcher):
        held = (yield from keys.held_back(dispatcher)).because_of(states, dispatcher)
        waits_for = dict(held.for_consumers)
        holds_up = held.holders(dispatcher)
        found += yield from keys.of_hashes(subscription, dispatcher, held)
    elif isinstance(dispatcher, SharedDispatcher):
        waits_for = consumers.waits_for_parts(dispatcher)
    is_stuck: set[ConsumerState] = set()
    if waiting.is_for_consumers and not any(finding.code in STOP_ALL for finding in stops):
        cannot_take = [(each, waits_for.get(each.state, 0)) for each in mine if not each.state.can_take()]
        is_stuck = {each.state for each, _ in cannot_take}
        found += yield from consumers.of_stuck(subscription, cannot_take, waiting.entries)
    if dispatcher.blocked:
        is_stuck |= states
    for each in mine:
        in_the_way = each.state in is_stuck or each.state in holds_up
        found += yield from consumers.of_silent(subscription, [each], waits=in_the_way)
        found += yield from consumers.of_held(subscription, each)
    return ordered(found)


def _not_connected(subscription: Subscription, name: str, *, waits: bool) -> Finding:
    others: Sequence[str] = sorted({each.name for each in subscription.consumers})
    there = f"connected {'is' if len(others) == 1 else 'are'} {names(others)}" if others else "nobody is"
    return Finding(
        Code.CONSUMER_NOT_CONNECTED,
        f"No consumer {name} is connected: {there}.",
        waits=waits,
        evidence={"connected": list(others[:LISTED]), "moreConsumers": max(0, len(others) - LISTED)},
    )


def _stands_by(consumer: Consumer, active: ConsumerState) -> Finding:
    return Finding(
        Code.CONSUMER_STANDS_BY,
        f"Consumer {consumer.name} stands by: consumer {active.name} is the active one, and gets everything.",
        waits=False,
        since_ms=consumer.connected_since_ms,
        evidence={"consumer": reference(consumer), "active": reference(consumer_of(active))},
    )
