"""`/admin/v2/persistent/{tenant}/{namespace}/{topic}/subscriptions` and `.../subscription/{subscription}`.

Which there are, making and deleting them, their properties, and the last message that they may want.
"""

from __future__ import annotations

from starlette.responses import Response
from starlette.routing import Route

from pybroker.admin.call import Call, json_response, no_content, route
from pybroker.admin.message_id import ResetCursorData, message_id
from pybroker.admin.routes.namespaces import existing_namespace
from pybroker.admin.routes.topic_operations import SUBSCRIPTION, existing_subscription, existing_topic
from pybroker.admin.routes.topic_policies import TOPIC
from pybroker.errors import AdminError, TopicNotFound
from pybroker.model.position import EARLIEST, LATEST, Position
from pybroker.wire.entry_metadata import is_batch


def routes() -> list[Route]:
    return [
        route("GET", TOPIC + "/subscriptions", list_subscriptions),
        route("GET", TOPIC + "/lastMessageId", get_last_message_id),
        route("PUT", SUBSCRIPTION, create_subscription),
        route("DELETE", SUBSCRIPTION, delete_subscription),
        route("GET", SUBSCRIPTION + "/properties", get_properties),
        route("PUT", SUBSCRIPTION + "/properties", set_properties),
    ]


async def list_subscriptions(call: Call) -> Response:
    call.require_lookup(call.topic_name())
    topic = await existing_topic(call)
    return json_response(list(topic.subscriptions))


async def get_last_message_id(call: Call) -> Response:
    call.require_lookup(call.topic_name())
    if not call.topic_name().is_persistent:
        raise TopicNotFound(f"Topic {call.topic_name()} not found")
    topic = await existing_topic(call)
    last = topic.ledger.last_confirmed
    shown = message_id(last)
    if topic.ledger.ledgers.has_entry(last):
        run = await topic.ledger.read(last, 1, 1)
        if is_batch(run.payloads[0]):
            shown.batchIndex = run.message_counts[0] - 1
    return json_response(shown)


async def create_subscription(call: Call) -> Response:
    """At a message, or the first one behind it; behind the last one without a body. Makes the topic as a consumer would."""
    name, subscription = call.topic_name(), call.name("subscription")
    call.require_consume(name, subscription)
    if not name.is_persistent:
        raise AdminError(400, "Create subscription on non-persistent topic can only be done through client")
    existing_namespace(call, name.namespace)
    start = await call.optional_json(ResetCursorData)
    topic = await call.broker.get_topic(name, may_create=call.config.allow_auto_topic_creation)
    if subscription in topic.subscriptions:
        raise AdminError(409, "Subscription already exists for topic")
    first, properties = LATEST, {}
    if start is not None:
        properties = start.properties
        first = start.position if start.position >= Position(0, 0) else EARLIEST
        if start.isExcluded and first != EARLIEST:
            first = Position(first.ledger_id, first.entry_id + 1)
    await topic.create_subscription(subscription, first, properties)
    return no_content()


async def delete_subscription(call: Call) -> Response:
    """With consumers on it only when forced; they are told to subscribe again, which makes a new one."""
    subscription = await existing_subscription(call)
    if subscription.consumers and not call.flag("force"):
        raise AdminError(412, "Subscription has active connected consumers")
    await subscription.topic.delete_subscription(subscription)
    return no_content()


async def get_properties(call: Call) -> Response:
    return json_response((await existing_subscription(call)).cursor.properties)


async def set_properties(call: Call) -> Response:
    """Those of the body, none without one, instead of what there was."""
    subscription = await existing_subscription(call)
    await subscription.cursor.set_properties(await call.optional_json(dict[str, str]) or {})
    return no_content()
