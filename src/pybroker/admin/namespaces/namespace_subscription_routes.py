"""Operations on the subscriptions of all topics in a namespace or bundle.

Paths: `/admin/v2/namespaces/{tenant}/{namespace}[/{bundle}]/...`.

Topics that are deleted meanwhile are skipped.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

from starlette.responses import Response
from starlette.routing import Route

from pybroker.admin.calls.call import Call, no_content
from pybroker.admin.calls.existing import persistent
from pybroker.admin.calls.existing_namespaces import administered_namespace, listed_topics, namespace_of_topics
from pybroker.admin.calls.route_paths import NAMESPACE
from pybroker.admin.calls.routing import route
from pybroker.admin.namespaces.bundle_owners import on_each_bundle
from pybroker.admin.namespaces.bundle_routes import positions_in
from pybroker.broker.delivery import cursor_moves
from pybroker.broker.lifecycle.open_topic import on_open_topic
from pybroker.broker.topic.subscription_registry import BEING_CHANGED, BEING_DELETED
from pybroker.broker.topic.topic import Topic
from pybroker.broker.topic.topic_base import TopicBase
from pybroker.cluster.bundles import Bundle, checked_bundle
from pybroker.errors import AdminError, TopicNotFound
from pybroker.model.names import PERSISTENT, TopicName

BUNDLE = NAMESPACE + "/{bundle}"


def routes() -> list[Route]:
    return [
        route("POST", NAMESPACE + "/clearBacklog", clear_backlog),
        route("POST", NAMESPACE + "/clearBacklog/{subscription}", clear_backlog_of_subscription),
        route("POST", BUNDLE + "/clearBacklog", clear_backlog),
        route("POST", BUNDLE + "/clearBacklog/{subscription}", clear_backlog_of_subscription),
        route("POST", NAMESPACE + "/unsubscribe/{subscription}", unsubscribe),
        route("POST", BUNDLE + "/unsubscribe/{subscription}", unsubscribe),
    ]


async def clear_backlog(call: Call) -> Response:
    """Skip the backlog of every subscription of every topic."""

    async def act(topic: Topic) -> None:
        for name in list(topic.subscriptions):
            await _clear(topic, name)

    await _on_topics(call, act)
    return no_content()


async def clear_backlog_of_subscription(call: Call) -> Response:
    """Skip the backlog of the subscription in the path on every topic that has this subscription."""

    async def act(topic: Topic) -> None:
        await _clear(topic, call.name("subscription"))

    await _on_topics(call, act)
    return no_content()


async def _clear(topic: Topic, name: str) -> None:
    if name in topic.subscriptions:
        async with topic.subscription_lock(name, BEING_CHANGED):
            subscription = topic.subscriptions.get(name)
            if subscription is not None:
                await cursor_moves.skip_all(subscription)


async def unsubscribe(call: Call) -> Response:
    """Delete the subscription in the path on every topic, except on topics where it has consumers. If there are such
    topics, the call ends with 412 after the other deletions.
    """
    busy = []

    async def act(topic: Topic) -> None:
        async with topic.subscription_lock(call.name("subscription"), BEING_DELETED):
            subscription = topic.subscriptions.get(call.name("subscription"))
            if subscription is None:
                return
            if subscription.consumers:
                busy.append(topic.name)
            else:
                await topic.delete_subscription(subscription)

    await _on_topics(call, act)
    if busy:
        raise AdminError(412, f"Subscription has active connected consumers on {len(busy)} topics, one is {busy[0]}")
    return no_content()


async def _on_topics(call: Call, action: Callable[[Topic], Awaitable[None]]) -> None:
    """Run `action` on the topics of the namespace, or of the bundle in the path, one after the other. Unloaded topics
    are loaded.
    """

    async def act(topic: TopicBase) -> None:
        await action(persistent(topic))

    async def act_on_bundle(bundle: Bundle | None) -> None:
        names = await listed_topics(call, namespace, PERSISTENT)
        for name in names if bundle is None else list(await positions_in(call, names, bundle)):
            with suppress(TopicNotFound):
                await on_open_topic(
                    call.broker.runtime, partial(call.broker.topics.get, TopicName.parse(name), may_create=False), act
                )

    namespace = await administered_namespace(call)
    boundaries = namespace_of_topics(call, namespace).bundles.boundaries
    if "bundle" in call.scope["path_params"]:
        await act_on_bundle(checked_bundle(call.name("bundle"), boundaries))
    else:
        behind = call.scope["path"].removeprefix(f"/admin/v2/namespaces/{namespace}")
        await on_each_bundle(call, namespace, behind, act_on_bundle, may_acquire=True)
