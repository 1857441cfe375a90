"""What `explain` says of subscriptions while a run goes on: whenever something waits there is a reason that has a name.

Looks from time to time at what is loaded. A subscription waits when it has consumers and the next entry of its cursor is there, and
neither its cursor nor its consumers nor the reason have changed between two looks: a read may have begun just now.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

from tests.simulate import tape
from tests.simulate.simulation import Simulation
from tests.simulate.tape import Tape
from tests.support.findings import at_once

from pybroker.broker.delivery.subscription import Subscription
from pybroker.broker.explain.subscriptions import explain_subscription
from pybroker.broker.topic.topic import Topic
from pybroker.model.findings import Code, Finding

LOOK_S = 5.0
"""Between two looks. Longer than anything takes that is no reason to wait."""


def findings_of(topic: Topic, subscription: Subscription) -> list[Finding]:
    return at_once(explain_subscription(topic, subscription))


class Explaining:
    """Owned by the run."""

    def __init__(self, simulation: Simulation, tape_: Tape) -> None:
        self._simulation = simulation
        self._tape = tape_
        self._before: dict[tuple[str, str], tuple[Any, ...]] = {}

    async def watch(self) -> None:
        """Until it is cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            self.look()

    def look(self) -> None:
        """Compare with the look before."""
        seen: dict[tuple[str, str], tuple[Any, ...]] = {}
        for topic, subscription in self._subscriptions():
            key = (str(topic.name), subscription.name)
            seen[key] = state = _state(subscription)
            if self._before.get(key) != state or not _has_next(subscription):
                continue
            findings = findings_of(topic, subscription)
            if not any(finding.waits or finding.code is Code.TRANSACTION_OPEN for finding in findings):
                text = f"{subscription.name} of {topic.name} has waited for {LOOK_S:.0f} s at {subscription.cursor.read_position}"
                self._tape.note(
                    "judge",
                    tape.BROKEN,
                    rule="explain",
                    text=f"{text}, and no finding says why ({_blocked(subscription)})",
                )
        self._before = seen

    def _subscriptions(self) -> Iterator[tuple[Topic, Subscription]]:
        simulation = self._simulation
        if not simulation.is_up:
            return
        for topic in simulation.broker.loaded.persistent.values():
            for subscription in topic.subscriptions.values():
                if subscription.consumers:
                    yield topic, subscription


def _state(subscription: Subscription) -> tuple[Any, ...]:
    cursor = subscription.cursor
    consumers = [(each.name, each.counters.messages_out) for each in subscription.consumers]
    return (
        id(subscription),
        cursor.read_position,
        cursor.mark_delete_position,
        subscription.backlog_entries,
        consumers,
        _blocked(subscription),
    )


def _blocked(subscription: Subscription) -> str | None:
    stall = subscription.stall
    return None if stall is None else stall.blocked_reason.name


def _has_next(subscription: Subscription) -> bool:
    """Whether an entry is there that it has not read, and that is not hidden, be it behind an open transaction."""
    ledger, position = subscription.cursor.ledger, subscription.cursor.read_position
    limit = ledger.read_limit.limit
    if subscription.reads.compacted is not None or not ledger.ledgers.has_entry(ledger.ledgers.normalize(position)):
        return False
    return (limit is not None and position >= limit) or ledger.read_limit.last_visible(ledger.ledgers) >= position
