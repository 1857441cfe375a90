"""What stops all of a subscription, whoever a message is for."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from heapq import nlargest
from typing import TYPE_CHECKING, Any, cast

from pybroker.broker.explain import actions
from pybroker.broker.explain.consumers import consumer_of, described_all, reference
from pybroker.broker.explain.steps import LISTED, Steps, counted, duration, for_long, wall_ms
from pybroker.dispatch.gates import Gate
from pybroker.dispatch.key_shared import KeySharedDispatcher
from pybroker.dispatch.multi_consumer import MultiConsumerDispatcher
from pybroker.model.findings import Action, Code, Finding

if TYPE_CHECKING:
    from pybroker.broker.delivery.subscription import Subscription
    from pybroker.broker.explain.waiting import Waiting

SLOW_READ_MS = 1000
"""A read that takes so long is worth a word."""
STOP_ALL = {
    Code.READ_FAILED,
    Code.UNACKED_LIMIT_BROKER,
    Code.UNACKED_LIMIT_SUBSCRIPTION,
    Code.CONSUMER_STARTING,
    Code.DISPATCH_RATE,
    Code.MEMORY_BUDGET,
}
"""While one of these is found, consumers do not matter."""


def what_stops_all(subscription: Subscription, waiting: Waiting) -> Steps:
    """Why nothing is read or sent, whoever it is for, while there are consumers and something waits."""
    found: list[Finding] = []
    standstill = subscription.standstill
    gate = None if standstill is None else standstill.gate
    clock = subscription.surroundings.clock
    since_ms = None if standstill is None else wall_ms(standstill.since_ms, clock)
    dispatcher = subscription.dispatcher
    limit = subscription.commons.broker_unacked_limit
    if subscription.failed_reads.reason:
        found.append(_read_failed(subscription, waiting, since_ms if gate is Gate.READ_FAILED else None))
    if limit is not None and limit.is_stopped(subscription):
        found.append(_unacked_limit_of_broker(subscription, waiting, since_ms if gate is Gate.UNACKED_BROKER else None))
    if dispatcher is not None and dispatcher.blocked and isinstance(dispatcher, MultiConsumerDispatcher):
        found.append((yield from _unacked_limit(subscription, dispatcher, waiting)))
    if dispatcher is not None and dispatcher.gate() is Gate.STARTING:
        found.append(_starting(subscription, waiting, since_ms))
    if waiting.put_off:
        found.append(_filtered(subscription, waiting, since_ms if gate is Gate.FILTER else None))
    if gate is Gate.RATE:
        found += _rate(subscription, waiting, since_ms)
    elif gate is Gate.MEMORY:
        found.append(_memory(subscription, waiting, since_ms))
    elif gate is Gate.READING and since_ms is not None and clock.wall_ms() - since_ms >= SLOW_READ_MS:
        found.append(
            Finding(
                Code.READING,
                f"{_entries(waiting)}, and what comes next is being read from the store{for_long(since_ms, clock)}.",
                since_ms=since_ms,
                evidence={"readPosition": str(subscription.cursor.read_position), "waitingEntries": waiting.entries},
            )
        )
    if isinstance(dispatcher, KeySharedDispatcher) and waiting.has_unread and dispatcher.is_full():
        found.append(_look_ahead_full(subscription, dispatcher, waiting))
    return found


def _entries(waiting: Waiting) -> str:
    return counted(waiting.entries, "entry waits", "entries wait")


def no_consumers(subscription: Subscription, waiting: Waiting) -> Finding:
    since_ms = subscription.last_active_ms
    return Finding(
        Code.NO_CONSUMERS,
        f"{_entries(waiting)} and no consumer is connected{for_long(since_ms, subscription.surroundings.clock)}.",
        since_ms=since_ms,
        evidence={"waitingEntries": waiting.entries, "backlogEntries": subscription.backlog_entries},
        actions=(actions.skip_all(subscription), actions.delete_subscription(subscription)),
    )


def _read_failed(subscription: Subscription, waiting: Waiting, since_ms: int | None) -> Finding:
    cursor = subscription.cursor
    position = cursor.ledger.ledgers.normalize(cursor.read_position)
    return Finding(
        Code.READ_FAILED,
        f"{_entries(waiting)}, and reading fails{for_long(since_ms, subscription.surroundings.clock)}:"
        f" {subscription.failed_reads.reason}. It is tried again.",
        since_ms=since_ms,
        evidence={
            "error": subscription.failed_reads.reason,
            "readPosition": str(position),
            "firstUnacked": str(cursor.first_unacked_position),
            "waitingEntries": waiting.entries,
        },
        actions=(
            actions.set_configuration(
                "autoSkipNonRecoverableData",
                "true",
                "Go on behind what can never be read; it counts as acknowledged, in every subscription",
            ),
            actions.skip_one(subscription),
        ),
    )


def _unacked_limit_of_broker(subscription: Subscription, waiting: Waiting, since_ms: int | None) -> Finding:
    limit = subscription.commons.broker_unacked_limit
    assert limit is not None
    own = subscription.unacked_messages
    return Finding(
        Code.UNACKED_LIMIT_BROKER,
        f"{_entries(waiting)}: all subscriptions together hold {limit.total:,} unacknowledged messages of"
        f" {limit.max_messages:,}, this one {own:,}, which is more than its share of {limit.max_share:,}.",
        since_ms=since_ms,
        evidence={
            "limit": limit.max_messages,
            "share": limit.max_share,
            "unackedMessagesOfBroker": limit.total,
            "unackedMessages": own,
            "most": [
                {"topic": str(each.topic.name), "subscription": each.name, "unackedMessages": held}
                for each, held in cast("list[tuple[Subscription, int]]", limit.most(LISTED))
            ],
            "key": "maxUnackedMessagesPerBroker",
        },
        actions=_of_most_holding(subscription),
    )


def _unacked_limit(
    subscription: Subscription, dispatcher: MultiConsumerDispatcher, waiting: Waiting
) -> Generator[None, None, Finding]:
    limit = dispatcher.max_unacked_messages
    since_ms = subscription.counters.last_consumed_ms or None
    most = nlargest(LISTED, subscription.consumers, key=lambda each: each.state.unacked_messages)
    more_consumers = len(subscription.consumers) - len(most)
    held, first_held = dispatcher.unacked_messages, most[0].state.unacked_messages
    suggested = _of_most_holding(subscription)
    descriptions = yield from described_all(most)
    return Finding(
        Code.UNACKED_LIMIT_SUBSCRIPTION,
        f"{_entries(waiting)}{for_long(since_ms, subscription.surroundings.clock)}: the subscription holds"
        f" {held:,} unacknowledged messages and may hold {limit:,}; it goes on when half of these are"
        f" acknowledged. Consumer {most[0].name} holds most, {first_held:,}.",
        since_ms=since_ms,
        evidence={
            "limit": limit,
            "unackedMessages": held,
            "consumers": descriptions,
            "moreConsumers": more_consumers,
        },
        actions=(
            *suggested,
            actions.set_policy(
                subscription.topic.name,
                "maxUnackedMessagesOnSubscription",
                2 * limit,
                f"Let each subscription of the topic hold {2 * limit:,} messages instead of {limit:,}",
            ),
        ),
    )


def _of_most_holding(subscription: Subscription) -> Sequence[Action]:
    """What helps when it is about the one that holds most."""
    most = max(subscription.consumers, key=lambda each: each.state.unacked_messages, default=None)
    if most is None or not most.state.unacked_messages:
        return ()
    return (actions.show_unacked(most), actions.disconnect(most))


def _starting(subscription: Subscription, waiting: Waiting, since_ms: int | None) -> Finding:
    delay_ms = subscription.surroundings.config.active_consumer_failover_delay_time_millis
    active = None if subscription.dispatcher is None else subscription.dispatcher.active_consumer
    name = "A consumer" if active is None else f"Consumer {active.name}"
    return Finding(
        Code.CONSUMER_STARTING,
        f"{name} has just become the active one and begins {duration(delay_ms)} after that;"
        f" {counted(waiting.entries, 'entry waits', 'entries wait')}.",
        since_ms=since_ms,
        evidence={
            "consumer": None if active is None else reference(consumer_of(active)),
            "activeConsumerFailoverDelayTimeMillis": delay_ms,
            "waitingEntries": waiting.entries,
        },
    )


def _filtered(subscription: Subscription, waiting: Waiting, since_ms: int | None) -> Finding:
    filters = subscription.filters
    first = None if filters is None else filters.put_off_first
    return Finding(
        Code.ENTRY_FILTER,
        f"An entry filter has put {counted(waiting.put_off, 'entry', 'entries')} off, {first} among them; it is asked again"
        " soon.",
        since_ms=since_ms,
        evidence={
            "filters": [type(each).__name__ for each in (() if filters is None else filters.filters)],
            "putOffEntries": waiting.put_off,
            "messageId": None if first is None else str(first),
            "waitingEntries": waiting.entries,
        },
    )


_RATE_POLICIES = {"Topic": "dispatchRate", "Subscription": "subscriptionDispatchRate"}
_RATE_OWNERS = {
    "Topic": "the topic",
    "Subscription": "the subscription",
    "Broker": "the broker",
    "ResourceGroup": "the namespace's resource group",
}


def _rate(subscription: Subscription, waiting: Waiting, since_ms: int | None) -> list[Finding]:
    used_up = [] if subscription.throttle is None else subscription.throttle.used_up()
    if not used_up:
        return []  # It was used up when it was looked at last, and goes on by itself in a moment.
    clock = subscription.surroundings.clock
    rates: list[dict[str, Any]] = []
    for limit, unit, wait_ms in used_up:
        in_messages = unit == "messages"
        rate = limit.rate.dispatchThrottlingRateInMsg if in_messages else limit.rate.dispatchThrottlingRateInByte
        period_s = max(1, limit.rate.ratePeriodInSecond)
        rates.append({"of": limit.scope, "unit": unit, "rate": rate, "periodSeconds": period_s, "goesOnInMs": wait_ms})
    first = max(rates, key=lambda each: float(each["goesOnInMs"]))
    per = "second" if first["periodSeconds"] == 1 else f"{first['periodSeconds']} seconds"
    suggested: Sequence[Action] = ()
    if (policy := _RATE_POLICIES.get(first["of"])) is not None:
        suggested = (
            actions.remove_policy(subscription.topic.name, policy, "Drop the topic's own limit, if it has one"),
        )
    return [
        Finding(
            Code.DISPATCH_RATE,
            f"{_entries(waiting)}: the dispatch rate of {_RATE_OWNERS[first['of']]}, {first['rate']:,} {first['unit']} a {per},"
            f" is used up{for_long(since_ms, clock)}; it goes on in {duration(first['goesOnInMs'])}.",
            since_ms=since_ms,
            evidence={"rates": rates, "waitingEntries": waiting.entries},
            actions=suggested,
        )
    ]


def _memory(subscription: Subscription, waiting: Waiting, since_ms: int | None) -> Finding:
    budget = subscription.surroundings.memory.budget
    mebibyte = 1 << 20
    parts = sorted(budget.parts.values(), key=lambda each: -each.used_bytes)
    return Finding(
        Code.MEMORY_BUDGET,
        f"{_entries(waiting)}{for_long(since_ms, subscription.surroundings.clock)} for memory: of"
        f" {budget.limit_bytes / mebibyte:.0f} MiB others use {budget.used_bytes / mebibyte:.0f}, most for {parts[0].name}"
        " (brokerMemoryLimitMB).",
        since_ms=since_ms,
        evidence={
            "limitBytes": budget.limit_bytes,
            "usedBytes": budget.used_bytes,
            "parts": {each.name: each.used_bytes for each in parts if each.used_bytes},
            "waitingEntries": waiting.entries,
            "key": "brokerMemoryLimitMB",
        },
    )


def _look_ahead_full(subscription: Subscription, dispatcher: KeySharedDispatcher, waiting: Waiting) -> Finding:
    look_ahead = dispatcher.look_ahead(LISTED)
    most = look_ahead.most[0] if look_ahead.most else None
    limit = dispatcher.look_ahead_entry_limit
    by_whom = ""
    if most is not None:
        whom = "nobody owns it" if most.consumer is None else f"because of consumer {most.consumer.name}"
        by_whom = f" Most, {counted(most.entries, 'entry', 'entries')}, are of hash {most.sticky_hash}: {whom}."
    return Finding(
        Code.LOOK_AHEAD_FULL,
        f"{counted(look_ahead.entries, 'entry waits', 'entries wait')} for keys and consumers that cannot take them, and no more"
        f" than {0 if limit is None else limit:,} may, so nothing new is read.{by_whom}",
        since_ms=None if most is None or not most.since_ms else int(most.since_ms),
        evidence={
            "entries": look_ahead.entries,
            "limit": limit,
            "keys": [
                "keySharedLookAheadMsgInReplayThresholdPerConsumer",
                "keySharedLookAheadMsgInReplayThresholdPerSubscription",
            ],
            "hashes": [
                {
                    "hash": each.sticky_hash,
                    "consumer": None if each.consumer is None else reference(consumer_of(each.consumer)),
                    "waitingEntries": each.entries,
                    "drains": each.is_draining and each.consumer is not None,
                }
                for each in look_ahead.most
            ],
            "waitingEntries": waiting.entries,
        },
        actions=(actions.show_waiting(subscription),),
    )
