"""Which handler serves which command, and whether it runs at once or as a task.

Inline handlers keep the order in which a client sent its commands; the others may wait for storage, and answer in any order, as
requests with ids may.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pybroker.errors import NotAllowedError
from pybroker.server.handler import Handler
from pybroker.server.handlers import consumer, lookup, producer, schema, seek, session, topic_list
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire import replies

if TYPE_CHECKING:
    from pybroker.server.connection import Connection

Type = pb.BaseCommand.Type


CommandTable = dict[pb.BaseCommand.Type, Handler["Connection"]]


def _unsupported(field: str, what: str) -> Handler[Connection]:
    """A command whose feature is not there yet: its request is refused with a reason."""

    def refuse(connection: Connection, command: pb.BaseCommand) -> None:
        request_id = int(getattr(command, field).request_id)
        connection.send(replies.error(request_id, NotAllowedError(f"{what} not supported yet")))

    return Handler(field, inline=refuse)


def command_table() -> CommandTable:
    """The table that all connections use."""
    transactions = "transactions are"
    return {
        Type.CONNECT: Handler("connect", inline=session.connect),
        Type.AUTH_RESPONSE: Handler("authResponse", inline=session.auth_response),
        Type.PING: Handler("ping", inline=session.ping),
        Type.PONG: Handler("pong", inline=session.pong),
        Type.PARTITIONED_METADATA: Handler("partitionMetadata", task=lookup.partitioned_metadata),
        Type.LOOKUP: Handler("lookupTopic", task=lookup.lookup),
        Type.GET_TOPICS_OF_NAMESPACE: Handler("getTopicsOfNamespace", task=topic_list.get_topics_of_namespace),
        Type.PRODUCER: Handler("producer", task=producer.create_producer),
        Type.CLOSE_PRODUCER: Handler("close_producer", task=producer.close_producer),
        Type.SUBSCRIBE: Handler("subscribe", task=consumer.subscribe),
        Type.CLOSE_CONSUMER: Handler("close_consumer", inline=consumer.close_consumer),
        Type.UNSUBSCRIBE: Handler("unsubscribe", task=consumer.unsubscribe),
        Type.REDELIVER_UNACKNOWLEDGED_MESSAGES: Handler(
            "redeliverUnacknowledgedMessages", inline=consumer.redeliver_unacknowledged
        ),
        Type.GET_LAST_MESSAGE_ID: Handler("getLastMessageId", task=consumer.get_last_message_id),
        Type.CONSUMER_STATS: Handler("consumerStats", inline=consumer.consumer_stats),
        Type.SEEK: Handler("seek", task=seek.seek),
        Type.GET_SCHEMA: Handler("getSchema", task=schema.get_schema),
        Type.GET_OR_CREATE_SCHEMA: Handler("getOrCreateSchema", task=schema.get_or_create_schema),
        Type.TC_CLIENT_CONNECT_REQUEST: _unsupported("tcClientConnectRequest", transactions),
        Type.NEW_TXN: _unsupported("newTxn", transactions),
        Type.ADD_PARTITION_TO_TXN: _unsupported("addPartitionToTxn", transactions),
        Type.ADD_SUBSCRIPTION_TO_TXN: _unsupported("addSubscriptionToTxn", transactions),
        Type.END_TXN: _unsupported("endTxn", transactions),
        Type.END_TXN_ON_PARTITION: _unsupported("endTxnOnPartition", transactions),
        Type.END_TXN_ON_SUBSCRIPTION: _unsupported("endTxnOnSubscription", transactions),
        Type.WATCH_TOPIC_LIST: Handler("watchTopicList", task=topic_list.watch_topic_list),
        Type.WATCH_TOPIC_LIST_CLOSE: Handler("watchTopicListClose", inline=topic_list.watch_topic_list_close),
    }
