"""REST operations on one message, consumer, or producer: `.../message/{ledger}/{entry}/...` and `.../disconnect`.

Each call is recorded in the audit log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.responses import Response
from starlette.routing import Route

from pybroker.admin.calls.call import Call, no_content
from pybroker.admin.calls.existing import (
    any_subscription_of,
    existing_any_topic,
    on_subscription,
    require_persistent_subscription,
)
from pybroker.admin.calls.partitions import require_not_partitioned
from pybroker.admin.calls.queries import BATCH_INDEX, Query
from pybroker.admin.calls.route_paths import SUBSCRIPTION, TOPIC
from pybroker.admin.calls.routing import route
from pybroker.broker.delivery import single_messages
from pybroker.broker.delivery.subscription import Subscription
from pybroker.errors import AdminError
from pybroker.model.position import Position

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

MESSAGE = SUBSCRIPTION + "/message/{ledger_id}/{entry_id}"
CONSUMER_ID = Query("consumerId", "id of one consumer, if several have this name", int)


def routes() -> list[Route]:
    return [
        route("POST", MESSAGE + "/acknowledge", acknowledge, queries=(BATCH_INDEX,)),
        route("POST", MESSAGE + "/redeliver", redeliver),
        route("POST", SUBSCRIPTION + "/consumer/{consumer}/disconnect", disconnect_consumer, queries=(CONSUMER_ID,)),
        route("POST", TOPIC + "/producer/{producer}/disconnect", disconnect_producer),
    ]


async def acknowledge(call: Call) -> Response:
    """Acknowledge one entry, or with `batchIndex` one message of its batch. The acknowledgement is durable when the
    call returns. 409 if an open transaction has acknowledged the message.

    A consumer that has received the message may still process it.
    """
    await require_persistent_subscription(call, "Acknowledging a message")
    position, batch_index = _position(call), _batch_index(call)
    if batch_index is not None:
        # Reserve memory before taking the lock: a lock holder must not wait for memory of others.
        await call.share.of_views(call.config.max_message_size)

    async def act(subscription: Subscription) -> None:
        await single_messages.acknowledge(subscription, position, batch_index)

    await on_message(call, "Acknowledging a message", act)
    return no_content()


async def redeliver(call: Call) -> Response:
    """Take one entry from its consumer and redeliver it now. All chunks of a large message are redelivered.

    409 if no consumer holds the entry, 412 for Exclusive and Failover subscriptions. The previous consumer may still
    process the message.
    """
    position = _position(call)

    async def act(subscription: Subscription) -> None:
        single_messages.redeliver(subscription, position)

    await on_message(call, "Redelivering a message", act)
    return no_content()


async def disconnect_consumer(call: Call) -> Response:
    """Close the consumers with the name in the path, or with `consumerId` only one of them. Their messages are
    redelivered. Clients reconnect.
    """
    subscription_name, name = call.name("subscription"), call.name("consumer")
    await call.require_consume(call.topic_name(), subscription_name)
    consumer_id = None if call.query("consumerId") is None else call.query_integer("consumerId", 0)
    topic = await existing_any_topic(call)
    subscription = any_subscription_of(topic, subscription_name)
    found = [
        consumer
        for consumer in subscription.consumers
        if consumer.name == name and consumer_id in (None, consumer.consumer_id)
    ]
    if not found:
        raise AdminError(404, f"Consumer {name} is not connected to subscription {subscription_name}")
    for consumer in found:
        consumer.close_from_broker()
    return no_content()


async def disconnect_producer(call: Call) -> Response:
    """Close the producer with the name in the path. Its client reconnects."""
    await call.require_topic_admin(call.topic_name())
    name = call.name("producer")
    topic = await existing_any_topic(call)
    producer = topic.producers.get(name)
    if producer is None:
        raise AdminError(404, f"Producer {name} is not connected to topic {topic.name}")
    producer.close_from_broker()
    return no_content()


async def on_message(call: Call, what: str, action: Callable[[Subscription], Awaitable[None]]) -> None:
    """Run `action` on the subscription in the path, under its lock. The topic must not be partitioned. `what` names the
    operation in error texts.
    """
    await require_persistent_subscription(call, what)
    require_not_partitioned(call, call.topic_name())
    await on_subscription(call, action)


def _position(call: Call) -> Position:
    return Position(call.integer("ledger_id"), call.integer("entry_id"))


def _batch_index(call: Call) -> int | None:
    return None if call.query("batchIndex") is None else call.query_integer("batchIndex", 0)
