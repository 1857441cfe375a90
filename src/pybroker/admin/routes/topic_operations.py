"""`/admin/v2/{persistent|non-persistent}/{tenant}/{namespace}/{topic}/...`: what is done to one topic and its subscriptions."""

from __future__ import annotations

from starlette.responses import Response
from starlette.routing import Route

from pybroker.admin.call import Call, json_response, no_content, route
from pybroker.admin.internal_stats import internal_stats
from pybroker.admin.message_id import ResetCursorData, message_id
from pybroker.admin.routes.namespaces import existing_namespace
from pybroker.admin.routes.topic_policies import TOPIC
from pybroker.broker import cursor_moves
from pybroker.broker.subscription import Subscription
from pybroker.broker.topic import Topic
from pybroker.errors import AdminError, SubscriptionNotFound
from pybroker.model.names import TopicName

SUBSCRIPTION = TOPIC + "/subscription/{subscription}"


def routes() -> list[Route]:
    return [
        route("GET", TOPIC + "/internalStats", get_internal_stats),
        route("PUT", TOPIC + "/backlogSize", get_backlog_size),
        route("POST", TOPIC + "/terminate", terminate),
        route("DELETE", TOPIC + "/truncate", truncate),
        route("POST", TOPIC + "/all_subscription/expireMessages/{seconds}", expire_in_all),
        route("POST", SUBSCRIPTION + "/skip_all", skip_all),
        route("POST", SUBSCRIPTION + "/skip/{count}", skip),
        route("POST", SUBSCRIPTION + "/expireMessages/{seconds}", expire_by_age),
        route("POST", SUBSCRIPTION + "/expireMessages", expire_by_position),
        route("POST", SUBSCRIPTION + "/resetcursor/{timestamp}", reset_by_time),
        route("POST", SUBSCRIPTION + "/resetcursor", reset_by_position),
    ]


async def get_internal_stats(call: Call) -> Response:
    call.require_lookup(call.topic_name())
    return json_response(internal_stats(await existing_topic(call)))


async def get_backlog_size(call: Call) -> Response:
    """The bytes behind a message, which the body names; a PUT because it has a body."""
    call.require_lookup(call.topic_name())
    topic = await existing_topic(call)
    position = (await call.json(ResetCursorData)).position
    return json_response(await topic.bytes_behind(position))


async def terminate(call: Call) -> Response:
    """No more messages, for ever; answers with the last one."""
    name = call.topic_name()
    call.require_namespace_admin(name.namespace)
    if not name.is_persistent:
        raise AdminError(406, "Need to provide a persistent topic name")
    topic = await existing_topic(call)
    return json_response(message_id(await topic.terminate()))


async def truncate(call: Call) -> Response:
    call.require_namespace_admin(call.topic_name().namespace)
    topic = await existing_topic(call)
    await topic.truncate()
    return no_content()


async def skip(call: Call) -> Response:
    subscription = await existing_subscription(call)
    await cursor_moves.skip(subscription, max(0, call.integer("count")))
    return no_content()


async def skip_all(call: Call) -> Response:
    subscription = await existing_subscription(call)
    await cursor_moves.skip_all(subscription)
    return no_content()


async def expire_by_age(call: Call) -> Response:
    subscription = await existing_subscription(call)
    if not await _expire_by_age(call, subscription):
        raise _nothing_expired(subscription)
    return no_content()


async def expire_in_all(call: Call) -> Response:
    """Every subscription; refused afterwards when one of them had nothing to expire."""
    call.require_consume(call.topic_name(), "")
    topic = await existing_topic(call)
    refused = [each for each in list(topic.subscriptions.values()) if not await _expire_by_age(call, each)]
    if refused:
        raise _nothing_expired(refused[0])
    return no_content()


async def _expire_by_age(call: Call, subscription: Subscription) -> bool:
    """False when there was nothing to do: nothing unread, or nothing that old while consumers are at work, as in Pulsar."""
    seconds = call.integer("seconds")
    if seconds <= 0 or not subscription.cursor.backlog_entries:
        return False
    expired = await cursor_moves.expire(subscription, call.broker.clock.wall_ms() - seconds * 1000)
    return expired > 0 or not subscription.consumers


async def expire_by_position(call: Call) -> Response:
    """Up to and including a message."""
    subscription = await existing_subscription(call)
    position = (await call.json(ResetCursorData)).position
    if position > subscription.topic.ledger.last_confirmed:
        raise _nothing_expired(subscription)
    await cursor_moves.expire_to(subscription, position)
    return no_content()


def _nothing_expired(subscription: Subscription) -> AdminError:
    return AdminError(
        409,
        f"Expire message not issued on topic {subscription.topic.name} for subscription {subscription.name}: "
        "it has nothing that old, or the message does not exist",
    )


async def reset_by_time(call: Call) -> Response:
    """Go on at the first message that was published then or later."""
    subscription = await existing_subscription(call)
    position = await subscription.topic.ledger.find_by_publish_time(call.integer("timestamp"))
    await cursor_moves.reset(subscription, position)
    return no_content()


async def reset_by_position(call: Call) -> Response:
    """Go on at a message, or the first one behind where it was."""
    subscription = await existing_subscription(call)
    await cursor_moves.reset(subscription, (await call.json(ResetCursorData)).position)
    return no_content()


async def existing_topic(call: Call) -> Topic:
    """The topic of the path, loaded; 404 when it does not exist."""
    name: TopicName = call.topic_name()
    existing_namespace(call, name.namespace)
    return await call.broker.get_topic(name, may_create=False)


async def existing_subscription(call: Call) -> Subscription:
    """The subscription of the path; 404 when it, or its topic, does not exist."""
    name = call.name("subscription")
    call.require_consume(call.topic_name(), name)
    topic = await existing_topic(call)
    subscription = topic.subscriptions.get(name)
    if subscription is None:
        raise SubscriptionNotFound(f"Subscription {name} not found for topic {topic.name}")
    return subscription
