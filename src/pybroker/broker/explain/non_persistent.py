"""Subscriptions that keep no messages: nothing waits, and what no consumer can take when it is published is dropped."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pybroker.broker.explain import actions
from pybroker.broker.explain.consumers import reference
from pybroker.broker.explain.steps import LISTED, names
from pybroker.dispatch.gates import Gate
from pybroker.model.findings import Code, Finding, ordered

if TYPE_CHECKING:
    from pybroker.broker.delivery.subscription_base import SubscriptionBase


def explain_non_persistent(subscription: SubscriptionBase) -> list[Finding]:
    """Consumers that get nothing now."""
    found: list[Finding] = []
    dropped = f"what is published for {{}} now is dropped, as {subscription.counters.dropped_messages:,} messages were"
    for gate, code, why in (
        (Gate.NO_PERMITS, Code.NO_PERMITS, "no room for more messages"),
        (Gate.CONNECTION_FULL, Code.CONNECTION_FULL, "not read from the connection"),
    ):
        stuck = [each for each in subscription.consumers if not each.state.can_take() and each.state.gate() is gate]
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
                actions=(actions.disconnect(stuck[0]),),
            )
        )
    return ordered(found)
