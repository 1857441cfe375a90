"""Lookup of the topic or subscription in a path, and operations on it that tolerate concurrent unloads and deletions.

An operation that changes a subscription holds the subscription's lock, and is repeated if the topic was being closed.
If the topic or subscription is deleted meanwhile, the response is 404 or 503. An operation on a partitioned topic runs
on each partition before the first error is raised.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from pybroker.admin.calls.call import Call
from pybroker.admin.calls.existing_namespaces import namespace_of_topics
from pybroker.admin.calls.partition_calls import call_owner, other_owner
from pybroker.admin.calls.partitions import topics_of
from pybroker.broker.context.topic_context import TopicContext
from pybroker.broker.delivery.subscription import Subscription
from pybroker.broker.delivery.subscription_base import SubscriptionBase
from pybroker.broker.lifecycle.open_topic import on_open_topic
from pybroker.broker.topic.subscription_registry import BEING_CHANGED
from pybroker.broker.topic.topic import Topic
from pybroker.broker.topic.topic_base import TopicBase
from pybroker.errors import AdminError, BrokerError, ServiceNotReady, StoreError, SubscriptionNotFound, TopicNotFound
from pybroker.model.names import TopicName


async def existing_topic(call: Call, name: TopicName | None = None) -> Topic:
    """Return the persistent topic `name` (default: the topic in the path), loaded if necessary.

    Raises TopicNotFound if the topic does not exist or is partitioned, AdminError 404 if its namespace does not exist,
    AdminError 405 if the topic is non-persistent.
    """
    return persistent(await existing_any_topic(call, name))


async def existing_any_topic(call: Call, name: TopicName | None = None) -> TopicBase:
    """Return the persistent or non-persistent topic `name` (default: the topic in the path), loaded if necessary.

    Raises TopicNotFound if the topic does not exist or is partitioned, AdminError 404 if its namespace does not exist.
    """
    name = name or call.topic_name()
    namespace_of_topics(call, name.namespace)
    if call.broker.partitioned.get(name) is not None:
        raise TopicNotFound(f"Topic {name} is partitioned: use one of its partitions, such as {name}-partition-0")
    return await call.broker.topics.any(name, may_create=False)


async def topic_exists(call: Call, topic: TopicName) -> bool:
    return call.broker.partitioned.get(topic) is not None or await call.broker.directory.exists(topic)


def persistent(topic: TopicBase) -> Topic:
    """Return `topic` if it is persistent. Raises AdminError 405 otherwise."""
    if not isinstance(topic, Topic):
        raise AdminError(405, f"Topic {topic.name} is not persistent, so this operation does not apply")
    return topic


def subscription_of(topic: Topic, name: str) -> Subscription:
    subscription = any_subscription_of(topic, name)
    assert isinstance(subscription, Subscription)
    return subscription


def any_subscription_of(topic: TopicBase, name: str) -> SubscriptionBase:
    subscription = topic.subscriptions.get(name)
    if subscription is None:
        raise SubscriptionNotFound(f"Subscription {name} not found for topic {topic.name}")
    return subscription


async def existing_subscription(call: Call) -> Subscription:
    """Return the subscription in the path. Raises AdminError 401 if the role may not consume, TopicNotFound or
    SubscriptionNotFound if the topic or the subscription does not exist, AdminError 405 if the topic is non-persistent.
    """
    await call.require_consume(call.topic_name(), call.name("subscription"))
    topic = await existing_any_topic(call)
    any_subscription_of(topic, call.name("subscription"))
    return subscription_of(persistent(topic), call.name("subscription"))


def require_persistent(call: Call, what: str, status: int = 405) -> None:
    """Reject a non-persistent topic in the path: AdminError with `status` if it exists, TopicNotFound if it does not. A
    persistent topic is accepted even if it does not exist. `what` names the operation in the error text.
    """
    name = call.topic_name()
    if name.is_persistent:
        return
    namespace_of_topics(call, name.namespace)
    if call.broker.loaded.get(name) is None and call.broker.partitioned.get(name) is None:
        raise TopicNotFound(f"Topic {name} not found")
    raise AdminError(status, f"{what} is not allowed on a non-persistent topic")


async def require_persistent_subscription(call: Call, what: str) -> None:
    """Check that the role may consume (otherwise 401) and that the topic in the path is persistent (otherwise 405).
    `what` names the operation in the error text.
    """
    await call.require_consume(call.topic_name(), call.name("subscription"))
    require_persistent(call, what)


@contextmanager
def while_served(topic: TopicBase | TopicContext, subscription: SubscriptionBase | None = None) -> Iterator[None]:
    """Convert a StoreError that is raised within this context: to ServiceNotReady if the topic is being unloaded, to
    SubscriptionNotFound if the subscription was deleted meanwhile. Other errors stay unchanged.
    """
    try:
        yield
    except StoreError as error:
        if topic.is_fenced:
            raise ServiceNotReady(f"Topic {topic.name} is being unloaded: send the request again") from error
        if subscription is not None and subscription.is_closed:
            raise SubscriptionNotFound(f"Subscription {subscription.name} was deleted during the request") from error
        raise


async def on_each_topic(call: Call, action: Callable[[Topic], Awaitable[None]]) -> None:
    """Run `action` on the persistent topic in the path, or on each of its partitions. After an error, the remaining
    partitions are still processed; then the first error is raised.

    For partitions that other brokers serve, the call is forwarded to these brokers.
    """

    async def act(topic: TopicBase) -> None:
        await action(persistent(topic))

    await _on_each_any_topic(call, act)


async def _on_each_any_topic(call: Call, action: Callable[[TopicBase], Awaitable[None]]) -> list[Any]:
    async def act(topic: TopicBase) -> None:
        with while_served(topic):
            await action(topic)

    answers: list[Any] = []
    failure: AdminError | BrokerError | StoreError | None = None
    for name in topics_of(call, call.topic_name()):
        try:
            if (owner := await other_owner(call, name)) is not None:
                answers.append(await call_owner(call, owner, name))
                continue
            await on_open_topic(call.broker.runtime, partial(existing_any_topic, call, name), act)
        except (AdminError, BrokerError, StoreError) as error:
            failure = failure or error
    if failure is not None:
        raise failure
    return answers


async def on_subscription(call: Call, action: Callable[[Subscription], Awaitable[None]]) -> None:
    """Run `action` on the subscription in the path, under its lock. The topic must not be partitioned. Requires
    permission to consume.
    """
    name = call.name("subscription")
    await call.require_consume(call.topic_name(), name)

    async def act(topic: TopicBase) -> None:
        any_subscription_of(topic, name)
        async with persistent(topic).subscription_lock(name, BEING_CHANGED):
            await action(subscription_of(persistent(topic), name))

    await on_open_topic(call.broker.runtime, lambda: existing_any_topic(call), act)


async def on_each_subscription(call: Call, action: Callable[[Subscription], Awaitable[None]]) -> list[Any]:
    """Run `action` on the subscription in the path, under its lock; for a partitioned topic, on the subscription of
    each partition. The topic must be persistent. Checks that the role may consume.

    For partitions that other brokers serve, the call is forwarded to these brokers. Returns their decoded responses.
    """

    async def act(_topic: TopicBase, subscription: SubscriptionBase) -> None:
        if not isinstance(subscription, Subscription):
            raise AdminError(
                405,
                (
                    f"The subscription {subscription.name} is of a non-persistent topic and stores no messages, so "
                    "this operation does not apply"
                ),
            )
        await action(subscription)

    return await on_each_any_subscription(call, act)


async def on_each_any_subscription(
    call: Call, action: Callable[[TopicBase, SubscriptionBase], Awaitable[None]]
) -> list[Any]:
    """Run `action` on the subscription in the path, under its lock; for a partitioned topic, on the subscription of
    each partition. The topic may be non-persistent. Checks that the role may consume.

    For partitions that other brokers serve, the call is forwarded to these brokers. Returns their decoded responses.
    """
    name = call.name("subscription")
    await call.require_consume(call.topic_name(), name)

    async def act(topic: TopicBase) -> None:
        async with topic.subscription_lock(name, BEING_CHANGED):
            await action(topic, any_subscription_of(topic, name))

    return await _on_each_any_topic(call, act)
