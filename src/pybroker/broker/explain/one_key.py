"""Where one key of a Key_Shared subscription goes, who holds messages of it, and what they wait for."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING

from pybroker.broker.explain import actions, beside, consumers, keys
from pybroker.broker.explain.consumers import consumer_of, reference
from pybroker.broker.explain.steps import Steps, counted, for_long
from pybroker.broker.explain.stops import no_consumers, what_stops_all
from pybroker.broker.explain.waiting import waiting_of
from pybroker.dispatch.key_shared import KeySharedDispatcher
from pybroker.model.findings import Code, Finding, ordered

if TYPE_CHECKING:
    from pybroker.broker.delivery.subscription import Subscription
    from pybroker.broker.topic.topic import Topic
    from pybroker.dispatch.consumer_state import ConsumerState
    from pybroker.model.position import Position


def explain_key(topic: Topic, subscription: Subscription, sticky_hash: int | None) -> Steps:
    """What holds messages of a key up: of its hash, None where the type looks at none.

    Of what is not read yet nobody knows the keys: what stops all of it is found, too.
    """
    waiting = waiting_of(subscription)
    found = beside.transaction_open(topic) + beside.delayed(subscription)
    dispatcher = subscription.dispatcher
    if not subscription.consumers or dispatcher is None:
        return ordered([*found, no_consumers(subscription, waiting)] if waiting else found)
    if waiting:
        found += yield from what_stops_all(subscription, waiting)
    if sticky_hash is None or not isinstance(dispatcher, KeySharedDispatcher):
        if waiting:
            stuck = consumers.stuck_consumers(subscription, {})
            found += yield from consumers.of_stuck(subscription, stuck, waiting.entries)
        return ordered(found)
    held = yield from keys.held_back(dispatcher, sticky_hash)
    found += yield from keys.of_hashes(subscription, dispatcher, held)
    stuck = consumers.stuck_consumers(subscription, held.for_consumers)
    owner = dispatcher.place(sticky_hash)
    if owner is not None:
        stuck = [each for each in stuck if each[0].state is owner]
        if stuck and (held.for_consumers or waiting.has_unread):
            found += yield from consumers.of_stuck(subscription, stuck, waiting.entries)
    holder = dispatcher.draining.holder(sticky_hash) or owner
    if holder is not None:
        in_the_way = bool(stuck) or bool(held.draining)
        found += yield from consumers.of_silent(subscription, [consumer_of(holder)], waits=in_the_way)
        found += yield from _held_of_hash(subscription, dispatcher, sticky_hash, holder)
    return ordered(found)


def _held_of_hash(
    subscription: Subscription, dispatcher: KeySharedDispatcher, sticky_hash: int, holder: ConsumerState
) -> Generator[None, None, list[Finding]]:
    ids: list[Position] = (yield from keys.held_ids(dispatcher.pending, {sticky_hash: holder}))[sticky_hash]
    if not ids:
        return []
    consumer = consumer_of(holder)
    since_ms = min(
        (each for position in ids if (each := dispatcher.pending.delivered_ms(position)) is not None), default=None
    )
    clock = subscription.surroundings.clock
    amount = counted(len(ids), "entry", "entries") if len(ids) < consumers.IDS_LISTED else f"{len(ids)} or more entries"
    return [
        Finding(
            Code.HELD_BY_CONSUMER,
            f"Consumer {consumer.name} holds {amount} of hash {sticky_hash}, the first{for_long(since_ms, clock)}:"
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
