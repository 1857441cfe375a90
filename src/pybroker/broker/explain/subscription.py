"""Why a subscription gets nothing while messages wait for it.

First what stops all of it, whoever a message is for: then consumers do not matter. Otherwise the consumers that cannot take what
waits for them, and the keys that are held back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pybroker.broker.explain import beside, consumers, keys
from pybroker.broker.explain.consumers import consumer_of
from pybroker.broker.explain.steps import Steps
from pybroker.broker.explain.stops import STOP_ALL, no_consumers, what_stops_all
from pybroker.broker.explain.waiting import Waiting, waiting_of
from pybroker.dispatch.key_shared import KeySharedDispatcher
from pybroker.dispatch.shared import SharedDispatcher
from pybroker.model.findings import ordered

if TYPE_CHECKING:
    from pybroker.broker.delivery.consumer import Consumer
    from pybroker.broker.delivery.subscription import Subscription
    from pybroker.broker.topic.topic import Topic
    from pybroker.dispatch.consumer_state import ConsumerState


def explain_subscription(topic: Topic, subscription: Subscription) -> Steps:
    """What holds its messages up, the first thing to mend first; nothing where all is well."""
    waiting = waiting_of(subscription)
    found = beside.transaction_open(topic)
    if waiting:
        found += yield from _of_waiting(subscription, waiting)
    elif subscription.consumers:
        found += yield from consumers.of_silent(subscription, list(subscription.consumers), waits=False)
    found += beside.delayed(subscription)
    if subscription.consumers and not waiting.has_unread:
        found += yield from beside.chunks_missing(subscription)
    return ordered(found)


def _of_waiting(subscription: Subscription, waiting: Waiting) -> Steps:
    if not subscription.consumers:
        return [no_consumers(subscription, waiting)]
    dispatcher = subscription.dispatcher
    stops = yield from what_stops_all(subscription, waiting)
    found = list(stops)
    waits_for: dict[ConsumerState, int] = {}
    suspects: set[ConsumerState] = set()
    if isinstance(dispatcher, KeySharedDispatcher):
        held = yield from keys.held_back(dispatcher)
        found += yield from keys.of_hashes(subscription, dispatcher, held)
        waits_for = dict(held.for_consumers)
        suspects = held.holders(dispatcher)
    elif isinstance(dispatcher, SharedDispatcher):
        waits_for = consumers.waits_for_parts(dispatcher)
    stuck: list[tuple[Consumer, int]] = []
    if dispatcher is not subscription.dispatcher:
        return found  # Everybody left meanwhile.
    if waiting.is_for_consumers and not any(finding.code in STOP_ALL for finding in stops):
        stuck = consumers.stuck_consumers(subscription, waits_for)
        found += yield from consumers.of_stuck(subscription, stuck, waiting.entries)
    if dispatcher is not None and dispatcher.blocked:
        in_the_way = set(subscription.consumers)
    else:
        in_the_way = {*(each for each, _ in stuck), *map(consumer_of, suspects)}
    others = [each for each in subscription.consumers if each not in in_the_way]
    found += yield from consumers.of_silent(subscription, list(in_the_way), waits=True)
    found += yield from consumers.of_silent(subscription, others, waits=False)
    return found
