"""Routes of subscriptions: list, creation, deletion, properties, and backlog analysis.

Paths: `/admin/v2/persistent/{tenant}/{namespace}/{topic}/subscriptions` and `.../subscription/{subscription}`.

A partitioned topic has a subscription if at least one of its partitions has it.
"""

from __future__ import annotations

from http import HTTPStatus

from starlette.responses import Response
from starlette.routing import Route

from pybroker.admin.calls.call import BadBody, Call, json_response, no_content
from pybroker.admin.calls.existing import (
    existing_any_topic,
    existing_subscription,
    on_each_any_subscription,
    on_each_subscription,
    require_persistent_subscription,
    while_served,
)
from pybroker.admin.calls.existing_namespaces import namespace_of_topics
from pybroker.admin.calls.message_id import ResetCursorData
from pybroker.admin.calls.partition_calls import call_owner, other_owner
from pybroker.admin.calls.partitions import require_not_partitioned, topics_of
from pybroker.admin.calls.queries import FORCE, Query
from pybroker.admin.calls.route_paths import SUBSCRIPTION, TOPIC
from pybroker.admin.calls.routing import route
from pybroker.broker.delivery.subscription import Subscription
from pybroker.broker.delivery.subscription_base import SubscriptionBase
from pybroker.broker.lifecycle.open_topic import on_open_topic
from pybroker.broker.maintenance.backlog_analysis import analyze_backlog
from pybroker.broker.topic.subscription_registry import BEING_MADE
from pybroker.broker.topic.topic import Topic
from pybroker.broker.topic.topic_base import TopicBase
from pybroker.errors import AdminError, NotAllowedError
from pybroker.model.names import TopicName
from pybroker.model.position import EARLIEST, LATEST, Position

REPLICATED = Query("replicated", "mark it as replicated, which is stored without effect", bool)


def routes() -> list[Route]:
    return [
        route("GET", TOPIC + "/subscriptions", list_subscriptions),
        route("PUT", SUBSCRIPTION, create_subscription, queries=(REPLICATED,)),
        route("DELETE", SUBSCRIPTION, delete_subscription, queries=(FORCE,)),
        route("GET", SUBSCRIPTION + "/properties", get_properties),
        route("PUT", SUBSCRIPTION + "/properties", set_properties),
        route("POST", SUBSCRIPTION + "/analyzeBacklog", analyze),
        route("GET", SUBSCRIPTION + "/replicatedSubscriptionStatus", get_replicated),
        route("POST", SUBSCRIPTION + "/replicatedSubscriptionStatus", set_replicated),
    ]


async def list_subscriptions(call: Call) -> Response:
    await call.require_consume(call.topic_name(), "")
    found: dict[str, None] = {}
    for name in topics_of(call, call.topic_name()):
        if (owner := await other_owner(call, name)) is not None:
            found.update(dict.fromkeys(await call_owner(call, owner, name)))
        else:
            found.update(dict.fromkeys((await existing_any_topic(call, name)).subscriptions))
    return json_response(list(found))


async def create_subscription(call: Call) -> Response:
    """Create a subscription at the message in the body, or at the first existing message after it; without a body,
    after the last message. A missing topic is created as for a consumer.

    On a partitioned topic, the subscription is created on all partitions without it; 409 if all partitions have it.
    """
    name, subscription = call.topic_name(), call.name("subscription")
    await call.require_consume(name, subscription)
    if not name.is_persistent:
        raise AdminError(400, "Create subscription on non-persistent topic can only be done through client")
    namespace_of_topics(call, name.namespace)
    start = await call.optional_place()
    made = [await _create_on(call, each, subscription, start) for each in topics_of(call, name)]
    if not any(made):
        raise AdminError(409, "Subscription already exists for topic")
    return no_content()


