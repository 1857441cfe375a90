"""REST routes that move a subscription's cursor: skip, expire and reset.

Paths: `/admin/v2/persistent/{tenant}/{namespace}/{topic}/subscription/{subscription}/...`.

Connected consumers no longer receive skipped messages. A reset disconnects consumers, and they reconnect.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.responses import Response
from starlette.routing import Route

from pybroker.admin.calls.call import Call, no_content
from pybroker.admin.calls.existing import (
    on_each_subscription,
    on_each_topic,
    on_subscription,
    require_persistent,
    require_persistent_subscription,
)
from pybroker.admin.calls.partitions import require_not_partitioned
from pybroker.admin.calls.route_paths import SUBSCRIPTION, TOPIC
from pybroker.admin.calls.routing import route
from pybroker.broker.delivery import cursor_moves
from pybroker.broker.delivery.subscription import Subscription
from pybroker.broker.topic.subscription_registry import BEING_CHANGED
from pybroker.broker.topic.topic import Topic
from pybroker.errors import AdminError


def routes() -> list[Route]:
    return [
        route("POST", TOPIC + "/all_subscription/expireMessages/{seconds}", expire_in_all),
        route("POST", SUBSCRIPTION + "/skip_all", skip_all),
        route("POST", SUBSCRIPTION + "/skip/{count}", skip),
        route("POST", SUBSCRIPTION + "/expireMessages/{seconds}", expire_by_age),
        route("POST", SUBSCRIPTION + "/expireMessages", expire_by_position),
        route("POST", SUBSCRIPTION + "/resetcursor/{timestamp}", reset_by_time),
        route("POST", SUBSCRIPTION + "/resetcursor", reset_by_position),
    ]


async def skip(call: Call) -> Response:

    async def act(subscription: Subscription) -> None:
        await cursor_moves.skip(subscription, max(0, call.integer("count")))

    await _on_single_subscription(call, "Skip messages", act)
    return no_content()


async def skip_all(call: Call) -> Response:
    await require_persistent_subscription(call, "Skip messages")
    await on_each_subscription(call, cursor_moves.skip_all)
    return no_content()


async def expire_by_age(call: Call) -> Response:
    await require_persistent_subscription(call, "Expire messages")

    async def act(subscription: Subscription) -> None:
        if not await _expire_by_age(call, subscription):
            raise _nothing_expired(subscription)

    await on_each_subscription(call, act)
    return no_content()


async def expire_in_all(call: Call) -> Response:
    """Expire messages that are older than `seconds` on every subscription. Requires permission to consume from all of
    them. As in Pulsar, the call ends with 409 if a subscription had no message to expire, after all other subscriptions
    were processed.
    """
    name = call.topic_name()
    await call.require_consume(name, "")
    require_persistent(call, "Expire messages")

    async def check(topic: Topic) -> None:
        for subscription_name in topic.subscriptions:
            await call.require_consume(name, subscription_name)

    async def act(topic: Topic) -> None:
        await check(topic)  # a subscription may have been created meanwhile
        refused = []
        for subscription_name in list(topic.subscriptions):
            async with topic.subscription_lock(subscription_name, BEING_CHANGED):
                subscription = topic.subscriptions.get(subscription_name)
                if subscription is not None and not await _expire_by_age(call, subscription):
                    refused.append(subscription)
        if refused:
            raise _nothing_expired(refused[0])

    await on_each_topic(call, check)
    await on_each_topic(call, act)
    return no_content()


async def _expire_by_age(call: Call, subscription: Subscription) -> bool:
    seconds = call.integer("seconds")
    if seconds <= 0 or not subscription.cursor.backlog_entries:
        return False
    expired = await cursor_moves.expire(subscription, call.runtime.clock.wall_ms() - seconds * 1000)
    return expired > 0 or not subscription.consumers


async def expire_by_position(call: Call) -> Response:
    """Expire messages up to and including the message in the body."""

    async def act(subscription: Subscription) -> None:
        position = await call.place()
        if position > subscription.cursor.ledger.last_confirmed:
            raise _nothing_expired(subscription)
        await cursor_moves.expire_to(subscription, position)

    await _on_single_subscription(call, "Expire messages", act)
    return no_content()


def _nothing_expired(subscription: Subscription) -> AdminError:
    return AdminError(
        409,
        f"Expire message not issued on topic {subscription.topic.name} for subscription {subscription.name}: "
        "no message is old enough, or the message does not exist",
    )


async def reset_by_time(call: Call) -> Response:
    """Move the subscription to the first message that was published at or after `timestamp` (Unix milliseconds)."""
    await require_persistent_subscription(call, "Reset cursor")
    publish_time_ms = call.integer("timestamp")

    async def act(subscription: Subscription) -> None:
        await cursor_moves.reset_to_time(subscription, publish_time_ms)

    await on_each_subscription(call, act)
    return no_content()


async def reset_by_position(call: Call) -> Response:
    """Move the subscription to the message in the body, or to the first existing message after it."""

    async def act(subscription: Subscription) -> None:
        await cursor_moves.reset(subscription, await call.place())

    await _on_single_subscription(call, "Reset cursor", act)
    return no_content()


async def _on_single_subscription(call: Call, what: str, action: Callable[[Subscription], Awaitable[None]]) -> None:
    await require_persistent_subscription(call, what)
    require_not_partitioned(call, call.topic_name())
    await on_subscription(call, action)
