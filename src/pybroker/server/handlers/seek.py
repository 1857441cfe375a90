"""SEEK: a consumer's subscription goes on somewhere else.

All its consumers are told to subscribe again before the asker is answered, as clients expect it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pybroker.broker import cursor_moves
from pybroker.broker.subscription import Subscription
from pybroker.errors import MetadataError
from pybroker.model.ack_set import word_count
from pybroker.model.position import from_wire
from pybroker.server.handlers.consumer import require_consumer
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire import replies

if TYPE_CHECKING:
    from pybroker.server.connection import Connection


async def seek(connection: Connection, command: pb.BaseCommand) -> None:
    """Go on at a message, or at the first one published at a time or later."""
    request = command.seek
    subscription = require_consumer(connection, request.consumer_id).subscription
    if not isinstance(subscription, Subscription):
        pass  # There is nothing to go back to, and nothing is skipped: as Pulsar does, that is no error.
    elif request.HasField("message_id"):
        target = request.message_id
        position = from_wire(target.ledgerId, target.entryId)
        # No batch has more messages, and a frame has room for millions of words.
        max_words = word_count(connection.broker.config.max_messages_in_batch)
        await cursor_moves.reset(subscription, position, target.ack_set[:max_words])
    elif request.HasField("message_publish_time"):
        await cursor_moves.reset_to_time(subscription, request.message_publish_time)
    else:
        raise MetadataError("SEEK names neither a message nor a time")
    connection.send(replies.success(request.request_id))