async def _create_on(call: Call, name: TopicName, subscription: str, start: ResetCursorData | None) -> bool:
    if (owner := await other_owner(call, name)) is not None:
        try:
            await call_owner(call, owner, name)
        except AdminError as error:
            if error.status != HTTPStatus.CONFLICT:
                raise
            return False
        return True
    first, properties = LATEST, {}
    if start is not None:
        properties = start.properties
        first = start.position if start.position >= Position(0, 0) else EARLIEST
        if start.isExcluded and first != EARLIEST:
            first = Position(first.ledger_id, first.entry_id + 1)

    async def make(topic: TopicBase) -> bool:
        assert isinstance(topic, Topic)
        async with topic.subscription_lock(subscription, BEING_MADE):
            if subscription in topic.subscriptions:
                return False
            try:
                created = await topic.registry.create(subscription, first, properties)
            except NotAllowedError as error:
                raise AdminError(409, str(error)) from error
            if call.flag("replicated"):
                await created.set_replicated(True)
            return True

    return await on_open_topic(call.broker.runtime, lambda: call.broker.topics.get(name, may_create=True), make)


async def delete_subscription(call: Call) -> Response:
    """Delete a subscription and disconnect its consumers. On a persistent topic, 412 if the subscription has consumers,
    unless `force=true`. A consumer that reconnects creates a new subscription.
    """

    async def act(topic: TopicBase, subscription: SubscriptionBase) -> None:
        if subscription.consumers and not call.flag("force") and isinstance(subscription, Subscription):
            raise AdminError(412, "Subscription has active connected consumers")
        await topic.delete_subscription(subscription)

    await on_each_any_subscription(call, act)
    return no_content()


async def get_properties(call: Call) -> Response:
    properties: dict[str, str] = {}

    async def act(_topic: TopicBase, subscription: SubscriptionBase) -> None:
        properties.update(subscription.properties)

    for answer in await on_each_any_subscription(call, act):
        properties.update(answer)
    return json_response(properties)


async def set_properties(call: Call) -> Response:
    """Replace the properties with the properties in the body."""
    await call.require_consume(call.topic_name(), call.name("subscription"))
    properties = await call.optional_json(dict[str, str]) or {}

    async def act(_topic: TopicBase, subscription: SubscriptionBase) -> None:
        await subscription.set_properties(properties)

    await on_each_any_subscription(call, act)
    return no_content()


async def get_replicated(call: Call) -> Response:
    """Return whether the subscription is marked as replicated, by topic name: for the topic in the path, or for each of
    its partitions. The mark is stored without effect.
    """
    replicated: dict[str, bool] = {}

    async def act(subscription: Subscription) -> None:
        replicated[str(subscription.topic.name)] = subscription.is_replicated

    for answer in await on_each_subscription(call, act):
        replicated.update(answer)
    return json_response(replicated)


async def set_replicated(call: Call) -> Response:
    await require_persistent_subscription(call, "Replication of a subscription")
    is_replicated = await call.optional_json(bool)
    if is_replicated is None:
        raise BadBody("the request needs a JSON body: true or false")

    async def act(subscription: Subscription) -> None:
        await subscription.set_replicated(is_replicated)

    await on_each_subscription(call, act)
    return no_content()


async def analyze(call: Call) -> Response:
    """Count the entries and messages of the backlog, and how many entries the entry filters accept, reject or
    reschedule. The count starts at the message id in the body, or at the mark-delete position.
    """
    await require_persistent_subscription(call, "Analyze backlog")
    require_not_partitioned(call, call.topic_name())
    start = await call.optional_place()
    subscription = await existing_subscription(call)
    with while_served(subscription.topic, subscription):
        found = await analyze_backlog(
            subscription,
            None if start is None else start.position,
            call.config.subscription_backlog_scan_max_entries,
            call.config.subscription_backlog_scan_max_time_ms,
        )
    return json_response(
        {
            "entries": found.entries,
            "messages": found.messages,
            "markerMessages": found.marker_messages,
            "filterRejectedEntries": found.rejected_entries,
            "filterAcceptedEntries": found.accepted_entries,
            "filterRescheduledEntries": found.rescheduled_entries,
            "filterRejectedMessages": found.rejected_messages,
            "filterAcceptedMessages": found.accepted_messages,
            "filterRescheduledMessages": found.rescheduled_messages,
            "aborted": found.is_aborted,
            "firstMessageId": None if found.first is None else str(found.first),
            "lastMessageId": None if found.last is None else str(found.last),
        }
    )
