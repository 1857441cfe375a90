"""`/admin/v2/{persistent|non-persistent}/{tenant}/{namespace}/{topic}/stats`: what happens on a topic."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec
from starlette.responses import Response
from starlette.routing import Route

from pybroker.admin.call import Call, route
from pybroker.admin.routes.brokers import broker_id
from pybroker.admin.routes.topic_operations import existing_topic
from pybroker.admin.routes.topic_policies import TOPIC
from pybroker.admin.topic_stats import Document, Measured, StatsRequest, Steps, topic_stats
from pybroker.broker.backlog import estimated_bytes_behind
from pybroker.broker.backlog_quota import estimated_backlog_bytes, slowest_subscription
from pybroker.errors import StoreError

if TYPE_CHECKING:
    from pybroker.admin.rate_sampler import RateSampler
    from pybroker.broker.subscription import Subscription
    from pybroker.broker.topic import Topic

NOT_ASKED_FOR = -1


class TopicStatsRoutes:
    """Shows what the topic counts, and the rates that one sampler keeps for all."""

    def __init__(self, rates: RateSampler) -> None:
        self._rates = rates

    def routes(self) -> list[Route]:
        return [route("GET", TOPIC + "/stats", self.get)]

    async def get(self, call: Call) -> Response:
        """`getPreciseBacklog` changes nothing: the backlog is counted exactly in any case."""
        call.require_lookup(call.topic_name())
        topic = await existing_topic(call)
        request = StatsRequest(
            measured=await _measure(call, topic),
            backlog_bytes=await _topic_backlog_bytes(topic),
            broker_id=broker_id(call),
            with_publishers=not call.flag("excludePublishers"),
            with_consumers=not call.flag("excludeConsumers"),
        )
        document = await _made(topic_stats(topic, self._rates, request))
        return Response(msgspec.json.encode(document), media_type="application/json")


async def _made(steps: Steps) -> Document:
    """Let the loop turn to others at each pause."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            document: Document = done.value
            return document
        await asyncio.sleep(0)


async def _measure(call: Call, topic: Topic) -> dict[Subscription, Measured]:
    with_size = call.query("subscriptionBacklogSize") is None or call.flag("subscriptionBacklogSize")
    with_time = call.flag("getEarliestTimeInBacklog")
    measured: dict[Subscription, Measured] = {}
    for subscription in list(topic.subscriptions.values()):
        size_bytes = await _backlog_bytes(subscription) if with_size else NOT_ASKED_FOR
        earliest_ms = await _earliest_publish_ms(subscription) if with_time else 0
        measured[subscription] = Measured(size_bytes, earliest_ms)
    return measured


async def _backlog_bytes(subscription: Subscription) -> int:
    """Exact; an estimate when the store cannot tell, since the rest of the figures is wanted then more than ever."""
    try:
        return (await subscription.cursor.backlog()).size_bytes
    except StoreError:
        cursor = subscription.cursor
        return estimated_bytes_behind(cursor.ledger.ledgers, cursor.mark_delete_position)


async def _topic_backlog_bytes(topic: Topic) -> int:
    slowest = slowest_subscription(topic)
    return estimated_backlog_bytes(topic) if slowest is None else await _backlog_bytes(slowest)


async def _earliest_publish_ms(subscription: Subscription) -> int:
    try:
        return await subscription.cursor.oldest_publish_time() or 0
    except StoreError:
        return 0
