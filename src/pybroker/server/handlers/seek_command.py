"""SEEK. Clients expect that the broker disconnects all consumers of the subscription before it responds."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from pybroker.broker.delivery import cursor_moves
from pybroker.broker.delivery.subscription import Subscription
from pybroker.broker.lifecycle.open_topic import on_open_topic
from pybroker.broker.topic.subscription_registry import BEING_MOVED
from pybroker.broker.topic.topic import Topic
from pybroker.broker.topic.topic_base import TopicBase
from pybroker.errors import MetadataError
from pybroker.model.ack_set import word_count
from pybroker.model.position import from_wire
from pybroker.server.handlers.consumer_commands import require_consumer
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire import replies

if TYPE_CHECKING:
    from pybroker.server.connection import Connection


async def seek(connection: Connection, command: pb.BaseCommand) -> None:
    """Move the subscription to a message id, or to the first message published at or after a time."""
    request = command.seek
    broker = connection.broker
    move = _move(request, word_count(broker.runtime.config.max_messages_in_batch))
    asked = require_consumer(connection, request.consumer_id).subscription
    if isinstance(asked, Subscription):
        request_id, name, subscription = request.request_id, asked.topic.name, asked.name
        del command, request  # release the memory of the command before waiting
        await on_open_topic(
            broker.runtime,
            lambda: broker.topics.any(name, may_create=False),
            lambda topic: _in_turn(topic, subscription, move),
        )
    else:
        request_id = request.request_id  # Like Pulsar, succeed: nothing is stored.
    connection.send(replies.success(request_id))


def _move(request: pb.CommandSeek, max_words: int) -> Callable[[Subscription], Awaitable[None]]:
    if request.HasField("message_id"):
        target = request.message_id
        position = from_wire(target.ledgerId, target.entryId)
        # limit: a frame could contain millions of words
        words = target.ack_set[:max_words]
        return lambda subscription: cursor_moves.reset(subscription, position, words)
    if request.HasField("message_publish_time"):
        publish_time_ms = request.message_publish_time
        return lambda subscription: cursor_moves.reset_to_time(subscription, publish_time_ms)
    raise MetadataError("Message id and message publish time were not present")


async def _in_turn(topic: TopicBase, name: str, move: Callable[[Subscription], Awaitable[None]]) -> None:
    """Call `move` with the subscription, under its lock. Another request may have moved or replaced the
    subscription.
    """
    async with topic.subscription_lock(name, BEING_MOVED):
        assert isinstance(topic, Topic)
        await move(topic.registry.present(name))
