"""`.../explain`: why messages of a topic or of a subscription wait, as findings with evidence and with calls that help.

Looking changes nothing. What costs time is done in slices, and evidence is bounded: it says how much more there is.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.responses import Response
from starlette.routing import Route

from pybroker.admin.calls.call import Call
from pybroker.admin.calls.existing import any_subscription_of, existing_any_topic
from pybroker.admin.calls.paths import SUBSCRIPTION, TOPIC
from pybroker.admin.calls.routing import route
from pybroker.admin.slices import SLICE_MS
from pybroker.broker.delivery.subscription import Subscription
from pybroker.broker.explain.subscription import explain_subscription
from pybroker.broker.topic.topic import Topic
from pybroker.model.findings import Finding, is_waiting

if TYPE_CHECKING:
    from pybroker.broker.delivery.subscription_base import SubscriptionBase
    from pybroker.broker.explain.steps import Steps
    from pybroker.broker.topic.topic_base import TopicBase
    from pybroker.clock import Clock

MAX_SUBSCRIPTIONS = 1000
"""How many subscriptions of a topic are listed."""


def routes() -> list[Route]:
    return [
        route("GET", SUBSCRIPTION + "/explain", explain_one),
        route("GET", TOPIC + "/explain", explain_topic),
    ]


async def explain_one(call: Call) -> Response:
    """Why messages of a subscription wait; an empty list of findings where all is well."""
    name = call.name("subscription")
    call.require_consume(call.topic_name(), name)
    topic = await existing_any_topic(call)
    subscription = any_subscription_of(topic, name)
    findings = await _findings(topic, subscription)
    return answer(topic, name, subscription_subject(subscription), findings)


async def explain_topic(call: Call) -> Response:
    """Why messages of a topic wait: what is about the topic itself, and shortly all its subscriptions."""
    call.require_consume(call.topic_name(), "")
    topic = await existing_any_topic(call)
    listed: list[dict[str, Any]] = []
    names = sorted(topic.subscriptions)
    for name in names[:MAX_SUBSCRIPTIONS]:
        subscription = topic.subscriptions.get(name)
        if subscription is not None:
            findings = await _findings(topic, subscription)
            shown = [finding.as_short_json() for finding in findings]
            listed.append({"subscription": name, "waiting": is_waiting(findings), "findings": shown})
    document = {
        "topic": str(topic.name),
        "subject": {"kind": "topic", "subscriptions": len(names)},
        "waiting": any(each["waiting"] for each in listed),
        "findings": [],
        "subscriptions": listed,
        "moreSubscriptions": max(0, len(names) - MAX_SUBSCRIPTIONS),
    }
    return Response(msgspec.json.encode(document), media_type="application/json")


def subscription_subject(subscription: SubscriptionBase) -> dict[str, Any]:
    return {
        "kind": "subscription",
        "type": subscription.type_name,
        "consumers": len(subscription.consumers),
        "backlogEntries": subscription.backlog_entries,
    }


async def _findings(topic: TopicBase, subscription: SubscriptionBase) -> list[Finding]:
    """Of those that keep no messages nothing waits."""
    if not isinstance(topic, Topic) or not isinstance(subscription, Subscription):
        return []
    return await made(explain_subscription(topic, subscription), topic.surroundings.clock)


async def made(steps: Steps, clock: Clock) -> list[Finding]:
    """The findings, in slices: the loop turns to others in between."""
    ends_ms = clock.monotonic_ms() + SLICE_MS
    while True:
        try:
            next(steps)
        except StopIteration as done:
            findings: list[Finding] = done.value
            return findings
        if clock.monotonic_ms() >= ends_ms:
            await asyncio.sleep(0)
            ends_ms = clock.monotonic_ms() + SLICE_MS


def answer(topic: TopicBase, subscription: str, subject: dict[str, Any], findings: list[Finding]) -> Response:
    """What all subjects within a subscription are answered as."""
    document = {
        "topic": str(topic.name),
        "subscription": subscription,
        "subject": subject,
        "waiting": is_waiting(findings),
        "findings": [finding.as_json() for finding in findings],
    }
    return Response(msgspec.json.encode(document), media_type="application/json")
