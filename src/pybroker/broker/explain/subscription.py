"""Why a subscription gets nothing while messages wait for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pybroker.broker.explain import actions
from pybroker.broker.explain.steps import Steps, counted, for_long, wall_ms
from pybroker.dispatch.gates import Gate
from pybroker.model.findings import Code, Finding, ordered

if TYPE_CHECKING:
    from pybroker.broker.delivery.subscription import Subscription

CODES = {
    Gate.CLOSED: Code.SUBSCRIPTION_CLOSED,
    Gate.STARTING: Code.CONSUMER_STARTING,
    Gate.NO_PERMITS: Code.NO_PERMITS,
    Gate.CONNECTION_FULL: Code.CONNECTION_FULL,
    Gate.UNACKED_CONSUMER: Code.UNACKED_LIMIT_CONSUMER,
    Gate.UNACKED_SUBSCRIPTION: Code.UNACKED_LIMIT_SUBSCRIPTION,
    Gate.UNACKED_BROKER: Code.UNACKED_LIMIT_BROKER,
    Gate.LOOK_AHEAD: Code.LOOK_AHEAD_FULL,
    Gate.FILTER: Code.ENTRY_FILTER,
    Gate.RATE: Code.DISPATCH_RATE,
    Gate.TRANSACTION: Code.TRANSACTION_OPEN,
    Gate.MEMORY: Code.MEMORY_BUDGET,
    Gate.READ_FAILED: Code.READ_FAILED,
}


def explain_subscription(subscription: Subscription) -> Steps:
    """What holds its messages up, the first thing to mend first; nothing where all is well."""
    yield
    return ordered(_of_stored(subscription))


def _of_stored(subscription: Subscription) -> list[Finding]:
    clock = subscription.surroundings.clock
    waiting = waiting_entries(subscription)
    if not waiting:
        return []
    if not subscription.consumers:
        since_ms = subscription.last_active_ms
        return [
            Finding(
                Code.NO_CONSUMERS,
                f"{counted(waiting, 'entry waits', 'entries wait')} and no consumer is connected"
                f"{for_long(since_ms, clock)}.",
                since_ms=since_ms,
                evidence={"waitingEntries": waiting, "backlogEntries": subscription.backlog_entries},
                actions=(
                    actions.skip_all(subscription.topic.name, subscription.name),
                    actions.delete_subscription(subscription.topic.name, subscription.name),
                ),
            )
        ]
    standstill = subscription.standstill
    if standstill is None or standstill.gate not in CODES:
        return []
    since_ms = wall_ms(standstill.since_ms, clock)
    return [
        Finding(
            CODES[standstill.gate],
            f"{counted(waiting, 'entry waits', 'entries wait')}{for_long(since_ms, clock)}: {standstill.gate.value}.",
            since_ms=since_ms,
            evidence={"waitingEntries": waiting, "backlogEntries": subscription.backlog_entries},
        )
    ]


def waiting_entries(subscription: Subscription) -> int:
    """Entries that no consumer has and that are not delayed: about, where some of those that were passed are set aside."""
    cursor = subscription.cursor
    ledgers = cursor.ledger.ledgers
    unread = ledgers.entries_after(ledgers.previous_position(cursor.read_position))
    return unread + subscription.replay_entry_count
